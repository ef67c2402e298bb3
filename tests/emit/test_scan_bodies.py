"""What the body of a scan may hold, and how its loop is built: draws, checks, unrolled bodies, gradients."""

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import FULLGRAPH, compare, compare_error, compare_grad
from pytensor.raise_op import Assert
from pytensor.scan.op import Scan
from pytensor.scan.utils import until
from tests.emit.loops.test_scan import M, X, primitives_of, scan
from tests.emit.loops.test_scan_until import doubling

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.graph.loops import UntilScan

# FAST_COMPILE's C code complains where no BLAS is installed.
pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")


# -- random numbers and shared variables -------------------------------------------------------------------------------


def random_walk(rng, n):
    def step(p, rng):
        next_rng, draw = pt.random.normal(rng=rng, size=(2,), return_next_rng=True)
        return p + draw, next_rng

    return pytensor.scan(step, outputs_info=[pt.zeros(2), rng], n_steps=n, return_updates=False)


def test_random_states():
    rng = pytensor.shared(np.random.default_rng(3))
    walk, next_rng = random_walk(rng, 6)
    f = pytensor.function([], walk, updates={rng: next_rng}, mode=FULLGRAPH)
    a, b = f(), f()
    steps = np.concatenate([np.diff(a, axis=0, prepend=0), np.diff(b, axis=0, prepend=0)])
    assert len(np.unique(steps.round(12))) == 24
    rng.set_value(np.random.default_rng(3))
    np.testing.assert_array_equal(f(), a)
    np.testing.assert_array_equal(f(), b)
    assert isinstance(rng.get_value(), np.random.Generator)


def test_two_generators():
    first, second = pytensor.shared(np.random.default_rng(1)), pytensor.shared(np.random.default_rng(2))

    def step(a, b):
        next_a, x = pt.random.normal(rng=a, return_next_rng=True)
        next_b, y = pt.random.uniform(rng=b, return_next_rng=True)
        return x, y, next_a, next_b

    x, y, next_a, next_b = pytensor.scan(
        step, outputs_info=[None, None, first, second], n_steps=3, return_updates=False
    )
    f = pytensor.function([], [x, y], updates={first: next_a, second: next_b}, mode=FULLGRAPH)
    draws = np.concatenate([f(), f()], axis=None)
    assert len(np.unique(draws)) == 12
    states = [g.get_value().bit_generator.state["state"]["state"] for g in (first, second)]
    want = [np.random.default_rng(seed) for seed in (1, 2)]
    for g in want:
        g.bit_generator.random_raw(4)
    assert states == [g.bit_generator.state["state"]["state"] for g in want]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_shared_updates():
    counter = pytensor.shared(np.array(0, "int64"), name="counter")
    x = pt.dvector("x")
    out, updates = pytensor.scan(lambda s: (s * counter, {counter: counter + 1}), sequences=[x])
    results = []
    for mode in ("FAST_COMPILE", FULLGRAPH):
        counter.set_value(np.array(2))
        f = pytensor.function([x], out, updates=updates, mode=mode)
        results.append([f(X), counter.get_value(), f(X), counter.get_value()])
    for want, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, want)


# -- checks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", [False, True])
def test_checks_inside(ends):
    x = pt.dvector("x")

    def step(s, p):
        new = p + Assert("too small")(s, s > 0.2)
        return (new, until(new > 1e9)) if ends else new

    out = scan(step, sequences=[x], outputs_info=[pt.zeros(())])[-1]
    compare([x], out, [X + 0.2])
    f = pytensor.function([x], out, mode=FULLGRAPH)
    with pytest.raises(AssertionError, match="too small"):
        f(X[::-1].copy())
    np.testing.assert_allclose(f(X + 1), (X + 1).sum())


def test_index_bounds_inside():
    x, i = pt.dvector("x"), pt.lvector("i")
    out = scan(lambda k, x: x[k], sequences=[i], non_sequences=[x])
    compare([x, i], out, [X, np.array([0, -1, 3])])
    compare_error([x, i], out, [X, np.array([0, 9, 3])])


# -- programs ----------------------------------------------------------------------------------------------------------


def test_constants_are_not_carried():
    x, w = pt.dmatrix("x"), pt.dmatrix("w")
    out = scan(lambda row, p, w: pt.tanh(row @ w + p), sequences=[x], outputs_info=[pt.zeros(3)], non_sequences=[w])
    f = pytensor.function([x, w], out, mode=FULLGRAPH)
    jaxpr = pjl.make_jaxpr(f, M, np.eye(3))
    (loop,) = [e for e in jaxpr.eqns if e.primitive.name == "scan"]
    carried = loop.params["ft_in"].unpack()[1]
    assert len(carried) == 1


def test_small_bodies_are_unrolled():
    x = pt.dvector("x")
    out = scan(lambda s, p: p * 0.9 + s, sequences=[x], outputs_info=[pt.zeros(())])
    f = pytensor.function([x], out, mode=FULLGRAPH)
    (loop,) = [e for e in pjl.make_jaxpr(f, X).eqns if e.primitive.name == "scan"]
    assert loop.params["unroll"] > 1
    assert any(isinstance(node.op, Scan) for node in f.maker.fgraph.apply_nodes)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [0, 1, 5])
def test_rows_for_a_loop_alone_are_computed_in_it(n, dtype):
    x, a, w = pt.vector("x", dtype=dtype), pt.scalar("a", dtype=dtype), pt.vector("w", dtype=dtype)
    square = (x - a) ** 2  # is read after the loop, too
    rows = (square * 2 + a)[:, None] * w
    out = scan(lambda row, p: p * row + 1, sequences=[rows], outputs_info=[pt.ones_like(w)])
    outputs = [out, out.sum(0) + square.sum()]
    if n:  # PyTensor has no gradient of no steps
        outputs += pytensor.grad((out**2).sum(), [x, a, w])
    values = [np.linspace(0, 0.3, n).astype(dtype), np.asarray(0.5, dtype), np.array([0.1, 0.2], dtype)]
    compare([x, a, w], outputs, values, rtol=1e-4 if dtype == "float32" else 1e-9)
    f = pytensor.function([x, a, w], outputs[:2], mode=FULLGRAPH)
    before = primitives_of(f, *values)
    assert "square" in before
    if n:
        (loop,) = [e for e in pjl.make_jaxpr(f, *values).eqns if e.primitive.name == "scan"]
        assert [e.primitive.name for e in loop.params["jaxpr"].eqns].count("mul") >= 2
        assert "mul" not in before
        compare_grad([x, a, w], out, values, **({"rtol": 1e-3, "atol": 1e-5} if dtype == "float32" else {}))
    fn = pjl.as_jax_function([x, a, w], outputs[:2])
    with jax.enable_x64(True):
        batched = jax.vmap(fn, in_axes=(None, 0, None))(values[0], np.full(3, values[1]), values[2])
    for got, want in zip(batched, f(*values), strict=True):
        np.testing.assert_allclose(got, np.broadcast_to(want, (3, *want.shape)), rtol=1e-4)


def test_rows_for_a_loop_with_matrix_products_are_computed_before_it():
    x, w = pt.dmatrix("x"), pt.dmatrix("w")
    out = scan(lambda row, p, w: row + p @ w, sequences=[x * 2 + 1], outputs_info=[pt.zeros(3)], non_sequences=[w])
    compare([x, w], out, [M, np.eye(3)])
    f = pytensor.function([x, w], out, mode=FULLGRAPH)
    assert "mul" in primitives_of(f, M, np.eye(3))


def test_op_from_graph_inside():
    u = pt.dvector("u")
    op = pytensor.compile.builders.OpFromGraph([u], [pt.log(pt.exp(u).sum())])
    x = pt.dmatrix("x")
    out = scan(lambda row, p: p + op(row), sequences=[x], outputs_info=[pt.zeros(())])
    compare([x], [out, pytensor.grad(out.sum(), x)], [M])


def test_until_inside():
    x = pt.dvector("x")
    out = scan(lambda v: doubling(v)[-1] + 1, sequences=[x])
    f = pytensor.function([x], out, mode=FULLGRAPH)
    np.testing.assert_allclose(f(X), pytensor.function([x], out, mode="FAST_COMPILE")(X))


def test_an_inner_op_without_a_rule_runs_the_loop_on_the_host():
    class Other(pytensor.graph.op.Op):
        def make_node(self, x):
            return pytensor.graph.basic.Apply(self, [x], [x.type()])

        def perform(self, node, inputs, outputs):
            outputs[0][0] = np.asarray(inputs[0] * 2)

    x = pt.dvector("x")
    out = scan(lambda s, p: p + Other()(s), sequences=[x], outputs_info=[pt.zeros(())])
    with pytest.warns(pjl.GraphBreakWarning, match=r"JX004.*in the loop: .*Other"):
        compare([x], [out, out[-1]], [X])
    out = scan(lambda s, p: (p + Other()(s), until(p > 1)), sequences=[x], outputs_info=[pt.zeros(())])
    with pytest.warns(pjl.GraphBreakWarning, match=r"JX004.*in the loop: .*Other"):
        compare([x], [out, out[-1]], [X])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_until_that_keeps_a_few_rows(dtype):
    x0, v = pt.scalar("x0", dtype=dtype), pt.vector("v", dtype=dtype)
    limit = np.asarray(100, dtype)
    one = scan(lambda s: (s * 2, until(s > limit)), outputs_info=[x0], n_steps=12)
    two = scan(
        lambda before, last: (last * 2 + before, until(last.sum() > limit)),
        outputs_info=[{"initial": pt.stack([v, v + 1]), "taps": [-2, -1]}],
        n_steps=12,
    )
    rows, _ = scan(lambda s: ((s * 2, s * 3), until(s > limit)), outputs_info=[None, x0], n_steps=13)
    outputs = [one[-3:], two[-5:], rows[-4:]]
    reference = pytensor.function([x0, v], outputs, mode="FAST_COMPILE")
    with pytest.warns(pjl.GraphBreakWarning, match="JX002.*DynamicSlice"):
        f = pytensor.function([x0, v], outputs, mode="JAXPR")
    on_host = [node.op for batch in f.vm.runner.plan.batches for node in getattr(batch, "nodes", ())]
    assert not any(isinstance(op, Scan | UntilScan) for op in on_host)
    for value in (0.0, 1.5, 10.0, 40.0, 70.0, 500.0):
        # Of states, PyTensor's rewrites count the initial ones among the last if there are not as many steps.
        first = 0 if value < 10 else 2
        args = np.asarray(value, dtype), np.asarray([value, 0.5], dtype)
        for got, want in zip(f(*args)[first:], reference(*args)[first:], strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            np.testing.assert_allclose(got, want, rtol=1e-6)


def loops_of(f, *values):
    return [e for e in pjl.make_jaxpr(f, *values).eqns if e.primitive.name == "scan"]


@pytest.mark.parametrize(
    ("step", "unrolled"), [(lambda s, p: p * 0.9 + s, True), (lambda s, p: pt.exp(p - s).sum() + s, False)]
)
def test_only_simple_bodies_on_arrays_are_unrolled(step, unrolled):
    x = pt.dmatrix("x")
    f = pytensor.function([x], scan(step, sequences=[x], outputs_info=[pt.zeros(3)]), mode=FULLGRAPH)
    (loop,) = loops_of(f, M)
    assert (loop.params["unroll"] > 1) == unrolled


@pytest.mark.parametrize(("steps", "turns"), [(10, 1), (101, 2)])
def test_longer_simple_bodies_are_repeated_twice_in_long_loops(steps, turns):
    """A Runge-Kutta method; an odd number of steps leaves one over."""
    start, p = pt.dvector("start", shape=(2,)), pt.dvector("p", shape=(4,))

    def rate(y, p):
        return pt.stack([p[0] * y[0] - p[1] * y[0] * y[1], p[2] * y[0] * y[1] - p[3] * y[1]])

    def advance(y, p):
        k1 = rate(y, p)
        k2 = rate(y + 0.01 * k1, p)
        return y + 0.005 * (k1 + k2)

    y = scan(advance, outputs_info=[start], non_sequences=[p], n_steps=steps, strict=True)
    outputs, values = [y, pytensor.grad(y.sum(), p)], [np.array([1.0, 0.5]), np.array([1.0, 0.8, 0.5, 0.6])]
    f = pytensor.function([start, p], outputs, mode=FULLGRAPH)
    assert [loop.params["unroll"] for loop in loops_of(f, *values)] == [turns, turns]
    compare([start, p], outputs, values)


def hidden_markov(emission, log_p, start):
    return scan(
        lambda e, alpha, log_p: pt.logsumexp(alpha[:, None] + log_p, axis=0) + e,
        sequences=[emission],
        outputs_info=[start],
        non_sequences=[log_p],
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_read_what_the_loop_computed(dtype):
    emission, log_p = pt.matrix("emission", dtype=dtype), pt.matrix("log_p", dtype=dtype)
    alpha = hidden_markov(emission, log_p, pt.zeros(3, dtype=dtype))
    outputs = [alpha[-1], *pytensor.grad((alpha**2).sum(), [emission, log_p])]
    rng = np.random.default_rng(1)
    values = [rng.standard_normal(shape).astype(dtype) for shape in ((40, 3), (3, 3))]
    compare([emission, log_p], outputs, values, rtol=1e-4 if dtype == "float32" else 1e-9)
    f = pytensor.function([emission, log_p], outputs, mode=FULLGRAPH)
    forward, backward = loops_of(f, *values)
    bodies = [[e.primitive.name for e in loop.params["jaxpr"].eqns] for loop in (forward, backward)]
    assert [names.count("exp") for names in bodies] == [1, 0]
    assert backward.params["reverse"]
    compare([emission, log_p], outputs[:1], [values[0][:1], values[1]], rtol=1e-5)


def test_residuals_of_states_with_taps_and_of_reversed_loops():
    x, a = pt.dvector("x"), pt.dscalar("a")
    states = scan(
        lambda s, before, last, a: pt.tanh(a * last - before) + s,
        sequences=[x],
        outputs_info=[{"initial": pt.as_tensor([0.1, 0.2]), "taps": [-2, -1]}],
        non_sequences=[a],
        go_backwards=True,
    )
    gradients = pytensor.grad((states**2).sum(), [x, a])
    values = [np.cos(np.arange(40.0)), 0.7]
    f = pytensor.function([x, a], gradients, mode=FULLGRAPH)
    bodies = [[e.primitive.name for e in loop.params["jaxpr"].eqns] for loop in loops_of(f, *values)]
    assert [names.count("tanh") for names in bodies] == [1, 0]
    compare([x, a], [*gradients, pytensor.grad(gradients[0].sum(), a)], values)


def test_gradient_and_vmap_of_residuals():
    emission, log_p = pt.dmatrix("emission", shape=(40, 3)), pt.dmatrix("log_p", shape=(3, 3))
    alpha = hidden_markov(emission, log_p, pt.zeros(3))
    rng = np.random.default_rng(2)
    values = [rng.standard_normal(shape) for shape in ((40, 3), (3, 3))]
    compare_grad([emission, log_p], pytensor.grad(alpha.sum(), log_p), values)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_solutions_that_need_no_earlier_step_are_batched(dtype):
    x, a = pt.matrix("x", dtype=dtype), pt.matrix("a", dtype=dtype)
    steps = 40
    zeros = pt.zeros(2, dtype=dtype)
    states = scan(
        lambda row, p, a: pt.linalg.solve(a + pt.outer(row, row), p + row, b_ndim=1),
        sequences=[x],
        outputs_info=[zeros],
        non_sequences=[a],
    )
    outputs = [states, *pytensor.grad((states**2).sum(), [x, a])]
    values = [np.cos(np.arange(2 * steps)).reshape(steps, 2).astype(dtype), 3 * np.eye(2, dtype=dtype)]
    compare([x, a], outputs, values, rtol=1e-4 if dtype == "float32" else 1e-9)
    f = pytensor.function([x, a], outputs, mode=FULLGRAPH)
    for loop in loops_of(f, *values):
        assert not any(e.primitive.name == "lu" for e in loop.params["jaxpr"].eqns)
    compare([x, a], states, [values[0][:0], values[1]])


def test_gradient_and_vmap_of_batched_solutions():
    x = pt.dmatrix("x", shape=(40, 2))
    states = scan(
        lambda row, p: pt.linalg.solve(3 * pt.eye(2) + pt.outer(row, row), p + row, b_ndim=1),
        sequences=[x],
        outputs_info=[pt.zeros(2)],
    )
    compare_grad([x], (states**2).sum(), [np.cos(np.arange(80.0)).reshape(40, 2)])
