"""Symbolic lengths: a graph is exported once by `jax.export` and called at several lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.errors import InconclusiveDimensionOperation
from jax.experimental import checkify
from symbolic_graphs import GRAPHS, Graph

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.graph.static_values import within

pytestmark = pytest.mark.usefixtures("x64")


def make_inputs(graph: Graph) -> tuple[list, list]:
    """Return the variables of a graph, and their abstract values."""
    n, m = jax.export.symbolic_shape("n, m")
    dims = {"n": n, "m": m}
    variables, avals = [], []
    for text in graph.inputs:
        kind, *lengths = text.split()
        shape = tuple(dims[v] if v in dims else int(v) for v in (lengths * 2 if kind == "s" else lengths))
        dtype = "int64" if kind in "ik" else "float64"
        variables.append(pt.tensor(f"{kind}{len(avals)}", dtype=dtype, shape=(None,) * len(shape)))
        avals.append(jax.ShapeDtypeStruct(shape, dtype))
    return variables, avals


def make_values(graph: Graph, lengths: dict[str, int], seed: int) -> list[np.ndarray]:
    """Return values of the inputs."""
    rng = np.random.default_rng(seed)
    values = []
    for text in graph.inputs:
        kind, *names = text.split()
        shape = [lengths[v] if v in lengths else int(v) for v in names]
        if kind == "s":
            root = rng.normal(size=(shape[0], shape[0]))
            values.append(root @ root.T + shape[0] * np.eye(shape[0]))
        elif kind == "x":
            values.append(rng.normal(size=shape))
        else:
            values.append(np.asarray(rng.integers(0, 2 if kind == "i" else 1, size=shape)))
    return values


def outputs_of(graph: Graph, variables: Sequence) -> list:
    outputs = graph.make(*variables)
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]


def compare_exported(graph: Graph, fns: Sequence[Callable], avals: Sequence, variables: Sequence, wanted: list) -> None:
    """Compare exported functions with PyTensor's own evaluation of `wanted`, at each of the graph's lengths."""
    exported = [jax.export.export(jax.jit(fn))(*avals) for fn in fns]
    reference = pytensor.function(variables, wanted, mode="FAST_COMPILE", on_unused_input="ignore")
    for seed, lengths in enumerate(graph.lengths):
        values = make_values(graph, lengths, seed)
        expected = reference(*values)
        for each in exported:
            for got, want in zip(jax.tree.leaves(each.call(*values)), expected, strict=True):
                assert got.shape == want.shape
                np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", GRAPHS)
def test_values(name):
    graph = GRAPHS[name]
    variables, avals = make_inputs(graph)
    outputs = outputs_of(graph, variables)
    compare_exported(graph, [pjl.as_jax_function(variables, outputs)], avals, variables, outputs)


#: What JAX can't do with a symbolic length: the graphs whose gradient by JAX's rules fails, and the same in `jax.numpy`.
JAX_FAILS: dict[str, tuple[type[Exception], Callable, tuple[str, ...]]] = {
    "cumprod": (NotImplementedError, lambda x: jnp.cumprod(x).sum(), ("n",)),
    "gaussian-process": (
        InconclusiveDimensionOperation,
        lambda k, x: jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(k), x, lower=True).sum(),
        ("n, n", "n"),
    ),
    "solve": (
        InconclusiveDimensionOperation,
        lambda k, x: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(k), True), x).sum(),
        ("n, n", "n"),
    ),
    "solve-triangular": (
        InconclusiveDimensionOperation,
        lambda k, x: jax.scipy.linalg.solve_triangular(k, x, lower=True).sum(),
        ("n, n", "n"),
    ),
}
#: `jax.numpy` can't export this. By PyTensor's rule the gradient's length is ``max(n, 3) - min(n, 3) + 3``, which JAX does not see to be n.
PYTENSOR_FAILS = {"convolve-valid": ValueError}


@pytest.mark.parametrize("name", [name for name, graph in GRAPHS.items() if graph.gradient])
def test_gradients(name):
    """The graph of `pt.grad`, and `jax.grad` by PyTensor's rules and by JAX's."""
    graph = GRAPHS[name]
    variables, avals = make_inputs(graph)
    outputs = outputs_of(graph, variables)
    cost = pt.add(*[(pt.cos(x * 1.5) if x.type.dtype == "float64" else x).sum() for x in outputs], 0.0)
    places = tuple(i for i, v in enumerate(variables) if v.type.dtype == "float64")
    grads = pt.grad(cost, [variables[i] for i in places], disconnected_inputs="ignore")

    def gradient(rules: str) -> Callable:
        fn = pjl.as_jax_function(variables, [cost], gradient=rules)
        return jax.grad(lambda *args: fn(*args)[0], argnums=places)

    fns: list[Any] = [pjl.as_jax_function(variables, grads)]
    for rules, fails in (("pytensor", PYTENSOR_FAILS), ("jax", {k: v[0] for k, v in JAX_FAILS.items()})):
        if name in fails:
            with pytest.raises(fails[name]):
                jax.export.export(jax.jit(gradient(rules)))(*avals)
        else:
            fns.append(gradient(rules))
    compare_exported(graph, fns, avals, variables, grads)


@pytest.mark.parametrize("name", JAX_FAILS)
def test_hand_written_jax_fails_alike(name):
    error, control, shapes = JAX_FAILS[name]
    scope = jax.export.SymbolicScope()
    avals = [jax.ShapeDtypeStruct(jax.export.symbolic_shape(s, scope=scope), "float64") for s in shapes]
    with pytest.raises(error):
        jax.export.export(jax.jit(jax.grad(control)))(*avals)


@pytest.mark.parametrize("name", GRAPHS)
def test_batches(name):
    """`jax.vmap` over a batch of symbolic length, before the export."""
    graph = GRAPHS[name]
    variables, avals = make_inputs(graph)
    outputs = outputs_of(graph, variables)
    scope = next(n.scope for aval in avals for n in aval.shape if not isinstance(n, int))
    (size,) = jax.export.symbolic_shape("batch", scope=scope)
    batched = [jax.ShapeDtypeStruct((size, *aval.shape), aval.dtype) for aval in avals]
    exported = jax.export.export(jax.jit(jax.vmap(pjl.as_jax_function(variables, outputs))))(*batched)
    reference = pytensor.function(variables, outputs, mode="FAST_COMPILE", on_unused_input="ignore")
    for lengths in graph.lengths[:2]:
        rows = [make_values(graph, lengths, seed) for seed in range(3)]
        results = jax.tree.leaves(exported.call(*map(np.stack, zip(*rows, strict=True))))
        for i, row in enumerate(rows):
            for got, want in zip(results, reference(*row), strict=True):
                np.testing.assert_allclose(got[i], want, rtol=1e-8, atol=1e-10)


# -- slices ------------------------------------------------------------------------------------------------------------

BOUND = st.none() | st.integers(-5, 5)
STEP = st.none() | st.integers(-3, 3).filter(bool)
#: The length of an axis: its expression in n, and its value.
LENGTHS = {"n": lambda n: n, "2*n": lambda n: 2 * n, "n + 3": lambda n: n + 3}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=BOUND, stop=BOUND, step=STEP, length=st.sampled_from(list(LENGTHS)))
def test_slices_are_those_of_numpy(start, stop, step, length):
    """Reads, writes and increments at slices with constant bounds; also behind a slice that may be empty."""
    x, entry = pt.dvector("x"), slice(start, stop, step)
    outputs = [x[entry], pt.set_subtensor(x[entry], 2.0), pt.inc_subtensor(x[entry], 3.0)]
    shape = jax.export.symbolic_shape(length)
    fn = jax.jit(pjl.as_jax_function([x], outputs))
    exported = jax.export.export(fn)(jax.ShapeDtypeStruct(shape, "float64"))
    for n in (1, 2, 3, 6):
        value = np.arange(LENGTHS[length](n), dtype="float64")
        written, added = value.copy(), value.copy()
        written[entry] = 2.0
        added[entry] += 3.0
        for got, want in zip(exported.call(value), (value[entry], written, added), strict=True):
            np.testing.assert_array_equal(got, want)


#: Shape arithmetic: a function of two lengths.
ARITHMETIC = st.recursive(
    st.sampled_from([lambda n, m: n, lambda n, m: m])
    | st.integers(-3, 7).map(lambda k: lambda n, m: pt.constant(k, dtype="int64")),
    lambda inner: st.builds(
        lambda op, f, g: lambda n, m: op(f(n, m), g(n, m)),
        st.sampled_from(
            [
                pt.add,
                pt.sub,
                pt.mul,
                pt.maximum,
                pt.minimum,
                lambda u, v: u // 3 + v % 4,
                lambda u, v: pt.switch(pt.lt(u, v), u + 1, v),
                lambda u, v: pt.switch(pt.or_(pt.eq(u, v), pt.ge(u, 2)), v, -u),
                lambda u, v: pt.abs(u) + pt.sign(v) + pt.clip(u, -1, 4),
                lambda u, v: pt.neq(u, v) * pt.sqr(v) - pt.le(u, v),
                lambda u, v: pt.prod(pt.stack([u, v])) + pt.stack([u, v, u])[::-1].sum() + pt.stack([u, v]).max(),
            ]
        ),
        inner,
        inner,
    ),
    max_leaves=5,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(compute=ARITHMETIC)
def test_shape_arithmetic(compute):
    """What follows from lengths is a length: ``zeros(k)`` for a computed k, which JAX knows not to be negative."""
    x, y = pt.dvector("x"), pt.dvector("y")
    number = compute(x.shape[0], y.shape[0])
    outputs = [number, pt.zeros(pt.maximum(number, 0)).shape[0]]
    n, m = jax.export.symbolic_shape("n, m")
    fn = jax.jit(pjl.as_jax_function([x, y], outputs))
    exported = jax.export.export(fn)(*(jax.ShapeDtypeStruct((k,), "float64") for k in (n, m)))
    reference = pytensor.function([x, y], outputs, mode="FAST_COMPILE", on_unused_input="ignore")
    for lengths in ((1, 1), (2, 5), (4, 3)):
        values = [np.zeros(k) for k in lengths]
        for got, want in zip(exported.call(*values), reference(*values), strict=True):
            assert got == want


@pytest.mark.parametrize("x", [-3, 0, 2, 9])
def test_positions_within_an_axis_have_one_form(x):
    (n,) = jax.export.symbolic_shape("n")
    assert n - within(n * 2 - 5 + x, n) == within(n - (n * 2 - 5 + x), n)
    assert within(x, 4) == min(max(x, 0), 4)


# -- run-time checks, and refusals -------------------------------------------------------------------------------------


def checked_function(make: Callable, count: int = 1) -> Callable:
    """Return an exported function of vectors of different lengths, which returns whether checks fail."""
    variables = [pt.dvector(f"x{i}") for i in range(count)]
    fn = pjl.as_jax_function(variables, [make(*variables)], checks="checkify")
    avals = [jax.ShapeDtypeStruct((n,), "float64") for n in jax.export.symbolic_shape("n, m")[:count]]

    def has_failed(*args):
        error, _ = checkify.checkify(fn)(*args)
        return [*error._pred.values()]

    return jax.export.export(jax.jit(has_failed))(*avals).call


@pytest.mark.parametrize(
    ("make", "lengths", "fails"),
    [
        (lambda x: x[3], [(3,), (4,)], [True, False]),
        (lambda x: x[-3], [(2,), (3,)], [True, False]),
        (lambda x: x[np.array([0, 2])], [(2,), (3,)], [True, False]),
        (lambda x: pt.set_subtensor(x[2], 1.0), [(2,), (3,)], [True, False]),
        (lambda x, y: pt.specify_shape(x, (y.shape[0],)), [(2, 3), (3, 3)], [True, False]),
        (lambda x: pt.specify_shape(x, (3,)), [(2,), (3,)], [True, False]),
        (lambda x: pt.split(x, [x.shape[0] - 2, 2], n_splits=2)[1], [(1,), (3,)], [True, False]),
    ],
    ids=["index", "negative", "indices", "write", "specify", "specify-number", "split"],
)
def test_what_jax_cannot_decide_is_checked_at_run_time(make, lengths, fails):
    call = checked_function(make, len(lengths[0]))
    for each, expected in zip(lengths, fails, strict=True):
        assert any(map(bool, call(*map(np.zeros, each)))) == expected


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda x: pt.zeros(x.shape[0] - 5), "inconclusive"),
        (lambda x: pt.zeros(pt.ceil(pt.sqrt(x.shape[0])).astype("int64")), "more than integer arithmetic"),
        (lambda x: pt.signal.convolve1d(x, x), "how many taps"),
        (lambda x: x[:: x.shape[0]], "requires a constant"),
    ],
    ids=["negative", "float", "taps", "step"],
)
def test_refusals_say_why(make, reason):
    x = pt.dvector("x")
    (n,) = jax.export.symbolic_shape("n")
    with pytest.raises(pjl.GraphBreakError, match=reason):
        jax.export.export(jax.jit(pjl.as_jax_function([x], [make(x)])))(jax.ShapeDtypeStruct((n,), "float64"))


def test_lengths_that_differ_are_an_error():
    x, y = pt.dvector("x"), pt.dvector("y")
    avals = [jax.ShapeDtypeStruct((n,), "float64") for n in jax.export.symbolic_shape("n, m")]
    with pytest.raises(ValueError, match="Incompatible Elemwise input shapes \\['n', 'm'\\]"):
        jax.export.export(jax.jit(pjl.as_jax_function([x, y], [x + y])))(*avals)


def test_a_static_value_beside_a_symbolic_length():
    """A specialization's key holds what follows from both."""
    x, k = pt.dvector("x"), pt.lscalar("k")
    fn = pjl.as_jax_function([x, k], [x[:k], pt.zeros(k + x.shape[0])])
    (n,) = jax.export.symbolic_shape("n")
    exported = jax.export.export(jax.jit(lambda x: fn(x, np.asarray(2))))(jax.ShapeDtypeStruct((n,), "float64"))
    assert [[v.shape for v in exported.call(np.ones(size))] for size in (1, 5)] == [[(1,), (3,)], [(2,), (7,)]]
