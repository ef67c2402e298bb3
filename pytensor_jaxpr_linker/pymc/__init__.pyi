"""What type checkers and editors see: the names that `__init__.py` imports, at once or when they are first used."""

from pytensor_jaxpr_linker.pymc.compiled import CompiledModel as CompiledModel
from pytensor_jaxpr_linker.pymc.compiled import compile_model as compile  # noqa: F401
from pytensor_jaxpr_linker.pymc.diagnosis import diagnose as diagnose
from pytensor_jaxpr_linker.pymc.export import export_logdensity as export_logdensity
from pytensor_jaxpr_linker.pymc.export import export_predictive as export_predictive
from pytensor_jaxpr_linker.pymc.export import export_sampler as export_sampler
from pytensor_jaxpr_linker.pymc.functions.constrained import Constrain as Constrain
from pytensor_jaxpr_linker.pymc.functions.constrained import constrain as constrain
from pytensor_jaxpr_linker.pymc.functions.density import LogDensity as LogDensity
from pytensor_jaxpr_linker.pymc.functions.density import logdensity as logdensity
from pytensor_jaxpr_linker.pymc.functions.initial import initial_points as initial_points
from pytensor_jaxpr_linker.pymc.mesh.sampling import sample_on_mesh as sample_on_mesh
from pytensor_jaxpr_linker.pymc.mesh.sharded_density import ShardedLogDensity as ShardedLogDensity
from pytensor_jaxpr_linker.pymc.mesh.sharded_density import shard as shard
from pytensor_jaxpr_linker.pymc.samplers.pathfinder import fit_pathfinder as fit_pathfinder
from pytensor_jaxpr_linker.pymc.samplers.processes import process_context as process_context
from pytensor_jaxpr_linker.pymc.samplers.smc import sample_smc as sample_smc
from pytensor_jaxpr_linker.pymc.sampling import sample as sample
