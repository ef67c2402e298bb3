"""PyMC models as pure JAX functions, and samplers that run on them (extra ``pymc``)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import pymc as _pymc  # noqa: F401
except ImportError as error:
    raise ImportError("pytensor_jaxpr_linker.pymc needs PyMC: pip install 'pytensor_jaxpr_linker[pymc]'.") from error

from pytensor_jaxpr_linker.pymc.compiled import CompiledModel
from pytensor_jaxpr_linker.pymc.compiled import compile_model as compile
from pytensor_jaxpr_linker.pymc.diagnosis import diagnose
from pytensor_jaxpr_linker.pymc.functions.constrained import Constrain, constrain
from pytensor_jaxpr_linker.pymc.functions.density import LogDensity, logdensity
from pytensor_jaxpr_linker.pymc.functions.initial import initial_points
from pytensor_jaxpr_linker.pymc.mesh.sampling import sample_on_mesh
from pytensor_jaxpr_linker.pymc.mesh.sharded_density import ShardedLogDensity, shard
from pytensor_jaxpr_linker.pymc.samplers.processes import process_context
from pytensor_jaxpr_linker.pymc.sampling import sample

if TYPE_CHECKING:
    from pytensor_jaxpr_linker.pymc.export import export_logdensity, export_predictive, export_sampler
    from pytensor_jaxpr_linker.pymc.samplers.pathfinder import fit_pathfinder
    from pytensor_jaxpr_linker.pymc.samplers.smc import sample_smc

#: Functions that `sample` does not need, by module. They are imported when they are first used.
_LATER = {
    "export_logdensity": "export",
    "export_predictive": "export",
    "export_sampler": "export",
    "fit_pathfinder": "samplers.pathfinder",
    "sample_smc": "samplers.smc",
}

__all__ = [
    "CompiledModel",
    "Constrain",
    "LogDensity",
    "ShardedLogDensity",
    "compile",
    "constrain",
    "diagnose",
    "export_logdensity",
    "export_predictive",
    "export_sampler",
    "fit_pathfinder",
    "initial_points",
    "logdensity",
    "process_context",
    "sample",
    "sample_on_mesh",
    "sample_smc",
    "shard",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import a function when it is first used."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value
