"""PyMC models as pure JAX functions, and samplers that run on them (extra ``pymc``)."""

try:
    import pymc as _pymc  # noqa: F401
except ImportError as error:
    raise ImportError("pytensor_jaxpr_linker.pymc needs PyMC: pip install 'pytensor_jaxpr_linker[pymc]'.") from error

from pytensor_jaxpr_linker.pymc.constrained import Constrain, constrain
from pytensor_jaxpr_linker.pymc.density import LogDensity, logdensity
from pytensor_jaxpr_linker.pymc.export import export_logdensity, export_predictive, export_sampler
from pytensor_jaxpr_linker.pymc.initial import initial_points
from pytensor_jaxpr_linker.pymc.pathfinder import fit_pathfinder
from pytensor_jaxpr_linker.pymc.processes import process_context
from pytensor_jaxpr_linker.pymc.sampling import sample
from pytensor_jaxpr_linker.pymc.smc import sample_smc

__all__ = [
    "Constrain",
    "LogDensity",
    "constrain",
    "export_logdensity",
    "export_predictive",
    "export_sampler",
    "fit_pathfinder",
    "initial_points",
    "logdensity",
    "process_context",
    "sample",
    "sample_smc",
]
