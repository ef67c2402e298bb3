"""Runs the chains of a kernel that is a pair of JAX functions, a chunk of transitions at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np

#: Transitions in one call of the compiled program, so between updates of the progress bar.
CHUNK = 25


class Kernel(NamedTuple):
    """A Markov chain that adapts itself for as many transitions as it was made for.

    Attributes
    ----------
    start
        Maps data, a key and a position to the state of a chain.
    transition
        Maps data and a state to the new state, and the position and statistics of this draw.
    """

    start: Callable[[Any, Any, Any], Any]
    transition: Callable[[Any, Any], tuple[Any, tuple[dict, dict]]]


class Draws(NamedTuple):
    """Positions and statistics after warm-up, with axes of chains and draws in front."""

    positions: dict[str, np.ndarray]
    stats: dict[str, np.ndarray]


def run_chains(
    kernel: Kernel,
    data: Mapping[str, Any],
    positions: dict[str, np.ndarray],
    seed: int,
    tune: int,
    draws: int,
    method: str,
    progressbar: bool,
) -> Draws:
    """Run the chains and return what they drew after warm-up; less of it if interrupted.

    Parameters
    ----------
    kernel, data
        What to run, and the shared data that it is given.
    positions
        Where chains start, with an axis of chains in front.
    seed, tune, draws
        Seed of all chains; how many transitions of each.
    method : {"parallel", "vectorized", "sequential"}
        In threads, each with its device if there are several; as one program over all chains; one after the other.
    progressbar
        Whether to draw one.
    """
    chains, total = len(next(iter(positions.values()))), tune + draws
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(seed), chains)
        advance = runner(kernel, data, positions, keys, method, -(-total // CHUNK))
        chunks: list[tuple[dict, dict]] = []
        with progress(progressbar, chains, total) as update:
            try:
                for chunk in advance:
                    chunks.append(chunk)
                    update(min(len(chunks) * CHUNK, total), tune, chunk[1], chunks[tune // CHUNK :])
            except KeyboardInterrupt:
                if len(chunks) * CHUNK <= tune:
                    raise
    found = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1)[:, tune:total], *chunks)
    return Draws(*found)


def runner(
    kernel: Kernel, data: Any, positions: dict[str, np.ndarray], keys: Any, method: str, count: int
) -> Iterator[tuple[dict, dict]]:
    """Compile, and yield the outputs of one chunk of transitions after the other."""

    def advance(data: Any, state: Any) -> tuple[Any, tuple[dict, dict]]:
        return jax.lax.scan(lambda s, _: kernel.transition(data, s), state, length=CHUNK)

    if method == "vectorized":
        states = jax.jit(jax.vmap(kernel.start, in_axes=(None, 0, 0)))(data, keys, positions)
        program = jax.jit(jax.vmap(advance, in_axes=(None, 0))).lower(data, states).compile()
        for _ in range(count):
            states, outputs = program(data, states)
            yield jax.tree.map(np.asarray, outputs)
        return
    devices = jax.devices() if method == "parallel" else jax.devices()[:1]
    places = [devices[i % len(devices)] for i in range(len(keys))]
    on_device = {device: jax.device_put(dict(data), device) for device in set(places)}
    start, step = jax.jit(kernel.start), jax.jit(advance)
    given = [on_device[device] for device in places]
    state = [
        start(given[i], *jax.device_put((keys[i], {n: x[i] for n, x in positions.items()}), device))
        for i, device in enumerate(places)
    ]
    # Compiled before the threads start, which would compile it once each.
    programs = {d: step.lower(on_device[d], state[places.index(d)]).compile() for d in on_device}

    def run(i: int) -> tuple[dict, dict]:
        with jax.enable_x64(True):  # this setting belongs to a thread
            state[i], outputs = programs[places[i]](given[i], state[i])
            return jax.tree.map(np.asarray, outputs)

    # XLA lets go of Python's lock while it computes: threads run side by side.
    with ThreadPoolExecutor(1 if method == "sequential" else max(len(devices), os.cpu_count() or 1)) as pool:
        for _ in range(count):
            yield jax.tree.map(lambda *parts: np.stack(parts), *pool.map(run, range(len(keys))))


@contextmanager
def progress(shown: bool, chains: int, total: int) -> Iterator[Callable[..., None]]:
    """Show a progress bar with the number of divergences since warm-up and the step size, if `shown`."""
    if not shown:
        yield lambda *_: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(
            f"of {chains} chains, {{task.fields[divergences]}} diverged, step size {{task.fields[step_size]:.2g}}"
        ),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as bar:
        task = bar.add_task("warm-up", total=total, divergences=0, step_size=1.0)

        def update(done: int, tune: int, stats: dict, kept: list[tuple[dict, dict]]) -> None:
            sampling = done > tune
            bar.update(
                task,
                completed=done,
                description="sampling" if sampling else "warm-up",
                divergences=sum(int(s["diverging"].sum()) for _, s in kept) if sampling else 0,
                step_size=float(stats["step_size"][:, -1].mean()),
            )

        yield update
