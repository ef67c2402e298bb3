"""`Profile`: how long each part of a function takes at run time, told by the nodes of the graph, and how it is shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pytensor_jaxpr_linker.report.model import Node
from pytensor_jaxpr_linker.report.text import node_line, rest

#: How many nodes of a row are printed, and how many characters of each, and of the operation.
SHOWN_NODES, SHOWN_LENGTH, SHOWN_RESULT = 6, 110, 60


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """An operation of XLA's program, or a host step, with the nodes that it computes."""

    batch: int
    """The number of the region or host step, as in `explain`."""
    nodes: tuple[Node, ...]
    """The nodes, as in the `nodes` of an explanation. XLA computes the nodes of a fusion together: their times can't be told apart.
    Empty if XLA added the operation, such as a copy."""
    readers: tuple[Node, ...]
    """If there are no nodes, those that read the result."""
    inner: tuple[str, ...]
    """The Ops of inner graphs among them, such as those in the body of a scan, with the user's names."""
    operation: str
    """The name of the HLO instruction; "host" for a host step."""
    result: str
    """The HLO type of its result."""
    microseconds: float
    """How long it takes in one call, all its runs together."""
    share: float
    """The part of `Profile.microseconds` that this is."""
    runs: float
    """How often it runs in one call. XLA runs some operations in two parts: a sort is a copy, and the sort of that."""


@dataclass(frozen=True)
class Profile:
    """How long each part of a function takes at run time. Prints as a table, also with the library rich.

    Each time is the mean over the fastest fifth of the runs: what else the computer does makes the others longer.

    Attributes
    ----------
    rows
        XLA's operations and the host steps, the slowest first. Operations may run at the same time: then their shares add up to more
        than 1.
    microseconds
        How long one run of all regions and host steps takes while it is profiled: longer than a call, if they have many short operations.
    between
        The microseconds of these in which no operation runs: the start of programs, XLA's loops, and the profiler itself.
    moving
        How many microseconds more a run takes with NumPy arguments: they are copied to where the region runs. Calls pack small ones.
    call_microseconds
        How long one call of the function takes that is not profiled, without PyTensor's checks of the arguments.
    calls
        How often each region and host step ran.
    batch_microseconds
        How long each region and host step takes, by its number. `Explanation.save` draws it.
    device
        Where the regions ran.
    notes
        What could not be seen.
    """

    rows: tuple[ProfileRow, ...]
    microseconds: float
    between: float
    moving: float
    call_microseconds: float
    calls: tuple[int, ...]
    batch_microseconds: dict[int, float]
    device: str
    notes: tuple[str, ...] = ()

    def text(self, most: int = 12) -> str:
        """Return the table as text.

        Parameters
        ----------
        most
            How many rows are shown.
        """
        lines = [*self._head(), "", f"{'µs':>10} {'share':>7} {'runs':>6}  operation, and its nodes"]
        for time, share, runs, operation, nodes in self._cells(most):
            lines += [f"{time:>10} {share:>7} {runs:>6}  {operation}", *(f"{'':27}{line}" for line in nodes)]
        return "\n".join([*lines, *rest(len(self.rows), most)])

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def __rich__(self) -> Any:
        """Return the table as one of the library rich."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table("µs", "share", "runs", "operation", "nodes")
        for column in table.columns[:3]:
            column.justify = "right"
        for *cells, nodes in self._cells(12):
            table.add_row(*map(Text, cells), Text("\n".join(nodes)))
        return Group(*map(Text, self._head()), table, *rest(len(self.rows), 12))

    def _head(self) -> list[str]:
        """Return the lines above the table."""
        return [
            f"One run takes {micro(self.microseconds)} µs {self.device}, operation by operation; between operations"
            f" {micro(self.between)} µs. To move arguments there takes another {micro(self.moving)} µs.",
            f"One call of the function, not profiled: {micro(self.call_microseconds)} µs.",
            *self.notes,
        ]

    def _cells(self, most: int) -> Iterator[tuple[str, str, str, str, list[str]]]:
        """Yield the cells of the first rows."""
        several = len(self.calls) > 1
        for row in self.rows[:most]:
            place = f"{'host step' if row.operation == ON_HOST else 'region'} {row.batch}"
            operation = place if row.operation == ON_HOST else shortened(f"{row.operation}: {row.result}", SHOWN_RESULT)
            if several and row.operation != ON_HOST:
                operation = f"{place}, {operation}"
            shown = row.nodes or row.readers
            nodes = [shortened(node_line(node), SHOWN_LENGTH) for node in shown[:SHOWN_NODES]] + rest(
                len(shown), SHOWN_NODES
            )
            if not row.nodes:
                nodes.insert(0, "of no node: XLA added it" + (", and it is read by" if shown else ""))
            if row.inner:
                nodes.append(shortened(f"inside: {', '.join(row.inner)}", SHOWN_LENGTH))
            yield micro(row.microseconds), f"{row.share:.1%}", f"{row.runs:g}", operation, nodes


#: What stands for the operation of a host step.
ON_HOST = "host"


def micro(microseconds: float) -> str:
    """Return microseconds as text."""
    return f"{microseconds:.1f}" if microseconds < 999.95 else f"{microseconds:,.0f}"


def shortened(text: str, most: int) -> str:
    """Return the beginning of a text."""
    return text if len(text) <= most else f"{text[:most]}..."
