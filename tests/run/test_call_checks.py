"""Run-time checks: raised, deferred, skipped, or handed to `checkify`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import Doubled
from jax.experimental import checkify
from pytensor.compile.mode import Mode
from pytensor.raise_op import Assert, CheckAndRaise

import pytensor_jaxpr_linker as pjl

pytestmark = pytest.mark.usefixtures("x64")


def compiled(inputs, outputs, mode="JAXPR", **kwargs):
    """Compile; inputs may be left unused."""
    return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore", **kwargs)


def mode_with(**options):
    """Return mode JAXPR with options."""
    return Mode(pjl.JaxprLinker(pjl.Options(**options)), "fast_run")


def positive(x):
    """Return `x`, checked."""
    return Assert("must be positive, not {x}")(x, (x > 0).all())


def checked_loop(x):
    """Return the sum of square roots, whose loop checks each element."""
    step = lambda x, total: total + pt.sqrt(Assert("too small")(x, x > 0.2))  # noqa: E731
    start = pt.zeros((), dtype=x.dtype)
    return pytensor.scan(step, sequences=[x], outputs_info=[start], return_updates=False)[-1]


#: Functions of a vector and an integer, with what they raise for which arguments.
VALUE = np.array([1.0, 2.0, 3.0])
CHECKS = {
    "Assert": (lambda x, i: pt.log(positive(x)), (-VALUE, 1), AssertionError, r"must be positive, not \{x\}"),
    "CheckAndRaise": (
        lambda x, i: CheckAndRaise(TypeError, "one is too large")(x, (x < 9).all(), (x < 99).all()) * 2,
        (VALUE * 50, 1),
        TypeError,
        "one is too large",
    ),
    "index": (lambda x, i: x[i] * 2, (VALUE, 3), IndexError, "index is out of bounds for axis 0 with size 3"),
    "indices": (lambda x, i: x[pt.stack([i, -i])] * 2, (VALUE, -4), IndexError, "out of bounds"),
    "write": (lambda x, i: x[i].set(x[0]) * 2, (VALUE, -4), IndexError, "out of bounds"),
    "loop": (lambda x, i: checked_loop(x), (np.array([1.0, 2.0, 0.1]), 1), AssertionError, "too small"),
    "factorization": (
        lambda x, i: pt.linalg.inv(pt.outer(x, x) + pt.diag(x)),
        (VALUE * 0, 1),
        np.linalg.LinAlgError,
        "[Ss]ingular",
    ),
}
EACH = pytest.mark.parametrize("name", CHECKS)


# -- raise, defer, skip ------------------------------------------------------------------------------------------------


@EACH
def test_defer(name):
    make, bad, kind, message = CHECKS[name]
    x, i = pt.dvector("x"), pt.lscalar("i")
    y = make(x, i)
    f = compiled([x, i], y, mode=mode_with(checks="defer"))
    g = compiled([x, i], y, mode="JAXPR")
    np.testing.assert_allclose(f(VALUE, 1), g(VALUE, 1))
    pjl.raise_deferred(f)
    with pytest.raises(kind, match=message) as expected:
        g(*bad)
    f(*bad)
    with pytest.raises(kind) as found:
        pjl.raise_deferred(f)
    assert (found.value.args, found.value.__notes__) == (expected.value.args, expected.value.__notes__)
    pjl.raise_deferred(f)  # once
    np.testing.assert_allclose(f(VALUE, 1), g(VALUE, 1))


def test_next_call_raises_and_does_nothing():
    s, x = pytensor.shared(1.0, name="s"), pt.dvector("x")
    f = compiled([x], positive(x).sum(), updates={s: s + x[0]}, mode=mode_with(checks="defer"))
    f(VALUE)
    f(-VALUE * 4)
    assert s.get_value() == -2.0  # stored, by a call that failed
    with pytest.raises(AssertionError, match="must be positive"):
        f(VALUE)
    assert s.get_value() == -2.0
    f(VALUE)
    assert s.get_value() == -1.0


def test_first_failure_counts():
    x, i = pt.dvector("x"), pt.lscalar("i")
    f = compiled([x, i], positive(x)[i], mode=mode_with(checks="defer", results="jax"))
    assert isinstance(f(VALUE, 1), jax.Array)
    kept = f.vm.runner.deferred
    kept.raise_known()  # waits for nothing
    for args in ((VALUE, 5), (-VALUE, 1), (VALUE, 2)):
        kept.add(*call_of(f, *args))
    with pytest.raises(IndexError, match="out of bounds"):
        pjl.raise_deferred(f)
    pjl.raise_deferred(f)  # the others are forgotten
    for _ in range(3):
        f(VALUE, 0)
    pjl.raise_deferred(f)
    assert not kept._codes


def call_of(f, *args):
    """Return what a call of a program keeps for later."""
    results, specialization, args = f.vm.runner.program.run([np.asarray(a) for a in args])
    return specialization, results[-1], args


def test_several_regions():
    x, i = pt.dvector("x"), pt.lscalar("i")
    y = Doubled()(positive(x))
    with pytest.warns(pjl.GraphBreakWarning):
        f = compiled([x, i], y[i] + 1, mode=mode_with(checks="defer"))
    assert f(VALUE, 1) == 5
    pjl.raise_deferred(f)
    f(-VALUE, 7)
    with pytest.raises(AssertionError, match="must be positive"):
        pjl.raise_deferred(f)
    f(VALUE, 7)
    with pytest.raises(IndexError, match="out of bounds"):
        f(VALUE, 1)


def test_copies_have_their_own():
    x = pt.dvector("x")
    f = compiled([x], positive(x), mode=mode_with(checks="defer"))
    g = f.copy()
    f(-VALUE)
    pjl.raise_deferred(g)
    with pytest.raises(AssertionError):
        pjl.raise_deferred(f)


def test_skip():
    x, i = pt.dvector("x"), pt.lscalar("i")
    f = compiled([x, i], [x[i], positive(x)], mode=mode_with(checks="skip"))
    got = f(-VALUE, 7)
    assert np.isnan(got[0])
    np.testing.assert_array_equal(got[1], -VALUE)
    pjl.raise_deferred(f)
    shape = compiled([x], pt.specify_shape(x, (2,)), mode=mode_with(checks="skip"))
    with pytest.raises(AssertionError, match="SpecifyShape"):  # known while the program is built
        shape(VALUE)


def test_raise_deferred_of_another_mode():
    x = pt.dvector("x")
    with pytest.raises(TypeError, match="mode JAXPR"):
        pjl.raise_deferred(compiled([x], x, mode="FAST_COMPILE"))


# -- checkify ----------------------------------------------------------------------------------------------------------


@EACH
def test_checkify(name):
    make, bad, kind, message = CHECKS[name]
    x, i = pt.dvector("x"), pt.lscalar("i")
    fn = pjl.as_jax_function([x, i], make(x, i), checks="checkify")
    checked = jax.jit(checkify.checkify(fn))
    error, value = checked(VALUE, 1)
    error.throw()
    want = compiled([x, i], make(x, i), mode="JAXPR")(VALUE, 1)
    np.testing.assert_allclose(value, want)
    error, _ = checked(*bad)
    with pytest.raises(checkify.JaxRuntimeError, match=f"{kind.__name__}: .*{message}"):
        error.throw()


TRANSFORMS = {
    "none": lambda f: f,
    "grad of jit": lambda f: jax.grad(jax.jit(f)),
    "value_and_grad": jax.value_and_grad,
    "vmap": lambda f: lambda x, i: jax.vmap(f)(jnp.stack([VALUE, x]), jnp.stack([0, i])),
    "vmap of grad": lambda f: lambda x, i: jax.vmap(jax.grad(f), (0, None))(jnp.stack([VALUE, x]), i),
    "second derivative": lambda f: jax.grad(lambda x, i: jax.grad(f)(x, i).sum()),
    "scan": lambda f: lambda x, i: jax.lax.scan(lambda n, _: (n + 1, f(x, n)), i - 1, None, length=2)[1],
}


@pytest.mark.parametrize("gradient", ["pytensor", "jax"])
def test_checkify_of_transformations(gradient):
    x, i = pt.dvector("x"), pt.lscalar("i")
    y = positive(x)
    fn = pjl.as_jax_function([x, i], pt.log(y).sum() * y[i] ** 2, gradient=gradient, checks="checkify")

    @jax.jit
    def errors(x, i):
        checked = [checkify.checkify(transform(fn)) for transform in TRANSFORMS.values()]
        return [c(x, i)[0] for c in checked]

    for args, message in (((VALUE, 1), None), ((-VALUE, 1), "AssertionError: must be"), ((VALUE, 3), "IndexError: ")):
        for name, error in zip(TRANSFORMS, errors(*args), strict=True):
            found = error.get()
            assert found is None if message is None else message in found, (name, found)
    plain = pjl.as_jax_function([x, i], pt.log(x).sum() * x[i] ** 2)
    _, found = checkify.checkify(jax.grad(lambda x: fn(x, 1)))(VALUE)
    np.testing.assert_allclose(found, jax.grad(lambda x: plain(x, 1))(VALUE))


def test_vmap_of_checkify():
    x, i = pt.dvector("x"), pt.lscalar("i")
    fn = pjl.as_jax_function([x, i], positive(x)[i], checks="checkify")
    error, _ = jax.vmap(checkify.checkify(fn))(np.stack([VALUE, -VALUE]), np.array([0, 1]))
    assert error.get().startswith("at mapped index 1: AssertionError: must be positive")


def test_without_checkify_around_it():
    x = pt.dvector("x")
    fn = pjl.as_jax_function([x], positive(x), checks="checkify")
    np.testing.assert_array_equal(fn(VALUE), VALUE)
    with pytest.raises(checkify.JaxRuntimeError, match="must be positive"):
        fn(-VALUE)
    with pytest.raises(ValueError, match="checkify"):
        jax.jit(fn)(VALUE)


def test_checkify_of_a_compiled_function():
    n, x, s = pt.lscalar("n"), pt.dvector("x"), pytensor.shared(np.arange(4.0), name="s")
    big = pt.constant(np.ones(10_000))
    f = compiled([n, x], pt.arange(n).sum() + positive(x).sum() + big[x.argmax()], updates={s: s * 2}, mode="JAXPR")
    fn = pjl.as_jax_function(f, checks="checkify")
    error, (value, update) = checkify.checkify(lambda x: fn(3, x, s.get_value()))(VALUE)
    assert error.get() is None
    assert value == 10
    np.testing.assert_array_equal(update, np.arange(4.0) * 2)
    error, _ = checkify.checkify(lambda x: fn(3, x, s.get_value()))(-VALUE)
    assert "must be positive" in error.get()


def test_errors_that_checkify_finds_itself():
    x = pt.dvector("x")
    fn = pjl.as_jax_function([x], pt.log(positive(x + 2)), checks="checkify")
    error, _ = checkify.checkify(pjl.as_jax_function([x], pt.log(x)), errors=checkify.all_checks)(-VALUE)
    assert "nan generated by primitive: log" in error.get()
    error, _ = checkify.checkify(fn, errors=checkify.all_checks)(VALUE)
    assert error.get() is None


def test_default_of_jax_functions():
    x, i = pt.dvector("x"), pt.lscalar("i")
    value, same, written = pjl.as_jax_function([x, i], [x[i], positive(x), x[i].set(0)])(-VALUE, 7)
    assert np.isnan(value)
    np.testing.assert_array_equal(written, -VALUE)
    np.testing.assert_array_equal(same, -VALUE)
    with pytest.raises(AssertionError, match="SpecifyShape"):
        pjl.as_jax_function([x], pt.specify_shape(x, (2,)))(VALUE)


def test_unknown_value():
    with pytest.raises(ValueError, match="'raise'"):
        pjl.as_jax_function([], [], checks="raise")
