"""What the programs of a model depend on beside the model: one definition for memory and for the folder of `cache`."""

from __future__ import annotations

import sys
from functools import cache
from hashlib import sha256
from typing import Any

import jax
import pymc as pm
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

from pytensor_jaxpr_linker.base.options import resolve
from pytensor_jaxpr_linker.base.rules import RULES, SCALAR_RULES
from pytensor_jaxpr_linker.graph.rewritten.describe import OF_PYTENSOR, NotDescribed
from pytensor_jaxpr_linker.graph.rewritten.environment import (
    IMPORTED,
    files_of,
    foreign_rewrites,
    settings,
    text_of_process,
)
from pytensor_jaxpr_linker.graph.rewritten.live import package_of

#: Settings of JAX that no program depends on: where programs are kept, what is shown, and one that samplers set.
OF_NO_PROGRAM = (
    "jax_compilation_cache",
    "jax_dump",
    "jax_enable_compilation_cache",
    "jax_enable_x64",
    "jax_explain",
    "jax_log",
    "jax_persistent_cache",
    "jax_raise_persistent_cache",
    "jax_traceback",
    "jax_transfer_guard",
)
#: PyTensor's settings that no program depends on. The first is changed while starting points are made, in any thread.
OF_NO_GRAPH = frozenset({"cxx"})


def surroundings(model: pm.Model) -> list:
    """Return all that the programs of a model depend on beside it, as far as it may change while this process runs."""
    of_pytensor = [(name, value) for name, value in settings() if name not in OF_NO_GRAPH]
    return [settings_of(model), of_pytensor, foreign_rewrites(), foreign_rules()]


def settings_of(model: pm.Model) -> str:
    """Return a text, equal in each process, of options, JAX's configuration, and PyMC's checks of parameters."""
    config = jax.config
    of_jax = [
        (name, getattr(config, name, value))
        for name, value in config.values.items()
        if not name.startswith(OF_NO_PROGRAM)
    ]
    return repr((model.check_bounds, resolve(), of_jax))


def foreign_rules() -> list[tuple[Any, Any]]:
    """Return the functions that emit or evaluate Ops and are the user's own, by class of Op."""
    found: list[tuple[Any, Any]] = [(op, rule.emit) for table in (RULES, SCALAR_RULES) for op, rule in table.items()]
    if basic := sys.modules.get("pytensor.link.jax.dispatch.basic"):
        found += basic.jax_funcify.registry.items()
    return [(op, function) for op, function in found if package_of(function) not in OF_PYTENSOR]


def text_for_folder(query: RewriteDatabaseQuery) -> str:
    """Return a text of what programs depend on beside the model and its settings: versions, rewrites and the device.

    Raises
    ------
    NotDescribed
        If no other process can have the same.
    """
    check_rules()
    device = jax.devices()[0]
    versions = jax.__version__, jax.lib.__version__, device.platform, device.device_kind, len(jax.devices())
    return repr([text_of_process(query), versions])


@cache
def digest_of_files(package: str) -> str:
    """Return a digest of the sizes and times of a sampler's files, which say what its programs are."""
    try:
        return sha256(repr(files_of(package)).encode()).hexdigest()
    except NotDescribed:
        return str(IMPORTED)  # no other process has it


def check_rules() -> None:
    """Raise NotDescribed if a rule, or a JAX function, for one of PyTensor's Ops is the user's own."""
    for op, function in foreign_rules():
        if (op.partition(".")[0] if isinstance(op, str) else package_of(op)) in OF_PYTENSOR:
            raise NotDescribed(f"{function} is registered for {op}")
