"""Graphs that PyTensor has rewritten before are taken from a store."""

from __future__ import annotations

import jax
import numpy as np
import pytensor
import pytensor.sparse as ps  # PyTensor imports it while it rewrites, and with it more rewrites
import pytensor.tensor as pt
import pytest
import scipy.sparse as sp
from pytensor.compile.builders import OpFromGraph
from pytensor.conditional.op import ifelse
from pytensor.tensor.elemwise import Elemwise

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.graph.rewritten import environment
from pytensor_jaxpr_linker.graph.rewritten.store import STORE

pytestmark = pytest.mark.usefixtures("empty_store")


def compiled(make, mode="JAXPR", **kwargs):
    """Compile a graph that `make` builds; return the function, and whether its rewritten graph was found."""
    inputs, outputs = make()
    hits, looked = STORE.hits, STORE.hits + STORE.misses
    f = pytensor.function(inputs, outputs, mode=mode, **kwargs)
    assert STORE.hits + STORE.misses - looked <= 1
    return f, STORE.hits > hits


def is_found(make, other=None, **kwargs) -> bool:
    """Return whether the second graph is taken for the first."""
    compiled(make, **kwargs)
    return compiled(other or make, **kwargs)[1]


def vectors():
    x, y = pt.dvector("x"), pt.dvector("y")
    z = pt.exp(x).sum() * y + pt.log(pt.exp(y) + 0.0)
    return [x, y], [z, pytensor.grad(z.sum(), x), x * 1]


def draws():
    scale, rng = pt.dscalar("scale"), pytensor.shared(np.random.default_rng(1), name="rng")
    return [scale], [pt.random.normal(0, scale, size=3, rng=rng, return_next_rng=True)[1] + 0.0]


def loop():
    x = pt.dvector("x")
    rows = pytensor.scan(lambda s: s * 2 + 1, outputs_info=x, n_steps=4, return_updates=False)
    return [x], [rows[-1], pytensor.grad(rows.sum(), x)]


def inner_function():
    x, y = pt.dvector("x"), pt.dvector("y")
    return [x, y], [OpFromGraph([x, y], [x * y + x * 1])(pt.exp(x), y) + 0]


def branches():
    c, x = pt.bscalar("c"), pt.dvector("x")
    return [c, x], [ifelse(c, pt.exp(x) * 1, x + 0)]


def sparse_product():
    x = pt.dvector("x")
    matrix = ps.as_sparse_variable(sp.csr_matrix(np.eye(3) * 2))
    return [x], [ps.structured_dot(matrix, x[:, None]) + 0]


def outputs_of_all_kinds():
    x = pt.dvector("x")
    x.name = None
    return [x, pt.dscalar("unused")], [x, x, pt.constant([1.0, 2.0]) * 1, pt.exp(x), pt.exp(x)]


VECTOR = np.array([0.5, -1.0, 2.0])
GRAPHS = {
    vectors: [VECTOR, VECTOR],
    draws: [2.0],
    loop: [VECTOR],
    inner_function: [VECTOR, VECTOR],
    branches: [1, VECTOR],
    sparse_product: [VECTOR],
    outputs_of_all_kinds: [VECTOR, 1.0],
}


@pytest.mark.parametrize("make", GRAPHS)
def test_a_found_graph_is_the_rewritten_one(make):
    """It has the equations, results and explanation of the function that was compiled first."""
    values = GRAPHS[make]
    (first, was_found), (second, is_found) = (compiled(make, on_unused_input="ignore") for _ in range(2))
    assert (was_found, is_found) == (False, True)
    assert str(second.maker.fgraph) == str(first.maker.fgraph)
    for a, b in zip(first(*values), second(*values), strict=True):
        np.testing.assert_array_equal(a, b)
    assert str(pjl.make_jaxpr(second, *values)) == str(pjl.make_jaxpr(first, *values))
    assert names(second) == names(first)


def names(f):
    """Return names and types of a function's variables in order."""
    return [[(v.name, v.type) for v in node.outputs] for node in f.maker.fgraph.toposort()]


def test_gradients_follow_the_graph_before_rewrites():
    def make():
        return ([x := pt.dvector("x")], [(pytensor.gradient.zero_grad(pt.exp(x)) * x).sum()])

    (first, _), (second, is_found) = compiled(make), compiled(make)
    assert is_found
    with jax.enable_x64(True):
        for gradient in ("pytensor", "jax"):
            functions = [pjl.as_jax_function(f, gradient=gradient) for f in (first, second)]
            one, other = (jax.grad(lambda v, g=g: g(v)[0])(VECTOR) for g in functions)
            np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(jax.grad(lambda v: pjl.as_jax_function(second)(v)[0])(VECTOR), np.exp(VECTOR))


def test_updates():
    def make(start):
        state = pytensor.shared(np.zeros(2), name="state")
        state.set_value(np.full(2, start))
        return state, pytensor.function([], state * 2 + 0, updates={state: state + 1}, mode="JAXPR")

    make(0.0)
    hits = STORE.hits
    state, f = make(5.0)
    assert STORE.hits == hits + 1
    np.testing.assert_array_equal(f(), [10.0, 10.0])
    np.testing.assert_array_equal(state.get_value(), [6.0, 6.0])


def graph_of(dtype="float64", shape=(None,), constant=2.0, name="x", op=pt.exp):
    x = pt.tensor(name, dtype=dtype, shape=shape)
    return [x], [op(x).sum() * np.asarray(constant)]


@pytest.mark.parametrize(
    "changed",
    [
        {"dtype": "float32"},
        {"shape": (3,)},
        {"constant": 2.0 + 1e-15},
        {"constant": -2.0},
        {"constant": np.float32(2.0)},
        {"constant": [2.0]},
        {"name": "y"},
        {"op": pt.sin},
        {"op": lambda x: pt.sum(x, axis=0, keepdims=True)},
        {"op": Elemwise(pytensor.scalar.Exp(pytensor.scalar.upgrade_to_float, name="other"))},
    ],
)
def test_another_graph_is_not_found(changed):
    assert is_found(graph_of)
    STORE.clear()
    assert not is_found(graph_of, lambda: graph_of(**changed))


def test_the_constant_zero_has_a_sign():
    assert not is_found(lambda: graph_of(constant=0.0), lambda: graph_of(constant=-0.0))


def test_inputs_in_another_order_are_not_found():
    def make(turn):
        x, y = pt.dvector("v"), pt.dvector("v")
        return ([y, x] if turn else [x, y]), [x / y]

    assert not is_found(lambda: make(False), lambda: make(True))


def test_a_tag_that_a_rewrite_reads_is_part_of_the_graph():
    def make(is_lower):
        m = pt.dmatrix("m")
        n = m + 1
        if is_lower:
            n.tag.lower_triangular = True
        return [m], [pt.linalg.cholesky(n @ n.T)]

    assert not is_found(lambda: make(True), lambda: make(False))
    f, _ = compiled(lambda: make(False))
    assert "Cholesky" in str(f.maker.fgraph)


def test_marks_of_inputs_are_part_of_the_graph():
    def make(mark):
        n = mark(pt.lscalar("n"))
        return [n], [pt.as_tensor(n) * 2]

    assert not is_found(lambda: make(pjl.mark_static), lambda: make(lambda v: v))


@pytest.mark.parametrize(
    "other",
    [
        pjl.JAXPR.excluding("local_add_canonizer"),
        pjl.JAXPR.excluding("fusion", "specialize"),
        pjl.JAXPR.including("local_remove_all_assert"),
    ],
)
def test_another_query_is_not_found(other):
    compiled(graph_of)
    assert not compiled(graph_of, mode=other)[1]
    assert compiled(graph_of, mode=other)[1]


def test_another_setting_is_not_found():
    compiled(graph_of)
    with pytensor.config.change_flags(optdb__max_use_ratio=7):
        assert not compiled(graph_of)[1]
    assert compiled(graph_of)[1]


def test_in_a_folder_other_versions_are_not_found(monkeypatch, tmp_path):
    STORE.use(tmp_path / "graphs")
    compiled(graph_of)
    environment.versions.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(pytensor, "__version__", "0.0")
        assert not compiled(graph_of)[1]
    environment.versions.cache_clear()
    assert compiled(graph_of)[1]


def test_in_a_folder_a_source_that_changed_after_its_import_ends_it(monkeypatch, tmp_path):
    STORE.use(tmp_path / "graphs")
    environment.versions.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(environment, "IMPORTED", 0)
        assert not is_found(graph_of)
    environment.versions.cache_clear()
    assert is_found(graph_of)
