"""What PyMC's log says about the convergence of chains."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pymc as pm
import xarray as xr
from pymc.stats.convergence import log_warnings, run_convergence_checks

from pytensor_jaxpr_linker.pymc.after_sampling import keeping_draws
from pytensor_jaxpr_linker.pymc.chains.programs import pymc_logger
from pytensor_jaxpr_linker.pymc.diagnosis import MANY, diagnose


def import_in_background() -> None:
    """Import, while XLA compiles and chains run, what the checks of convergence import, which takes about a second."""

    def import_() -> None:
        with suppress(ImportError):  # the checks raise it, with PyMC's text
            importlib.import_module("arviz_stats")

    threading.Thread(target=import_, daemon=True).start()


def log_convergence(result: xr.DataTree, model: pm.Model) -> None:
    """Log PyMC's warnings. Of many chains, or without a free variable, PyMC can't tell: then log what `diagnose` finds."""
    with keeping_draws("The check of convergence", "Call diagnose(data) to see where."), np.errstate(all="ignore"):
        posterior = result.posterior.to_dataset()
        free = [rv.name for rv in model.free_RVs if rv.name in posterior and varies(posterior[rv.name])]
        if free and posterior.sizes["chain"] <= MANY:
            # PyMC takes the largest R-hat of all, which is an error for an empty variable, and NaN if that of the first variable is NaN.
            judged = {"posterior": posterior[free], "sample_stats": result.sample_stats.to_dataset()}
            log_warnings(run_convergence_checks(xr.DataTree.from_dict(judged), model))
            return
        for finding in diagnose(result).findings:
            pymc_logger.warning("%s %s", finding.problem, finding.remedy)


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
