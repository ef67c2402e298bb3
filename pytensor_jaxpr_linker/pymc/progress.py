"""A progress bar on a terminal or in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def progress(shown: bool, total: float) -> Iterator[Callable[[float, str, str], None]]:
    """Show a bar, if `shown`, and give its update function of the part of `total` that is done, a name, and a text."""
    if not shown:
        yield lambda *_: None
        return
    columns = (
        TextColumn("{task.description:8}"),
        BarColumn(),
        TextColumn("{task.completed:.10g}/{task.total:.10g} {task.fields[text]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as bar:
        task = bar.add_task("starting", total=total, text="")
        try:
            yield lambda done, name, text: bar.update(task, completed=done, description=name, text=text)
        finally:
            bar.refresh()  # in a notebook, rich leaves the bar as it was drawn last
