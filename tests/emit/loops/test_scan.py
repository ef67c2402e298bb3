"""Scan in all its forms."""

import warnings

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import FULLGRAPH, compare, compare_error, compare_grad
from pytensor.raise_op import Assert
from pytensor.scan.op import Scan
from pytensor.scan.utils import until

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.graph.until_scan import UntilScan

# FAST_COMPILE's C code complains where no BLAS is installed.
pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

X = np.linspace(0.1, 1.0, 7)
M = np.cos(np.arange(12.0)).reshape(4, 3)
K = np.array([0.5, -0.25, 0.75])


def scan(*args, **kwargs):
    return pytensor.scan(*args, return_updates=False, **kwargs)


def primitives_of(f, *values):
    return [eqn.primitive.name for eqn in pjl.make_jaxpr(f, *values).eqns]


# -- kinds of outputs --------------------------------------------------------------------------------------------------


def test_sequence_to_rows():
    x = pt.dmatrix("x")
    out = scan(lambda row: pt.exp(row).sum(), sequences=[x])
    compare([x], out, [M])
    compare_grad([x], out, [M])
    f = pytensor.function([x], scan(lambda row: pt.cumsum(row), sequences=[x]), mode=FULLGRAPH)
    assert primitives_of(f, M).count("scan") == 1


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_state_over_sequence(n):
    x, a = pt.dvector("x"), pt.dscalar("a")
    out = scan(lambda s, acc, a: acc * a + s, sequences=[x], outputs_info=[pt.zeros(())], non_sequences=[a])
    compare([x, a], [out, out[-1], pytensor.grad((out**2).sum(), x)], [X[:1].repeat(n), 0.9])
    compare_grad([x, a], out, [np.linspace(0, 1, n), 0.9])


def test_one_function_for_many_lengths():
    x = pt.dvector("x")
    out = scan(lambda s, acc: acc * 0.9 + s, sequences=[x], outputs_info=[pt.zeros(())])
    f = pytensor.function([x], pytensor.grad(out[-1], x), mode=FULLGRAPH)
    for n in (1, 2, 5, 9):
        np.testing.assert_allclose(f(np.ones(n)), 0.9 ** np.arange(n)[::-1])


@pytest.mark.parametrize("taps", [[-1, -2], [-3], [-1, -4], [-12, -1], [-10]])
def test_taps(taps):
    init = pt.dvector("init")
    reach = -min(taps)
    out = scan(
        lambda *xs: sum(pt.sin(x) * (i + 1) for i, x in enumerate(xs)),
        outputs_info=[{"initial": init, "taps": taps}],
        n_steps=5,
    )
    values = [np.linspace(0.3, 2, reach)]
    compare([init], [out, pytensor.grad(out.sum(), init)], values)
    compare([init], [out[-1], out[-2:]], values)
    compare_grad([init], out, values)


def test_states_that_are_matrices():
    x, k = pt.dmatrix("x"), pt.dvector("k")
    out = scan(
        lambda a, b, k: pt.tanh(a @ b.T) @ a * k, outputs_info=[{"initial": pt.stack([x, x + 1]), "taps": [-2, -1]}],
        non_sequences=[k], n_steps=3,
    )  # fmt: skip
    compare([x, k], [out, pytensor.grad(out.sum(), x)], [M, K])
    compare_grad([x, k], out, [M, K])


def test_sequences_with_taps_and_backwards():
    x = pt.dvector("x")
    out = scan(lambda a, b, s: s + a * b, sequences=[{"input": x, "taps": [-2, 0]}], outputs_info=[pt.zeros(())])
    compare([x], [out, pytensor.grad(out[-1], x)], [X])
    out = scan(lambda a, s: s * 0.5 + a, sequences=[x], outputs_info=[pt.ones(())], go_backwards=True)
    compare([x], [out, pytensor.grad(out.sum(), x)], [X])
    compare_grad([x], out, [X])


def test_several_outputs():
    x = pt.dvector("x")
    a, b, c = scan(
        lambda s, p, q, r: (p + s, q * p - r, p * q * s),
        sequences=[x],
        outputs_info=[pt.ones(()), {"initial": pt.as_tensor([1.0, 2.0]), "taps": [-2, -1]}, None],
    )
    compare([x], [a, b, c], [X])
    compare([x], [a[-1], b[-1], c[-1]], [X])
    compare([x], [a[-3:], b[::2], c[-2]], [X])
    compare([x], pytensor.grad((a * b + c).sum(), x), [X])
    compare_grad([x], a * b + c, [X])


def test_gradients_of_gradients():
    x = pt.dvector("x")
    out = scan(lambda s, p, q: pt.sin(p) * q + s, sequences=[x], outputs_info=[{"initial": x[:2], "taps": [-2, -1]}])
    cost = (out**2).sum()
    compare([x], pytensor.gradient.hessian(cost, x), [X[:4]], rtol=1e-6)
    gradient = pytensor.grad(cost, x)
    compare_grad([x], gradient, [X[:4]])


def test_hessian_is_one_program():
    x = pt.dvector("x")
    out = scan(lambda s, p: pt.tanh(p) + s, sequences=[x], outputs_info=[pt.zeros(())])
    f = pytensor.function([x], pytensor.gradient.hessian(out[-1], x), mode=FULLGRAPH)
    with jax.enable_x64(True):
        fn = pjl.as_jax_function([x], [out[-1]], gradient="jax")
        want = jax.hessian(lambda a: fn(a)[0])(jax.numpy.asarray(X[:3]))
    np.testing.assert_allclose(f(X[:3]), want)


@pytest.mark.parametrize("is_known", [False, True], ids=["any length", "known length"])
def test_last_rows(is_known):
    """Only these are kept; of rows that no step reads that takes a known number of steps."""
    x = pt.dvector("x", shape=X.shape if is_known else (None,))
    a, b, c = scan(
        lambda s, p, q, r: (p * 0.5 + s, q - r * s, p * s),
        sequences=[pt.concatenate([x, x, x])],
        outputs_info=[pt.ones(()), {"initial": x[:2], "taps": [-2, -1]}, None],
    )
    for k in (2, 3, 5, 12, 20, 21):
        compare([x], [a[-k:], b[-k:], c[-k:]], [X])
    f = pytensor.function([x], [a[-3:], b[-3:], c[-3:] if is_known else c[-1]], mode=FULLGRAPH)
    (loop,) = [e for e in pjl.make_jaxpr(f, X).eqns if e.primitive.name == "scan"]
    assert not any(v.aval.shape[:1] == (21,) for v in loop.outvars)


def test_buffers_are_not_allocated():
    x = pt.dvector("x")
    out = scan(lambda s, p: p * 0.5 + s, sequences=[x], outputs_info=[pt.zeros(())])
    f = pytensor.function([x], out, mode=FULLGRAPH)
    assert primitives_of(f, X) == ["scan"]


def test_nested():
    x = pt.dmatrix("x")

    def outer(row, acc):
        inner = scan(lambda v, s: s * 0.5 + v, sequences=[row], outputs_info=[acc])
        return inner[-1]

    out = scan(outer, sequences=[x], outputs_info=[pt.zeros(())])
    compare([x], [out, pytensor.grad(out.sum(), x)], [M])
    compare_grad([x], out, [M])


def test_truncated_gradient():
    x = pt.dvector("x")
    out = scan(lambda s, p: p * 0.5 + s**2, sequences=[x], outputs_info=[pt.zeros(())], truncate_gradient=2)
    compare([x], pytensor.grad(out[-1], x), [X])
    compare([x], pytensor.grad((out**2).sum(), x), [X])


# -- dtypes and shapes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "int32", "int8", "uint8", "bool", "complex64"])
def test_dtypes(dtype):
    x = pt.vector("x", dtype=dtype)
    values = (np.arange(6) * 37).astype(dtype)
    if dtype == "bool":
        out = scan(lambda s, p: pt.xor(s, p), sequences=[x], outputs_info=[pt.as_tensor(np.array(False))])
    else:
        start = pt.constant(np.ones((), dtype))
        out = scan(lambda s, p: (p * s + s).astype(dtype), sequences=[x], outputs_info=[start])
    compare([x], [out, out[-1]], [values])


def test_known_arrays_in_the_body():
    x = pt.dvector("x")
    table = np.arange(20.0).reshape(4, 5)
    index = np.array([0, 2, 2])
    out = scan(lambda s, p: p + pt.as_tensor(table)[index].sum(0) * s, sequences=[x], outputs_info=[pt.zeros(5)])
    compare([x], out, [X])
    compare_grad([x], out, [X])


def test_integer_that_is_a_shape_in_the_body():
    x, k = pt.dvector("x"), pt.lscalar("k")
    out = scan(lambda s, k: pt.ones(k).sum() * s, sequences=[x], non_sequences=[k])
    compare([x, k], out, [X, 3])
    out = scan(lambda s, p, k: p[:k].sum() * s, sequences=[x], non_sequences=[x, k])
    compare([x, k], out, [X, 3])


def test_shape_that_differs_from_step_to_step():
    x = pt.dvector("x")
    out = scan(lambda k, x: x[:k].sum(), sequences=[pt.arange(1, 5)], non_sequences=[x], strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pjl.GraphBreakWarning)
        compare([x], out, [X])


# -- the number of steps -----------------------------------------------------------------------------------------------


def test_steps_as_input():
    n, x = pt.iscalar("n"), pt.dvector("x")
    out = scan(lambda p, x: p * x, outputs_info=[pt.ones_like(x)], non_sequences=[x], n_steps=n)
    for k in (1, 3):
        compare([n, x], [out, pytensor.grad(out.sum(), x)], [np.int32(k), X])
        compare([n, x], out[-1], [np.int32(k), X])


def test_steps_that_are_computed():
    """Only a fixed number of states is kept: the loop runs as long as it takes, without a break."""
    x = pt.dvector("x")
    n = x.sum().astype("int64")
    out = scan(lambda p, q, x: (p * 0.5 + x.sum() - q, p), outputs_info=[pt.ones(()), pt.zeros(())], non_sequences=[x],
               n_steps=n)  # fmt: skip
    f = pytensor.function([x], [out[0][-1], out[1][-1]], mode=FULLGRAPH)
    assert "while" in primitives_of(f, X)
    reference = pytensor.function([x], [out[0][-1], out[1][-1]], mode="FAST_COMPILE")
    for values in (X, X * 3):
        for got, want in zip(f(values), reference(values), strict=True):
            np.testing.assert_allclose(got, want)


def test_rows_of_computed_steps_take_two_programs():
    x = pt.dvector("x")
    out = scan(lambda p: p * 0.5, outputs_info=[x[0]], n_steps=x.sum().astype("int64"))
    with pytest.warns(pjl.GraphBreakWarning, match="JX002"):
        compare([x], out, [X])


def test_last_rows_of_computed_steps_take_two_programs():
    x = pt.dvector("x")
    n = x.sum().astype("int64")
    out = scan(lambda p: p * 0.5, outputs_info=[x[0]], n_steps=n)[-3:]
    with pytest.warns(pjl.GraphBreakWarning, match="JX002"):
        compare([x], out, [X])


def test_rows_of_a_step_that_may_not_be_taken():
    x = pt.dvector("x")
    _, rows = scan(lambda p: (p * 2, p + 1), outputs_info=[x[0], None], n_steps=x.sum().astype("int64"))
    f = pytensor.function([x], rows[-1], mode=FULLGRAPH)
    np.testing.assert_allclose(f(X), X[0] * 4 + 1)
    with pytest.raises(IndexError, match="out of bounds for axis 0 with size 0"):
        f(X * 0)


@pytest.mark.parametrize("kind", ["state", "taps", "rows"])
def test_no_steps(kind):
    x, n = pt.dvector("x"), pt.lscalar("n")
    if kind == "state":
        out = scan(lambda s, p: p + s, sequences=[x[:n]], outputs_info=[pt.zeros(())])
    elif kind == "taps":
        out = scan(lambda s, p: p + s, sequences=[x[:n]], outputs_info=[{"initial": x[:3], "taps": [-3]}])
    else:
        out = scan(lambda s: s + 1, sequences=[x[:n]])
    for k in (0, 2):
        compare([x, n], [out, out.sum(), pytensor.grad(out.sum(), x)], [X, k])


def test_wrong_steps():
    x, n = pt.dvector("x"), pt.lscalar("n")
    out = scan(lambda s, p: p + s, sequences=[x], outputs_info=[pt.zeros(())], n_steps=n)
    compare([x, n], out, [X, 3])
    compare_error([x, n], out, [X, 12])
    total = x.sum().astype("int64")
    for steps, values in ((n, [X, -2]), (total, [-X, 0])):
        last = scan(lambda p: p * 2, outputs_info=[x[0]], n_steps=steps)[-1]
        f = pytensor.function([x, n], last, mode=FULLGRAPH, on_unused_input="ignore")
        with pytest.raises(IndexError, match="negative number of step"):
            f(*values)


# -- until -------------------------------------------------------------------------------------------------------------


def doubling(x0, limit=100.0, **kwargs):
    return scan(lambda s: (s * 2.0, until(s > limit)), outputs_info=[x0], n_steps=50, **kwargs)


def test_until_last_state():
    x0 = pt.dscalar("x0")
    out = doubling(x0)[-1]
    f = pytensor.function([x0], out, mode=FULLGRAPH)
    assert primitives_of(f, 1.5).count("while") == 1
    for value in (1.5, 70.0, 500.0, 0.0):
        compare([x0], out, [value])
    a, b = scan(lambda s, r: ((s * 2.0, s + r), until(s > 30.0)), outputs_info=[x0, pt.zeros(())], n_steps=9)
    compare([x0], [a[-1], b[-1]], [1.5])
    c = scan(lambda s: (s * 2.0, s + 1), outputs_info=[x0, None], n_steps=9)
    compare([x0], [c[0][-1], c[1][-1]], [1.5])


def test_until_with_rows():
    x0 = pt.dscalar("x0")
    out = doubling(x0)
    with pytest.warns(pjl.GraphBreakWarning, match="JX002"):
        f = pytensor.function([x0], [out, out.shape[0], out * 2], mode="JAXPR")
    reference = pytensor.function([x0], [out, out.shape[0], out * 2], mode="FAST_COMPILE")
    for value in (1.5, 70.0, 500.0, 0.0):
        for got, want in zip(f(value), reference(value), strict=True):
            np.testing.assert_array_equal(got, want)
            assert got.shape == want.shape


def test_more_rows_than_steps():
    """PyTensor's rewrite takes it that there are as many rows as are read."""
    x, n = pt.dvector("x"), pt.lscalar("n")
    states, out = scan(lambda a, s: (pt.sin(a) + s, a * s), sequences=[x], outputs_info=[pt.zeros(()), None], n_steps=n)
    for steps in (0, 1, 2, 3):
        compare([x, n], [out[-2:], out[-3:-1], states[-2:], states[1:]], [X, steps])


@pytest.mark.parametrize("steps", [5, pt.lscalar("steps")], ids=["known", "given"])
@pytest.mark.parametrize("rows", [np.s_[1:], np.s_[2:4], np.s_[-2:], np.s_[-1:], 2, -2], ids=str)
@pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.GraphBreakWarning")
def test_rows_of_until(rows, steps):
    """Rows count by the steps that are taken: one step, some of them, or all. PyTensor's rewrite counts by all."""
    x0 = pt.dscalar("x0")
    inputs, given = ([x0], []) if isinstance(steps, int) else ([x0, steps], [5])
    out = scan(lambda s: (s * 2.0, until(s > 10.0)), outputs_info=[x0], n_steps=steps)[rows]
    for value in (20.0, 1.5, 0.0) if isinstance(rows, slice) else (1.5, 0.0):
        compare(inputs, out, [value, *given])


def test_until_count_needs_no_rows():
    x0 = pt.dscalar("x0")
    f = pytensor.function([x0], doubling(x0).shape[0], mode=FULLGRAPH)
    assert [f(v) for v in (1.5, 500.0)] == [8, 1]


def test_until_with_taps_and_sequences():
    x = pt.dvector("x")
    out = scan(
        lambda s, p, q: (p + q + s, until(p > 2.0)),
        sequences=[x],
        outputs_info=[{"initial": pt.as_tensor([0.5, 1.0]), "taps": [-2, -1]}],
    )
    compare([x], [out[-1], out[-2]], [X])
    with pytest.warns(pjl.GraphBreakWarning, match="JX002"):
        compare([x], [out, out[-1]], [X])


def test_gradient_of_until():
    x0 = pt.dscalar("x0")
    out = scan(lambda s, a: (s * a, until(s > 10.0)), outputs_info=[pt.ones(())], non_sequences=[x0], n_steps=50)
    with pytest.warns(pjl.GraphBreakWarning, match="JX002"):
        compare([x0], [out[-1], pytensor.grad(out[-1], x0)], [1.5])


def test_until_under_vmap():
    x0 = pt.dscalar("x0")
    fn = pjl.as_jax_function([x0], [doubling(x0)[-1]])
    with jax.enable_x64(True):
        values = jax.numpy.asarray([1.5, 70.0, 500.0])
        np.testing.assert_allclose(jax.vmap(lambda v: fn(v)[0])(values), [384.0, 280.0, 1000.0])


# -- loops that take no step -------------------------------------------------------------------------------------------

EMPTY = pt.dvector("x", shape=(0,))


def products(s, acc, a):
    return [acc * a + s, acc * s], until(acc > 5)


#: Outputs of loops over a sequence without rows, by that sequence and a number.
NO_STEP = {
    "rows": lambda x, a: scan(lambda s, a: (s * a, until(s > 5)), sequences=[x], non_sequences=[a]),
    "states": lambda x, a: scan(products, sequences=[x], outputs_info=[a, None], non_sequences=[a])[0],
    "both": lambda x, a: pt.mul(*scan(products, sequences=[x], outputs_info=[a, None], non_sequences=[a])),
    "taps": lambda x, a: scan(
        lambda s, p, q: (p + q * s, until(p > 5)),
        sequences=[x],
        outputs_info=[{"initial": pt.stack([a, a]), "taps": [-2, -1]}],
    ),
    "n_steps": lambda x, a: scan(lambda p: (p * p, until(p > 5)), outputs_info=[a], n_steps=x.shape[0]) * x.sum(),
    "counted": lambda x, a: scan(lambda s, p: p * s, sequences=[x], outputs_info=[a]),
}


@pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.GraphBreakWarning")
@pytest.mark.parametrize("cut", [slice(None), slice(1, None), slice(-2, None)], ids=["whole", "from_1", "last_two"])
@pytest.mark.parametrize("build", NO_STEP.values(), ids=NO_STEP)
def test_gradient_without_steps(build, cut):
    a, values = pt.dscalar("a"), [np.zeros(0), 2.0]
    for x in (pt.dvector("x"), EMPTY):
        out = build(x, a)[cut]
        compare([x, a], [out, *pytensor.grad(out.sum(), [x, a])], values)
    for how in (
        "pytensor",
        "jax",
    ):  # of any length, the gradient of `until` is no JAX function: the steps taken are a shape
        fn = pjl.as_jax_function([EMPTY, a], build(EMPTY, a)[cut].sum(), gradient=how)
        with jax.enable_x64(True):
            gx, ga = jax.jit(jax.grad(fn, (0, 1)))(*values)
        assert gx.shape == (0,)
        np.testing.assert_array_equal(ga, 0)


def test_gradient_of_one_program_without_steps():
    a = pt.dscalar("a")
    out = NO_STEP["both"](EMPTY, a)
    f = pytensor.function([EMPTY, a], pytensor.grad(out.sum(), [EMPTY, a]), mode=FULLGRAPH)
    assert [g.tolist() for g in f(np.zeros(0), 2.0)] == [[], 0.0]


@pytest.mark.parametrize("ends", [False, True], ids=["counted", "until"])
@pytest.mark.parametrize("steps", ["constant", "input", "computed", "sequence"])
@pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.GraphBreakWarning")
def test_body_that_does_not_fit_and_is_not_run(steps, ends):
    """PyTensor looks at a body when it takes a step. Here it has shapes when the program is built."""
    s0, w, n, x = pt.dvector("s0"), pt.dvector("w"), pt.lscalar("n"), pt.dvector("x")
    count = {"constant": 0, "input": n, "computed": (x.sum() * 2).astype("int64"), "sequence": None}[steps]

    def body(*args):
        s, w = args[-2:]
        new = pt.sin(s * w) + (args[0] if steps == "sequence" else 0)
        return (new, until(new[0] > 1e9)) if ends else new

    sequences = [x] if steps == "sequence" else []
    out = scan(body, sequences=sequences, outputs_info=[s0], non_sequences=[w], n_steps=count)
    inputs, values = [s0, w, n, x], [np.ones(3), np.ones(2), 0, np.zeros(0)]
    if steps == "computed":  # known to no one else, so a JAX function without checks raises, as JAX itself does
        f = pytensor.function(inputs, out[-1], mode="JAXPR", on_unused_input="ignore")
        np.testing.assert_array_equal(f(*values), np.ones(3))
        with pytest.raises(ValueError, match="Incompatible Elemwise input shapes"), jax.enable_x64(True):
            pjl.as_jax_function(inputs, out[-1])(*values)
    else:
        compare(inputs, out, values)
    if steps != "constant":
        compare_error(inputs, out.sum(), [*values[:2], 1, np.ones(1)])
        compare(inputs, out.sum(), [np.ones(3), np.ones(3), 1, np.ones(1)])


def test_rows_that_do_not_fit_and_are_not_computed():
    s0, w, x = pt.dvector("s0"), pt.dvector("w"), pt.dvector("x")
    _, rows = scan(lambda s, p, w: [p * s, p * w], sequences=[x], outputs_info=[s0, None], non_sequences=[w])
    compare([s0, w, x], rows, [np.ones(3), np.ones(2), np.zeros(0)])
    compare_error([s0, w, x], rows, [np.ones(3), np.ones(2), np.zeros(1)])


@pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.GraphBreakWarning")
def test_counted_at_run_time_over_a_sequence_without_rows():
    x, k, a = pt.dvector("x"), pt.dvector("k"), pt.dscalar("a")
    out = scan(lambda s, p: p * s, sequences=[x], outputs_info=[a], n_steps=k.sum().astype("int64"))[-1]
    compare([x, k, a], out, [np.zeros(0), np.zeros(2), 2.0])
    compare_error([x, k, a], out, [np.zeros(0), np.ones(2), 2.0], match="Sequence 0 has shape")


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
