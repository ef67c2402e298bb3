"""Samplers that are JAX programs: the chains of a kernel, from their starting points to their draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import jax
import numpy as np

from pytensor_jaxpr_linker.base.gc_pause import gc_paused
from pytensor_jaxpr_linker.base.progress import Progress
from pytensor_jaxpr_linker.pymc.arguments import one_program
from pytensor_jaxpr_linker.pymc.chains.chain_progress import Watched, chain_progress
from pytensor_jaxpr_linker.pymc.chains.chains import ChainDraws, Chains, shapes_of
from pytensor_jaxpr_linker.pymc.chains.each_draw import EachDraw
from pytensor_jaxpr_linker.pymc.chains.programs import options_of_few_calls, pymc_logger
from pytensor_jaxpr_linker.pymc.convergence import import_in_background
from pytensor_jaxpr_linker.pymc.folder_programs import digest_of_files
from pytensor_jaxpr_linker.pymc.functions.constrained import Constrain
from pytensor_jaxpr_linker.pymc.functions.initial import (
    check_initvals,
    check_starts,
    shapes_of_points,
    stacked_points,
)
from pytensor_jaxpr_linker.pymc.functions.layout import Layout
from pytensor_jaxpr_linker.pymc.kept_models import KeptModel
from pytensor_jaxpr_linker.pymc.kernels.vectors import vector_kernel
from pytensor_jaxpr_linker.pymc.options import kernel_module
from pytensor_jaxpr_linker.pymc.request import Request


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

    def draw() -> ChainDraws:
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
        if not chains.first_evaluates:
            value = density_of_points(kept, like, data)
            check_starts(starts, lambda points: [value(point) for point in points])
        if request.is_default:  # which is known now: tracing finds the graph breaks that nutpie is for
            pymc_logger.info(
                "NUTS of BlackJAX, which runs a chain as one XLA program with the model (sampler='blackjax')"
            )
        with Progress().stage("compiling the chains with XLA", kept.nodes):
            chains.wait()

        def of_chains(points: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
            return wide([point for point in points for _ in range(group)])

        if chains.first_evaluates:
            check_starts(starts, lambda points: chains.logdensities(of_chains(points))[::group])
        positions = of_chains([start.point for start in starts])
        before = perf_counter() - began
        warmup = chains.tune
        tuning = f"{request.sampler} tunes" if request.tune and not warmup else ""
        each = request.callback and EachDraw(request.callback, warmup, chains.total, constrained)
        watched = Watched(request.chains, warmup, chains.total)
        with chain_progress(request.progressbar, watched, tuning, request.progressbar_theme) as watch:
            return chains.draw(positions, watch, each)._replace(seconds_before=before)

    # The gradient is built when it is traced, so sampling itself may find a break.
    return one_program(kept.model, f"sampler={request.sampler!r}", draw)


def wide(points: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the points of chains as arrays of float64, in which samplers move, with an axis of chains in front."""
    return {name: x.astype("float64") for name, x in stacked_points(points).items()}


def density_of_points(kept: KeptModel, like: dict[str, np.ndarray], data: Mapping[str, Any]) -> Callable[[dict], float]:
    """Return the log density of a point as one program, which is kept."""
    one = {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in like.items()}

    def make() -> jax.stages.Compiled:
        args = one, dict(data)
        jitted = kept.programs.folder.jitted(key, lambda q, data: kept.logp(q, data), args)
        return jitted.lower(*args).compile(options_of_few_calls())

    key = "log density", shapes_of(data), shapes_of(one), kept.lengths
    with jax.enable_x64(True):
        call = kept.programs.find(key, make)

    def value(point: dict[str, np.ndarray]) -> float:
        with jax.enable_x64(True):
            return float(call({name: np.asarray(point[name], "float64") for name in one}, dict(data)))

    return value
