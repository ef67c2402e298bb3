"""What PyMC's log says about the convergence of chains."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

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
    with keeping_draws("The check of convergence", "Call diagnose(data) to see where."):
        has_free = any(rv.name in result.posterior for rv in model.free_RVs)
        if has_free and result.posterior.sizes["chain"] <= MANY:
            log_warnings(run_convergence_checks(result, model))
            return
        for finding in diagnose(result).findings:
            pymc_logger.warning("%s %s", finding.problem, finding.remedy)


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
