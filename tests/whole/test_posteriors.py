"""Draws of the default sampler beside the reference draws of posteriordb."""

from __future__ import annotations

import json
from pathlib import Path

import arviz as az
import numpy as np
import pytest
from posteriors import MODELS

from pytensor_jaxpr_linker.pymc import sample

pytest.importorskip("blackjax")
REFERENCE = json.loads(Path(__file__).parent.joinpath("posteriors", "reference.json").read_text(encoding="utf-8"))


#: A tail of `K_m` as heavy as its Cauchy prior's: some runs do not converge, and say so.
HEAVY_TAIL = "one_comp_mm_elim_abs"
#: A chain that begins far from the model's initial values stays in a mode of almost no probability, as any chain of NUTS does.
FAR_MODES = "lotka_volterra"


@pytest.mark.parametrize("name", REFERENCE)
def test_draws_agree_with_those_of_posteriordb(name, caplog):
    caplog.set_level("INFO", "pymc")  # other modules of tests set it higher
    reference = REFERENCE[name]
    data = {key: np.asarray(value, "float64") for key, value in reference["data"].items()}
    found = sample(model=MODELS[name](data), chains=4, random_seed=1, progressbar=False, jitter=name != FAR_MODES)
    posterior = found.posterior.to_dataset()[sorted({x.partition("[")[0] for x in reference["names"]})]
    rhat = float(az.rhat(posterior).to_dataarray().max())
    assert rhat < 1.01 or "rhat statistic is larger than 1.01" in caplog.text
    if name == HEAVY_TAIL and not rhat < 1.01:
        return
    assert rhat < 1.03  # of long chains it would be below 1.01
    for draws, (expected, error) in [(posterior, reference["mean"]), (posterior**2, reference["mean_of_square"])]:
        # Where draws are antithetic, the error of a mean is too small to be known from them.
        own = by_stan_name(az.mcse(draws)), by_stan_name(draws.std(("chain", "draw")))
        means = by_stan_name(draws.mean(("chain", "draw")))
        for parameter, x, its_error in zip(reference["names"], expected, error, strict=True):
            error_of_draws = max(own[0][parameter], own[1][parameter] / np.sqrt(4000))
            assert abs(means[parameter] - x) < 4 * np.hypot(its_error, error_of_draws), parameter


def by_stan_name(values) -> dict[str, float]:
    """Return numbers by names such as ``beta[1]``."""
    found = {}
    for name, x in values.data_vars.items():
        for index, number in np.ndenumerate(x.to_numpy()):
            found["".join([str(name), *(f"[{i + 1}]" for i in index)])] = float(number)
    return found
