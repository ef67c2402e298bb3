"""The loggers, one for each artifact.

Each is asked whether it is enabled before anything is computed for it, and none is asked where a function only runs.
"""

from __future__ import annotations

import logging

breaks = logging.getLogger("pytensor_jaxpr_linker.breaks")
recompiles = logging.getLogger("pytensor_jaxpr_linker.recompiles")
guards = logging.getLogger("pytensor_jaxpr_linker.guards")
jaxpr = logging.getLogger("pytensor_jaxpr_linker.jaxpr")
hlo = logging.getLogger("pytensor_jaxpr_linker.hlo")
plan = logging.getLogger("pytensor_jaxpr_linker.plan")
timing = logging.getLogger("pytensor_jaxpr_linker.timing")
