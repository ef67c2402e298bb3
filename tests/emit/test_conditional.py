"""Ops with inner graphs: conditionals, OpFromGraph, Einsum."""

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import FULLGRAPH, compare, compare_grad
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.conditional import IfElse, LazyIfElse, ifelse
from pytensor.raise_op import Assert

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base.rules import find_rule
from pytensor_jaxpr_linker.plan import partition as partition_module
from pytensor_jaxpr_linker.plan.partition import partition

# FAST_COMPILE's C code complains where no BLAS is installed.
pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

X = np.array([0.5, -1.0, 2.0])


def primitives_of(jaxpr):
    return [eqn.primitive.name for eqn in jaxpr.eqns]


def ops_of(f):
    return {type(node.op) for node in f.maker.fgraph.apply_nodes}


@pytest.mark.parametrize("dtype, values", [("bool", [True, False]), ("float64", [-0.5, 0.0]), ("int8", [3, 0])])
def test_ifelse(dtype, values):
    c, x = pt.scalar("c", dtype=dtype), pt.vector("x", dtype="float64")
    for value in values:
        compare([c, x], ifelse(c, pt.exp(x), x - 1), [np.asarray(value, dtype), X])


def test_branches_are_not_computed_outside():
    c, x = pt.dscalar("c"), pt.vector("x", dtype="float64")
    f = pytensor.function([c, x], ifelse(c > 0, pt.exp(x), pt.sin(x)), mode="JAXPR")
    assert LazyIfElse in ops_of(f)
    jaxpr = pjl.make_jaxpr(f, 1.0, X)
    assert not {"exp", "sin"} & set(primitives_of(jaxpr))
    (cond,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "cond")
    assert [primitives_of(branch)[0] for branch in cond.params["branches"]] == ["sin", "exp"]


@pytest.mark.parametrize("c_value", [1.0, -1.0])
def test_several_outputs_constants_and_nesting(c_value):
    c, x, n = pt.dscalar("c"), pt.vector("x", dtype="float64"), pt.lscalar("n")
    big = np.arange(20_000.0)  # too large to be part of the program
    small = np.arange(3.0)
    inner = ifelse(n > 2, pt.cos(x) + small, x * 2)
    y, z = ifelse(c > 0, [pt.exp(x) + n, (big * x.max()).sum()], [inner, x.sum()])
    for k in (1, 3):
        compare([c, x, n], [y, z, y.sum() + z], [c_value, X, k])


@pytest.mark.parametrize("c_value", [1.0, 0.0])
def test_ifelse_of_computed_values(c_value):
    """The Op that chooses among values, for outputs that are needed anyway."""
    c, x = pt.dscalar("c"), pt.vector("x", dtype="float64")
    y, z = pt.exp(x), pt.sin(x)
    a, b = ifelse(c, [y, z], [z, y])
    compare([c, x], [a, b, y, z], [c_value, X])
    f = pytensor.function([c, x], [a, b, y, z], mode="JAXPR")
    assert IfElse in ops_of(f)


@pytest.mark.parametrize("c_value", [1.0, -1.0])
def test_gradient(c_value):
    c, x = pt.dscalar("c"), pt.vector("x", dtype="float64")
    k = np.arange(3.0)
    compare_grad([c, x], ifelse(c > 0, pt.exp(x) * k, x**3 + c), [c_value, X])
    y = pt.tanh(x)
    compare_grad([c, x], ifelse(c > 0, y, x) * y, [c_value, X])
    out = ifelse(c > 0, pt.exp(x) * k, x**3 + c).sum()
    compare([c, x], pytensor.grad(out, [c, x]), [c_value, X])
    z = pt.vector("z", dtype="float64")
    out = (ifelse(c > 0, pt.exp(z), pt.concatenate([x[:1], x[1:] * c])) * x).sum()
    compare([c, x, z], pytensor.grad(out, [x, z]), [c_value, X, X + 1])


def test_shape_of_a_choice():
    c, x, z = pt.dscalar("c"), pt.vector("x", dtype="float64"), pt.vector("z", dtype="float64")
    y = ifelse(c > 0, pt.exp(x), pt.sin(z))
    compare([c, x, z], [y, pt.zeros((y.shape[0] + 1, 2)) + c, y.shape[0] * 2], [1.0, X, X])
    compare([c], pt.zeros(4) * ifelse(c > 0, 3, 5), [-1.0])
    f = pytensor.function([c, x, z], pt.zeros(y.shape) + c, mode="JAXPR")
    np.testing.assert_array_equal(f(2.0, X, X), np.full(3, 2.0))
    for value in (-2.0, 2.0, -3.0):
        np.testing.assert_array_equal(f(value, X, X[:2]), np.full(3 if value > 0 else 2, value))
    # The number itself may differ: it is computed when the program runs.
    f = pytensor.function([c, x, z], y.shape[0] * 2, mode="JAXPR")
    assert [f(1.0, X, X[:2]), f(-1.0, X, X[:2])] == [6, 4]


def test_vmap_over_the_condition():
    c, x = pt.dscalar("c"), pt.vector("x", dtype="float64")
    fn = pjl.as_jax_function([c, x], [ifelse(c > 0, pt.exp(x) * np.arange(3.0), x - 1)], gradient="jax")
    cs, xs = np.array([1.0, -1.0]), np.stack([X, X + 1])
    with jax.enable_x64(True):
        (got,) = jax.jit(jax.vmap(fn))(cs, xs)
        grads = jax.vmap(jax.grad(lambda c, x: fn(c, x)[0].sum(), argnums=1))(cs, xs)
    np.testing.assert_allclose(got, [np.exp(X) * np.arange(3), X], rtol=1e-12)
    np.testing.assert_allclose(grads, [np.exp(X) * np.arange(3), np.ones(3)], rtol=1e-12)


def test_only_the_taken_branch_is_checked():
    c, x = pt.dscalar("c"), pt.vector("x", dtype="float64")
    positive = Assert("must be positive")(pt.exp(x), pt.all(x > 0))
    small = Assert("must be small")(x * 2, pt.all(x < 10), pt.all(x > -10))
    f = pytensor.function([c, x], ifelse(c > 0, positive, small) + 1, mode="JAXPR")
    np.testing.assert_allclose(f(-1.0, X), X * 2 + 1)
    np.testing.assert_allclose(f(1.0, abs(X)), np.exp(abs(X)) + 1)
    np.testing.assert_allclose(f(1.0, abs(X) + 20), np.exp(abs(X) + 20) + 1)
    with pytest.raises(AssertionError, match="must be positive"):
        f(1.0, X)
    with pytest.raises(AssertionError, match="must be small"):
        f(-1.0, X + 20)


def test_a_branch_that_does_not_fit_fails_where_it_is_taken():
    c, x, y = pt.lscalar("c"), pt.dvector("x"), pt.dvector("y")
    out = [ifelse(c > 0, pt.dot(x, y), x.sum()), ifelse(c > 1, x[7] * pt.ones(2), x[:2])]
    f = pytensor.function([c, x, y], out, mode=FULLGRAPH)
    reference = pytensor.function([c, x, y], out, mode="FAST_COMPILE")
    for got, want in zip(f(0, X, X[:2]), reference(0, X, X[:2]), strict=True):
        np.testing.assert_array_equal(got, want)
    for g in (f, reference):
        with pytest.raises(ValueError, match=r"shape|aligned"):
            g(1, X, X[:2])
        with pytest.raises(IndexError, match="out of bounds"):
            g(2, X, X)


def test_checks_of_nested_branches_and_index():
    c, i, x = pt.dscalar("c"), pt.lscalar("i"), pt.vector("x", dtype="float64")
    y = ifelse(c > 0, ifelse(c > 1, x[i], pt.sin(x[0])), pt.constant(7.0, dtype="float64"))
    j = pt.dscalar("j")  # the index is computed when the program runs
    y = pytensor.graph.replace.graph_replace(y, {i: pt.cast(j, "int64")})
    f = pytensor.function([c, j, x], y, mode="JAXPR")
    assert f(2.0, 1.0, X) == X[1]
    assert f(0.5, 10.0, X) == np.sin(X[0])
    assert f(-1.0, 10.0, X) == 7.0
    with pytest.raises(IndexError):
        f(2.0, 10.0, X)


def test_static_operands_of_branches():
    c, n = pt.dscalar("c"), pt.lscalar("n")
    f = pytensor.function([c, n], ifelse(c > 0, pt.zeros(n) + c, pt.arange(n) * 2.0), mode="JAXPR")
    for k in (3, 5):
        np.testing.assert_array_equal(f(1.0, k), np.ones(k))
        np.testing.assert_array_equal(f(-1.0, k), np.arange(k) * 2.0)


def test_condition_that_follows_from_a_shape():
    x = pt.vector("x", dtype="float64")
    y = ifelse(pt.gt(x.shape[0], 2), pt.exp(x), pt.concatenate([x, x]))
    f = pytensor.function([x], y, mode="JAXPR")
    np.testing.assert_allclose(f(X), np.exp(X))
    np.testing.assert_allclose(f(X[:2]), [*X[:2], *X[:2]])


def test_branches_of_different_shapes():
    c, x = pt.dscalar("c"), pt.vector("x", dtype="float64")
    y = ifelse(c > 0, x[1:], pt.exp(x)) * 2
    f = pytensor.function([c, x], y, mode="JAXPR")
    for value in (1.0, 2.0, -1.0, -2.0):  # one program for each truth of the condition
        np.testing.assert_allclose(f(value, X), X[1:] * 2 if value > 0 else np.exp(X) * 2)
    assert len(f.vm.runner.program._specializations) == 2
    # A condition that is computed is known to the host only after its region ran.
    y = ifelse(x.sum() > c, x[1:], pt.exp(x)) * 2
    with pytest.warns(pjl.GraphBreakWarning, match="JX002"):
        compare([c, x], y, [0.0, X])
    f = pytensor.function([c, x], y, mode="JAXPR")
    with pytest.warns(pjl.GraphBreakWarning, match="JX002"):
        np.testing.assert_allclose(f(9.0, X), np.exp(X) * 2)
    np.testing.assert_allclose(f(0.0, X), X[1:] * 2)
    with pytest.raises(pjl.GraphBreakError, match=r"true branch returns the shape \(2,\) and the false branch \(3,\)"):
        pjl.as_jax_function([c, x], y)(1.0, X)


def test_a_branch_without_a_rule():
    class Other(pytensor.graph.op.Op):
        def make_node(self, x):
            return pytensor.graph.basic.Apply(self, [x], [x.type()])

        def perform(self, node, inputs, outputs):
            outputs[0][0] = inputs[0]

    c, x = pt.dscalar("c"), pt.vector("x", dtype="float64")
    assert find_rule(Other()) is None
    with pytest.raises(pjl.GraphBreakError, match=r"in a branch: .*Other"):
        pytensor.function([c, x], ifelse(c > 0, Other()(x), x), mode=FULLGRAPH)


def test_random_draw_in_a_branch():
    c = pt.dscalar("c")
    rng = pytensor.shared(np.random.default_rng(1))
    next_rng, x = pt.random.normal(size=(3,), rng=rng, return_next_rng=True)
    f = pytensor.function([c], ifelse(c > 0, x, pt.zeros(3)), updates={rng: next_rng}, mode="JAXPR")
    assert len(np.unique([f(1.0), f(1.0)])) == 6
    np.testing.assert_array_equal(f(-1.0), np.zeros(3))


def test_an_inner_graph_is_planned_once(monkeypatch):
    """Each level is asked for several times; without a cache the work would double from level to level."""
    planned = []
    monkeypatch.setattr(partition_module, "partition", lambda *args: planned.append(args) or partition(*args))

    def nest(depth, x):
        if depth == 0:
            return x + 1
        step = lambda y: ifelse(y.sum() > 100, y, nest(depth - 1, y))  # noqa: E731
        return pytensor.scan(step, outputs_info=[x], n_steps=2, return_updates=False)[-1]

    def count(depth):
        planned.clear()
        x = pt.dvector("x")
        f = pytensor.function([x], nest(depth, x), mode=FULLGRAPH)
        np.testing.assert_allclose(f(X), X + 2**depth)
        return len(planned)

    assert [count(depth) for depth in (1, 2, 3)] == [
        3,
        5,
        7,
    ]  # a loop and a branch for each level, and the branch that they share


def test_op_from_graph():
    x, y = pt.dvectors("x", "y")
    inner = OpFromGraph([x, y], [pt.exp(x) * y, (x + y).sum()])
    a, b = inner(x, y * 2)
    outer = OpFromGraph([x, y], [a + b])
    u, v = pt.dvectors("u", "v")
    values = [X, X + 1]
    compare([u, v], [outer(u, v), *inner(u, v)], values)
    compare([u, v], [outer(u, outer(v, u))], values)
    compare_grad([u, v], outer(u, v), values)
    compare([u, v], pytensor.grad(outer(u, v).sum(), [u, v]), values)
    f = pytensor.function([u, v], outer(u, v), mode="JAXPR")
    assert "exp" in primitives_of(pjl.make_jaxpr(f, *values))


def test_op_from_graph_with_static_operand():
    n, x = pt.lscalar("n"), pt.dvector("x")
    op = OpFromGraph([n, x], [pt.zeros(n) + x.sum()])
    compare([n, x], op(n + 1, x), [3, X])


@pytest.mark.parametrize("subscripts", ["ij,jk->ik", "ij,jk->", "ij,jk->kji", "ji,jk->ik"])
def test_einsum(subscripts):
    x, y = pt.dmatrices("x", "y")
    a = np.arange(9.0).reshape(3, 3)
    out = pt.einsum(subscripts, x, y)
    compare([x, y], out, [a, a - 4])
    compare_grad([x, y], out, [a, a - 4])


def test_unoptimized_ifelse_computes_both():
    c, x = pt.dscalar("c"), pt.dvector("x")
    mode = Mode(pjl.JaxprLinker(), None)
    f = pytensor.function([c, x], ifelse(c, pt.exp(x), x - 1), mode=mode)
    np.testing.assert_allclose(f(1.0, X), np.exp(X))
    np.testing.assert_allclose(f(0.0, X), X - 1)
