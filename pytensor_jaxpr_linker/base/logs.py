"""The loggers, one for each artifact.

Each is asked whether it is enabled before anything is computed for it, and none is asked where a function only runs.
"""

from __future__ import annotations

import logging
from difflib import get_close_matches

breaks = logging.getLogger("pytensor_jaxpr_linker.breaks")
recompiles = logging.getLogger("pytensor_jaxpr_linker.recompiles")
guards = logging.getLogger("pytensor_jaxpr_linker.guards")
jaxpr = logging.getLogger("pytensor_jaxpr_linker.jaxpr")
hlo = logging.getLogger("pytensor_jaxpr_linker.hlo")
plan = logging.getLogger("pytensor_jaxpr_linker.plan")
timing = logging.getLogger("pytensor_jaxpr_linker.timing")

#: The environment variable that shows logs on stderr: ``PYTENSOR_JAXPR_LOGS=recompiles,timing``.
LOGS_VARIABLE = "PYTENSOR_JAXPR_LOGS"
ARTIFACTS = {
    logger.name.rpartition(".")[2]: logger for logger in (breaks, recompiles, guards, jaxpr, hlo, plan, timing)
}


def show_logs(text: str) -> None:
    """Write all records of the artifacts that a text names, with commas between them, to stderr."""
    names = [name for name in text.lower().replace(" ", "").split(",") if name]
    for name in names:
        if name not in ARTIFACTS:
            near = get_close_matches(name, ARTIFACTS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(ARTIFACTS)}"
            raise ValueError(f"the environment variable {LOGS_VARIABLE} names no log {name!r}: {hint}")
        ARTIFACTS[name].setLevel(logging.DEBUG)
    package = logging.getLogger("pytensor_jaxpr_linker")
    if names and not package.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
        package.addHandler(handler)
