"""A PyTensor backend that builds Jaxprs directly and runs them with XLA.

Importing it registers the linker ``"jaxpr"`` and the mode ``"JAXPR"``. It does not change any of JAX's settings.
"""

from importlib import import_module
from typing import Any

from pytensor_jaxpr_linker.base import requirements

requirements.check()  # before the imports that need them

from pytensor.graph.rewriting.db import RewriteDatabaseQuery

from jaxpr_artifact.first_use import on_first_use
from pytensor_jaxpr_linker import emit
from pytensor_jaxpr_linker.base.errors import CacheWarning, GraphBreakError, GraphBreakWarning, RuntimeTracerError
from pytensor_jaxpr_linker.base.marks import mark_dynamic, mark_static
from pytensor_jaxpr_linker.base.options import Options, options, stance
from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.base.version import __version__ as __version__
from pytensor_jaxpr_linker.emit.random.sampler import emits_draws
from pytensor_jaxpr_linker.emit.scalar import emits_scalar
from pytensor_jaxpr_linker.frontend.as_jax_function import as_jax_function, in_place_of_jax, make_jaxpr, raise_deferred
from pytensor_jaxpr_linker.frontend.function import JaxprFunction, JaxprMode, register
from pytensor_jaxpr_linker.frontend.kept_graphs import cache
from pytensor_jaxpr_linker.frontend.linker import JaxprLinker
from pytensor_jaxpr_linker.frontend.shared_arrays import device_array, shard
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import JaxprBuilder
from pytensor_jaxpr_linker.run.recompiles import RecompileError, RecompileWarning
from pytensor_jaxpr_linker.run.transfer_count import count_transfers

#: The mode behind ``mode="JAXPR"``, for ``pytensor.config.change_flags(mode=pytensor_jaxpr_linker.JAXPR)``.
JAXPR = JaxprMode(JaxprLinker(), RewriteDatabaseQuery(include=["fast_run"]))
register(JAXPR)

#: The names of the wings, by module. They are imported on first use, so that the import loads the compiler alone.
_WINGS = {
    "jaxpr_artifact": "ArtifactError IreeFunction IreeModule LoadedFunction load load_iree load_iree_module",
    f"{__name__}.artifacts.export": "export",
    f"{__name__}.artifacts.iree": "IreeError",
    f"{__name__}.artifacts.module.declarations": "private public",
    f"{__name__}.artifacts.module.module": "Module",
    f"{__name__}.jaxpr.portable.rewrite": "NotPortableError",
    f"{__name__}.report.explain": "explain",
    f"{__name__}.report.explanation": "Explanation",
    f"{__name__}.report.session": "SessionReport session_report",
    f"{__name__}.report.stages": "Stages stages",
}
_MODULE_OF = {name: module for module, names in _WINGS.items() for name in names.split()}

__all__ = [
    "JAXPR",
    "CacheWarning",
    "GraphBreakError",
    "GraphBreakWarning",
    "JaxprBuilder",
    "JaxprFunction",
    "JaxprLinker",
    "JaxprMode",
    "Options",
    "RecompileError",
    "RecompileWarning",
    "RuntimeTracerError",
    "as_jax_function",
    "cache",
    "count_transfers",
    "device_array",
    "emit",
    "emits",
    "emits_draws",
    "emits_scalar",
    "in_place_of_jax",
    "make_jaxpr",
    "mark_dynamic",
    "mark_static",
    "options",
    "prims",
    "raise_deferred",
    "shard",
    "stance",
    *_MODULE_OF,
]


def __dir__() -> list[str]:
    return [*__all__, "__version__", "pymc"]


_of_wings = on_first_use(__name__, _MODULE_OF)


def __getattr__(name: str) -> Any:
    """Import a wing when one of its names, or the wing for PyMC itself, is first used."""
    return import_module(f"{__name__}.pymc") if name == "pymc" else _of_wings(name)
