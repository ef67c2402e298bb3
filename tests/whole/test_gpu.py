"""What differs on an accelerator: where arrays are, and what never leaves it. ``pytest -m gpu``, on a machine that has one."""

from __future__ import annotations

import os

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import pytensor_jaxpr_linker as pjl

#: ``TEST_GPU_ON=cpu`` runs these tests on the CPU, to see that they are right.
PLATFORM = os.environ.get("TEST_GPU_ON", "gpu")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(jax.default_backend() != PLATFORM, reason=f"JAX runs on {jax.default_backend()}"),
]
X = np.linspace(-1, 2, 12).reshape(4, 3)


def test_values_are_those_of_the_reference():
    x = pt.dmatrix("x")
    gram = x.T @ x + 3 * pt.eye(3)
    factor = pt.linalg.cholesky(gram)
    steps = pytensor.scan(
        lambda row, last: pt.tanh(last + row), sequences=[x], outputs_info=[pt.zeros(3)], return_updates=False
    )
    outputs = [
        pt.exp(x).sum(),
        factor,
        pt.linalg.solve_triangular(factor, x[0], lower=True),
        steps,
        x[x > 0].sum(),
        pt.sort(x[:, 0]),
    ]
    outputs.append(pytensor.grad(pt.log(pt.linalg.det(gram)), x))
    found = pytensor.function([x], outputs, mode="JAXPR")(X)
    for got, want in zip(found, pytensor.function([x], outputs, mode="FAST_COMPILE")(X), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def test_of_equal_indices_the_last_one_is_set():
    """The scatters of a GPU have no order."""
    rng = np.random.default_rng(0)
    x, y, v = pt.dmatrix("x"), pt.dmatrix("y"), pt.lvector("v")
    fixed = rng.integers(0, 50, 10_000)
    outputs = [pt.set_subtensor(x[v], y), pt.set_subtensor(x[fixed], y)]
    values = [np.zeros((50, 7)), rng.normal(size=(10_000, 7)), rng.integers(-50, 50, 10_000)]
    found = pytensor.function([x, y, v], outputs, mode="JAXPR")(*values)
    for got, want in zip(found, pytensor.function([x, y, v], outputs, mode="FAST_COMPILE")(*values), strict=True):
        np.testing.assert_array_equal(got, want)


def test_failures_of_libraries_are_those_of_pytensor():
    x, y = pt.dmatrix("x"), pt.dvector("y")
    f = pytensor.function([x], pt.linalg.eig(x)[0], mode="JAXPR")
    with pytest.raises(np.linalg.LinAlgError, match="infs or NaNs"):
        f(np.full((3, 3), np.nan))
    solution = pytensor.function([x, y], pt.linalg.solve(x, y, assume_a="tridiagonal", b_ndim=1), mode="JAXPR")
    assert np.isnan(solution(np.ones((2, 2)), np.ones(2))).all()


def test_digamma_next_to_its_zero():
    zero = 1.461632144968362341
    x = pt.dvector("x")
    points = np.nextafter(zero, [1, 1.4616321449683623, 2, 3])
    found = pytensor.function([x], pt.digamma(x), mode="JAXPR")(points)
    slope, rest = 0.9676722454476212, 9.549995429965697e-17
    np.testing.assert_allclose(found, slope * ((points - zero) - rest), rtol=1e-12)


def test_profile_names_the_nodes():
    x = pt.dmatrix("x")
    outputs = [pt.exp(x @ x).sum(), pt.sort(x, axis=0)[0], pt.cumsum(x, axis=1)[:, -1]]
    profile = pjl.stages(pytensor.function([x], outputs, mode="JAXPR"), np.full((500, 500), 1e-3)).profile(calls=3)
    assert {"Dot", "Exp"} <= {node.op for row in profile.rows for node in row.nodes}, str(profile)


def test_results_and_shared_variables_stay_on_the_device():
    w = pytensor.shared(X, name="w")
    with pjl.options(results="jax", checks="skip"):
        f = pytensor.function([], w.sum(), updates={w: w * 1.5}, mode="JAXPR")
    f()
    with jax.transfer_guard("disallow"):
        f()
        total = f()
    assert isinstance(total, jax.Array) and {d.platform for d in total.devices()} == {PLATFORM}
    np.testing.assert_allclose(w.get_value(), X * 1.5**3)


def test_a_shared_variable_on_a_mesh_stays_there():
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    w = pjl.shard(pytensor.shared(X, name="w"), mesh, ["data"])
    with pjl.options(results="jax", checks="skip"):
        f = pytensor.function([], [], updates={w: w + 1}, mode="JAXPR")
    f()
    with jax.transfer_guard("disallow"):
        f()
    np.testing.assert_allclose(w.get_value(), X + 2)


def test_a_write_by_another_mode_is_not_lost():
    w = pytensor.shared(X.copy(), name="w")
    pytensor.function([], [], updates={w: w + 1}, mode="JAXPR")()
    value = w.get_value(borrow=True)
    if value.flags.writeable:
        value[0, 0] = 7.0
        assert pytensor.function([], w[0, 0], mode="JAXPR")() == 7.0
    else:
        with pytest.raises(ValueError, match="read-only"):
            value[0, 0] = 7.0


def test_draws():
    rng = pytensor.shared(np.random.default_rng(0))
    draws = pt.random.normal(2, 3, size=10_000, rng=rng, return_next_rng=True)[1]
    found = pytensor.function([], draws, mode="JAXPR")()
    assert abs(found.mean() - 2) < 0.2 and abs(found.std() - 3) < 0.2


def test_a_few_draws_of_nuts():
    pm = pytest.importorskip("pymc")
    pytest.importorskip("blackjax")
    with pm.Model() as model:
        pm.Normal("x", 1, 0.5, shape=3)
    found = pjl.pymc.sample(
        200,
        tune=200,
        chains=4,
        model=model,
        chain_method="vectorized",
        random_seed=1,
        progressbar=False,
        compute_convergence_checks=False,
        sampler="blackjax",
    )
    assert abs(float(found.posterior["x"].mean()) - 1) < 0.15
