"""Samplers that are JAX programs: the chains of a kernel, from their starting points to their draws."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pymc as pm
from jax.experimental import multihost_utils
from pytensor.graph.basic import Variable

from pytensor_jaxpr_linker.base.interpreter import gc_paused
from pytensor_jaxpr_linker.base.logs import Progress
from pytensor_jaxpr_linker.base.version import __version__
from pytensor_jaxpr_linker.graph.rewritten.live import LiveDescriptions
from pytensor_jaxpr_linker.pymc.chains.chain_progress import EachDraw, Watched, chain_progress, pymc_logger
from pytensor_jaxpr_linker.pymc.chains.chains import ChainDraws, Chains, shapes_of
from pytensor_jaxpr_linker.pymc.chains.kept_draws import DRAWS_IN_BLOCK, FolderStore
from pytensor_jaxpr_linker.pymc.chains.kernel import Kernel
from pytensor_jaxpr_linker.pymc.chains.programs import options_of_few_calls
from pytensor_jaxpr_linker.pymc.functions.constrained import Constrain
from pytensor_jaxpr_linker.pymc.functions.density import Layout, LogDensity
from pytensor_jaxpr_linker.pymc.functions.initial import check_initvals, check_starts, shapes_of_points, stacked_points
from pytensor_jaxpr_linker.pymc.kept_models import KeptModel
from pytensor_jaxpr_linker.pymc.kept_programs import digest_of_files
from pytensor_jaxpr_linker.pymc.options import kernel_module
from pytensor_jaxpr_linker.pymc.request import Request
from pytensor_jaxpr_linker.pymc.results import tree_of_block
from pytensor_jaxpr_linker.run import placement


def sample_jax(request: Request, kept: KeptModel, constrained: Constrain) -> ChainDraws:
    """Draw by a sampler that is a JAX program. Programs compile while the starting points are drawn and checked."""
    began, run, store = perf_counter(), request.run, None
    if request.store is not None:
        store = FolderStore(request.store, run.draws, run.thinning, partial(tree_of_block, request, constrained))
    goes_on = store is not None and store.before is not None
    request = replace(request, seeds=seeds_of_run(request, store))
    check_initvals(kept.model, request.initvals)
    layout = Layout(shapes_of_points(kept.model))
    like = {name: np.broadcast_to(0.0, (request.chains, *shape)) for name, shape in layout.shapes.items()}
    with gc_paused():
        chains = chains_of(request, kept, layout, like)
    if run.mesh is not None:
        check_same_run(request, kept, constrained, chains.programs.text, store)
    points = request.superchains
    group = request.chains // points
    starts = [] if goes_on else kept.starts(points, request.seeds[:points], request.initvals, request.jitter)

    def positions_at(points: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        return wide([point for point in points for _ in range(group)])  # a group of chains starts at each

    constrained.prepare(like, request.chains * (run.draws // run.thinning if store is None else DRAWS_IN_BLOCK))
    if starts and not chains.first_evaluates:
        check_starts(starts, density_of_points(kept, like))
    if request.is_default:  # which is known now: tracing finds the graph breaks that nutpie is for
        pymc_logger.info("NUTS of this package, which runs a chain as one XLA program with the model (sampler='nuts')")
    with Progress().stage("compiling the chains with XLA", kept.nodes):
        chains.wait()
    if starts and chains.first_evaluates:
        check_starts(starts, lambda points: chains.logdensities(positions_at(points))[::group])
    positions = positions_at([start.point for start in starts]) if starts else None
    before = perf_counter() - began
    warmup = chains.tune
    beginning = f"{request.sampler} tunes" if request.tune and not warmup else "starts"
    each = request.callback and EachDraw(request.callback, warmup, chains.total, constrained)
    watched = Watched(request.chains, warmup, chains.total, beginning, chains.tuning)
    watched.done += store.before.done if store is not None and store.before is not None else 0
    shown = request.progressbar and (run.mesh is None or jax.process_index() == 0)
    with (
        chain_progress(shown, watched, request.progressbar_theme),
        other_processes_named(store, lambda: int(watched.done.min())),
    ):
        return chains.draw(positions, watched, each, store, request.on_progress)._replace(seconds_before=before)


def chains_of(request: Request, kept: KeptModel, layout: Layout, like: dict[str, np.ndarray]) -> Chains:
    """Return the chains of a sampler, whose programs begin to compile."""
    kernels = kernel_module(request.sampler)
    inputs, fixed = inputs_and_constants(kernels, request.adaptation)

    def make_kernel(**inputs: Any) -> Kernel:
        return vector_kernel(kernels.make_kernel, kept.logp, layout, **fixed, **inputs)

    make = make_kernel
    if request.mesh is not None:  # whose runs are compared by their programs: all arguments are constants of these
        inputs, fixed = {}, request.adaptation
        # Made here, without 64 bits, the kernel rounds acceptance rates to float32. With 64 bits a seed would have
        # other draws.
        kernel = make_kernel()
        make = lambda **_: kernel  # noqa: E731
    key = (
        request.sampler,
        digest_of_files(request.package.__name__),
        kept.lengths,
        *sorted((name, repr(value)) for name, value in fixed.items()),
    )
    tune, data, run = request.tune, kept.data, request.run
    return Chains(make, inputs, key, kept.programs, tune, data, like, request.seeds, run)


class VectorDensity:
    """A log density of flat vectors, of length `size`."""

    def __init__(self, logp: LogDensity, layout: Layout):
        self._logp, self._layout = logp, layout
        self.size = sum(layout.sizes)

    def __call__(self, position: Any, data: Any) -> Any:
        """Return the log density: float64, whatever the model computes in."""
        return self._logp(self._layout.unravel(position), data).astype("float64")


def vector_kernel(make_kernel: Callable[..., Kernel], logp: LogDensity, layout: Layout, **options: Any) -> Kernel:
    """Return a kernel whose positions are dicts, from the maker of one that moves flat vectors.

    A trajectory of NUTS holds some ten positions, momenta and gradients. As dicts each has an array for each variable,
    and XLA computes, compares and copies these one by one; as vectors they are one array each. The model
    `hierarchical`, of six variables, took 0.8 of the time for a step, and as much for compilation.

    The layout belongs to the chains: a log density that is kept may have been made for other lengths of dims.
    """
    kernel = make_kernel(VectorDensity(logp, layout), **options)

    def start(data: Any, key: Any, position: dict) -> Any:
        arrays = [(position[name], shape) for name, shape in layout.shapes.items()]
        flat = [x.reshape((*x.shape[: x.ndim - len(shape)], math.prod(shape))) for x, shape in arrays]
        return kernel.start(data, key, jax.numpy.concatenate(flat, axis=-1))

    def transition(data: Any, state: Any) -> tuple[Any, tuple[dict, dict]]:
        state, (vector, stats) = kernel.transition(data, state)
        return state, (layout.unravel(vector), stats)

    return kernel._replace(start=start, transition=transition)


def inputs_and_constants(kernels: Any, arguments: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Divide the arguments of a kernel, with the defaults of others, into inputs of its programs and constants.

    A call with other inputs compiles nothing.
    """
    known = inspect.signature(kernels.make_kernel).parameters
    constants = {name: p.default for name, p in known.items() if p.default is not p.empty} | dict(arguments)
    # The form of low rank keeps the draws of a window, so its shapes depend on `tune`.
    types = {k: v for k, v in kernels.INPUTS.items() if k != "tune" or constants["mass_matrix"] != "low_rank"}
    return {name: np.asarray(as_type(constants.pop(name))) for name, as_type in types.items()}, constants


def wide(points: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the points of chains as arrays of float64, in which samplers move, with an axis of chains in front."""
    return {name: x.astype("float64") for name, x in stacked_points(points).items()}


def density_of_points(kept: KeptModel, like: dict[str, np.ndarray]) -> Callable[[list[dict]], list[float]]:
    """Return the function from points to their log densities, by a program of one point, which is kept."""
    data = kept.data
    everywhere = placement.copied_to_mesh(data.values())
    one = {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype, sharding=everywhere) for name, x in like.items()}

    def make() -> tuple[jax.stages.Compiled, None]:
        lowered = jax.jit(lambda q, data: kept.logp(q, data)).lower(one, dict(data))
        return lowered.compile(options_of_few_calls()), None

    key = "log density", shapes_of(data), shapes_of(one), kept.lengths
    with jax.enable_x64(True):
        call, _ = kept.programs.by_way_of_folder(key, make)

    def value(point: dict[str, np.ndarray]) -> float:
        with jax.enable_x64(True):
            return float(call({name: np.asarray(point[name], "float64") for name in one}, dict(data)))

    return lambda points: [value(point) for point in points]


def seeds_of_run(request: Request, store: FolderStore | None) -> list[int]:
    """Return the seeds of chains.

    Without seeds of the user's, a run goes on with its first seeds, and processes take the seeds of process 0.
    """
    if store is not None and store.before is not None and request.random_seed is None:
        return store.before.about["seeds"]
    return request.seeds if request.mesh is None else same_seeds(request.seeds)


def check_same_run(
    request: Request, kept: KeptModel, constrained: Constrain, program: str, store: FolderStore | None
) -> None:
    """Raise an error if another process, or the folder of the draws, has another run."""
    named = {name: getattr(request, name) for name in ("draws", "tune", "chains", "sampler")}
    others = [request.seeds, constrained.names, named_values(request.initvals), request.jitter]
    others += [request.thinning, request.log_likelihood, named_values(request.idata_kwargs)]
    mesh = {} if request.mesh is None else dict(request.mesh.shape)
    hashes = run_hashes(program, kept.logp, {**named, "mesh": mesh}, others, request.package)
    check_same_everywhere(hashes)
    if store is not None:
        store.go_on({"seeds": request.seeds, **hashes})


def same_seeds(seeds: list[int]) -> list[int]:
    """Return the seeds of process 0: without a seed of the user's, each process draws others."""
    if jax.process_count() == 1:
        return seeds
    words = np.array([[seed >> 16, seed & 0xFFFF] for seed in seeds], dtype="int32")
    found = np.asarray(multihost_utils.broadcast_one_to_all(words))
    return [(int(high) << 16) + int(low) for high, low in found]


def check_same_everywhere(parts: Mapping[str, str]) -> None:
    """Raise a RuntimeError unless all processes have the same hashes; `parts` are hexadecimal, by name."""
    if jax.process_count() == 1:
        return
    words = np.array([[int(digest[i : i + 7], 16) for i in (0, 7)] for digest in parts.values()], dtype="int32")
    everywhere = np.asarray(multihost_utils.process_allgather(words))
    for i, name in enumerate(parts):
        if (differing := np.flatnonzero((everywhere[:, i] != everywhere[0, i]).any(axis=1))).size:
            raise RuntimeError(
                f"The processes of this run have different {name} (process {differing[0]} differs from process 0):"
                " start the same program, with the same arguments and versions, on each."
            )


@contextmanager
def other_processes_named(store: FolderStore | None, done: Callable[[], int]) -> Iterator[None]:
    """Explain an error of JAX by a process that can't go on; `done` returns how many transitions are done."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        again = (
            " with store=..., so that a run can go on"
            if store is None
            else f": the run goes on after {done()} transitions, from {store.folder}"
        )
        raise RuntimeError(
            f"A process of this run has ended or can't be reached, so process {jax.process_index()} can't go on"
            f" ({str(error).splitlines()[0]})."
            f" Start all {jax.process_count()} processes again{again}."
        ) from error


def run_hashes(
    program: str, logp: LogDensity, named: Mapping[str, Any], others: list, package: ModuleType
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
        "programs": digest([program, logp.constants]),
    }


def named_values(value: Any) -> Any:
    """Return initial values with texts in the place of variables, which are others in each process."""
    if isinstance(value, Mapping):
        return {str(name): named_values(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [named_values(x) for x in value]
    return str(value) if isinstance(value, Variable) else value
