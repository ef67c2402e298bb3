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
        fn = pjl.as_jax_function([x], cost)
        np.testing.assert_allclose(jax.jit(jax.grad(fn))(np.array([0.0, 1.0])), gradient)


def test_one_op_of_each_family():
    """What older versions of PyTensor and JAX may say otherwise: as in mode FAST_COMPILE."""
    x, v = pt.dmatrix("x"), pt.dvector("v")
    positive = x @ x.T + pt.eye(3)
    steps = pytensor.scan(lambda y, total: total + y, sequences=v, outputs_info=pt.zeros(()), return_updates=False)
    outputs = [
        pt.sort(x, axis=1),
        pt.sort(x, axis=None),
        pt.argsort(v),
        pt.searchsorted(pt.sort(v), v),
        pt.cumsum(x, axis=0).max(axis=1),
        pt.linalg.solve(positive, v),
        pt.linalg.cholesky(positive),
        pt.linalg.eigh(positive)[0],
        pt.concatenate([x[1:], x[:1]])[:, ::-1],
        x[v > 1.0].sum(),
        pt.gammaln(v) + pt.special.softmax(v),
        steps,
    ]
    values = [np.linspace(-1.0, 2.0, 9).reshape(3, 3) ** 2, np.array([3.0, 0.5, 2.0])]
    wanted = pytensor.function([x, v], outputs, mode="FAST_COMPILE")(*values)
    for want, got in zip(wanted, pytensor.function([x, v], outputs, mode="JAXPR")(*values), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
