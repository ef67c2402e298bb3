"""What PyMC's log says about the convergence of chains."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pymc as pm
import xarray as xr
from pymc.stats.convergence import log_warnings, warn_divergences, warn_treedepth

from pytensor_jaxpr_linker.pymc.after_sampling import keeping_draws
from pytensor_jaxpr_linker.pymc.chains.programs import pymc_logger
from pytensor_jaxpr_linker.pymc.diagnosis import MANY, MOST_RHAT, diagnose, worst_of

#: PyMC's limits: draws of a chain, chains, and effective draws of a chain.
LEAST_CHECKED, RECOMMENDED_CHAINS, LEAST_ESS_OF_CHAIN = 100, 4, 100


def log_convergence(result: xr.DataTree, model: pm.Model) -> None:
    """Log PyMC's warnings about the free variables, with the worst one's name. Of many chains, log what `diagnose` finds."""
    with keeping_draws("The check of convergence", "Call diagnose(data) to see where."), np.errstate(all="ignore"):
        posterior = result.posterior.to_dataset()
        free = [rv.name for rv in model.free_RVs if rv.name in posterior and varies(posterior[rv.name])]
        if free and posterior.sizes["chain"] <= MANY:
            stats = xr.DataTree.from_dict({"sample_stats": result.sample_stats.to_dataset()})
            log_warnings([*warn_divergences(stats), *warn_treedepth(stats)])
            log_worst(posterior[free])
            return
        for finding in diagnose(result).findings:
            pymc_logger.warning("%s %s", finding.problem, finding.remedy)


def log_worst(posterior: xr.Dataset) -> None:
    """Log whether R-hat or effective sample sizes miss PyMC's limits. ArviZ, which PyMC asks, takes a second to import."""
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    if draws < LEAST_CHECKED:
        pymc_logger.info("The %d draws of a chain are too few to check convergence reliably.", draws)
        return
    if chains < RECOMMENDED_CHAINS:
        pymc_logger.info("R-hat and effective sample sizes are reliable from %d chains on.", RECOMMENDED_CHAINS)
    worst = worst_of(posterior)
    if worst.rhat > MOST_RHAT:
        pymc_logger.info(
            "The rhat statistic is larger than 1.01 for some parameters (%.3f for %r): the chains do not agree."
            " See https://arxiv.org/abs/1903.08008 and diagnose(data).",
            worst.rhat,
            worst.rhat_name,
        )
    if worst.ess < LEAST_ESS_OF_CHAIN * chains:
        pymc_logger.error(
            "The effective sample size per chain is smaller than 100 for some parameters (%.0f for %r)."
            " R-hat and effective sample sizes need more. See https://arxiv.org/abs/1903.08008 and diagnose(data).",
            worst.ess / chains,
            worst.ess_name,
        )


def varies(draws: xr.DataArray) -> bool:
    """Return whether an element of a variable has draws that are finite and differ, so that R-hat is defined."""
    x = draws.transpose("chain", "draw", ...).to_numpy()
    return bool(((x != x[:1, :1]).any((0, 1)) & np.isfinite(x).all((0, 1))).any())


@contextmanager
def quiet_logger(quiet: bool) -> Iterator[None]:
    """Keep PyMC's log from showing anything, if `quiet`."""
    logger = logging.getLogger("pymc")
    before = logger.level
    try:
        if quiet:
            logger.setLevel(logging.CRITICAL + 1)
        yield
    finally:
        if quiet:
            logger.setLevel(before)
