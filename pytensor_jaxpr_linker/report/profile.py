"""`Profile`: the time that each part of a function takes, by the nodes of the graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pytensor_jaxpr_linker.report.model import Node
from pytensor_jaxpr_linker.report.text import node_line, rest

#: The number of nodes that are printed of a row, and the number of characters of each, and of the operation.
SHOWN_NODES, SHOWN_LENGTH, SHOWN_RESULT = 6, 110, 60


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """An operation of XLA's program, or a host step, with the nodes that it computes."""

    batch: int
    """The number of the region or host step, as in `explain`."""
    nodes: tuple[Node, ...]
    """The nodes, as in the `nodes` of an explanation. XLA computes the nodes of a fusion together, so they share a
    time. Empty if XLA added the operation, such as a copy."""
    readers: tuple[Node, ...]
    """If there are no nodes, the nodes that read the result."""
    inner: tuple[str, ...]
    """The Ops of inner graphs among them, such as in the body of a scan, with the user's names."""
    operation: str
    """The name of the HLO instruction; "host" for a host step."""
    result: str
    """The HLO type of its result."""
    microseconds: float
    """The time of all its runs in one call."""
    share: float
    """Its part of `Profile.microseconds`."""
    runs: float
    """The number of its runs in one call. XLA runs some operations in two parts: a sort also copies its operand."""


@dataclass(frozen=True)
class Profile:
    """The time that each part of a function takes. Prints as a table, also with the library rich.

    Each time is the mean over the fastest fifth of the runs: other work of the computer makes the others longer.

    Attributes
    ----------
    rows
        XLA's operations and the host steps, the slowest first. Operations may run at the same time: then their shares
        add up to more than 1.
    microseconds
        The time of one run of all regions and host steps under the profiler: longer than a call if there are many short
        operations.
    between
        The part of it in which no operation runs: the start of programs, XLA's loops, and the profiler itself.
    moving
        The additional time of a run with NumPy arguments, which are copied to the device of the region. Calls pack
        small arguments.
    call_microseconds
        The time of one call without the profiler, and without PyTensor's checks of the arguments.
    calls
        The number of runs of each region and host step.
    batch_microseconds
        The time of each region and host step, by its number. `Explanation.save` draws it.
    device
        The device of the regions.
    notes
        The gaps in the measurement.
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
            The number of rows that are shown.
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
            nodes = [shortened(node_line(node), SHOWN_LENGTH) for node in shown[:SHOWN_NODES]]
            nodes += rest(len(shown), SHOWN_NODES)
            if not row.nodes:
                nodes.insert(0, "of no node: XLA added it" + (", and it is read by" if shown else ""))
            if row.inner:
                nodes.append(shortened(f"inside: {', '.join(row.inner)}", SHOWN_LENGTH))
            yield micro(row.microseconds), f"{row.share:.1%}", f"{row.runs:g}", operation, nodes


#: The name of the operation of a host step.
ON_HOST = "host"


def micro(microseconds: float) -> str:
    """Return microseconds as text."""
    return f"{microseconds:.1f}" if microseconds < 999.95 else f"{microseconds:,.0f}"


def shortened(text: str, most: int) -> str:
    """Return the beginning of a text."""
    return text if len(text) <= most else f"{text[:most]}..."
