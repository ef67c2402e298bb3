"""Factors of inverse mass matrices, beside BlackJAX's metrics, which multiply by the inverse mass matrix itself."""

from __future__ import annotations

import jax
import numpy as np
import pymc as pm
import pytest

pytest.importorskip("blackjax")

from blackjax.mcmc.metrics import LowRankInverseMassMatrix, default_metric

from pytensor_jaxpr_linker.pymc import sample
from pytensor_jaxpr_linker.pymc.kernels.metric import (
    LowRankFactor,
    cholesky_by_columns,
    factor_of,
    inverse_mass_diagonal,
    to_force,
    to_velocity,
)
from pytensor_jaxpr_linker.pymc.kernels.nuts import MOST_OF_DENSE, make_kernel
from pytensor_jaxpr_linker.pymc.kernels.trajectory import kinetic_energy, turns_back


def random_matrix(size, seed=1):
    x = np.random.default_rng(seed).normal(size=(size, size))
    return x @ x.T + 0.1 * np.eye(size)


def inverse_mass(form, size):
    rng = np.random.default_rng(2)
    if form == "diagonal":
        return rng.uniform(0.1, 10, size)
    if form == "dense":
        return random_matrix(size)
    directions = np.linalg.qr(rng.normal(size=(size, min(size, 2))))[0]
    return LowRankInverseMassMatrix(rng.uniform(0.1, 10, size), directions, rng.uniform(0.2, 5, directions.shape[1]))


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("form", ["diagonal", "dense", "low_rank"])
def test_beside_blackjax(form, size):
    """With ``factor.T @ p`` for a momentum ``p``, velocities, energies and turns are the same."""
    rng = np.random.default_rng(3)
    with jax.enable_x64(True):
        inverse = jax.tree.map(jax.numpy.asarray, inverse_mass(form, size))
        factor = LowRankFactor(*inverse) if form == "low_rank" else factor_of(inverse)
        metric = default_metric(inverse)
        first, last, total = rng.normal(size=(3, size)) + 0.5
        ours = [to_force(factor, p) for p in (first, last, total)]  # the transpose of the factor, as for forces
        velocity = jax.grad(metric.kinetic_energy)(jax.numpy.asarray(first))
        np.testing.assert_allclose(to_velocity(factor, ours[0]), velocity, rtol=1e-12)
        np.testing.assert_allclose(kinetic_energy(ours[0]), metric.kinetic_energy(first), rtol=1e-12)
        diagonal = [jax.grad(metric.kinetic_energy)(row)[i] for i, row in enumerate(np.eye(size))]
        np.testing.assert_allclose(inverse_mass_diagonal(factor), diagonal, rtol=1e-12)
        for sign in (1, -1):
            expected = metric.check_turning(first, last, sign * total)
            assert turns_back(ours[0], ours[1], sign * ours[2]) == expected


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [0, 1, 2, 16, 100])
def test_cholesky_by_columns(size, dtype):
    with jax.enable_x64(True):
        matrix = random_matrix(size).astype(dtype)
        found = np.asarray(jax.jit(factor_of)(matrix))
        alone = np.asarray(cholesky_by_columns(jax.numpy.asarray(matrix)) if size else found)
        batched = np.asarray(jax.vmap(factor_of)(jax.numpy.stack([matrix, 4 * matrix])))
    assert found.dtype == dtype and found.shape == (size, size)
    tolerance = 1e-3 if dtype == "float32" else 1e-10
    np.testing.assert_allclose(found, np.linalg.cholesky(matrix), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(alone, found, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(batched, [found, 2 * found], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("size", "ndim"), [(1, 2), (MOST_OF_DENSE, 2), (MOST_OF_DENSE + 1, 1)])
def test_up_to_so_many_coordinates_have_a_dense_mass_matrix(size, ndim):
    """Unless another is asked for."""
    key = jax.random.key(1, impl="threefry2x32")
    with jax.enable_x64(True):
        for form, expected in ((None, ndim), ("diagonal", 1), ("dense", 2)):
            kernel = make_kernel(lambda q, _: -(q @ q) / 2, 10, 0.8, 5, mass_matrix=form)
            *_, metric = kernel.start(None, key, jax.numpy.zeros(size))
            assert metric.factor.ndim == expected


def test_correlated_coordinates():
    """A pair with a correlation of 0.999: trajectories of a diagonal mass matrix are ten times as long."""
    with pm.Model() as model:
        pm.MvNormal("x", np.zeros(2), np.array([[1, 0.999], [0.999, 1]]))
    quiet = {"random_seed": 1, "progressbar": False, "compute_convergence_checks": False, "draws": 1000, "chains": 4}
    found = sample(model=model, **quiet)
    steps = [s.sample_stats["n_steps"].mean() for s in (found, sample(model=model, mass_matrix="diagonal", **quiet))]
    assert 10 * steps[0] < steps[1]
    draws = found.posterior["x"].to_numpy().reshape(-1, 2)
    np.testing.assert_allclose(np.cov(draws.T), [[1, 0.999], [0.999, 1]], atol=0.1)


def factors_of(logp, size, tune=1000):
    """Return the factor of the default NUTS at the end of the warm-up of a chain."""
    kernel = make_kernel(lambda q, _: logp(q), tune, (0.8, 0.9), 10)
    with jax.enable_x64(True):
        state = kernel.start(None, jax.random.key(1, impl="threefry2x32"), jax.numpy.full(size, 0.1))
        step = jax.jit(lambda state: jax.lax.fori_loop(0, tune + 1, lambda _, x: kernel.transition(None, x)[0], state))
        return np.asarray(step(state)[-1].factor)


def correlations_of(factor):
    matrix = factor @ factor.T
    scales = np.sqrt(np.diag(matrix))
    return matrix / np.outer(scales, scales)


def neighbours(size, correlation):
    """Return the matrix of correlations of a chain of neighbours, and its log density."""
    matrix = correlation ** np.abs(np.arange(size)[:, None] - np.arange(size))
    precision = np.linalg.inv(matrix)
    return matrix, lambda q: -q @ precision @ q / 2


def test_correlations_of_many_coordinates_are_found():
    matrix, logp = neighbours(40, 0.9)
    np.testing.assert_allclose(correlations_of(factors_of(logp, 40)), matrix, atol=0.2)
    np.testing.assert_allclose(correlations_of(factors_of(logp, 40, tune=150)), np.eye(40), atol=1e-6)  # too few draws


def test_many_coordinates_without_correlations_have_none():
    _, logp = neighbours(40, 0.0)
    np.testing.assert_allclose(correlations_of(factors_of(logp, 40)), np.eye(40), atol=0.1)


def test_correlations_that_vary_are_left_out():
    """A funnel: the first coordinate is the logarithm of the scale of the others, whose correlations a window shows."""
    _, of_pairs = neighbours(20, 0.95)

    def logp(q):
        scale = jax.numpy.exp(q[0] / 2)
        return -(q[0] ** 2) / 8 - 10 * q[0] + of_pairs(q[1:] / scale)

    np.testing.assert_allclose(correlations_of(factors_of(logp, 21)), np.eye(21), atol=1e-6)
