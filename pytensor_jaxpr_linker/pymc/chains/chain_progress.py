"""Shows how far each chain is: on a terminal, in a notebook, or as lines in a log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

import numpy as np
import rich
from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from pytensor_jaxpr_linker.pymc.chains.programs import Watch, pymc_logger

#: Most chains that have a line each.
MOST_LINES = 12
#: Characters from which a terminal has a long bar, and those that a time takes.
WIDE, TIME_WIDTH = 100, len("00:00 left")
#: What a line leaves out if it has no room, the first one first.
LEFT_OUT_FIRST = ("gradients", "step size", "rate", "diverged")
#: Seconds between lines in a log, and between updates of a notebook without ipywidgets.
LOG_SECONDS, NOTEBOOK_SECONDS = 10.0, 0.5


class Watched:
    """How far each chain is, as its chunks come.

    Parameters
    ----------
    chains, tune, total
        How many chains there are; how many transitions each makes, and how many of these are its warm-up.
    beginning
        What is done before the first transition.
    tuning
        How many steps that has, if they are counted.
    """

    def __init__(self, chains: int, tune: int, total: int, beginning: str = "starts", tuning: int = 0):
        self.tune, self.total, self.beginning, self.tuning = tune, total, beginning, tuning
        self.done, self.tuned, self.diverged, self.gradients = (np.zeros(chains, int) for _ in range(4))
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

    def add_tuning(self, chains: Sequence[int], steps: int) -> None:
        """Count steps before the first transition of some chains."""
        self.tuned[np.asarray(chains)] += steps
        if self.tuned.min() == self.tuning:
            self.began = monotonic()  # from now on rates are those of transitions

    def text(self, chains: Sequence[int]) -> str:
        """Return one line about some chains."""
        return ", ".join(filter(None, [f"{self.count(chains)} {self.details(chains, np.inf)}", self.left(chains)]))

    def of_stage(self, chains: Sequence[int]) -> tuple[np.ndarray, int]:
        """Return how many transitions each of some chains has made, and of how many; of chains that tune, how many steps."""
        index = np.asarray(chains)
        return (self.tuned[index], self.tuning) if self.tunes(chains) else (self.done[index], self.total)

    def tunes(self, chains: Sequence[int]) -> bool:
        """Return whether some chains make steps before their first transition."""
        return bool(self.tuning) and not self.done[np.asarray(chains)].any()

    def count(self, chains: Sequence[int]) -> str:
        """Return how many transitions, or steps of its tuning, the slowest of some chains has made, of how many."""
        done, total = self.of_stage(chains)
        return f"{done.min()}/{total}"

    def rate(self, chains: Sequence[int]) -> float:
        """Return how many transitions, or steps of their tuning, some chains make together in a second."""
        return self.of_stage(chains)[0].sum() / max(monotonic() - self.began, 1e-9)

    def left(self, chains: Sequence[int]) -> str:
        """Return the time that some chains will take for what they do, or nothing if it is done or has not begun."""
        (done, total), rate = self.of_stage(chains), self.rate(chains)
        left = (total * len(done) - done.sum()) / rate if rate else 0.0
        return f"{clock(left)} left" if done.min() and left > 0 else ""

    def details(self, chains: Sequence[int], width: float) -> str:
        """Return more about some chains: of what takes more than `width` characters, the least important is left out."""
        if self.tunes(chains):
            return ""
        index = np.asarray(chains)
        gradients = self.gradients[index].sum() / max(1, self.done[index].sum())
        parts = {
            "diverged": f"{self.diverged[index].sum()} diverged",
            "step size": f"step size {self.step_size[index].mean():.2g}",
            "gradients": f"{short_number(gradients)} gradients a draw",
            "rate": f"{short_number(self.rate(chains))} draws/s",
        }
        for name in LEFT_OUT_FIRST:
            if len(", ".join(parts.values())) > width:
                del parts[name]
        return ", ".join(parts.values())

    def line(self, chains: Sequence[int]) -> str:
        """Return one line: what some chains do and how far they are, or for how long they have not begun."""
        if self.done[np.asarray(chains)].any():
            return f"{self.stage(chains)} {self.text(chains)}"
        if self.tuned[np.asarray(chains)].any():
            return ", ".join(filter(None, [f"{self.stage(chains)} {self.count(chains)}", self.left(chains)]))
        return f"{self.beginning} {clock(monotonic() - self.began)}"

    def stage(self, chains: Sequence[int]) -> str:
        """Return what some chains do that have begun."""
        if self.tunes(chains):
            return self.beginning
        return "sampling" if self.done[np.asarray(chains)].min() >= self.tune else "warm-up"


def short_number(x: float) -> str:
    """Return a number with three digits, or all those before the point.

    Examples
    --------
    >>> from pytensor_jaxpr_linker.pymc.chains.chain_progress import short_number
    >>> short_number(7.8812), short_number(9290.4)
    ('7.88', '9,290')
    """
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


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
def chain_progress(shown: bool, watched: Watched, theme: Any = None) -> Iterator[Watch]:
    """Show, if `shown`, how far chains are, and give who is told of it."""
    if not shown:
        yield Watch(watched.add, watched.add_tuning)
        return
    groups = grouped(len(watched.done))
    with view_for(groups, watched, theme) as draw:

        def then_draw(count: Callable) -> Callable:
            def call(*args: Any) -> None:
                count(*args)
                draw()

            return call

        yield Watch(then_draw(watched.add), then_draw(watched.add_tuning))


def grouped(chains: int) -> dict[str, list[int]]:
    """Return the lines: one for each chain, or one for all if they are many."""
    if chains > MOST_LINES:
        return {f"{chains} chains": list(range(chains))}
    return {f"chain {i}": [i] for i in range(chains)}


def view_for(groups: dict[str, list[int]], watched: Watched, theme: Any) -> Any:
    """Return the context that shows the lines: what fits the console."""
    console = rich.get_console() if theme is None else Console(theme=theme)
    if console.is_jupyter and not can_import("ipywidgets"):
        return in_notebook(groups, watched)
    if console.is_terminal or console.is_jupyter:
        return on_terminal(console, groups, watched)
    return in_log(groups, watched)


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
                    about: dict[str, Any] = {
                        "description": f"{name} {watched.stage(chains)}",
                        "count": watched.count(chains),
                    }
                    room = console.width - sum(map(len, about.values())) - bar_width - TIME_WIDTH - len(columns) + 1
                    left, details = watched.left(chains), watched.details(chains, room)
                    bars.update(tasks[name], completed=done, total=total, **about, left=left, details=details)

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


def in_log(groups: dict[str, list[int]], watched: Watched) -> Any:
    """Return the context that writes lines, none if sampling is soon done."""
    every = [i for chains in groups.values() for i in chains]

    def write() -> None:
        pymc_logger.info("%d chains, %s", len(every), watched.line(every))

    return until_begun(watched, LOG_SECONDS, write)


@contextmanager
def until_begun(watched: Watched, seconds: float, show: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Give a function that calls `show`, at most once in so many seconds. A thread calls it until the first chunk: that
    of a slow model may take minutes.
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
