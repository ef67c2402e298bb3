"""What `sample_stats` tells of the trajectories of BlackJAX's NUTS."""

from __future__ import annotations

import jax
import numpy as np
import pytest

blackjax = pytest.importorskip("blackjax")


def test_where_a_draw_lies_on_its_trajectory():
    """Beside BlackJAX's own kernel: equal draws, and the energies along a trajectory that is integrated again."""
    from blackjax.mcmc.integrators import IntegratorState, velocity_verlet
    from blackjax.mcmc.metrics import default_metric

    from pytensor_jaxpr_linker.pymc.kernels.trajectory import nuts_kernel

    scales = np.array([1.0, 3.0])

    def logp(x):
        return -0.5 * ((x / scales) ** 2).sum()

    with jax.enable_x64(True):
        start, mass = blackjax.nuts.init(jax.numpy.array([0.3, -2.0]), logp), jax.numpy.array([1.0, 2.0])
        ours, theirs = (
            jax.jit(lambda key, kernel=kernel: kernel(key, start, logp, 0.7, mass, 6))
            for kernel in (nuts_kernel(), blackjax.nuts.build_kernel())
        )
        metric = default_metric(mass)
        step = velocity_verlet(logp, metric.kinetic_energy)
        seen = set()
        for key in jax.random.split(jax.random.key(1), 20):
            state, info, found = ours(key)
            same, _ = theirs(key)
            np.testing.assert_array_equal(state.position, same.position)
            states = {0: IntegratorState(start.position, info.momentum, start.logdensity, start.logdensity_grad)}
            ends = [end.logdensity_grad[1] for end in (info.trajectory_leftmost_state, info.trajectory_rightmost_state)]
            for sign, most in ((-1, int(-ends[0].index)), (1, int(ends[1].index))):
                for i in range(1, most + 1):
                    states[sign * i] = step(states[sign * (i - 1)], sign * 0.7)
            assert len(states) == info.num_integration_steps + 1
            energies = {i: float(metric.kinetic_energy(s.momentum) - s.logdensity) for i, s in states.items()}
            index = int(found.index_in_trajectory)
            np.testing.assert_allclose(states[index].position, state.position)
            assert found.energy_error == pytest.approx(energies[index] - energies[0])
            farthest = max((e - energies[0] for e in energies.values()), key=abs)
            assert found.max_energy_error == pytest.approx(farthest)
            seen.add(index)
        assert min(seen) < 0 < max(seen)
