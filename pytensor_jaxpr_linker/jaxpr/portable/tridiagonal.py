"""Tridiagonal systems, by elimination with row exchanges."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.formula import where
from pytensor_jaxpr_linker.jaxpr.portable.arrays import Array, full, joined_arrays


def solve_tridiagonal(lower: Array, main: Array, upper: Array, x: Array) -> Array:
    """Return the solutions; ``lower[0]`` and ``upper[-1]`` are not part of the matrices.

    Each step exchanges two rows if that makes the pivot larger, as LAPACK's ``gtsv``, whose errors these are.
    """
    b, (*batch, n, k) = x.b, x.shape
    if not n:
        return x
    rank = len(batch)
    columns = [first_axis(z.reshape(*batch, n, 1), rank) for z in (lower, main, upper)]
    below, diagonal, above, right = (*columns, first_axis(x, rank))
    zero = full(b, 0, (*batch, 1), x.dtype)

    def eliminate(carry: Sequence[Array], row: Sequence[Array]) -> tuple[Sequence[Array], Sequence[Array]]:
        (d, u, r), (low, d2, u2, r2) = carry, row
        exchanged = abs(low) > abs(d)
        nothing = d * 0.0
        first = [where(exchanged, p, q) for p, q in zip((low, d2, u2, r2), (d, u, nothing, r), strict=True)]
        other = [where(exchanged, p, q) for p, q in zip((d, u, nothing, r), (low, d2, u2, r2), strict=True)]
        factor = other[0] / first[0]
        following = [p - factor * q for p, q in zip(other[1:], first[1:], strict=True)]
        return following, first

    rest = [z[1:] for z in map(FirstAxis, (below, diagonal, masked_last(above), right))]
    start = [FirstAxis(z).first() for z in (diagonal, above if n > 1 else above * 0.0, right)]
    last, pivots = scanned(eliminate, start, rest, n - 1)
    rows = [
        FirstAxis(z).with_last(end)
        for z, end in zip(pivots, (last[0], last[1] * 0.0, last[1] * 0.0, last[2]), strict=True)
    ]

    def substitute(carry: Sequence[Array], row: Sequence[Array]) -> tuple[Sequence[Array], Sequence[Array]]:
        (y1, y2), (p0, p1, p2, r) = carry, row
        y = (r - p1 * y1 - p2 * y2) / p0
        return [y, y1], [y]

    nothing = zero.broadcast((*batch, k))
    _, (found,) = scanned(substitute, [nothing, nothing], rows, n, reverse=True)
    return last_axis_but_one(found, rank)


class FirstAxis:
    """An array as rows along its first axis."""

    def __init__(self, x: Array):
        self.x = x

    def __getitem__(self, part: slice) -> Array:
        """Return some of the rows."""
        start, stop, _ = part.indices(self.x.shape[0])
        rest = self.x.shape[1:]
        found = prims.slice_(self.x.b, self.x.atom, [start, *[0] * len(rest)], [stop, *rest], [1] * (len(rest) + 1))
        return Array(self.x.b, found)

    def first(self) -> Array:
        """Return the first row."""
        return self[:1].reshape(*self.x.shape[1:])

    def with_last(self, row: Array) -> Array:
        """Return the rows with one more behind them."""
        return joined_arrays([self.x, row.reshape(1, *row.shape)], -len(self.x.shape))


def masked_last(x: Array) -> Array:
    """Return rows of which the last is zero."""
    n = x.shape[0]
    return FirstAxis(FirstAxis(x)[: n - 1]).with_last(FirstAxis(x).first() * 0.0) if n > 1 else x * 0.0


def scanned(
    step: Callable[[Sequence[Array], Sequence[Array]], tuple[Sequence[Array], Sequence[Array]]],
    carry: Sequence[Array],
    rows: Sequence[Array],
    count: int,
    reverse: bool = False,
) -> tuple[list[Array], list[Array]]:
    """Return the last carry, and the rows that steps return, each of which takes one row of each array."""
    b = carry[0].b
    inner = [b.aval(x.shape[1:], x.dtype) for x in rows]
    body, atoms = b.sub_jaxpr([*[x.atom.aval for x in carry], *inner])
    arrays = [Array(body, x) for x in atoms]
    new, out = step(arrays[: len(carry)], arrays[len(carry) :])
    done = body.build([x.atom for x in (*new, *out)])
    results = prims.scan(b, done, [], [x.atom for x in carry], [x.atom for x in rows], count, reverse=reverse)
    found = [Array(b, x) for x in results]
    return found[: len(carry)], found[len(carry) :]


def first_axis(x: Array, axis: int) -> Array:
    """Return an array with an axis in front."""
    order = [axis, *[i for i in range(len(x.shape)) if i != axis]]
    return Array(x.b, prims.transpose(x.b, x.atom, order))


def last_axis_but_one(x: Array, rank: int) -> Array:
    """Return an array with its first axis behind `rank` others."""
    return Array(x.b, prims.transpose(x.b, x.atom, [*range(1, rank + 1), 0, *range(rank + 1, len(x.shape))]))
