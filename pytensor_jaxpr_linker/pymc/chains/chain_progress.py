"""Tells users how far chains are: on a terminal, in a notebook, in a log, and by calls of their function."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
import rich
from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from pytensor_jaxpr_linker.pymc.chains.kept_draws import Chunk

#: A child of PyMC's logger, so that notebooks and terminals show what it says.
pymc_logger = logging.getLogger("pymc.pytensor_jaxpr_linker")
#: Most chains that have a line each.
MOST_LINES = 12
#: The width of a terminal from which bars are long, and the width of a time.
WIDE, TIME_WIDTH = 100, len("00:00 left")
#: The details that a line without room leaves out, the first one first.
LEFT_OUT_FIRST = ("gradients", "step size", "rate", "diverged")
#: Seconds between lines in a log, and between updates of a notebook without ipywidgets.
LOG_SECONDS, NOTEBOOK_SECONDS = 10.0, 0.5


class Watched:
    """Counts how far each chain is, as its chunks come, and then calls `draw`.

    A chain makes `total` transitions, of which `tune` are its warm-up. The time before the first one is called
    `beginning`, and has `tuning` steps, if they are counted.
    """

    def __init__(self, chains: int, tune: int, total: int, beginning: str = "starts", tuning: int = 0):
        self.tune, self.total, self.beginning, self.tuning = tune, total, beginning, tuning
        self.done, self.tuned, self.diverged, self.gradients = (np.zeros(chains, int) for _ in range(4))
        self.step_size = np.full(chains, np.nan)
        self.began = monotonic()
        self.draw: Callable[[], None] = lambda: None

    def add(self, chains: Sequence[int], stats: dict[str, np.ndarray]) -> None:
        """Count a chunk of some chains."""
        length = stats["diverging"].shape[1]
        first, end = (int(n - self.done[chains[0]]) for n in (self.tune, self.total))
        self.diverged[chains] += stats["diverging"][:, max(0, first) : end].sum(axis=1)
        self.gradients[chains] += stats["n_steps"].sum(axis=1)
        self.step_size[chains] = stats["step_size"][:, -1]
        self.done[chains] = np.minimum(self.done[chains] + length, self.total)
        self.draw()

    def add_tuning(self, chains: Sequence[int], steps: int) -> None:
        """Count steps before the first transition of some chains."""
        self.tuned[chains] += steps
        if self.tuned.min() == self.tuning:
            self.began = monotonic()  # rates of transitions count from now on
        self.draw()

    def of_stage(self, chains: Sequence[int]) -> tuple[np.ndarray, int]:
        """Return how many transitions, or steps of its tuning, each chain has made, and the number of all."""
        return (self.tuned[chains], self.tuning) if self.tunes(chains) else (self.done[chains], self.total)

    def tunes(self, chains: Sequence[int]) -> bool:
        """Return whether some chains make steps before their first transition."""
        return bool(self.tuning) and not self.done[chains].any()

    def rate(self, chains: Sequence[int]) -> float:
        """Return how many transitions, or steps of their tuning, some chains make together in a second."""
        return self.of_stage(chains)[0].sum() / max(monotonic() - self.began, 1e-9)

    def left(self, chains: Sequence[int]) -> str:
        """Return the time until some chains end their stage, or nothing if that is done or has not begun."""
        (done, total), rate = self.of_stage(chains), self.rate(chains)
        left = (total * len(done) - done.sum()) / rate if rate else 0.0
        return f"{clock(left)} left" if done.min() and left > 0 else ""

    def details(self, chains: Sequence[int], width: float) -> str:
        """Return statistics of some chains. The least important ones are left out if `width` is too small for all."""
        if self.tunes(chains):
            return ""
        gradients = self.gradients[chains].sum() / max(1, self.done[chains].sum())
        parts = {
            "diverged": f"{self.diverged[chains].sum()} diverged",
            "step size": f"step size {self.step_size[chains].mean():.2g}",
            "gradients": f"{short_number(gradients)} gradients a draw",
            "rate": f"{short_number(self.rate(chains))} draws/s",
        }
        for name in LEFT_OUT_FIRST:
            if len(", ".join(parts.values())) > width:
                del parts[name]
        return ", ".join(parts.values())

    def line(self, chains: Sequence[int]) -> str:
        """Return the stage of some chains and how far the slowest is, or for how long they have not begun."""
        if not (self.done[chains].any() or self.tuned[chains].any()):
            return f"{self.beginning} {clock(monotonic() - self.began)}"
        done, total = self.of_stage(chains)
        counts = f"{self.stage(chains)} {done.min()}/{total} {self.details(chains, np.inf)}".strip()
        return ", ".join(filter(None, [counts, self.left(chains)]))

    def stage(self, chains: Sequence[int]) -> str:
        """Return the name of the stage of some chains that have begun."""
        if self.tunes(chains):
            return self.beginning
        return "sampling" if self.done[chains].min() >= self.tune else "warm-up"


def short_number(x: float) -> str:
    """Return a number with three digits, or with all digits before the point: ``7.88``, ``9,290``."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def clock(seconds: float) -> str:
    """Return a time as minutes and seconds: ``1:01``."""
    return f"{int(seconds // 60)}:{int(seconds % 60):02d}"


@contextmanager
def chain_progress(shown: bool, watched: Watched, theme: Any = None) -> Iterator[None]:
    """Show, if `shown`, how far the chains are that are `watched`."""
    if not shown:
        yield
        return
    every = list(range(len(watched.done)))
    one_line = {f"{len(every)} chains": every}
    groups = one_line if len(every) > MOST_LINES else {f"chain {i}": [i] for i in every}
    with view_for(groups, watched, theme) as watched.draw:
        yield


def view_for(groups: dict[str, list[int]], watched: Watched, theme: Any) -> Any:
    """Return the context that shows the lines, by the console. A log gets none if sampling is soon done."""
    console = rich.get_console() if theme is None else Console(theme=theme)
    if console.is_jupyter and not can_import("ipywidgets"):
        return in_notebook(groups, watched)
    if console.is_terminal or console.is_jupyter:
        return on_terminal(console, groups, watched)
    every = [i for chains in groups.values() for i in chains]
    return until_begun(watched, LOG_SECONDS, lambda: pymc_logger.info("%d chains, %s", len(every), watched.line(every)))


def can_import(package: str) -> bool:
    """Return whether a package is installed and works."""
    try:
        __import__(package)
    except Exception:  # one that is installed for another release of its own requirements
        return False
    return True


class TimeColumn(TimeElapsedColumn):
    """The time that is left; before the first draws, and at the end, the time that has passed."""

    def render(self, task: Task) -> Text:
        """Return the text of a line."""
        return Text(task.fields["left"], style="progress.remaining") if task.fields["left"] else super().render(task)


@contextmanager
def on_terminal(console: Console, groups: dict[str, list[int]], watched: Watched) -> Iterator[Callable[[], None]]:
    """Show bars."""
    bar_width = 24 if console.width >= WIDE else 10
    texts = [TextColumn(f"{{task.fields[{name}]}}") for name in ("count", "details")]
    columns = TextColumn("{task.description}"), BarColumn(bar_width), texts[0], TimeColumn(), texts[1]
    total = watched.tuning or watched.total
    empty: dict[str, Any] = {"count": f"0/{total}", "left": "", "details": ""}
    with Progress(*columns, console=console) as bars:
        tasks = {name: bars.add_task(f"{name} {watched.beginning}", total=total, **empty) for name in groups}

        def draw() -> None:
            for name, chains in groups.items():
                counts, total = watched.of_stage(chains)
                task, done = bars.tasks[tasks[name]], int(counts.min())
                if (done, total) != (task.completed, task.total):
                    description, count = f"{name} {watched.stage(chains)}", f"{done}/{total}"
                    room = console.width - len(description) - len(count) - bar_width - TIME_WIDTH - len(columns) + 1
                    fields: dict[str, Any] = {
                        "left": watched.left(chains),
                        "details": watched.details(chains, room),
                        "count": count,
                    }
                    bars.update(task.id, completed=done, total=total, description=description, **fields)

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
            super().__init__("\n".join(f"{name} {watched.line(c)}" for name, c in groups.items()))

    shown = display(Lines(), display_id=True)
    try:
        with until_begun(watched, NOTEBOOK_SECONDS, lambda: shown.update(Lines())) as draw:
            yield draw
    finally:
        shown.update(Lines())


@contextmanager
def until_begun(watched: Watched, seconds: float, show: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Give a function that calls `show`, at most once in some seconds.

    A thread calls it until the first chunk, which may take minutes for a slow model.
    """
    last, ended = [monotonic()], threading.Event()

    def draw() -> None:
        if monotonic() - last[0] > seconds:
            last[0] = monotonic()
            show()

    def run() -> None:
        while not ended.wait(seconds) and not (watched.done.any() or watched.tuned.any()):
            draw()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield draw
    finally:
        ended.set()
        thread.join()


class DrawOfChain(NamedTuple):
    """One transition of a chain, with PyMC's names of its parts."""

    chain: int
    is_last: bool
    draw_idx: int
    tuning: bool
    stats: list[dict[str, Any]]
    point: dict[str, np.ndarray]


class EachDraw:
    """Hands on the transitions of chains, one by one, to ``callback(trace=trace, draw=draw)``.

    The callback may raise `KeyboardInterrupt` to end sampling. `constrained` maps positions to the other variables of
    `trace`.
    """

    def __init__(self, callback: Callable, tune: int, total: int, constrained: Any):
        self._callback, self._tune, self._total, self._constrained = callback, tune, total, constrained
        self._first: int | None = None  # of a run that goes on, the transitions before are not in the trace
        self._positions: list[dict[str, np.ndarray]] = []
        self._values: list[dict[str, np.ndarray]] = []

    def __call__(self, chunk: Chunk, done: int) -> tuple[int, bool]:
        """Hand on a chunk, before which `done` transitions were made.

        Returns how many of its transitions were handed on, and whether the function ends sampling.
        """
        positions, stats = chunk
        self._positions.append(positions)
        self._first = done if self._first is None else self._first
        chains, length = next(iter(stats.values())).shape[:2]
        for i in range(length):
            for chain in range(chains):
                found = {name: x[chain, i] for name, x in stats.items()}
                point = {name: x[chain, i] for name, x in positions.items()}
                at = done + i
                draw = DrawOfChain(chain, at == self._total - 1, at, at < self._tune, [found], point)
                try:
                    self._callback(trace=ChainTrace(chain, at + 1 - self._first, self), draw=draw)
                except KeyboardInterrupt:
                    return i + 1, True
        return length, False

    @property
    def names(self) -> list[str]:
        """The unconstrained variables, and the variables that the user knows."""
        return list(dict.fromkeys([*self._positions[0], *self._constrained.names]))

    def values(self, name: str, chain: int) -> np.ndarray:
        """Return the values of a variable in one chain so far, computed when they are needed."""
        if name not in self.names:
            raise KeyError(f"The trace has no {name!r}; it has {', '.join(self.names)}.")
        chunks = self._positions
        if name not in chunks[0]:
            self._values += map(self._constrained, chunks[len(self._values) :])
            chunks = self._values
        return np.concatenate([chunk[name][chain] for chunk in chunks])


class ChainTrace:
    """The draws of one chain so far, with the draws of the warm-up.

    Attributes
    ----------
    chain
        The number of the chain.
    """

    def __init__(self, chain: int, length: int, seen: EachDraw):
        self.chain, self._length, self._seen = chain, length, seen

    @property
    def varnames(self) -> list[str]:
        """The variables that `get_values` knows: unconstrained ones, and the variables of the result."""
        return self._seen.names

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"<{len(self)} draws of chain {self.chain}: {', '.join(self.varnames)}>"

    def get_values(self, varname: str, burn: int = 0, thin: int = 1) -> np.ndarray:
        """Return the draws of a variable from `burn` on, each `thin`-th of them."""
        return self._seen.values(varname, self.chain)[: len(self)][burn::thin]
