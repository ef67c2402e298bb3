"""Scan in all its forms."""

import warnings

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import FULLGRAPH, compare, compare_error, compare_grad

import pytensor_jaxpr_linker as pjl

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
