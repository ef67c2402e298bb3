"""Scan: a JAX `scan` if the number of steps is known when the program is built, else a `while`.

The loop carries the short window of rows that later steps read, and stacks the rows that each step adds to an output.
So a program neither reads nor writes whole buffers, and differentiates like a hand-written scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from jax.errors import InconclusiveDimensionOperation
from jax.extend.core import primitives as p
from pytensor.graph.basic import Apply
from pytensor.scan.op import Scan

from pytensor_jaxpr_linker.base.errors import MISFITS, CannotEmit, WrongResult
from pytensor_jaxpr_linker.base.jax_compat import SymbolicDim
from pytensor_jaxpr_linker.base.rules import InnerGraph, emits
from pytensor_jaxpr_linker.emit.scalar import numpy_astype
from pytensor_jaxpr_linker.emit.scan_body import SEPARATE_ROWS, Loop, LoopBody, Track, find_tracks
from pytensor_jaxpr_linker.graph.facts import follows_from_numbers
from pytensor_jaxpr_linker.graph.loops import UntilScan
from pytensor_jaxpr_linker.graph.static_values import larger
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.jaxpr.nested import as_rows, fixed_value, is_backwards, join, last_rows, row_range
from pytensor_jaxpr_linker.jaxpr.optimize.barriers import is_small
from pytensor_jaxpr_linker.jaxpr.traits import Trait, having

#: How often the loop is unrolled if its body has up to `SMALL_BODY` equations: on numbers, or arithmetic and reductions
#: on a few numbers. On larger arrays, and where a reduction reads an exponential, unrolling is up to twice as slow:
#: each step is several kernels there, and XLA's fusion recomputes the operands in each of them.
SMALL_BODY, UNROLL = 16, 4

#: How often the loop is unrolled if its body has up to `MEDIUM_BODY` equations and it takes `MANY_STEPS` or more: a
#: step of RK4 takes 0.8 times as long, its gradient 0.9, and compiling 1.1 times. XLA unrolls a short loop by itself,
#: which is faster.
MEDIUM_BODY, UNROLL_MEDIUM, MANY_STEPS = 256, 2, 64

#: Equations of simple bodies.
SIMPLE = having(Trait.CHEAP) | {
    *(p.div_p, p.dynamic_update_slice_p, p.reduce_max_p, p.reduce_min_p, p.reduce_prod_p, p.reduce_sum_p)
}

#: Equations that do not count.
LAYOUT = having(Trait.LAYOUT)

INT64 = np.dtype("int64")


# -- static operands ---------------------------------------------------------------------------------------------------


def scan_of(node: Apply) -> Scan:
    """Return the Scan of a node that is one, or that wraps one."""
    return node.op.scan if isinstance(node.op, UntilScan) else node.op


def known_lengths(node: Apply) -> list[int]:
    """Return the positions of the lengths among the operands, which must be known."""
    info = scan_of(node).info
    first = info.n_outer_inputs - info.n_non_seqs - info.n_nit_sot
    positions = list(range(first, first + info.n_nit_sot))
    return [*positions, 0] if follows_from_numbers(node.inputs[0]) else positions


def step_of(node: Apply) -> list[InnerGraph]:
    """Return the inner graph. No step changes its last inputs, nor the node's last inputs."""
    op = scan_of(node)
    info = op.info
    first, varying = info.n_outer_inputs - info.n_inner_inputs, info.n_inner_inputs - info.n_non_seqs
    return [InnerGraph(op.fgraph, "in the loop", first, varying)]


# -- the rules ---------------------------------------------------------------------------------------------------------


@emits(Scan, static=known_lengths, inner=step_of)
def emit_Scan(op, node, b, inner, *operands):
    """Emit a loop whose number of steps does not depend on its results."""
    loop = Loop(op, node, operands, *inner)
    steps = number_of_steps(b, loop)
    if hasattr(steps, "aval"):
        *outputs, _ = emit_while(b, loop, steps)
    else:
        outputs = emit_counted(b, loop, steps) if steps else emit_no_step(b, loop)
    return outputs


@emits(UntilScan, static=known_lengths, inner=step_of)
def emit_UntilScan(op, node, b, inner, *operands):
    """Emit a loop that a condition ends; the last output is the number of steps that it took."""
    loop = Loop(op.scan, node, operands, *inner)
    steps = number_of_steps(b, loop)
    if steps == 0:
        return [*emit_no_step(b, loop), b.constant(np.int64(0))]
    return emit_while(b, loop, steps)


#: PyTensor's message.
NEGATIVE_STEPS = "Scan was asked to run for negative number of step"


def number_of_steps(b: JaxprBuilder, loop: Loop) -> int | Atom:
    """Return the number of steps after checking it, as a length if it is known; a sequence without rows means no step.

    Raises
    ------
    IndexError
        If the number is negative.
    ValueError
        If a sequence is shorter.
    """
    known = fixed_value(loop.operands[0])
    shapes = [x.aval.shape for x in loop.op.outer_seqs(loop.operands)]
    if known is not None:
        steps = known.item()
        if type(steps) is SymbolicDim:
            b.check(prims.ge(b, b.constant(steps, INT64), b.constant(0, INT64)), lambda: IndexError(NEGATIVE_STEPS))
            steps = larger(steps, 0)
        if steps < 0:
            raise IndexError(f"{NEGATIVE_STEPS} {steps}")
        for i, shape in enumerate(shapes):
            if shape[0] < steps:
                raise too_short(i, shape, f"is {steps}")
        return steps
    count = numpy_astype(b, loop.operands[0], INT64)
    b.check(prims.ge(b, count, b.constant(0, INT64)), lambda: IndexError(NEGATIVE_STEPS))
    for i, shape in enumerate(shapes):
        b.check(prims.le(b, count, b.constant(shape[0], INT64)), partial(too_short, i, shape, "is larger"))
    return 0 if any(shape[0] == 0 for shape in shapes) else count


def too_short(i: int, shape: Shape, steps: str) -> ValueError:
    """Return the error of a sequence with fewer rows than steps."""
    return ValueError(f"Sequence {i} has shape {shape} but the Scan's required number of steps {steps}")


def emit_no_step(b: JaxprBuilder, loop: Loop) -> list[Atom]:
    """Return the results of a loop without a step: initial states, and no rows.

    The body need not fit these shapes, since it never runs. The rows' unknown lengths are 0, as in PyTensor.
    """
    op, node, operands, _ = loop
    tracks = find_tracks(op, operands)
    outputs = [track.buffer for track in tracks]
    if None in outputs:
        count = len(b.checks)
        try:
            body = LoopBody(b, loop, tracks)
            sequences = [body.add_row(x) for x in op.outer_seqs(operands)]
            newest, _ = body.emit(sequences, [body.add_row(t.buffer) if t.enters else None for t in tracks])
            rows = [x.aval for x in newest]
        except (CannotEmit, *MISFITS):
            types = [v.type for v in node.outputs]
            rows = [b.aval(tuple(n or 0 for n in t.shape[1:]), np.dtype(t.dtype)) for t in types[: len(tracks)]]
        del b.checks[count:]
        outputs = [no_rows(b, row) if x is None else x for x, row in zip(outputs, rows, strict=True)]
    return [*outputs, *op.outer_untraced_sit_sot(operands)]


def no_rows(b: JaxprBuilder, row: Any) -> Atom:
    """Return an array without rows of this aval."""
    return prims.broadcast_to(b, b.constant(0, row.dtype), (0, *row.shape))


def emit_counted(b: JaxprBuilder, loop: Loop, steps: int) -> list[Atom]:
    """Emit a `scan` of a known number of steps, at least one."""
    op, _, operands, _ = loop
    tracks = find_tracks(op, operands)
    body = LoopBody(b, loop, tracks)
    sequences = [body.add_row(x) for x in op.outer_seqs(operands)]
    entering = [body.add_row(t.buffer) if t.enters else None for t in tracks]
    newest, _ = body.emit(sequences, entering)
    rows: list[Atom] = [row_range(b, x, 0, steps) for x in op.outer_seqs(operands)]
    traced, leaving = [], []
    for i, track in enumerate(tracks):
        if track.is_whole and track.length < steps + track.newest:
            raise CannotEmit(f"the buffer of a state has {track.length} rows, too few for {steps} steps")
        if track.enters:
            rows.append(row_range(b, track.buffer, track.newest, track.newest + steps))
        if is_traced(track, steps):
            traced.append(i)
            leaving.append(body.leaving(i) if track.is_whole else newest[i])
        elif not track.is_whole:
            body.add_history(i, newest[i])
    jaxpr, consts, carry, rows = body.close(leaving, rows, steps)
    unroll = turns_at_once(jaxpr, steps)
    reverse = is_backwards(b, rows)
    if reverse:
        rows = [prims.rev(b, x, (0,)) for x in rows]
    results = prims.scan(b, jaxpr, consts, carry, rows, steps, unroll, reverse)
    windows, histories, untraced = body.finish(results)
    stacked = results[len(carry) :]
    traces = dict(zip(traced, [prims.rev(b, x, (0,)) for x in stacked] if reverse else stacked, strict=True))
    outputs = [assemble(b, track, windows[i], histories[i], traces.get(i), steps) for i, track in enumerate(tracks)]
    return [*outputs, *untraced]


def turns_at_once(jaxpr: Any, steps: int) -> int:
    """Return the unroll factor: more than 1 for few equations on numbers, or simple ones on a few numbers."""
    eqns = [eqn for eqn in jaxpr.eqns if eqn.primitive not in LAYOUT]
    shapes = [v.aval.shape for eqn in jaxpr.eqns for v in eqn.outvars]
    is_simple = all(map(is_small, shapes)) and all(eqn.primitive in SIMPLE for eqn in eqns)
    # JAX must know that there are as many steps.
    if len(eqns) > MEDIUM_BODY or (any(shapes) and not is_simple) or type(steps) is not int:
        return 1
    return UNROLL if len(eqns) <= SMALL_BODY else UNROLL_MEDIUM if steps >= MANY_STEPS else 1


def is_traced(track: Track, steps: int) -> bool:
    """Return whether the rows of all steps are collected: a few last ones are carried along instead."""
    if track.is_whole:
        return True
    rest = track.length - steps - track.newest
    try:
        if rest >= 0:
            return True
    except InconclusiveDimensionOperation:
        if not rest <= 0:
            raise
    return track.length > max(track.newest, SEPARATE_ROWS)


def assemble(
    b: JaxprBuilder, track: Track, window: list[Atom], history: list[Atom], trace: Atom | None, steps: int
) -> Atom:
    """Return an output: its initial rows, the rows of each step, and the rows that the loop carried last."""
    if track.is_whole:
        ends = ((0, track.oldest), (track.newest + steps, track.length))
        before, after = (row_range(b, track.buffer, start, stop) for start, stop in ends)
        return join(b, [before, trace, *window, after])
    if trace is None:
        return last_rows(b, join(b, [*history, *window]), track.length)
    if track.length <= steps:
        return last_rows(b, trace, track.length)
    initial = [] if track.buffer is None else [row_range(b, track.buffer, 0, track.newest)]
    rest = track.length - steps - track.newest
    zeros = prims.broadcast_to(b, b.constant(0, trace.aval.dtype), (larger(rest, 0), *trace.aval.shape[1:]))
    return last_rows(b, join(b, [*initial, trace, zeros]), track.length)


# -- loops that are not counted ----------------------------------------------------------------------------------------


def emit_while(b: JaxprBuilder, loop: Loop, steps: int | Atom) -> list[Atom]:
    """Emit a `while` of at most `steps` steps; the number of steps that it took is the last result."""
    op, node, operands, _ = loop
    tracks = find_tracks(op, operands)
    filled = [is_filled(b, track, steps, op.info.as_while) for track in tracks]
    body = LoopBody(b, loop, tracks)
    i = body.add_carry(b.constant(0, INT64))
    sequences = [body.add_const(x) for x in op.outer_seqs(operands)]
    count = len(b.checks)
    try:
        newest, done = body.emit([body.row_at(x, i) for x in sequences], [None] * len(tracks))
    except WrongResult:
        raise
    except MISFITS as error:
        returns_rows = any(track.buffer is None and track.length for track in tracks)
        if not hasattr(steps, "aval") or not b.checked or returns_rows:
            raise
        del b.checks[count:]
        b.check(prims.le(b, steps, b.constant(0, INT64)), partial(type(error), *error.args), node)
        return [*emit_no_step(b, loop), b.constant(0, INT64)]
    child = body.child
    body.set_carry(i, prims.add(child, i, child.constant(1, INT64)))
    stopped = None
    if done is not None:
        stopped = body.add_carry(b.constant(False))
        body.set_carry(stopped, done)
    buffers = {}
    for k, track in enumerate(tracks):
        if filled[k]:
            row = newest[k]
            initial = track.buffer
            if initial is None:
                initial = prims.broadcast_to(b, b.constant(0, row.aval.dtype), (track.length, *row.aval.shape))
            buffers[k] = buffer = body.add_carry(initial)
            position = prims.add(child, i, child.constant(track.newest, INT64))
            if track.newest + steps > track.length:  # then the buffer is a circular one
                position = prims.rem(child, position, child.constant(track.length, INT64))
            body.set_carry(buffer, write_row(child, buffer, row, position))
        else:
            body.add_history(k, newest[k])
    jaxpr, consts, carry, _ = body.close([])
    condition, limit = emit_condition(b, body, i, stopped, steps, carry)
    results = prims.while_loop(b, condition, limit, jaxpr, consts, carry)
    windows, histories, untraced = body.finish(results)
    taken = results[body.place(i)]
    outputs = []
    for k, track in enumerate(tracks):
        if k not in buffers:
            parts = [*histories[k], *windows[k]]
            outputs.append(last_rows(b, join(b, parts), track.length) if parts else no_rows(b, newest[k].aval))
            continue
        rows = results[body.place(buffers[k])]
        written = prims.add(b, taken, b.constant(track.newest, INT64))
        outputs.append(oldest_first(b, rows, written) if track.newest + steps > track.length else rows)
    return [*outputs, *untraced, taken]


def is_filled(b: JaxprBuilder, track: Track, steps: int | Atom, is_until: bool) -> bool:
    """Return whether rows are written to a buffer; else only the last ones are carried.

    Raises `CannotEmit` if the number of rows fits neither.
    """
    reason = "how many rows an output has depends on the number of steps"
    if hasattr(steps, "aval"):
        if track.is_whole or track.length > max(track.newest, track.buffer is None):
            raise CannotEmit(reason, 0)
        if track.buffer is None and track.length:
            error = IndexError("index -1 is out of bounds for axis 0 with size 0")
            b.check(prims.gt(b, steps, b.constant(0, INT64)), lambda: error)
        return False
    if track.is_whole or not is_until:
        raise CannotEmit(reason)
    return track.length > track.newest + 1


def oldest_first(b: JaxprBuilder, x: Atom, written: Atom) -> Atom:
    """Emit the rows of a circular buffer in the order of writing; rows that are not written stay the last."""
    length, *shape = x.aval.shape
    zero, count = b.constant(0, INT64), b.constant(length, INT64)
    oldest = prims.select(b, prims.lt(b, written, count), zero, prims.rem(b, written, count))
    return prims.dynamic_slice(b, prims.concatenate(b, [x, x], 0), [oldest, *[zero] * len(shape)], x.aval.shape)


def write_row(b: JaxprBuilder, x: Atom, row: Atom, position: Atom) -> Atom:
    """Emit an array with one row replaced."""
    zero = b.constant(0, INT64)
    return prims.dynamic_update_slice(b, x, as_rows(b, row), [position, *[zero] * (len(x.aval.shape) - 1)])


def emit_condition(
    b: JaxprBuilder, body: LoopBody, i: Atom, stopped: Atom | None, steps: int | Atom, carry: Sequence[Atom]
) -> tuple[Any, list[Atom]]:
    """Return the Jaxpr of whether there is another step, and its constants."""
    limit = [steps] if hasattr(steps, "aval") else []
    child, atoms = b.sub_jaxpr([x.aval for x in (*limit, *carry)])
    inner = atoms[len(limit) :]
    last = atoms[0] if limit else child.constant(steps, INT64)
    ok = prims.lt(child, inner[body.place(i)], last)
    if stopped is not None:
        ok = prims.and_(child, ok, prims.not_(child, inner[body.place(stopped)]))
    return child.build([ok]), limit
