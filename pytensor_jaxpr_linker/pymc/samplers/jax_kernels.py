"""Samplers that are JAX programs: the chains of a kernel, from their starting points to their draws."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from pytensor_jaxpr_linker.base.gc_pause import gc_paused
from pytensor_jaxpr_linker.base.progress import Progress
from pytensor_jaxpr_linker.pymc.chains.chain_progress import Watched, chain_progress
from pytensor_jaxpr_linker.pymc.chains.chains import ChainDraws, Chains
from pytensor_jaxpr_linker.pymc.chains.each_draw import EachDraw
from pytensor_jaxpr_linker.pymc.chains.programs import pymc_logger
from pytensor_jaxpr_linker.pymc.convergence import import_in_background
from pytensor_jaxpr_linker.pymc.functions.constrained import Constrain
from pytensor_jaxpr_linker.pymc.functions.initial import (
    check_initvals,
    check_starts,
    shapes_of_points,
)
from pytensor_jaxpr_linker.pymc.functions.layout import Layout
from pytensor_jaxpr_linker.pymc.kept_models import KeptModel
from pytensor_jaxpr_linker.pymc.kernels.vectors import vector_kernel
from pytensor_jaxpr_linker.pymc.options import kernel_module
from pytensor_jaxpr_linker.pymc.request import Request
from pytensor_jaxpr_linker.pymc.samplers.chain_starts import chain_positions, density_of_points, logdensities_of
from pytensor_jaxpr_linker.pymc.surroundings import digest_of_files


def sample_jax(request: Request, kept: KeptModel, constrained: Constrain) -> ChainDraws:
    """Draw by a sampler that is a JAX program. Programs compile while the starting points are drawn and checked."""
    kernels, began, run, seeds = kernel_module(request.sampler), perf_counter(), request.run, request.seeds
    inputs, fixed = kernels.inputs_and_constants(request.adaptation)
    key = (
        request.sampler,
        digest_of_files(request.package.__name__),
        kept.lengths,
        *sorted((name, repr(value)) for name, value in fixed.items()),
    )
    check_initvals(kept.model, request.initvals)
    data, layout = kept.data, Layout(shapes_of_points(kept.model))
    like = {name: np.broadcast_to(0.0, (request.chains, *shape)) for name, shape in layout.shapes.items()}
    with gc_paused():
        chains = Chains(
            lambda **inputs: vector_kernel(kernels.make_kernel, kept.logp, layout, **fixed, **inputs),
            inputs,
            key,
            kept.programs,
            request.tune,
            data,
            like,
            seeds,
            run,
        )
    if request.compute_convergence_checks:
        import_in_background()  # not before XLA compiles: it would keep JAX's trace from Python's lock
    points = request.superchains
    group = request.chains // points
    starts = kept.starts(points, seeds[:points], request.initvals, request.jitter)
    constrained.prepare(like, request.chains * (run.draws // run.thinning))
    evaluate = logdensities_of(chains, group) if chains.first_evaluates else density_of_points(kept, like, data)
    if not chains.first_evaluates:
        check_starts(starts, evaluate)
    if request.is_default:  # which is known now: tracing finds the graph breaks that nutpie is for
        pymc_logger.info("NUTS of BlackJAX, which runs a chain as one XLA program with the model (sampler='blackjax')")
    with Progress().stage("compiling the chains with XLA", kept.nodes):
        chains.wait()
    if chains.first_evaluates:
        check_starts(starts, evaluate)
    positions = chain_positions([start.point for start in starts], group)
    before = perf_counter() - began
    warmup = chains.tune
    beginning = f"{request.sampler} tunes" if request.tune and not warmup else "starts"
    each = request.callback and EachDraw(request.callback, warmup, chains.total, constrained)
    watched = Watched(request.chains, warmup, chains.total, beginning, chains.tuning)
    with chain_progress(request.progressbar, watched, request.progressbar_theme) as watch:
        return chains.draw(positions, watch, each)._replace(seconds_before=before)
