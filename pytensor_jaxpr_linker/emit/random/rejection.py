"""Sampling by rejection: proposals for all elements at once, then in blocks for the elements still open.

Few elements stay open after the first proposal, so a loop over the whole array would mostly work on finished ones. An
element's draw does not depend on the others: see `sampler.Attempt`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jax.lax import GatherDimensionNumbers, ScatterDimensionNumbers

from pytensor_jaxpr_linker.emit.random.sampler import KEY_DTYPE, Attempt, flat_positions, key_words
from pytensor_jaxpr_linker.emit.scalar import number
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.nested import any_of, nested, row_of

#: The least length of a block, and the most elements that a loop goes on with as long as one of them does.
BLOCK = 1024
#: How many blocks a long array has at most.
BLOCKS = 32


class Proposed(NamedTuple):
    """A value for each element, which of them are accepted, and a cheaper condition that implies it (a squeeze)."""

    value: Atom
    accepted: Atom
    surely: Atom | None = None


#: Emits proposals: ``propose(b, lanes, *params)``, `lanes` having the random numbers.
type Proposal = Callable[..., Proposed]


def reject(
    b: JaxprBuilder,
    key: Atom,
    propose: Proposal,
    params: Sequence[Atom],
    otherwise: Atom,
    possible: Atom,
    prepare: Callable[..., Sequence[Atom]] = lambda b, *params: params,
) -> Atom:
    """Emit proposals until each element has an accepted one, and return these.

    Parameters
    ----------
    b, key
        The builder, and the key, which is used up.
    propose
        Emits proposals, in any builder. The probability to accept one must be bounded from below, or the loop does not
        end.
    params
        The operands of `propose`: 0-d, or of the shape of the draws.
    otherwise
        The values of elements that are not `possible`, in the shape and dtype of the draws.
    possible
        The elements to draw, as a boolean, 0-d or of that shape. A NaN among an element's parameters would never be
        accepted.
    prepare
        Emits the operands of `propose` from `params`: ``prepare(b, *params)``. A long array without possible elements
        skips it.
    """
    shape = otherwise.aval.shape
    size = math.prod(shape)
    words = key_words(b, key)
    if isinstance(size, int) and size <= BLOCK:
        return reject_together(b, words, propose, prepare(b, *params), otherwise, possible)
    flat = [prims.reshape(b, x, (size,)) if x.aval.shape else x for x in (*params, otherwise, possible)]

    def emit(b: JaxprBuilder, *atoms: Atom) -> Atom:
        first, second, otherwise, possible, *params = atoms
        return reject_in_blocks(b, (first, second), propose, prepare(b, *params), otherwise, possible)

    *params, otherwise, possible = flat
    draws = when_any(b, possible, emit, [*words, otherwise, possible, *params], otherwise)
    return prims.reshape(b, draws, shape)


def reject_together(
    b: JaxprBuilder, words: Sequence[Atom], propose: Proposal, params: Sequence[Atom], otherwise: Atom, possible: Atom
) -> Atom:
    """Emit a loop over all elements, with a mask of the open ones."""
    shape = otherwise.aval.shape
    carry = [b.constant(0, KEY_DTYPE), prims.broadcast_to(b, possible, shape), otherwise]
    body, read, (attempt, active, old), passed = nested(b, [*words, *params], carry)
    proposed = propose(body, Attempt(body, read[:2], attempt, flat_positions(body, shape)), *read[2:])
    new = prims.select(body, active, proposed.value, old)
    goes_on = prims.and_(body, active, prims.not_(body, proposed.accepted))
    step = body.build([prims.add(body, attempt, number(body, attempt, 1)), goes_on, new])
    condition, atoms = b.sub_jaxpr([x.aval for x in carry])
    return prims.while_loop(b, condition.build([any_of(condition, atoms[1])]), [], step, passed, carry)[2]


def reject_in_blocks(
    b: JaxprBuilder, words: Sequence[Atom], propose: Proposal, params: Sequence[Atom], otherwise: Atom, possible: Atom
) -> Atom:
    """Emit one proposal for each element of a vector, and a loop over blocks of the elements still open.

    The squeeze alone decides the first proposal, if there is one. An element that it leaves open meets the same random
    numbers again, with the logarithms of the full condition.
    """
    first = propose(b, Attempt(b, words, b.constant(0, KEY_DTYPE), flat_positions(b, otherwise.aval.shape)), *params)
    settled = first.accepted if first.surely is None else first.surely
    draws = prims.select(b, possible, first.value, otherwise)
    is_open = prims.and_(b, possible, prims.not_(b, settled))
    attempt = b.constant(int(first.surely is None), KEY_DTYPE)

    def emit(b: JaxprBuilder, *atoms: Atom) -> Atom:
        first, second, draws, is_open, *params = atoms
        return go_on_in_blocks(b, (first, second), attempt, propose, params, draws, is_open)

    return when_any(b, is_open, emit, [*words, draws, is_open, *params], draws)


def go_on_in_blocks(
    b: JaxprBuilder,
    words: Sequence[Atom],
    attempt: Atom,
    propose: Proposal,
    params: Sequence[Atom],
    draws: Atom,
    is_open: Atom,
) -> Atom:
    """Emit a loop that writes accepted values to the open elements of a vector of draws.

    The positions form a queue. A step takes the next block and writes its still open positions back to the front, where
    all has been read; `count` of them wait for the next attempt when this one reaches `end`.
    """
    (size,) = draws.aval.shape
    block = max(BLOCK, size // BLOCKS) if isinstance(size, int) else BLOCK
    queue, end = compacted(b, is_open, flat_positions(b, (size,)), size + block)
    zero = number(b, end, 0)
    carry = [attempt, zero, end, zero, queue, draws]
    body, read, (attempt, start, end, count, queue, draws), passed = nested(b, [*words, *params], carry)
    at = prims.dynamic_slice(body, queue, [start], (block,))
    in_queue = prims.lt(body, prims.add(body, prims.iota(body, at.aval.dtype, (block,), 0), start), end)
    lanes = Attempt(body, read[:2], attempt, at)
    proposed = propose(body, lanes, *(element(body, x, at) for x in read[2:]))
    accepted = prims.and_(body, in_queue, proposed.accepted)
    draws = written_at(body, draws, prims.select(body, accepted, at, number(body, at, -1)), proposed.value)
    stays_open = prims.and_(body, in_queue, prims.not_(body, proposed.accepted))
    rest, more = compacted(body, stays_open, at, block)
    queue = prims.dynamic_update_slice(body, queue, rest, [count])
    start, count = prims.add(body, start, number(body, start, block)), prims.add(body, count, more)
    is_last = prims.ge(body, start, end)
    attempt = prims.add(body, attempt, prims.convert(body, is_last, KEY_DTYPE))
    start, end, count = (prims.select(body, is_last, x, y) for x, y in ((zero, start), (count, end), (zero, count)))
    step = body.build([attempt, start, end, count, queue, draws])
    condition, atoms = b.sub_jaxpr([x.aval for x in carry])
    goes_on = condition.build([prims.lt(condition, atoms[1], atoms[2])])
    return prims.while_loop(b, goes_on, [], step, passed, carry)[5]


def when_any(b: JaxprBuilder, mask: Atom, emit: Callable[..., Atom], operands: Sequence[Atom], otherwise: Atom) -> Atom:
    """Emit ``emit(builder, *operands)``, computed only if any element of a mask is true; else `otherwise`."""
    if (value := b.known(mask)) is not None and np.all(value):
        return emit(b, *operands)
    branches = []
    for function in (lambda _, *atoms: atoms[-1], lambda child, *atoms: emit(child, *atoms[:-1])):
        child, read, _, passed = nested(b, [*operands, otherwise], [])
        branches.append(child.build([function(child, *read)]))
    return prims.cond(b, prims.convert(b, any_of(b, mask), "int32"), branches, passed, [otherwise.aval])[0]


def element(b: JaxprBuilder, x: Atom, at: Atom) -> Atom:
    """Emit the elements of a vector at some positions; a number is itself."""
    if not x.aval.shape:
        return x
    index = prims.reshape(b, at, (*at.aval.shape, 1))
    return prims.gather(b, x, index, GatherDimensionNumbers((), (0,), (0,)), (1,), at.aval.shape)


def written_at(b: JaxprBuilder, x: Atom, at: Atom, values: Atom) -> Atom:
    """Emit a vector with values written at some positions; values at -1 are dropped."""
    index = prims.reshape(b, at, (*at.aval.shape, 1))
    return prims.scatter(b, x, index, values, ScatterDimensionNumbers((), (0,), (0,)))


def compacted(b: JaxprBuilder, keep: Atom, values: Atom, length: int) -> tuple[Atom, Atom]:
    """Emit a vector that begins with the elements to keep, in order, and their number in the dtype of `values`."""
    (n,), dtype = keep.aval.shape, values.aval.dtype
    ranks = prims.cumsum(b, prims.convert(b, keep, dtype), 0)
    at = prims.select(b, keep, prims.sub(b, ranks, number(b, ranks, 1)), number(b, ranks, -1))
    start = prims.broadcast_to(b, b.constant(0, dtype), (length,))
    return written_at(b, start, at, values), row_of(b, ranks, n - 1)
