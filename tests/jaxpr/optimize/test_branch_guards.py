"""`jax.grad` with ``gradient="jax"`` where a branch of `switch` that is not taken has no finite slope."""

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import FULLGRAPH
from jax.extend.core import check_jaxpr
from pytensor.compile.builders import OpFromGraph

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker import prims
from pytensor_jaxpr_linker.jaxpr.optimize.finish import PASSES

pytestmark = pytest.mark.usefixtures("x64")


def inner_switch(x):
    """Return a switch within an Op of its own."""
    y = pt.vector("y", dtype=x.dtype)
    return OpFromGraph([y], [pt.switch(y > 0, pt.log(y), 0)])(x) * 2


#: Functions of a vector and a scalar that choose by element.
CHOICES = {
    "log": lambda x, s: pt.switch(x > 0, pt.log(x), 0),
    "sqrt": lambda x, s: pt.switch(x > 0, pt.sqrt(x), x),
    "reciprocal": lambda x, s: pt.switch(pt.neq(x, 0), 1 / x, 0),
    "untaken false branch": lambda x, s: pt.switch(x <= 0, 0, s / x),
    "power": lambda x, s: pt.switch(x > 0, x**0.3, 0) + pt.switch(x > 0, x ** (x * s), 0),
    "chain": lambda x, s: pt.switch(x > 0, pt.exp(3 * pt.log(pt.log(x + 1))), 0),
    "product that overflows": lambda x, s: pt.switch(x < 1, pt.exp(x * 1000), x),
    "nested": lambda x, s: pt.switch(x > 0, pt.log(x), pt.switch(x < 0, pt.sqrt(-x), 0)),
    "both branches": lambda x, s: pt.switch(x > 0, pt.sqrt(x), pt.log(-x - 0.5)),
    "one logarithm for two": lambda x, s: pt.switch(x > 0, pt.log(x), 0) + pt.switch(x > 0, 2 * pt.log(x) ** 2, 0),
    "scalar in a branch": lambda x, s: pt.switch(x > 0, pt.log(x * s), 0) * s,
    "sum in a branch": lambda x, s: pt.switch(x > 0, pt.log(x / (x**2).sum()), 0),
    "sinc": lambda x, s: pt.switch(pt.eq(x, 0), 1.0, pt.sin(x) / x),
    "log-normal density": lambda x, s: pt.switch(x > 0, -0.5 * (pt.log(x) - s) ** 2 - pt.log(x), -np.inf),
    "special function": lambda x, s: pt.switch(x > 0, pt.gammaln(x) + pt.gammainc(s, x), 0),
    "inverse hyperbolic": lambda x, s: pt.switch(abs(x) < 1, pt.arctanh(x) + pt.arcsin(x) + pt.arccosh(2 + x), 0),
    "matrix": lambda x, s: pt.switch((x > 0)[:, None], pt.log(x)[:, None] * pt.ones((1, 2)), 0).sum(1),
    "OpFromGraph": lambda x, s: inner_switch(x),
    "where a slope is infinite": lambda x, s: pt.switch(x >= 0, pt.sqrt(x), 0),
    "0-d": lambda x, s: pt.switch(s > 3, pt.log(s - 3), s) * x,
    "0-d, array": lambda x, s: pt.switch(s > 3, pt.sqrt(x), x),
}
VALUES = np.array([0.0, -1.0, 0.7, 1.0, 3.0]), np.array(2.0)


@pytest.mark.parametrize(
    ("dtype", "names"), [("float64", [*CHOICES]), ("float32", ["log", "power", "scalar in a branch"])]
)
def test_gradients_are_those_of_pytensor(dtype, names):
    inputs = [make(dtype=dtype) for _ in names for make in (pt.vector, pt.scalar)]
    # Each function has inputs of its own, so one gradient is that of all.
    cost = sum(CHOICES[name](*inputs[2 * i : 2 * i + 2]).sum() for i, name in enumerate(names)).astype(dtype)
    slopes = pytensor.grad(cost, inputs, disconnected_inputs="ignore")
    fn = pjl.as_jax_function(inputs, cost, gradient="jax")
    values = [v.astype(dtype) for _ in names for v in VALUES]
    gradients = jax.vmap(jax.grad(lambda args: fn(*args)))
    batches = jax.jit(gradients)([np.stack([v, v[::-1] if v.ndim else v]) for v in values])
    found = [np.asarray(g) for g in batches]
    expected = pytensor.function(inputs, slopes, mode="JAXPR", on_unused_input="ignore")(*values)
    rtol = 1e-12 if dtype == "float64" else 1e-4
    for i, (got, want) in enumerate(zip(found, expected, strict=True)):
        name = names[i // 2]
        assert got.dtype == dtype, name
        assert not np.isnan(got).any(), name
        known = ~np.isnan(want)  # PyTensor's is NaN where an element of a matrix was broadcast
        assert known.all() or name == "matrix"
        np.testing.assert_allclose(got[0][known], want[known], rtol=rtol, atol=1e-15, err_msg=name)
        np.testing.assert_allclose(got[1], got[0][::-1] if got[0].ndim else got[0], rtol=rtol, err_msg=name)


def test_forward_mode_and_second_derivatives():
    x = pt.dvector("x")
    cost = pt.switch(x > 0, pt.log(x) + pt.exp(pt.log(x) / 2), pt.switch(x < 0, (-x) ** 2.5, 0)).sum()
    fn = pjl.as_jax_function([x], cost, gradient="jax")
    value = np.array([0.0, -1.0, 0.7, 3.0])
    positive, negative = value.clip(1e-9), -value.clip(None, -1e-9)
    first = np.where(value > 0, 1 / positive + 0.5 / positive**0.5, -2.5 * negative**1.5) * (value != 0)
    second = np.where(value > 0, -1 / positive**2 - 0.25 / positive**1.5, 3.75 * negative**0.5) * (value != 0)
    derivatives = jax.jit(lambda x: [jax.jacfwd(fn)(x), jax.hessian(fn)(x), jax.jacrev(jax.jacrev(fn))(x)])(value)
    for found, want in zip(derivatives, (first, np.diag(second), np.diag(second)), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-10, atol=1e-300)


def test_more_finite_than_pytensor():
    # PyTensor divides the zero of the branch by zero, and a number is no better.
    x, s = pt.dvector("x"), pt.dscalar("s")
    cost = pt.switch(s > 0, pt.log(s) * x, 0).sum() + pt.switch(s > 0, pt.sqrt((x**2).sum() * s), x.sum())
    fn = pjl.as_jax_function([x, s], cost, gradient="jax")
    gradient = jax.grad(fn, (0, 1))
    np.testing.assert_array_equal(np.concatenate([np.atleast_1d(g) for g in gradient(np.ones(2), 0.0)]), [1, 1, 0])
    assert np.isnan(pytensor.function([x, s], pytensor.grad(cost, s), mode=FULLGRAPH)(np.ones(2), 0.0))


#: What several branches read, of a vector and a scalar.
SHARED = {
    "two switches": lambda x, s: [pt.switch(x > 0, y := pt.log(x), 0) * 2, pt.switch(x > 1, y * s, 0)],
    "three switches": lambda x, s: [
        pt.switch(x > k, y * k, 0) for y in [pt.sqrt(x)] for k in range(3)
    ],
    "array and scalar": lambda x, s: [pt.switch(x > 0, y := pt.log(x), 0), pt.switch(s > 2, y, 0)],
    "nested": lambda x, s: [
        pt.switch(x > 0, pt.switch(x > 1, y := pt.log(x), 1 / x), 0), pt.switch(x > 2, pt.exp(y * 2), 0)
    ],
    "a condition of the value": lambda x, s: [
        pt.switch(x > 0, pt.switch((y := pt.sqrt(x)) > 1, y, 1), 0), pt.switch(x > 0, y**3, 0)
    ],
    "one of them the opposite": lambda x, s: [pt.switch(x > 0, y := pt.exp(x), 1), pt.switch(x > 0, 0, y)],
}  # fmt: skip


@pytest.mark.parametrize("name", SHARED)
def test_a_slope_that_several_branches_read(name):
    x, s = pt.dvector("x"), pt.dscalar("s")
    cost = sum(y.sum() for y in SHARED[name](x, s))
    fn = pjl.as_jax_function([x, s], cost, gradient="jax")
    slopes = pytensor.grad(cost, [x, s], disconnected_inputs="ignore")
    expected = pytensor.function([x, s], slopes, mode="JAXPR", on_unused_input="ignore")
    gradient = jax.jit(jax.grad(fn, (0, 1)))
    for value, number in ((np.array([0.0, -1.0, 0.5, 1.5, 3.0]), 1.0), (np.array([0.5, 1.5, 3.0]), 3.0)):
        for got, want in zip(gradient(value, number), expected(value, number), strict=True):
            # PyTensor multiplies the sum of all branches, which is 0, by the slope.
            np.testing.assert_allclose(got, np.where(np.isnan(want) & (value <= 0), 0, want), rtol=1e-12)


@pytest.mark.parametrize("function", [pt.sin, pt.cos, pt.tanh, pt.arctan, pt.arcsinh])
def test_complex_functions_in_a_branch(function):
    """They have poles, and grow without bound, where slopes of real numbers do not."""
    x = pt.dvector("x")
    parts = [0.0, np.pi / 2, 1.0, 2000.0]
    z = [pt.real(function(c)) for part in parts for c in (pt.complex(x, part + 0 * x), pt.complex(part + 0 * x, x))]
    fn = pjl.as_jax_function([x], [pt.switch(x > 5, sum(z), x).sum()], gradient="jax")
    values = np.array([0.0, 1.0, -1.0, np.pi / 2, 0.5])
    np.testing.assert_array_equal(jax.grad(lambda x: fn(x)[0])(values), np.ones(5))


def test_nan_of_the_branch_that_is_taken_stays():
    x = pt.dvector("x")
    fn = pjl.as_jax_function([x], pt.switch(x > 1, x, pt.log(x)), gradient="jax")
    got = jax.grad(lambda x: fn(x).sum())(np.array([2.0, 0.5, 0.0, np.nan]))
    np.testing.assert_array_equal(got, [1, 2, np.inf, np.nan])


def test_empty_arrays():
    x = pt.dvector("x")
    fn = pjl.as_jax_function([x], pt.switch(x > 0, pt.log(x), 0).sum(), gradient="jax")
    assert jax.grad(fn)(np.zeros(0)).shape == (0,)


def guards_of(x, y, **how):
    """Return how many guards are in the function of `y`."""
    fn = pjl.as_jax_function([x], y, **how)
    return str(jax.make_jaxpr(fn)(np.ones(3))).count("custom_jvp_call[")


def test_guards_are_where_they_are_needed():
    x = pt.dvector("x")
    logarithm = pt.switch(x > 0, pt.log(x) * 2 + pt.exp(x), 0)
    assert guards_of(x, logarithm, gradient="jax") == 1  # one for both, since they enter the branch by one operand
    assert guards_of(x, logarithm) == 0  # differentiated by PyTensor
    assert guards_of(x, pt.switch(x > 0, 2 * x + pt.tanh(x), -x), gradient="jax") == 0  # slopes are finite
    y = pt.log(x)
    assert guards_of(x, pt.switch(x > 0, y, 0) + y, gradient="jax") == 0  # read elsewhere, too
    assert guards_of(x, [pt.switch(x > 0, y, 0), y], gradient="jax") == 0


def test_order_of_equations():
    # The condition is computed after the branch, and from another branch.
    x = pt.dvector("x")
    y = pt.switch(x > 0, pt.log(x), 0)
    cost = pt.switch(pt.exp(y) > 1, pt.sqrt(x - 1) + y, y)
    fn = pjl.as_jax_function([x], cost, gradient="jax")
    value = np.array([0.0, 1.0, 4.0])
    want = pytensor.function([x], [cost, pytensor.grad(cost.sum(), x)], mode="JAXPR")(value)
    np.testing.assert_allclose(fn(value), want[0])
    np.testing.assert_allclose(jax.grad(lambda x: fn(x).sum())(value), want[1])


def test_without_choices_nothing_changes():
    b = pjl.JaxprBuilder(differentiable=True)
    x = b.input((2,), np.dtype("float64"))
    prims.log(b, x)
    (guards,) = (step for step in PASSES if step.name == "branch guards")
    assert not guards.applies(b.eqns, b)
    prims.select(b, prims.gt(b, x, x), x, x)
    assert guards.applies(b.eqns, b)


def test_random_programs():
    for seed in range(100):
        random = np.random.default_rng(seed)
        b = pjl.JaxprBuilder(differentiable=True, passes=PASSES)
        x, s = b.input((3,), np.dtype("float32")), b.input((), np.dtype("float32"))
        values, conditions = [x, prims.broadcast_to(b, s, (3,))], []

        def any_of(atoms, random=random):
            return atoms[random.integers(max(len(atoms) - 6, 0), len(atoms))]

        for kind in random.integers(4, size=30):
            if kind == 0 or not conditions:
                conditions.append(prims.gt(b, any_of(values), any_of(values)))
            elif kind == 1:
                values.append(prims.select(b, any_of(conditions), any_of(values), any_of(values)))
            elif kind == 2:
                values.append((prims.log, prims.sqrt, prims.exp)[random.integers(3)](b, any_of(values)))
            else:
                values.append((prims.mul, prims.add, prims.div)[random.integers(3)](b, any_of(values), any_of(values)))
        check_jaxpr(b.build(values[-1:]))  # each variable is defined before it is read
