"""Scans that end by a condition, or after no step."""

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import FULLGRAPH, compare, compare_error
from pytensor.scan.utils import until
from tests.emit.loops.test_scan import X, primitives_of, scan

import pytensor_jaxpr_linker as pjl

# FAST_COMPILE's C code complains where no BLAS is installed.
pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")


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
