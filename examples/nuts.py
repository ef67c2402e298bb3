"""NUTS from BlackJAX for PyMC models: chains side by side, with a progress bar."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import arviz as az
import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import xarray as xr
from blackjax.adaptation.mass_matrix import mass_matrix_adaptation
from blackjax.adaptation.step_size import dual_averaging_adaptation
from blackjax.adaptation.window_adaptation import build_schedule
from blackjax.util import pytree_size
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import pytensor_jaxpr_linker as pjl

CHUNK = 25  # transitions in one call of the compiled program, so between updates of the progress bar
MAX_DOUBLINGS = 6  # enough once the metric fits; until then, the usual 10 would take most of the time
ADAPT_STEP_SIZE, ADAPT_BOTH, SAMPLE = 0, 1, 2  # stages; the first two are BlackJAX's, both is with the metric


def build_nuts(logdensity: Callable) -> tuple[Callable, Callable]:
    """Build NUTS with window adaptation from BlackJAX's parts.

    ``blackjax.window_adaptation`` runs the whole warm-up in one call. This one stops after every chunk, so that a
    progress bar can follow, and warms up and samples with the same program.

    Parameters
    ----------
    logdensity : callable
        Log density at a pytree of positions.

    Returns
    -------
    start : callable
        Maps a position to the state of a chain.
    advance : callable
        Maps the state of a chain, keys, stages and window ends (one of each a transition) to the new state, the draws
        and their statistics.
    """
    kernel = blackjax.nuts.build_kernel()
    step_init, step_update, step_final = dual_averaging_adaptation(target=0.8)
    metric_init, metric_update, metric_final = mass_matrix_adaptation()

    def select(condition, new, old):
        return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)

    def start(position):
        return blackjax.nuts.init(position, logdensity), step_init(1.0), metric_init(pytree_size(position))

    def transition(chain, inputs):
        state, step, metric = chain
        key, stage, window_end = inputs
        step_size = jnp.where(stage == SAMPLE, step_final(step), jnp.exp(step.log_step_size))
        state, info = kernel(key, state, logdensity, step_size, metric.inverse_mass_matrix, MAX_DOUBLINGS)
        step = select(stage == SAMPLE, step, step_update(step, info.acceptance_rate))
        metric = select(stage == ADAPT_BOTH, metric_update(metric, state.position), metric)
        step = select(window_end, step_init(step_final(step)), step)
        metric = select(window_end, metric_final(metric), metric)
        stats = {"diverging": info.is_divergent, "n_steps": info.num_integration_steps}
        return (state, step, metric), (state.position, stats)

    def advance(chain, keys, stages, window_ends):
        return jax.lax.scan(transition, chain, (keys, stages, window_ends))

    return start, advance


def sample(model: pm.Model, draws: int, tune: int, chains: int, seed: int) -> xr.DataTree:
    """Sample the posterior, with a progress bar.

    Parameters
    ----------
    model : Model
        Any model whose parameters are continuous, without shared variables (as ``freeze_dims_and_data`` returns it).
    draws, tune : int
        Kept and warm-up draws of a chain.
    chains, seed : int
        Number of chains; seed of all of them.

    Returns
    -------
    DataTree
        Groups ``posterior`` and ``sample_stats``.
    """
    names = [v.name for v in model.value_vars]
    # JAX's rules suit models without overrides of gradients, and XLA does more with them here (docs/gradients.md).
    logp = pjl.as_jax_function(model.value_vars, model.logp(), gradient="jax")
    start, advance = build_nuts(lambda position: logp(*(position[name] for name in names)))
    rng = np.random.default_rng(seed)
    initial = model.initial_point()
    positions = [{n: x + rng.uniform(-1, 1, np.shape(x)) for n, x in initial.items()} for _ in range(chains)]
    states = [jax.jit(start)(position) for position in positions]
    total = -(-(tune + draws) // CHUNK) * CHUNK  # full chunks: one shape, one compilation
    keys = jax.random.split(jax.random.key(seed), (chains, total))
    stages, window_ends = np.full(total, SAMPLE), np.zeros(total, dtype=bool)
    stages[:tune], window_ends[:tune] = build_schedule(tune).T

    started = time.perf_counter()
    program = jax.jit(advance).lower(states[0], keys[0, :CHUNK], stages[:CHUNK], window_ends[:CHUNK]).compile()
    print(f"  compiled NUTS in {time.perf_counter() - started:.1f} s")

    chunks = []
    # Threads, as XLA lets go of Python's lock while it computes: the chains run side by side.
    with progress_bar(chains) as progress, ThreadPoolExecutor(os.cpu_count()) as pool:
        bar = progress.add_task("warm-up", total=tune + draws, divergences=0)
        for begin in range(0, total, CHUNK):
            part = slice(begin, begin + CHUNK)

            def run(state, keys, part=part):
                return jax.block_until_ready(program(state, keys, stages[part], window_ends[part]))

            states, outputs = zip(*pool.map(run, states, keys[:, part]), strict=True)
            chunks.append(jax.tree.map(lambda *values: np.stack(values), *outputs))
            done = min(begin + CHUNK, tune + draws)
            phase, first = ("warm-up", 0) if done <= tune else ("sampling", tune)
            diverging = np.concatenate([stats["diverging"] for _, stats in chunks], axis=1)[:, first:done]
            progress.update(bar, completed=done, description=phase, divergences=diverging.sum())
    kept = slice(tune, tune + draws)
    draws_and_stats = jax.tree.map(lambda *values: np.concatenate(values, axis=1)[:, kept], *chunks)
    return to_datatree(model, *draws_and_stats)


def progress_bar(chains: int) -> Progress:
    """Make a progress bar that also counts the divergences of the current phase."""
    return Progress(
        TextColumn("  {task.description:8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"draws in each of {chains} chains, {{task.fields[divergences]}} divergences"),
        TimeElapsedColumn(),
    )


def to_datatree(model: pm.Model, positions: dict, stats: dict) -> xr.DataTree:
    """Map the sampled positions, which are unconstrained, to the model's parameters."""
    parameters = model.unobserved_RVs
    constrain = pjl.as_jax_function(model.value_vars, model.replace_rvs_by_values(parameters))
    by_chain_and_draw = jax.jit(jax.vmap(jax.vmap(constrain)))
    values = by_chain_and_draw(*(positions[v.name] for v in model.value_vars))
    posterior = {rv.name: np.asarray(value) for rv, value in zip(parameters, values, strict=True)}
    dims = {name: list(names) for name, names in model.named_vars_to_dims.items() if name in posterior}
    coords = {name: np.asarray(values) for name, values in model.coords.items()}
    return az.from_dict({"posterior": posterior, "sample_stats": stats}, coords=coords, dims=dims)
