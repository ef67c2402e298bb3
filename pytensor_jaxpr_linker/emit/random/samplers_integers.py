"""Integers uniform in a range, and random orders: from random bits, without floating point."""

from __future__ import annotations

from pytensor_jaxpr_linker.emit.lengths import position_dtype
from pytensor_jaxpr_linker.emit.random.rejection import Proposed, reject
from pytensor_jaxpr_linker.emit.random.sampler import Attempt, bits64_of, random_bits
from pytensor_jaxpr_linker.emit.scalar import UINT64
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.jaxpr.formula import Value, maximum, where


def integers_from(b: JaxprBuilder, key: Atom, shape: Shape, low: Atom, high: Atom) -> Atom:
    """Emit integers uniform in [`low`, `high`), int64 like these, without bias.

    The lowest ``2**64 % n`` of the random words are rejected, n the length of the range: the remainders of the others are
    equally frequent (Lemire, *Fast Random Integer Generation in an Interval*, 2019, section 3, OpenBSD's algorithm). A
    length of 2**64 counts as 0 in the arithmetic modulo that number, and all words are taken.
    """
    first = Value(b, prims.convert(b, low, UINT64))
    length = Value(b, prims.convert(b, high, UINT64)) - first
    divisor = maximum(length, 1)
    rejected = (Value(b, b.constant(0, UINT64)) - divisor) % divisor

    def propose(body: JaxprBuilder, lanes: Attempt, rejected: Atom) -> Proposed:
        (word,) = lanes.numbers(UINT64, bits64_of)
        return Proposed(word, prims.ge(body, word, rejected))

    start = prims.broadcast_to(b, b.constant(0, UINT64), shape)
    word = Value(b, reject(b, key, propose, [rejected.atom], start, b.constant(True)))
    return prims.convert(b, (first + where(length == 0, word, word % divisor)).atom, "int64")


def random_order(b: JaxprBuilder, key: Atom, shape: Shape, n: int) -> Atom:
    """Emit the numbers below `n` in a random order for each element of `shape`, along a last axis.

    The sort keys are random words of 64 bits; two are equal with a probability below ``n**2 / 2**65``.
    """
    shape = (*shape, n)
    return prims.sort(b, [*random_bits(b, key, shape), last_axis_positions(b, shape)], len(shape) - 1, num_keys=2)[2]


def last_axis_positions(b: JaxprBuilder, shape: Shape) -> Atom:
    """Emit the positions along the last axis."""
    return prims.iota(b, position_dtype(shape[-1]), shape, len(shape) - 1)
