"""Shows how far each chain is: on a terminal, in a notebook, or as lines in a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

import numpy as np
import rich
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from pytensor_jaxpr_linker.pymc.chains.programs import pymc_logger

#: Most chains that have a line each.
MOST_LINES = 12
#: Seconds between lines in a log, and between updates of a notebook without ipywidgets.
LOG_SECONDS, NOTEBOOK_SECONDS = 10.0, 0.5


class Watched:
    """How far each chain is, as its chunks come.

    Parameters
    ----------
    chains, tune, total
        How many chains there are; how many transitions each makes, and how many of these are its warm-up.
    """

    def __init__(self, chains: int, tune: int, total: int):
        self.tune, self.total = tune, total
        self.done, self.diverged, self.gradients = (np.zeros(chains, int) for _ in range(3))
        self.step_size = np.full(chains, np.nan)
        self.began = monotonic()

    def add(self, chains: Sequence[int], stats: dict[str, np.ndarray]) -> None:
        """Count a chunk of some chains."""
        index = np.asarray(chains)
        length = stats["diverging"].shape[1]
        first, end = (int(n - self.done[index[0]]) for n in (self.tune, self.total))
        self.diverged[index] += stats["diverging"][:, max(0, first) : end].sum(axis=1)
        self.gradients[index] += stats["n_steps"].sum(axis=1)
        self.step_size[index] = stats["step_size"][:, -1]
        self.done[index] = np.minimum(self.done[index] + length, self.total)

    def text(self, chains: Sequence[int]) -> str:
        """Return one line about some chains."""
        index = np.asarray(chains)
        done, seconds = int(self.done[index].min()), max(monotonic() - self.began, 1e-9)
        rate = self.done[index].sum() / seconds
        left = (self.total * len(index) - self.done[index].sum()) / rate if rate else np.inf
        remaining = f", {clock(left)} left" if done and left > 0 else ""
        return (
            f"{done}/{self.total} {self.diverged[index].sum()} diverged, step size {self.step_size[index].mean():.2g},"
            f" {self.gradients[index].sum() / max(1, self.done[index].sum()):.3g} gradients a draw, {rate:.3g} draws/s{remaining}"
        )

    def stage(self, chains: Sequence[int]) -> str:
        """Return what some chains do."""
        return "sampling" if self.done[np.asarray(chains)].min() >= self.tune else "warm-up"


def clock(seconds: float) -> str:
    """Return a time as minutes and seconds.

    Examples
    --------
    >>> from pytensor_jaxpr_linker.pymc.chains.chain_progress import clock
    >>> clock(61.2)
    '1:01'
    """
    return f"{int(seconds // 60)}:{int(seconds % 60):02d}"


@contextmanager
def chain_progress(
    shown: bool, watched: Watched, tuning: str = "", theme: Any = None
) -> Iterator[Callable[[Sequence[int], dict[str, np.ndarray]], None]]:
    """Show, if `shown`, how far chains are, and give the function that is told of their chunks.

    `tuning` says what is done before the first chunk.
    """
    if not shown:
        yield watched.add
        return
    groups = grouped(len(watched.done))
    with view_for(groups, watched, tuning, theme) as draw:

        def add(chains: Sequence[int], stats: dict[str, np.ndarray]) -> None:
            watched.add(chains, stats)
            draw()

        yield add


def grouped(chains: int) -> dict[str, list[int]]:
    """Return the lines: one for each chain, or one for all if they are many."""
    if chains > MOST_LINES:
        return {f"{chains} chains": list(range(chains))}
    return {f"chain {i}": [i] for i in range(chains)}


def view_for(groups: dict[str, list[int]], watched: Watched, tuning: str, theme: Any) -> Any:
    """Return the context that shows the lines: what fits the console."""
    console = rich.get_console() if theme is None else Console(theme=theme)
    if console.is_jupyter and not can_import("ipywidgets"):
        return in_notebook(groups, watched)
    if console.is_terminal or console.is_jupyter:
        return on_terminal(console, groups, watched, tuning)
    return in_log(groups, watched)


def can_import(package: str) -> bool:
    """Tell whether a package is installed and works."""
    try:
        __import__(package)
    except Exception:  # one that is installed for another release of its own requirements
        return False
    return True


@contextmanager
def on_terminal(
    console: Console, groups: dict[str, list[int]], watched: Watched, tuning: str
) -> Iterator[Callable[[], None]]:
    """Show bars."""
    columns = (TextColumn("{task.description:18}"), BarColumn(bar_width=24), TextColumn("{task.fields[text]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as bars:
        tasks = {name: bars.add_task(f"{name} {tuning or 'starts'}", total=watched.total, text="") for name in groups}

        def draw() -> None:
            for name, chains in groups.items():
                if (done := int(watched.done[chains].min())) != bars.tasks[tasks[name]].completed:
                    description = f"{name} {watched.stage(chains)}"
                    bars.update(tasks[name], completed=done, description=description, text=watched.text(chains))

        try:
            yield draw
        finally:
            bars.refresh()  # in a notebook, rich leaves bars as they were drawn last


@contextmanager
def in_notebook(groups: dict[str, list[int]], watched: Watched) -> Iterator[Callable[[], None]]:
    """Show lines of text that are replaced: without ipywidgets, rich has no bars there."""
    from IPython.display import Pretty, display

    class Lines(Pretty):
        def __init__(self) -> None:
            super().__init__("\n".join(f"{name} {watched.stage(c)} {watched.text(c)}" for name, c in groups.items()))

    shown, last = display(Lines(), display_id=True), [monotonic()]

    def draw() -> None:
        if monotonic() - last[0] > NOTEBOOK_SECONDS:
            last[0] = monotonic()
            shown.update(Lines())

    try:
        yield draw
    finally:
        shown.update(Lines())


@contextmanager
def in_log(groups: dict[str, list[int]], watched: Watched) -> Iterator[Callable[[], None]]:
    """Write lines, none if sampling is soon done."""
    last = [monotonic()]
    every = [i for chains in groups.values() for i in chains]

    def draw() -> None:
        if monotonic() - last[0] > LOG_SECONDS:
            last[0] = monotonic()
            pymc_logger.info("%d chains, %s: %s", len(every), watched.stage(every), watched.text(every))

    yield draw
