"""The body of a scan: the rows that it reads and writes, and a step as the Jaxpr of a `scan` or a `while`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.extend.core as jex
import numpy as np
from pytensor.graph.basic import Apply
from pytensor.scan.op import Scan

from pytensor_jaxpr_linker.base.errors import CannotEmit
from pytensor_jaxpr_linker.base.jax_compat import batch_jaxpr
from pytensor_jaxpr_linker.emit.indexing import broadcast_shapes
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, live_equations
from pytensor_jaxpr_linker.jaxpr.nested import as_rows, row_of, row_range
from pytensor_jaxpr_linker.jaxpr.optimize.loops import distribute, keep_residuals

# -- the rows that a step reads and writes -----------------------------------------------------------------------------


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


# -- the body ----------------------------------------------------------------------------------------------------------


class Loop(NamedTuple):
    """A scan's Op, node and operands, and `emit_step`, which emits the inner graph at an insertion point."""

    op: Scan
    node: Apply
    operands: Sequence[Any]
    emit_step: Callable[[JaxprBuilder, Sequence[Any]], list[Atom]]


class LoopBody:
    """Collects constants, carry and rows of a loop, and the equations of a step.

    Operands that are the same in each step become constants of the loop, or parts of the body if their values are
    known. `tracks` are the scan's outputs; `child` is the insertion point within the body.
    """

    def __init__(self, b: JaxprBuilder, loop: Loop, tracks: Sequence[Track]):
        self.b, self.child = b, b.sub_jaxpr([])[0]
        op, operands = loop.op, loop.operands
        self._op, self._emit_step, self._tracks, self._check_count = op, loop.emit_step, tracks, len(b.checks)
        self._consts: dict[Atom, jex.Var] = {}
        self._carry: dict[jex.Var, Atom] = {}
        self._next: dict[jex.Var, Atom] = {}
        self._rows: list[jex.Var] = []
        self._windows = [self._carry_window(track) for track in tracks]
        self._histories: list[list[jex.Var]] = [[] for _ in tracks]
        self._code: jex.Var | None = None
        self._written: list[dict[int, Atom]] = []
        self._untraced = [self.add_carry(x) for x in op.outer_untraced_sit_sot(operands)]
        self._non_seqs = [self.add_const(x) if isinstance(x, jex.Var) else x for x in op.outer_non_seqs(operands)]

    def add_const(self, x: Atom) -> jex.Var:
        """Pass a value that is the same in each step."""
        if x not in self._consts:
            self._consts[x] = self.child.input(x.aval.shape, x.aval.dtype)
            if (value := self.b.known(x)) is not None:
                self.child.remember(self._consts[x], value)
        return self._consts[x]

    def add_carry(self, initial: Atom) -> jex.Var:
        """Carry a value from step to step."""
        var = self.child.input(initial.aval.shape, initial.aval.dtype)
        self._carry[var] = initial
        return var

    def set_carry(self, var: jex.Var, value: Atom) -> None:
        """Set the next step's value; CannotEmit if its shape differs."""
        self._next[var] = fit(self.child, value, var.aval)

    def add_row(self, x: Atom) -> jex.Var:
        """Take one row of an array in each step."""
        self._rows.append(self.child.input(x.aval.shape[1:], x.aval.dtype))
        return self._rows[-1]

    def row_at(self, x: Atom, i: Atom) -> Atom:
        """Emit a row at a position that the loop computes."""
        zero, shape = self.child.constant(0, i.aval.dtype), x.aval.shape
        row = prims.dynamic_slice(self.child, x, [i, *[zero] * (len(shape) - 1)], (1, *shape[1:]))
        return prims.reshape(self.child, row, shape[1:])

    def _carry_window(self, track: Track) -> list[jex.Var]:
        """Carry the rows that later steps may read."""
        if not track.span:
            return []
        rows = row_range(self.b, track.buffer, track.oldest, track.newest)
        if rows.aval.shape[0] < track.span:
            raise CannotEmit(f"a state of {track.span} rows has only {rows.aval.shape[0]}")
        if track.is_stacked:
            return [self.add_carry(rows)]
        return [self.add_carry(row_of(self.b, rows, i)) for i in range(track.span)]

    def emit(self, rows: Sequence[Atom], entering: Sequence[Atom | None]) -> tuple[list[Atom], Atom | None]:
        """Emit a step from a row of each sequence.

        `entering` has the newest row of each track that reads this row before writing it. Returns each track's newest
        row after the step, and whether the loop ends here, or None.
        """
        op, self._entering = self._op, entering
        taps = [self.row(i, r) for i, t in enumerate(self._tracks) for r in t.reads]
        results = self._emit_step(self.child, [*rows, *taps, *self._untraced, *self._non_seqs])
        written = [list(values) for values in op.inner_mitmot_outs_grouped(results)]
        single = (*op.inner_mitsot_outs(results), *op.inner_sitsot_outs(results), *op.inner_nitsot_outs(results))
        written += [[x] for x in single]
        for track, values in zip(self._tracks, written, strict=True):
            if track.buffer is not None:
                aval = self.b.aval(track.buffer.aval.shape[1:], track.buffer.aval.dtype)
                values = [fit(self.child, x, aval) for x in values]
            self._written.append(dict(zip(track.writes, values, strict=True)))
        for i, track in enumerate(self._tracks):
            self._shift(i, track)
        for var, value in zip(self._untraced, op.inner_untraced_sit_sot_outs(results), strict=True):
            self.set_carry(var, value)
        done = prims.convert(self.child, results[-1], bool) if op.info.as_while else None
        return [self.row(i, t.newest) for i, t in enumerate(self._tracks)], done

    def row(self, i: int, row: int) -> Atom:
        """Return row `row` in the window of track `i`: the written one, else the one before the step."""
        track, window = self._tracks[i], self._windows[i]
        if self._written and row in self._written[i]:
            return self._written[i][row]
        if row == track.newest:
            assert self._entering[i] is not None
            return self._entering[i]
        place = row - track.oldest
        return row_of(self.child, window[0], place) if track.is_stacked else window[place]

    def leaving(self, i: int) -> Atom:
        """Return the value that track `i` has, after the step, in the row that no later step reads."""
        return self.row(i, self._tracks[i].oldest)

    def _shift(self, i: int, track: Track) -> None:
        """Move a window on by one row."""
        window = self._windows[i]
        if not track.is_stacked:
            for place, var in enumerate(window):
                self.set_carry(var, self.row(i, track.oldest + 1 + place))
            return
        kept = 1 + max((r - track.oldest for r in (0, *self._written[i]) if r < track.newest), default=0)
        moved = [as_rows(self.child, self.row(i, track.oldest + place)) for place in range(1, kept)]
        rest = row_range(self.child, window[0], max(kept, 1), track.span)
        newest = as_rows(self.child, self.row(i, track.newest))
        self.set_carry(window[0], prims.concatenate(self.child, [*moved, rest, newest], 0))

    def add_history(self, i: int, newest: Atom) -> None:
        """Carry more last rows of track `i`, as many as its output has, although no step reads them."""
        track, leaves = self._tracks[i], newest
        if track.span:  # the oldest row of the window as the step found it
            leaves = row_of(self.child, self._windows[i][0], 0) if track.is_stacked else self._windows[i][0]
        blank = prims.broadcast_to(self.b, self.b.constant(0, newest.aval.dtype), newest.aval.shape)
        history = [self.add_carry(blank) for _ in range(track.length - track.span)]
        for var, value in zip(history, [*history[1:], leaves], strict=False):
            self.set_carry(var, value)
        self._histories[i] = history

    def close(
        self, traces: Sequence[Atom], rows: Sequence[Atom] = (), steps: int = 0
    ) -> tuple[Any, list[Atom], list[Atom], list[Atom]]:
        """Return the Jaxpr of the body, which ends with `traces`, and the operands: constants, carry and rows."""
        child = self.child
        if len(self.b.checks) > self._check_count:
            self._code = self.add_carry(self.b.constant(np.int32(0)))
            is_first = prims.eq(child, self._code, child.constant(np.int32(0)))
            self.set_carry(self._code, prims.select(child, is_first, child.check_code(), self._code))
        results = [*(self._next[var] for var in self._carry), *traces]
        rows = self._distribute(results, rows, steps)
        _, used = live_equations(child.eqns, results)
        constants = [pair for pair in zip(child.constvars, child.consts, strict=True) if pair[0] in used]
        child.constvars, child.consts = [], []
        variables = [*self._consts.values(), *(var for var, _ in constants)]
        child.invars = [*variables, *self._carry, *self._rows]
        child.arg_names = [f"arg{i}" for i in range(len(child.invars))]
        consts = [*self._consts, *(self.b.constant(value) for _, value in constants)]
        return child.build(results), consts, list(self._carry.values()), rows

    def _distribute(self, results: Sequence[Atom], rows: Sequence[Atom], steps: int) -> list[Atom]:
        """Hoist the part that does not depend on earlier steps out of the loop; return the rows that a step takes."""
        child, found = self.child, distribute(self.child.eqns, results, self._carry, steps)
        if found is None:
            return list(rows)
        needed = live_equations(child.eqns, found.crossing)[0]
        consts = {var: x for x, var in self._consts.items()}
        consts |= zip(child.constvars, map(self.b.constant, child.consts), strict=True)
        values = keep_residuals(self.b, needed, found.crossing, consts, dict(zip(self._rows, rows, strict=True)), steps)
        is_batched = [True] * len(found.crossing)
        if values is None:
            if not found.has_calls:
                return list(rows)
            first, _ = self.b.sub_jaxpr([])
            first.eqns, first.invars = child.eqns, [*consts, *self._rows]
            first.arg_names = [f"arg{i}" for i in range(len(first.invars))]
            is_row = [False] * len(consts) + [True] * len(rows)
            batched, is_batched = batch_jaxpr(first.build(found.crossing), steps, is_row)
            values = prims.closed_call(self.b, batched, [*consts.values(), *rows])
        rows = list(rows)
        for var, value, differs in zip(found.crossing, values, is_batched, strict=True):
            if differs:
                self._rows.append(var)
                rows.append(value)
            else:
                self._consts[value] = var
        child.eqns = found.kept
        used = live_equations(child.eqns, results)[1]
        place = [i for i, var in enumerate(self._rows) if var in used]
        self._rows = [self._rows[i] for i in place]
        return [rows[i] for i in place]

    def place(self, var: jex.Var) -> int:
        """Return the position of a value in the carry."""
        return list(self._carry).index(var)

    def finish(self, results: Sequence[Atom]) -> tuple[list[list[Atom]], list[list[Atom]], list[Atom]]:
        """Return from the loop's results the last windows and histories, as arrays of rows, and the untraced states."""
        last: Mapping[jex.Var, Atom] = dict(zip(self._carry, results, strict=False))
        if self._code is not None:
            self.b.check_code_of(last[self._code])
        pairs = zip(self._tracks, self._windows, strict=True)
        windows = [[last[v] if t.is_stacked else as_rows(self.b, last[v]) for v in window] for t, window in pairs]
        histories = [[as_rows(self.b, last[v]) for v in history] for history in self._histories]
        return windows, histories, [last[v] for v in self._untraced]


def fit(b: JaxprBuilder, x: Atom, aval: Any) -> Atom:
    """Return `x` in the dtype and shape of a state; `CannotEmit` if it has another shape, as a carry keeps its own."""
    shape = x.aval.shape
    if shape != aval.shape:
        if len(shape) > len(aval.shape) or broadcast_shapes(shape, aval.shape) != aval.shape:
            raise CannotEmit(f"a state of the loop changes its shape from {aval.shape} to {shape}")
        x = prims.broadcast_to(b, x, aval.shape)
    return prims.convert(b, x, aval.dtype)
