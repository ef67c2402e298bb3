"""A custom interpreter walks our Jaxprs, as JAX's notebook "Writing custom Jaxpr interpreters" teaches."""

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from jax import lax
from jax.extend.core import Literal

import pytensor_jaxpr_linker as pjl

UNARY = {
    lax.exp_p: np.log,
    lax.log_p: np.exp,
    lax.tanh_p: np.arctanh,
    lax.neg_p: np.negative,
    lax.copy_p: np.asarray,
    lax.log1p_p: np.expm1,
    lax.expm1_p: np.log1p,
    lax.asinh_p: np.sinh,
}
#: The inverse of an operation in its first, or in its second operand: of the result and the other operand.
BINARY = {
    lax.add_p: (lambda z, c: z - c, lambda z, c: z - c),
    lax.sub_p: (lambda z, c: z + c, lambda z, c: c - z),
    lax.mul_p: (lambda z, c: z / c, lambda z, c: z / c),
    lax.div_p: (lambda z, c: z * c, lambda z, c: c / z),
}


def inverse(closed_jaxpr, *results):
    """Return the inputs that give `results`, by walking a chain of invertible equations backwards."""
    jaxpr = closed_jaxpr.jaxpr
    known = dict(zip(jaxpr.constvars, closed_jaxpr.consts, strict=True))

    def is_known(atom):
        return isinstance(atom, Literal) or atom in known

    def read(atom):
        return np.asarray(atom.val if isinstance(atom, Literal) else known[atom])

    for equation in jaxpr.eqns:  # forwards: what depends on constants alone
        if all(is_known(a) for a in equation.invars):
            values = equation.primitive.bind(*(read(a) for a in equation.invars), **equation.params)
            known[equation.outvars[0]] = values[0] if equation.primitive.multiple_results else values
    known.update(zip(jaxpr.outvars, results, strict=True))
    for equation in reversed(jaxpr.eqns):
        (out,) = equation.outvars
        unknown = [i for i, a in enumerate(equation.invars) if not is_known(a)]
        if not unknown:
            continue
        (i,) = unknown
        if equation.primitive in UNARY:
            value = UNARY[equation.primitive](read(out))
        elif equation.primitive in BINARY:
            value = BINARY[equation.primitive][i](read(out), read(equation.invars[1 - i]))
        else:
            raise NotImplementedError(f"{equation.primitive} has no inverse")
        known[equation.invars[i]] = value
    return [known[v] for v in jaxpr.invars]


STEPS = {
    "exp": pt.exp,
    "log-after-exp": lambda x: pt.log(pt.exp(x) + 2.0),
    "tanh": pt.tanh,
    "asinh": pt.arcsinh,
    "neg": lambda x: -x,
    "add": lambda x: x + 1.5,
    "add-constant-left": lambda x: 0.5 + x,
    "sub": lambda x: x - 0.25,
    "sub-from": lambda x: 2.0 - x,
    "mul": lambda x: x * -1.75,
    "div": lambda x: x / 3.0,
    "div-of": lambda x: 2.0 / (x + 5.0),
    "expm1": pt.expm1,
    "log1p": lambda x: pt.log1p(x + 2.0),
    "vector": lambda x: x * np.array([1.0, 2.0, 3.0]) + np.array([0.5, -0.5, 0.25]),
}
CHAINS = [
    ("exp",),
    ("log-after-exp", "neg"),
    ("tanh", "add", "mul"),
    ("sub", "div", "tanh", "exp"),
    ("sub-from", "div-of"),
    ("mul", "asinh", "log-after-exp", "add-constant-left", "div"),
    ("expm1", "log1p"),
    ("vector", "tanh", "neg", "vector"),
]


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("chain", CHAINS, ids="-".join)
def test_inverse(chain, static):
    x = pt.tensor("x", dtype="float64", shape=(3 if static or "vector" in chain else None,))
    y = x
    for step in chain:
        y = STEPS[step](y)
    f = pytensor.function([x], y, mode="JAXPR")
    with jax.enable_x64(True):
        jaxpr = pjl.make_jaxpr(f, np.zeros(3))
        for value in np.random.default_rng(0).uniform(-0.9, 0.9, (4, 3)):
            np.testing.assert_allclose(inverse(jaxpr, f(value))[0], value, rtol=1e-9, atol=1e-12)


def test_inverse_refuses_what_is_not_invertible():
    x = pt.tensor("x", dtype="float64", shape=(3,))
    f = pytensor.function([x], pt.cos(x), mode="JAXPR")
    with pytest.raises(NotImplementedError, match="cos has no inverse"):
        inverse(pjl.make_jaxpr(f), f([1.0, 2.0, 3.0]))
