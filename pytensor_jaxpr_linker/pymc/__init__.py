"""PyMC models as pure JAX functions, and samplers that run on them (extra ``pymc``)."""

try:
    import pymc as _pymc  # noqa: F401
except ImportError as error:
    raise ImportError("pytensor_jaxpr_linker.pymc needs PyMC: pip install 'pytensor_jaxpr_linker[pymc]'.") from error

from jaxpr_artifact.first_use import on_first_use
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

#: Functions that `sample` does not need, by module. They are imported when they are first used.
_LATER = {
    "export_logdensity": f"{__name__}.export",
    "export_predictive": f"{__name__}.export",
    "export_sampler": f"{__name__}.export",
    "fit_pathfinder": f"{__name__}.samplers.pathfinder",
    "sample_smc": f"{__name__}.samplers.smc",
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


__getattr__ = on_first_use(__name__, _LATER)
