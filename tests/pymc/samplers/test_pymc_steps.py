"""PyMC's own steps: the number of processes."""

from __future__ import annotations

import pymc as pm
import pytest

from pytensor_jaxpr_linker.pymc import sample
from pytensor_jaxpr_linker.pymc.samplers import pymc_steps


class Processes(Exception):
    """Raised where PyMC would start processes."""


@pytest.mark.parametrize(
    ("pymcs", "usable", "arguments", "expected"),
    [
        (1, 2, {}, 1),
        (2, 4, {}, 2),
        (3, 8, {}, 3),
        (1, 2, {"cores": 2}, 2),
        (2, 4, {"cores": 1}, 1),
        (2, 4, {"chain_method": "sequential"}, 1),
        (0, 1, {}, 1),  # of one core PyMC takes the half
    ],
)
def test_the_number_of_processes_is_pymcs_own(monkeypatch, pymcs, usable, arguments, expected):
    """`pm.sample` counts half of the cores, since it takes the others for threads of these."""

    def begin(**given):
        raise Processes(given["cores"])

    monkeypatch.setattr("pymc.sampling.mcmc._cpu_count", lambda: pymcs)
    monkeypatch.setattr(pymc_steps, "usable_cores", lambda: usable)
    monkeypatch.setattr("pymc.sampling.mcmc._mp_sample", begin)
    with pm.Model():
        pm.Normal("x")
        short = {"draws": 5, "tune": 2, "chains": 3, "random_seed": 1, "quiet": True, **arguments}
        if expected == 1:
            assert sample(sampler="pymc", compute_convergence_checks=False, **short).posterior.sizes["chain"] == 3
        else:
            with pytest.raises(Processes, match=str(expected)):
                sample(sampler="pymc", **short)
