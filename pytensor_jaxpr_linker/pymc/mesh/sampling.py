"""`sample_on_mesh`: chains and data on several devices or processes, and runs that go on after a crash."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import jax
import numpy as np
import pymc as pm
import xarray as xr
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pytensor.graph.basic import Variable

from pytensor_jaxpr_linker.base.jax_compat import with_x64_restored
from pytensor_jaxpr_linker.base.version import __version__
from pytensor_jaxpr_linker.base.words import counted
from pytensor_jaxpr_linker.graph.rewritten.live import LiveDescriptions
from pytensor_jaxpr_linker.pymc.arguments import (
    Names,
    chain_seeds,
    check_model,
    require,
)
from pytensor_jaxpr_linker.pymc.chains.programs import pymc_logger
from pytensor_jaxpr_linker.pymc.convergence import log_convergence, quiet_logger
from pytensor_jaxpr_linker.pymc.functions.axis_names import check_axis_lengths
from pytensor_jaxpr_linker.pymc.functions.constrained import constrain
from pytensor_jaxpr_linker.pymc.functions.density import LogDensity, logdensity
from pytensor_jaxpr_linker.pymc.functions.initial import initial_points
from pytensor_jaxpr_linker.pymc.functions.remedies import one_program
from pytensor_jaxpr_linker.pymc.kernels.vectors import vector_kernel
from pytensor_jaxpr_linker.pymc.mesh.chains import CHAINS, MeshChains, check_same_everywhere
from pytensor_jaxpr_linker.pymc.mesh.checks import ON_MESHES, check_run
from pytensor_jaxpr_linker.pymc.mesh.draw_store import Checkpoint, FolderStore, MemoryStore
from pytensor_jaxpr_linker.pymc.mesh.sharded_density import ShardedLogDensity
from pytensor_jaxpr_linker.pymc.options import TARGET_ACCEPTS, kernel_module
from pytensor_jaxpr_linker.pymc.progress import progress
from pytensor_jaxpr_linker.pymc.results import to_datatree
from pytensor_jaxpr_linker.run import placement

#: What to do about a log density that is not one XLA program.
WITHOUT_MESH = "leave out mesh, shard, store and sampler: sample then runs it with host steps, by nutpie, and so does sampler='pymc'"
#: Transitions in one call of the compiled program, so between two checkpoints.
PER_CALL = 25


@with_x64_restored
def sample_on_mesh(
    draws: int = 1000,
    *,
    tune: int = 1000,
    chains: int | None = None,
    model: pm.Model | None = None,
    mesh: Mesh | None = None,
    shard: Mapping[str, str] | None = None,
    store: str | Path | None = None,
    sampler: Literal["blackjax", "numpyro", "mclmc"] = "blackjax",
    target_accept: float | None = None,
    max_treedepth: int = 10,
    random_seed: Any = None,
    initvals: Any = None,
    jitter: bool = True,
    gradient: Literal["pytensor", "jax"] = "pytensor",
    var_names: Names | None = None,
    progressbar: bool = True,
    compute_convergence_checks: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
    **kwargs: Any,
) -> xr.DataTree:
    """Draw from the posterior of a PyMC model on the devices of a mesh, of one process or several; `sample` with `mesh` or `store` calls this.

    Parameters
    ----------
    draws, tune, model, target_accept, max_treedepth, random_seed, initvals, jitter, gradient, var_names, progressbar
        See `sample`.
    chains : int, optional
        By default four, or as many as the mesh's axis "chains" is long if that is more.
    mesh : jax.sharding.Mesh, optional
        The devices; by default all of JAX's, along an axis "chains". Chains are divided along the axis "chains", if there is one, and data along
        the others.
    shard : dict, optional
        The axis of the mesh along which each dim of the data is divided, see `pytensor_jaxpr_linker.pymc.shard`.
    store : str or Path, optional
        A folder for draws and a checkpoint. Draws go there in blocks, so memory is bounded. If there is a checkpoint of the same run, the run
        goes on from it, and gives the draws that it would have given without the interruption. In a run of several processes all of them
        need the folder; process 0 writes.
    sampler : {"blackjax", "numpyro", "mclmc"}
        Whose transitions.
    compute_convergence_checks : bool
        Whether to log PyMC's warnings; not with `store`, for they read all draws.
    on_progress : callable, optional
        Called with the number of transitions that are done, and that of all, each time that these can't be lost any more.
    **kwargs
        Options of the sampler, as for `sample`.

    Returns
    -------
    xarray.DataTree
        As from `sample`. With `store` it reads the folder when its values are needed; ``draws.zarr`` there can be opened by xarray, too.

    Raises
    ------
    ValueError
        For arguments that can't be, or a folder that has another run: the message has the remedy.
    RuntimeError
        If a process of the run has ended, or has another program.

    Examples
    --------
    >>> import jax, numpy as np, pymc as pm
    >>> import pytensor_jaxpr_linker as pjl
    >>> with pm.Model(coords={"obs": range(6)}) as model:
    ...     x = pm.Normal("x")
    ...     y = pm.Normal("y", x, 1, observed=np.arange(6.0), dims="obs")
    >>> mesh = jax.make_mesh((1, 1), ("chains", "data"))
    >>> found = pjl.pymc.sample(50, tune=50, model=model, mesh=mesh, shard={"obs": "data"}, random_seed=1, progressbar=False,
    ...                         compute_convergence_checks=False)
    >>> dict(found.posterior.sizes)
    {'chain': 4, 'draw': 50}
    """
    model = check_model(model)
    check_run(model, sampler, draws, tune, chains, target_accept, max_treedepth, gradient, mesh, shard, kwargs)
    check_axis_lengths(model, var_names)
    mesh = placement.automatic(Mesh(np.array(jax.devices()), (CHAINS,)) if mesh is None else mesh)
    package = require(ON_MESHES[sampler])
    chains = chains or max(4, mesh.shape.get(CHAINS, 1))
    names = constrain(model, var_names=var_names)
    attrs = {"tuning_steps": tune, "sampler": sampler, "mesh": str(dict(mesh.shape))}

    def make_tree(chunk: tuple[dict, dict]) -> xr.DataTree:
        return to_datatree(model, names(chunk[0]), chunk[1], attrs, package)

    kept = FolderStore(store, draws, make_tree) if store is not None else MemoryStore(draws)
    before = kept.load() if isinstance(kept, FolderStore) else None
    # Without a seed of the user's, the run goes on with those that it began with; processes take those of the first.
    seeds = (
        before.about["seeds"]
        if before is not None and random_seed is None
        else same_seeds(chain_seeds(random_seed, chains))
    )
    adaptation = {"tune": tune, "max_treedepth": max_treedepth, **kwargs}
    if sampler != "mclmc":
        adaptation["target_accept"] = target_accept or TARGET_ACCEPTS[sampler]

    def run() -> None:
        logp = ShardedLogDensity(model, mesh, shard, gradient) if shard else logdensity(model, gradient=gradient)
        data = logp.data if shard else on_all_devices(logp, mesh)
        kernel = vector_kernel(kernel_module(sampler).make_kernel, logp, logp.layout, **adaptation)
        like = {name: np.zeros((chains, *shape)) for name, shape in logp.layout.shapes.items()}
        warmup = tune if kernel.has_warmup else 0
        first = int(kernel.first_evaluates)  # is counted as transition 0, so users see `tune + draws` of them
        programs = MeshChains(kernel, data, mesh, like, seeds, min(PER_CALL, first + warmup + draws))
        named = {"draws": draws, "tune": tune, "chains": chains, "sampler": sampler, "mesh": dict(mesh.shape)}
        hashes = run_hashes(programs, logp, named, [seeds, names.names, named_values(initvals), jitter], package)
        check_same_everywhere(hashes)
        about: dict[str, Any] = {"seeds": seeds, **hashes}
        begin = partial(starting_points, model, logp, data, chains, seeds, initvals, jitter)
        states, done = gone_on(programs, before, about, str(store)) if before else (programs.start(begin()), -first)
        draw_all(programs, states, done, warmup, draws, kept, about, progressbar, on_progress)

    one_program(model, f"sampler={sampler!r} on a mesh", gradient, run, WITHOUT_MESH)
    if isinstance(kept, FolderStore):
        return kept.result()
    result = make_tree(kept.draws)
    if compute_convergence_checks:
        log_convergence(result, model)
    return result


def sample_or_refuse(given: Mapping[str, Any], signature: inspect.Signature) -> xr.DataTree:
    """Call `sample_on_mesh` with the arguments of `sample`; refuse those that it does not have."""
    known, taken = inspect.signature(sample_on_mesh).parameters, dict(given["kwargs"])
    quiet, given = given["quiet"], {name: value for name, value in given.items() if name != "quiet"}
    for name, value in given.items():
        if name in known and name != "kwargs":
            taken[name] = value
        elif name != "kwargs" and value != signature.parameters[name].default:
            raise TypeError(f"{name} is not for runs with mesh, shard or store: leave it out.")
    if taken["sampler"] is None:
        del taken["sampler"]
    if quiet:
        taken["progressbar"] = False
    with quiet_logger(quiet):
        return sample_on_mesh(**taken)


def draw_all(
    programs: MeshChains,
    states: Any,
    done: int,
    tune: int,
    draws: int,
    kept: MemoryStore | FolderStore,
    about: Mapping[str, Any],
    progressbar: bool,
    on_progress: Callable[[int, int], None] | None,
) -> None:
    """Make the transitions that are left, and keep the draws after the warm-up; save a checkpoint after each call.

    If the user interrupts it, draws in memory so far are the result, and an error says what a folder keeps.
    """
    total, writes = tune + draws, jax.process_index() == 0
    try:
        with progress(progressbar and writes, total) as update:
            while done < total:
                try:
                    states, chunk = programs.advance(states)
                    saved = programs.saved(states) if isinstance(kept, FolderStore) else []
                except jax.errors.JaxRuntimeError as error:
                    raise process_is_gone(error, kept, max(0, done)) from error
                first, end = min(programs.length, max(0, tune - done)), min(programs.length, total - done)
                if writes or isinstance(kept, MemoryStore):
                    if first < end:
                        kept.add(jax.tree.map(lambda x, first=first, end=end: x[:, first:end], chunk))
                    if isinstance(kept, FolderStore):
                        kept.save(done + end, saved, about)
                done += end
                update(done, "sampling" if done > tune else "warm-up", f"of {programs.count} chains")
                if on_progress is not None:
                    on_progress(done, total)
    except KeyboardInterrupt as error:
        if isinstance(kept, FolderStore):
            error.add_note(
                f"The folder {kept.folder} keeps {max(0, done)} of {total} transitions of each chain: the same call goes on after them."
            )
        if isinstance(kept, FolderStore) or done <= tune or jax.process_count() > 1:
            raise
        pymc_logger.warning(
            f"Interrupted: {done - tune} of {draws} draws of {counted(programs.count, 'chain')} are kept."
        )


def process_is_gone(error: Exception, kept: Any, done: int) -> Exception:
    """Return the error of a run of several processes that can't go on; of one process, JAX's own."""
    if jax.process_count() == 1:
        return error
    again = (
        f": the run goes on after {done} transitions, from {kept.folder}"
        if isinstance(kept, FolderStore)
        else " with store=..., so that a run can go on"
    )
    return RuntimeError(
        f"A process of this run has ended or can't be reached, so process {jax.process_index()} can't go on ({str(error).splitlines()[0]})."
        f" Start all {jax.process_count()} processes again{again}."
    )


def gone_on(programs: MeshChains, before: Checkpoint, about: Mapping[str, Any], store: str) -> tuple[Any, int]:
    """Return the states of a checkpoint, and how many transitions had been made; raise if it is of another run."""
    for name, value in about.items():
        if before.about.get(name) != value:
            raise ValueError(
                f"The folder {store} has a run with other {name.removeprefix('other ')}: finish that with the same, or give another folder as"
                " `store`."
            )
    return programs.restored(before.state), before.done


def starting_points(
    model: pm.Model,
    logp: LogDensity,
    data: Mapping[str, Any],
    chains: int,
    seeds: list[int],
    initvals: Any,
    jitter: bool,
) -> dict[str, np.ndarray]:
    """Return where chains start, with finite log densities."""
    jitted = jax.jit(logp)

    def density(point: dict[str, np.ndarray]) -> Any:
        with jax.enable_x64(True):
            return jitted({name: np.asarray(x, "float64") for name, x in point.items()}, data)

    points = initial_points(model, chains, seeds, initvals=initvals, jitter=jitter, logp=density)
    return {name: x.astype("float64") for name, x in points.items()}


def on_all_devices(logp: LogDensity, mesh: Mesh) -> dict[str, Any]:
    """Return the shared data, whole on each device of a mesh."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    return {name: placement.put(x, everywhere, name) for name, x in logp.data.items()}


def same_seeds(seeds: list[int]) -> list[int]:
    """Return the seeds of process 0: without a seed of the user's, each process draws others."""
    if jax.process_count() == 1:
        return seeds
    words = np.array([[seed >> 16, seed & 0xFFFF] for seed in seeds], dtype="int32")
    found = np.asarray(jax.experimental.multihost_utils.broadcast_one_to_all(words))
    return [(int(high) << 16) + int(low) for high, low in found]


def run_hashes(
    programs: MeshChains, logp: LogDensity, named: Mapping[str, Any], others: list, package: ModuleType
) -> dict[str, str]:
    """Hash every input that determines the draws; keys are the names used in error messages."""

    def digest(value: Any) -> str:
        return LiveDescriptions().digest(value)

    versions = [jax.__version__, __version__, pm.__version__, str(package.__version__)]
    return {
        "versions of packages": digest(versions),
        **{name: digest(value) for name, value in named.items()},
        "other arguments": digest(others),
        "data": digest(logp.current_data()),
        "programs": digest([programs.lowered.as_text(), logp.constants]),
    }


def named_values(value: Any) -> Any:
    """Return initial values with texts in the place of variables, which are others in each process."""
    if isinstance(value, Mapping):
        return {str(name): named_values(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [named_values(x) for x in value]
    return str(value) if isinstance(value, Variable) else value
