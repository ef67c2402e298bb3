"""The transitions of NUTS, beside one in plain Python with the same random numbers, and beside BlackJAX's kernel."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import stats

blackjax = pytest.importorskip("blackjax")

from pytensor_jaxpr_linker.pymc.kernels.metric import factor_of, inverse_mass_diagonal  # noqa: E402
from pytensor_jaxpr_linker.pymc.kernels.nuts import make_kernel  # noqa: E402
from pytensor_jaxpr_linker.pymc.kernels.trajectory import DIVERGENCE, Noise, noise_of, nuts_transition  # noqa: E402

SCALES = np.array([1.0, 3.0])
INVERSE_MASS = np.array([1.0, 2.0])
START = np.array([0.3, -2.0])
DEPTH = 6


def logp(x):
    return -0.5 * ((x / SCALES) ** 2).sum()


def transition(noise, step_size, start=START, logdensity=logp):
    state = blackjax.nuts.init(jax.numpy.asarray(start), logdensity)
    return nuts_transition(noise, state, logdensity, step_size, jax.numpy.asarray(np.sqrt(INVERSE_MASS)), DEPTH)


@pytest.mark.parametrize("form", ["diagonal", "dense", "low_rank"])
@pytest.mark.parametrize("tune", [0, 30])
def test_the_first_transition_evaluates_the_start(form, tune):
    with jax.enable_x64(True):
        kernel = make_kernel(lambda q, scale: logp(q) * scale, tune, 0.8, DEPTH, mass_matrix=form, step_size=0.7)
        assert kernel.first_evaluates
        chain = kernel.start(1.0, jax.random.key(3, impl="threefry2x32"), jax.numpy.asarray(START))
        (i, _, state, step, _, metric), (position, stats) = jax.jit(kernel.transition)(2.0, chain)
        gradient = -2 * START / SCALES**2
        np.testing.assert_array_equal(position, START)
        np.testing.assert_array_equal(state.position, START)
        np.testing.assert_allclose(state.logdensity, 2 * logp(START), rtol=1e-15)
        np.testing.assert_allclose(stats["lp"], state.logdensity)
        np.testing.assert_allclose(state.logdensity_grad, gradient, rtol=1e-15)
        np.testing.assert_allclose(inverse_mass_diagonal(metric.factor), 1 / abs(gradient), rtol=1e-12)
        np.testing.assert_allclose(np.exp(step.log_step_size), 0.7, rtol=1e-15)
        assert i == 0 and jax.tree.all(
            jax.tree.map(lambda a, b: a.shape == b.shape and a.dtype == b.dtype, state, chain[2])
        )


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("of_gradient", [False, True])
def test_the_first_transition_refuses_a_start(value, of_gradient):
    """Without a finite log density, or gradient, the state keeps a density of zero."""

    @jax.custom_vjp
    def density(x):
        return logp(x) + (0 if of_gradient else value)

    density.defvjp(lambda x: (density(x), x), lambda x, g: (g * (x * value if of_gradient else x),))
    with jax.enable_x64(True):
        kernel = make_kernel(lambda q, _: density(q), 10, 0.8, DEPTH)
        chain = kernel.start(None, jax.random.key(3, impl="threefry2x32"), jax.numpy.asarray(START))
        (_, _, state, _, _, metric), (position, stats) = jax.jit(kernel.transition)(None, chain)
    np.testing.assert_array_equal(position, START)
    assert np.asarray(stats["lp"]) == np.asarray(state.logdensity) == -np.inf
    assert np.isfinite(np.asarray(metric.factor)).all()


def noises(seed, count):
    rng = np.random.default_rng(seed)
    return [Noise(rng.standard_normal(2), rng.random((3, DEPTH))) for _ in range(count)]


def turns(states):
    """The criterion of a turn for consecutive states."""
    rho = sum(p for _, p in states) - (states[0][1] + states[-1][1]) / 2
    return any((INVERSE_MASS * p) @ rho <= 0 for p in (states[0][1], states[-1][1]))


def in_plain_python(noise, step_size):
    """Return the draw's index, states by index, energies, whether the trajectory diverges and turns, and doublings."""

    def step(q, p, size):
        p = p - size / 2 * q / SCALES**2
        q = q + size * INVERSE_MASS * p
        return q, p - size / 2 * q / SCALES**2

    def energy(q, p):
        return 0.5 * p @ (INVERSE_MASS * p) - float(logp(q))

    states = {0: (START, noise.normal / np.sqrt(INVERSE_MASS))}
    draw, weight = 0, 1.0
    diverges = turned = False
    for doubling in range(DEPTH):
        direction = 1 if noise.uniform[0, doubling] < 0.5 else -1
        chance, new, sum_of_new = noise.uniform[1, doubling], [], 0.0
        index = max(states) if direction > 0 else min(states)
        for number in range(2**doubling):
            q, p = step(*states[index], direction * step_size)
            index += direction
            states[index] = q, p
            new.append(index)
            gain = energy(*states[0]) - energy(q, p)
            sum_of_new += np.exp(gain)
            share = np.exp(gain) / sum_of_new if sum_of_new else 1.0
            if chance < share:
                drawn, chance = index, chance / share
            else:
                chance = (chance - share) / (1 - share)
            levels = [2**n for n in range(1, DEPTH) if (number + 1) % 2**n == 0]
            turned = any(turns([states[i] for i in new[-length:]]) for length in levels)
            diverges = -gain > DIVERGENCE
            if turned or diverges:
                break
        else:
            if noise.uniform[2, doubling] < sum_of_new / weight:
                draw = drawn
            weight += sum_of_new
        turned = turned or turns([states[i] for i in sorted(states)])
        if turned or diverges:
            break
    energies = {i: energy(*state) for i, state in states.items()}
    return draw, states, energies, diverges, turned, doubling + 1


@pytest.mark.parametrize("step_size", [0.05, 0.4, 0.9, 300.0])
def test_beside_plain_python(step_size):
    with jax.enable_x64(True):
        call, depths = jax.jit(transition), set()
        for noise in noises(1, 20):
            draw, states, energies, diverges, turned, doublings = in_plain_python(noise, step_size)
            state, path, stats = call(noise, step_size)
            np.testing.assert_allclose(state.position, states[draw][0], rtol=1e-9)
            value, gradient = jax.value_and_grad(logp)(state.position)
            np.testing.assert_allclose([state.logdensity, *state.logdensity_grad], [value, *gradient], rtol=1e-12)
            assert (stats["index_in_trajectory"], stats["tree_depth"]) == (draw, doublings)
            assert (bool(path.is_divergent), bool(path.is_turning)) == (diverges, turned)
            assert stats["n_steps"] == len(states) - 1
            errors = {i: energy - energies[0] for i, energy in energies.items() if i}
            np.testing.assert_allclose(stats["energy"], energies[draw], rtol=1e-9)
            np.testing.assert_allclose(stats["energy_error"], energies[draw] - energies[0], atol=1e-9)
            np.testing.assert_allclose(stats["max_energy_error"], max(errors.values(), key=abs), rtol=1e-7)
            accepted = np.mean([min(1, np.exp(-error)) for error in errors.values()])
            np.testing.assert_allclose(stats["acceptance_rate"], accepted, rtol=1e-7)
            for end, index in ((path.left, min(states)), (path.right, max(states))):
                position, momentum = states[index]
                np.testing.assert_allclose(end.position, position, rtol=1e-9)
                np.testing.assert_allclose(end.momentum, np.sqrt(INVERSE_MASS) * momentum, rtol=1e-9)
            depths.add(doublings)
    assert len(depths) > 1 or (step_size == 300 and diverges) or (step_size == 0.05 and depths == {DEPTH})


def test_one_number_chooses_among_all_states_by_their_weight():
    """Of 20,000 numbers at equal distances, each state of the last doubling gets as many as its weight says."""
    count = 20_000
    with jax.enable_x64(True):
        noise = next(n for n in noises(3, 100) if in_plain_python(n, 0.5)[-1] == 4)
        uniform = np.broadcast_to(noise.uniform, (count, 3, DEPTH)).copy()
        uniform[:, 1, 2] = (np.arange(count) + 0.5) / count
        uniform[:, 2, 2], uniform[:, 2, 3:] = 0.0, np.inf  # the draw is of the third doubling
        _, _, stats = jax.vmap(lambda u: transition(Noise(noise.normal, u), 0.5))(uniform)
        _, _, energies, *_ = in_plain_python(noise, 0.5)
    chosen, counts = np.unique(np.asarray(stats["index_in_trajectory"]), return_counts=True)
    weights = np.exp([-energies[i] for i in chosen])
    assert len(chosen) == 4
    np.testing.assert_allclose(counts / count, weights / weights.sum(), atol=4 / count)


def test_energies_that_are_not_finite():
    """A density of zero, or NaN, diverges: the chain stays, and no statistic but the largest error is lost."""
    noise = Noise(np.array([3.0, 0.1]), np.zeros((3, DEPTH)))
    with jax.enable_x64(True):
        for beyond in (-np.inf, np.nan):

            def density(x, beyond=beyond):
                return jax.numpy.where(x[0] > 0.35, beyond, logp(x))

            call = jax.jit(lambda noise, density=density: transition(noise, 0.5, logdensity=density))
            state, path, stats = call(noise)
            np.testing.assert_array_equal(state.position, START)
            assert path.is_divergent
            assert (stats["index_in_trajectory"], stats["energy_error"], stats["acceptance_rate"]) == (0, 0, 0)
            assert stats["max_energy_error"] == np.inf


@pytest.mark.parametrize("form", ["diagonal", "dense"])
def test_draws_beside_blackjax(form):
    """The same distribution, and trajectories that are as long."""
    covariance = np.array([[1.0, 0.9], [0.9, 2.0]])
    mass = covariance if form == "dense" else np.diag(covariance)
    precision = np.linalg.inv(covariance)
    count = 4000
    with jax.enable_x64(True):

        def density(x):
            return -0.5 * x @ precision @ x

        def ours(carry, _):
            key, state = carry
            key, noise = noise_of(key, 2, DEPTH)
            state, _, stats = nuts_transition(noise, state, density, 0.6, factor_of(jax.numpy.asarray(mass)), DEPTH)
            return (key, state), (state.position, stats["n_steps"])

        kernel = blackjax.nuts.build_kernel()

        def theirs(carry, _):
            key, subkey = jax.random.split(carry[0])
            state, info = kernel(subkey, carry[1], density, 0.6, jax.numpy.asarray(mass), DEPTH)
            return (key, state), (state.position, info.num_integration_steps)

        start = blackjax.nuts.init(jax.numpy.zeros(2), density)
        found = [
            jax.jit(lambda key, step=step: jax.lax.scan(step, (key, start), length=count)[1])(jax.random.key(1))
            for step in (ours, theirs)
        ]
    (draws, steps), (_, steps_of_blackjax) = jax.tree.map(np.asarray, found)
    np.testing.assert_allclose(np.mean(draws, 0), 0, atol=0.1)
    np.testing.assert_allclose(np.cov(np.transpose(draws)), covariance, atol=0.15)
    np.testing.assert_allclose(np.mean(steps), np.mean(steps_of_blackjax), rtol=0.05)


def test_random_numbers():
    """Those of a chain of keys: normal and uniform ones, of which none is repeated, and under `vmap`."""
    with jax.enable_x64(True):

        def step(key, _):
            return noise_of(key, 3, DEPTH)

        _, noise = jax.jit(lambda key: jax.lax.scan(step, key, length=500))(jax.random.key(5))
        normal, uniform = np.asarray(noise.normal).ravel(), np.asarray(noise.uniform).ravel()
        keys = jax.random.split(jax.random.key(1), 2)
        batched, alone = jax.vmap(lambda key: noise_of(key, 3, DEPTH)[1])(keys), noise_of(keys[1], 3, DEPTH)[1]
        np.testing.assert_array_equal(batched.normal[1], alone.normal)
    assert uniform.shape == (500 * 3 * DEPTH,)
    assert len({*normal, *uniform}) == len(normal) + len(uniform)
    assert uniform.min() > 0
    assert uniform.max() < 1
    assert stats.kstest(normal, "norm").pvalue > 0.01
    assert stats.kstest(uniform, "uniform").pvalue > 0.01
