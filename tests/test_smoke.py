"""The shortest run through the package; it also runs on the lowest supported versions."""

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt

import pytensor_jaxpr_linker as pjl


def test_import_compile_call_grad():
    x = pt.vector("x", dtype="float64")
    cost = pt.exp(x).sum()
    f = pytensor.function([x], [cost, pt.grad(cost, x)], mode="JAXPR")
    value, gradient = f([0.0, 1.0])
    np.testing.assert_allclose(value, 1 + np.e)
    np.testing.assert_allclose(gradient, [1, np.e])
    with jax.enable_x64(True):
        fn = pjl.as_jax_function([x], [cost])
        np.testing.assert_allclose(jax.jit(jax.grad(lambda x: fn(x)[0]))(np.array([0.0, 1.0])), gradient)
