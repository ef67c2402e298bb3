"""What the warm-up of NUTS finds: scales of many orders of magnitude, and in few transitions."""

from __future__ import annotations

from types import SimpleNamespace

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

pytest.importorskip("blackjax")

from blackjax.adaptation.staged_adaptation import build_schedule
from blackjax.adaptation.step_size import dual_averaging_adaptation

from pytensor_jaxpr_linker.pymc import sample
from pytensor_jaxpr_linker.pymc.kernels import mass_matrix, metric
from pytensor_jaxpr_linker.pymc.kernels.mass_matrix import SETTLING_DRAWS, stan_windows, variation
from pytensor_jaxpr_linker.pymc.kernels.metric import MANY_DRAWS, Moments, noise_of_correlations
from pytensor_jaxpr_linker.pymc.kernels.nuts import (
    GAMMA,
    LARGE_ERROR,
    MANY_LARGE_ERRORS,
    acceptance_to_aim_at,
    adapted_step,
    begin_at,
    share_of_large_errors,
    step_in_new_metric,
)
from pytensor_jaxpr_linker.pymc.samplers.smc import variances as variances_of_particles

QUIET = {"random_seed": 1, "progressbar": False, "compute_convergence_checks": False}


@pytest.mark.parametrize("form", ["diagonal", "dense"])
def test_predictors_that_nobody_standardized(form):
    """With Stan's shrinkage to 0.001, R-hat is 2 and a draw takes hundreds of steps."""
    rng = np.random.default_rng(0)
    predictors = rng.normal(size=(100, 4)) * [1, 100, 1e4, 0.01]
    with pm.Model() as model:
        slopes = pm.Normal("slopes", 0, 10, shape=4)
        mean = pt.dot(predictors, slopes)
        pm.Normal("y", mean, pm.HalfNormal("s", 10), observed=predictors @ [1, 0.2, 0.001, 3] + rng.normal(size=100))
    found = sample(draws=500, tune=300, chains=4, model=model, mass_matrix=form, **QUIET)
    assert az.rhat(found.posterior.to_dataset()).to_dataarray().max() < 1.01
    assert found.sample_stats["n_steps"].mean() < 10


SCALES = {"tiny": np.full(50, 1e-3), "many": 10 ** np.random.default_rng(0).uniform(-2, 2, 50)}


@pytest.mark.parametrize(
    ("scales", "tune", "form"),
    [
        *[("tiny", tune, "diagonal") for tune in (100, 150, 200, 300)],
        *[("many", tune, "diagonal") for tune in (50, 100, 300)],
        ("tiny", 100, "dense"),
        ("many", 100, "low_rank"),
    ],
)
def test_a_short_warm_up(scales, tune, form):
    """The start is a thousand standard deviations away, or too near for some coordinates."""
    with pm.Model() as model:
        pm.Normal("x", 0, SCALES[scales], shape=50)
    # After 50 transitions of warm-up the rate of two chains depends on the seed: only the mean of many chains tells.
    chains = 32 if tune == 50 else 2
    found = sample(draws=200, tune=tune, chains=chains, model=model, mass_matrix=form, target_accept=0.9, **QUIET)
    assert abs(found.sample_stats["acceptance_rate"].mean() - 0.9) < 0.05
    assert found.sample_stats["n_steps"].mean() < 20


@pytest.mark.parametrize("tune", [500, 501, 1000, 2345])
def test_windows_are_those_of_stan(tune):
    expected = np.array(build_schedule(tune, final_buffer_size=mass_matrix.LAST_TRANSITIONS))
    stage, place = stan_windows(np.arange(tune), tune)
    np.testing.assert_array_equal(expected, np.stack([stage, place], axis=1))


def test_windows_change_little_from_one_length_of_the_warm_up_to_the_next():
    i = np.arange(700)
    stages, places = (np.array(x) for x in jax.vmap(jax.jit(stan_windows), (None, 0))(i, np.arange(700)))
    assert (stages[i, i] == mass_matrix.SAMPLE).all()
    assert (abs(np.diff((stages == mass_matrix.ADAPT_BOTH).sum(axis=1))) <= 1).all()
    for tune in range(1, 700):
        ends = np.flatnonzero(places[tune])
        in_windows = np.flatnonzero(stages[tune] == mass_matrix.ADAPT_BOTH)
        assert ends[-1] == in_windows[-1]
        lengths = np.diff([in_windows[0] - 1, *ends])
        assert (np.diff(lengths) >= 0).all()


def moments_of(draws: np.ndarray, gradients: np.ndarray, form: str) -> Moments:
    """Return the moments of a window."""
    window = metric.empty_moments(draws.shape[1], form == "dense")
    for x, gradient in zip(draws, gradients, strict=True):
        window = metric.add_state(window, SimpleNamespace(position=x, logdensity_grad=gradient))
    return window


@pytest.mark.parametrize("form", ["diagonal", "dense"])
@pytest.mark.parametrize("count", [0, 1, 2, 30])
def test_coordinates_of_which_a_window_says_nothing_keep_what_they_had(form, count):
    """One whose draws are all the same, and one with a gradient that is not finite: draws alone give its variance."""
    with jax.enable_x64(True):
        draws = np.random.default_rng(1).normal(size=(count, 4)) * [1e-6, 0, 1, 1e6]
        gradients = -draws / np.array([1e-12, 1, 1, 1e12])
        gradients[:, 2] = np.nan
        window = moments_of(draws, gradients, form)
        old = np.array([2.0, 3.0, 4.0, 5.0])
        new = (metric.window_covariances if form == "dense" else metric.window_variances)(window, old)
        after_window = metric.metric_diagonal(new)
        before, after = mass_matrix.frequencies(old, after_window, metric.fisher_variances(window))
        found, step_size = np.asarray(new), np.asarray(step_in_new_metric(0.5, before, after))
    diagonal = np.diag(found) if form == "dense" else found
    assert np.isfinite(found).all() and 0 < step_size < np.inf
    if count < 2:
        np.testing.assert_allclose(diagonal, old)
        assert step_size == 0.5
    else:
        variance = draws.var(axis=0, ddof=1)
        np.testing.assert_allclose(diagonal[1:3], [3, variance[2]])
        # Fisher's diagonal is exact, and has the weight of five draws.
        expected = np.exp((count * np.log(variance[[0, 3]]) + 5 * np.log([1e-12, 1e12])) / (count + 5))
        np.testing.assert_allclose(diagonal[[0, 3]], expected)
    if form == "dense":
        scale = np.sqrt(diagonal)
        assert np.linalg.eigvalsh(found / scale / scale[:, None]).min() > 1e-5


def test_draws_that_overflow_leave_a_dense_mass_matrix_usable():
    """The square of one coordinate's draws is infinite, and its products with another one's, too."""
    with jax.enable_x64(True):
        draws = np.random.default_rng(1).normal(size=(30, 3)) * [1, 1e160, 1e155]
        window, old = moments_of(draws, -draws, "dense"), np.ones(3)
        assert np.isinf(np.asarray(window.draws.m2)).any()
        found = np.asarray(metric.window_covariances(window, old))
    assert np.isfinite(found).all() and np.linalg.eigvalsh(found / np.sqrt(np.outer(*[np.diag(found)] * 2))).min() > 0


def correlated_draws(count, size, correlation):
    """Draws of neighbours with a correlation."""
    matrix = correlation ** np.abs(np.arange(size)[:, None] - np.arange(size))
    return np.random.default_rng(1).normal(size=(count, size)) @ np.linalg.cholesky(matrix).T


@pytest.mark.parametrize(
    ("count", "correlation", "low", "high"), [(450, 0, 0.9, 1.1), (450, 0.9, 0, 0.05), (0, 0, np.inf, np.inf)]
)
def test_the_noise_of_correlations(count, correlation, low, high):
    """About 1 if there are none, infinite without draws."""
    with jax.enable_x64(True):
        draws = correlated_draws(count, 40, correlation) * np.geomspace(1e-6, 1e6, 40)
        assert low <= float(noise_of_correlations(moments_of(draws, draws, "dense"))) <= high


@pytest.mark.parametrize(
    ("count", "correlation", "varying", "expected"),
    [(450, 0.9, 0, 0), (450, 0.9, 0.4, 0.4), (450, 0, 0, 1), (MANY_DRAWS - 1, 0.9, 0, 1), (MANY_DRAWS, 0.9, 0, 0)],
)
def test_correlations_of_many_coordinates_need_evidence(count, correlation, varying, expected):
    with jax.enable_x64(True):
        draws = correlated_draws(count, 40, correlation)
        window = moments_of(draws, draws, "dense")
        assert float(metric.weight_of_no_correlations(window, varying)) == pytest.approx(expected, abs=0.01)


def test_a_narrow_direction_of_many_coordinates_is_seen():
    """The sum of 30 coordinates is known, and pairs have a correlation of -1/29."""
    with jax.enable_x64(True):
        draws = np.random.default_rng(1).normal(size=(450, 30))
        draws += (0.01 - 1) * draws.sum(axis=1, keepdims=True) / 30
        window = moments_of(draws, draws, "dense")
        assert abs(np.corrcoef(draws.T) - np.eye(30)).max() < 0.25
        assert float(metric.weight_of_no_correlations(window, 0)) < 0.01


def test_draws_that_overflow_show_no_correlations():
    with jax.enable_x64(True):
        draws = correlated_draws(450, 20, 0.9) * np.r_[np.ones(10), np.full(5, 1e160), np.full(5, 1e155)]
        window = moments_of(draws, draws, "dense")
        weight = float(metric.weight_of_no_correlations(window, 0))
        found = np.asarray(metric.window_covariances(window, np.ones(20), weight))
    assert 0 <= weight <= 1 and np.isfinite(found).all()


def test_correlations_are_shrunk_as_asked():
    with jax.enable_x64(True):
        draws = correlated_draws(450, 40, 0.9)
        window, old = moments_of(draws, draws, "dense"), np.ones(40)
        least = [np.asarray(metric.window_covariances(window, old, x)) for x in (0, 0.5, 1)]
    scales = np.sqrt(np.diag(least[0]))
    np.testing.assert_allclose([np.diag(x) for x in least], 3 * [scales**2])
    found = [(x / np.outer(scales, scales))[0, 1] for x in least]
    np.testing.assert_allclose(found, [found[0], found[0] / 2, 0], rtol=1e-3)
    assert found[0] > 0.85


def test_large_errors_tell_that_correlations_vary():
    """From 0.003 to 0.006 of the transitions, once the step size has settled; a short window tells nothing."""
    with jax.enable_x64(True):
        long, short = (moments_of(np.zeros((n, 2)), np.zeros((n, 2)), "dense") for n in (1000 + SETTLING_DRAWS, 99))
        assert [float(variation(long, n)) for n in (0, 3, 6, 1000)] == pytest.approx([0, 0, 1, 1])
        assert float(variation(long, 4.5)) == pytest.approx(0.5)
        assert float(variation(short, 40)) == 0


def test_the_first_mass_matrix_is_from_the_gradient():
    with jax.enable_x64(True):
        found = np.asarray(metric.variances_by_gradient(np.array([4.0, -1e6, 0, 1e-12, np.inf, np.nan])))
    np.testing.assert_allclose(found, [0.25, 1e-6, 1, 1, 1, 1])


@pytest.mark.parametrize(
    ("step_size", "old", "new", "expected"),
    [(0.1, 10, 1, 1), (0.1, 5, 1, 0.5), (0.5, 1, 4, 0.125), (3, 1, 2, 0.5), (0.7, 0, 0, 0.7), (0.7, 0, 1, 0.7)],
)
def test_a_step_in_a_new_mass_matrix(step_size, old, new, expected):
    found = step_in_new_metric(*map(jnp.float32, (step_size, old, new)))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_step_size_is_that_of_the_beginning_until_there_is_a_transition():
    np.testing.assert_allclose(np.exp(begin_at(0.01).log_step_size_avg), 0.01, rtol=1e-6)


@pytest.mark.parametrize("aim", [0.6, 0.9])
def test_the_step_size_settles_where_the_rate_is_the_one_to_aim_at(aim):
    """Of an acceptance rate that falls with the step size, whatever the step at first."""
    for first in (0.02, 0.3, 4.0):
        state = begin_at(first)
        for _ in range(300):
            state = adapted_step(state, aim - jnp.exp(-jnp.exp(state.log_step_size)))
        np.testing.assert_allclose(np.exp(-np.exp(state.log_step_size_avg)), aim, atol=0.05)


def test_dual_averaging_beside_blackjax():
    """With the place towards which steps are drawn, and the first average, of this package."""
    init, update, final = dual_averaging_adaptation(0.8, gamma=GAMMA)
    with jax.enable_x64(True):
        ours, theirs = begin_at(jnp.float64(0.3)), init(jnp.float64(0.3))
        theirs = theirs._replace(mu=theirs.log_step_size, log_step_size_avg=theirs.log_step_size)
        for rate in jnp.asarray(np.random.default_rng(1).uniform(size=50)):
            ours, theirs = adapted_step(ours, 0.8 - rate), update(theirs, rate)
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(jnp.exp(ours.log_step_size_avg), final(theirs))


@pytest.mark.parametrize("form", ["diagonal", "dense"])
def test_moments_are_numpys(form):
    draws, gradients = np.random.default_rng(1).normal(size=(2, 40, 3)) * [1e-3, 1, 1e3] + 7
    with jax.enable_x64(True):
        found = jax.tree.map(np.asarray, moments_of(draws, gradients, form))
    expected = np.cov(draws.T) if form == "dense" else draws.var(axis=0, ddof=1)
    np.testing.assert_allclose(found.draws.m2 / 39, expected, rtol=1e-10)
    np.testing.assert_allclose(found.gradients.m2 / 39, gradients.var(axis=0, ddof=1), rtol=1e-10)
    np.testing.assert_allclose(found.draws.mean, draws.mean(axis=0), rtol=1e-12)
    assert found.draws.sample_size == 40


def shares(errors):
    """The share of large errors after each of the transitions."""
    found = [0.0]
    for number, error in enumerate(errors):
        found.append(float(share_of_large_errors(found[-1], number, error)))
    return np.array(found[1:])


def test_the_share_of_large_errors():
    always, never = shares([np.inf] * 1000), shares([0.0, LARGE_ERROR, -np.inf, np.nan] * 250)
    assert (np.diff(always) > 0).all() and 0.99 < always[-1] <= 1
    assert (never == 0).all()
    rare = shares([LARGE_ERROR + 1 if i % 50 == 0 else 1.0 for i in range(1000)])
    np.testing.assert_allclose(rare[-1], 0.02, rtol=0.1)
    first = shares([1e3] * 75 + [0.0] * 925)  # before the mass matrix fits
    assert first[74] > 0.9 and first[-1] < 0.01


@pytest.mark.parametrize(
    ("share", "expected"), [(0, 0.8), (MANY_LARGE_ERRORS / 2, 0.85), (MANY_LARGE_ERRORS, 0.9), (0.5, 0.9)]
)
def test_which_acceptance_rate_the_step_size_aims_at(share, expected):
    np.testing.assert_allclose(acceptance_to_aim_at((0.8, 0.9), share), expected, rtol=1e-6)
    assert acceptance_to_aim_at((0.7, 0.7), share) == 0.7


def plain():
    with pm.Model() as model:
        pm.Normal("x", 0, np.geomspace(0.1, 10, 20), shape=20)
    return model


def curved():
    """Eight schools: a group's effect has a wide posterior if the scale is small, and a narrow one if it is large."""
    effects, errors = [28.0, 8, -3, 7, -1, 1, 18, 12], [15.0, 10, 16, 11, 9, 11, 10, 18]
    with pm.Model() as model:
        mean, scale, z = pm.Normal("mean", 0, 5), pm.HalfCauchy("scale", 5), pm.Normal("z", shape=8)
        pm.Normal("y", mean + scale * z, errors, observed=effects)
    return model


@pytest.mark.parametrize("form", ["diagonal", "dense", "low_rank"])
def test_the_step_size_is_shorter_where_curvature_varies(form):
    """By default; a rate that was asked for is reached in either case."""
    options = {"draws": 500, "tune": 600, "chains": 4, "mass_matrix": form, **QUIET}
    rates = {m: sample(model=m(), **options).sample_stats["acceptance_rate"].mean() for m in (plain, curved)}
    assert abs(rates[plain] - 0.8) < 0.04
    assert rates[curved] > 0.86
    asked = sample(model=curved(), target_accept=0.8, **options).sample_stats["acceptance_rate"].mean()
    assert abs(asked - 0.8) < 0.06


def test_variances_of_particles_of_any_scale():
    x = np.random.default_rng(1).normal(size=(1000, 3)) * [1e-6, 1e6, 0] + [0, 0, 2]
    particles = SimpleNamespace(particles={"x": x}, weights=np.full(1000, 1e-3))
    with jax.enable_x64(True):
        found = np.asarray(variances_of_particles(particles))
    np.testing.assert_allclose(found, [1e-12, 1e12, 1], rtol=0.2)


def test_steps_are_short_enough_for_a_banana():
    """Up to a rate of 0.9, steps were too long for the tails: 40 divergences in 8,000 draws, and a rate of 0.855."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("x", 0, 2) ** 2, 1)
    stats = sample(draws=1000, chains=8, model=model, **QUIET).sample_stats
    assert stats["acceptance_rate"].mean() > 0.89
    assert stats["diverging"].sum() < 25
