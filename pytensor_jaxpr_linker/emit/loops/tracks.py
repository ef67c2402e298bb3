"""The rows that a scan reads and writes, by output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pytensor.scan.op import Scan

from pytensor_jaxpr_linker.jaxpr.builder import Atom

#: Windows of up to this many rows are carried as one value for each row, longer ones as one array.
SEPARATE_ROWS = 8


class Track(NamedTuple):
    """An output with a row for each step.

    Attributes
    ----------
    reads, writes
        The rows that the first step reads and writes; each later step uses the next ones.
    buffer
        The initial rows, or None (NIT-SOT).
    length
        The number of returned rows: the last ones, unless the output is MIT-MOT.
    is_whole
        Whether the output is MIT-MOT: a step may read any row of the buffer, and all are returned.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    buffer: Atom | None
    length: int
    is_whole: bool

    @property
    def newest(self) -> int:
        """The last row that the first step reads or writes."""
        return max(self.reads + self.writes)

    @property
    def oldest(self) -> int:
        """The first row that the first step reads or writes; for recurrent outputs all before the newest count."""
        return min(self.reads + self.writes) if self.is_whole else 0

    @property
    def span(self) -> int:
        """The number of rows that are carried from step to step."""
        return self.newest - self.oldest

    @property
    def is_stacked(self) -> bool:
        """Whether these rows are one array."""
        return self.span > SEPARATE_ROWS

    @property
    def enters(self) -> bool:
        """Whether the newest row is read before it is written."""
        return self.newest in self.reads


def find_tracks(op: Scan, operands: Sequence[Any]) -> list[Track]:
    info, tracks = op.info, []
    for buffer, ins, outs in zip(
        op.outer_mitmot(operands), info.mit_mot_in_slices, info.mit_mot_out_slices, strict=True
    ):
        base = -min(0, *ins)
        reads, writes = (tuple(base + t for t in taps) for taps in (ins, outs))
        tracks.append(Track(reads, writes, buffer, buffer.aval.shape[0], True))
    buffers = [*op.outer_mitsot(operands), *op.outer_sitsot(operands)]
    for buffer, ins in zip(buffers, info.mit_sot_in_slices + info.sit_sot_in_slices, strict=True):
        base = -min(ins)
        tracks.append(Track(tuple(base + t for t in ins), (base,), buffer, buffer.aval.shape[0], False))
    tracks += [Track((), (0,), None, n.item(), False) for n in op.outer_nitsot(operands)]
    return tracks
