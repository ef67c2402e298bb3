"""Samplers that are JAX programs: the chains of a kernel, from their starting points to their draws."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import jax
import numpy as np

from pytensor_jaxpr_linker.base.interpreter import gc_paused
from pytensor_jaxpr_linker.base.logs import Progress
from pytensor_jaxpr_linker.pymc.chains.chain_progress import Watched, chain_progress
from pytensor_jaxpr_linker.pymc.chains.chains import ChainDraws, Chains
from pytensor_jaxpr_linker.pymc.chains.each_draw import EachDraw
from pytensor_jaxpr_linker.pymc.chains.folder_store import DRAWS_IN_BLOCK, FolderStore
from pytensor_jaxpr_linker.pymc.chains.kernel import Kernel
from pytensor_jaxpr_linker.pymc.chains.programs import pymc_logger
from pytensor_jaxpr_linker.pymc.functions.constrained import Constrain
from pytensor_jaxpr_linker.pymc.functions.density import Layout
from pytensor_jaxpr_linker.pymc.functions.initial import check_initvals, check_starts, shapes_of_points
from pytensor_jaxpr_linker.pymc.kept_models import KeptModel
from pytensor_jaxpr_linker.pymc.kept_programs import digest_of_files
from pytensor_jaxpr_linker.pymc.kernels.vectors import vector_kernel
from pytensor_jaxpr_linker.pymc.options import kernel_module
from pytensor_jaxpr_linker.pymc.request import Request
from pytensor_jaxpr_linker.pymc.results import tree_of_block
from pytensor_jaxpr_linker.pymc.samplers.chain_starts import chain_positions, density_of_points, logdensities_of
from pytensor_jaxpr_linker.pymc.samplers.same_run import check_same_run, other_processes_named, seeds_of_run


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
    constrained.prepare(like, request.chains * (run.draws // run.thinning if store is None else DRAWS_IN_BLOCK))
    if starts and not chains.first_evaluates:
        check_starts(starts, density_of_points(kept, like, kept.data))
    if request.is_default:  # which is known now: tracing finds the graph breaks that nutpie is for
        pymc_logger.info("NUTS of this package, which runs a chain as one XLA program with the model (sampler='nuts')")
    with Progress().stage("compiling the chains with XLA", kept.nodes):
        chains.wait()
    if starts and chains.first_evaluates:
        check_starts(starts, logdensities_of(chains, group))
    positions = chain_positions([start.point for start in starts], group) if starts else None
    before = perf_counter() - began
    warmup = chains.tune
    beginning = f"{request.sampler} tunes" if request.tune and not warmup else "starts"
    each = request.callback and EachDraw(request.callback, warmup, chains.total, constrained)
    watched = Watched(request.chains, warmup, chains.total, beginning, chains.tuning)
    watched.done += store.before.done if store is not None and store.before is not None else 0
    shown = request.progressbar and (run.mesh is None or jax.process_index() == 0)
    with (
        chain_progress(shown, watched, request.progressbar_theme) as watch,
        other_processes_named(store, lambda: int(watched.done.min())),
    ):
        return chains.draw(positions, watch, each, store, request.on_progress)._replace(seconds_before=before)


def chains_of(request: Request, kept: KeptModel, layout: Layout, like: dict[str, np.ndarray]) -> Chains:
    """Return the chains of a sampler, whose programs begin to compile."""
    kernels = kernel_module(request.sampler)
    inputs, fixed = kernels.inputs_and_constants(request.adaptation)

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
