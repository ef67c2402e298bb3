"""Sums of many numbers, which scalar factors and terms leave, and sums by group.

``scatter_add`` into a vector at known indices is the gradient of an effect, which adds the rows of each group.
Neighbours of one group are added before they meet their group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import batched
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import primitives as p
from jax.lax import GatherDimensionNumbers, ScatterDimensionNumbers

from pytensor_jaxpr_linker.graph.data_layout import STACKED
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.optimize.barriers import MOVING
from pytensor_jaxpr_linker.jaxpr.passes import count_readers, replace_equations
from pytensor_jaxpr_linker.jaxpr.traits import Trait, having

#: Sums of fewer numbers stay as they are. 919 rows gain 7 %, 400 rows nothing.
MANY_ADDED = 256

#: The deepest product in which factors are sought.
DEEPEST_PRODUCT = 8

#: Equations that XLA fuses with their reader, equations that may be part of the sums of blocks, and their largest
#: number.
FUSED = having(Trait.ELEMENTWISE) | MOVING | {p.custom_jvp_call_p, p.closed_call_p}
CHEAP_ROWS, MOST_IN_ROWS = having(Trait.CHEAP) | {p.div_p}, 8

#: The assembler functions of primitives that multiply or divide, and of primitives that add or subtract.
PRODUCTS = {p.mul_p: prims.mul, p.square_p: prims.mul, p.div_p: prims.div}
TERMS = {p.add_p: prims.add, p.sub_p: prims.sub}

#: Primitives of whose results no element is negative.
NOT_NEGATIVE = {p.square_p, p.abs_p, p.exp_p}


class Scaled(NamedTuple):
    """An array without its scalar factors, and the functions that multiply or divide by these, in order."""

    array: Atom
    factors: tuple[tuple[Callable[..., Atom], Atom], ...] = ()

    def scale(self, b: JaxprBuilder, x: Atom) -> Atom:
        """Multiply or divide `x` by the scalars."""
        for operation, factor in self.factors:
            x = operation(b, x, factor)
        return x


class Factors:
    """Finds scalars in the operands of sums.

    ``sum(x / s)`` becomes ``sum(x) / s``, as PyTensor writes it. Here the quotient may have other readers. Then `x`
    must have several, too, or be an input: else the sum would compute `x` a second time. In float64, ``sum(x / s * y)``
    becomes ``sum(x * y) / s``: PyTensor's default mode lets LLVM reorder products in the same way. In float32 a product
    of two arrays leaves the range of the dtype too easily.
    """

    def __init__(self, eqns: Sequence[Any], b: JaxprBuilder):
        self.b, self._readers = b, count_readers(eqns, b.outputs)
        self._definitions = {var: eqn for eqn in eqns for var in eqn.outvars}

    def split(self, x: Atom, depth: int = DEEPEST_PRODUCT) -> Scaled:
        """Return a real or complex array and its scalars; emit products of arrays again, without theirs."""
        eqn = self._definitions.get(x) if depth else None
        if eqn is None or eqn.primitive not in PRODUCTS or x.aval.dtype.kind not in "fc":
            return Scaled(x)
        left, right = eqn.invars * 2 if eqn.primitive is p.square_p else eqn.invars
        if eqn.primitive is p.mul_p and not left.aval.shape:
            left, right = right, left
        if not left.aval.shape:
            return Scaled(x)
        is_single = self._readers[x] == 1
        if not right.aval.shape:
            if not (is_single or self._is_there(left)):
                return Scaled(x)
            array, factors = self.split(left, depth - 1)
            return Scaled(array, (*factors, (PRODUCTS[eqn.primitive], right)))
        if eqn.primitive is p.div_p or not is_single or x.aval.dtype != np.float64:
            return Scaled(x)
        one, other = self.split(left, depth - 1), self.split(right, depth - 1)
        factors = one.factors + other.factors
        return Scaled(prims.mul(self.b, one.array, other.array), factors) if factors else Scaled(x)

    def _is_there(self, x: Atom) -> bool:
        """Return whether an array is an input or a constant, or is cheap and has several readers."""
        return x not in self._definitions or (self._readers[x] > 1 and are_cheap_rows(self.b, x))

    def split_terms(self, x: Atom) -> tuple[Atom, list[Any]]:
        """Return a real array and the equations that add scalars to it or subtract them, the last first."""
        terms: list[Any] = []
        while True:
            eqn = self._definitions.get(x)
            if eqn is None or eqn.primitive not in TERMS or self._readers[x] != 1 or x.aval.dtype.kind != "f":
                return x, terms
            arrays = [y for y in eqn.invars if y.aval.shape]
            if len(arrays) != 1:
                return x, terms
            terms.append(eqn)
            (x,) = arrays

    def is_not_negative(self, x: Atom) -> bool:
        """Return whether no element of an array is negative, whatever it is computed from."""
        eqn = self._definitions.get(x) or self.b.definition(x)
        if eqn is None:
            return False
        return eqn.primitive in NOT_NEGATIVE or (eqn.primitive is p.mul_p and eqn.invars[0] is eqn.invars[1])


def are_cheap_rows(b: JaxprBuilder, x: Atom) -> bool:
    """Return whether few cheap equations compute an array.

    XLA fuses the added rows with the sums of blocks, where it does not vectorize: `digamma` of each row took twice as
    long.
    """
    stack, left = [x], MOST_IN_ROWS
    while stack:
        eqn = b.definition(stack.pop())
        if eqn is not None and eqn.primitive in FUSED:
            left -= eqn.primitive not in MOVING
            if left < 0 or eqn.primitive not in CHEAP_ROWS:
                return False
            stack += [y for y in eqn.invars if y.aval.shape]
    return True


def simplify_sums(eqns: list[Any], b: JaxprBuilder) -> list[Any]:
    """Rewrite the sums of many numbers."""
    return replace_equations(eqns, b, is_sum_of_many, partial(sum_of_terms, Factors(eqns, b)))


def is_sum_of_many(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether an equation adds many numbers, and how many is known."""
    if eqn.primitive is not p.reduce_sum_p:
        return False
    shape = eqn.invars[0].aval.shape
    return all(type(n) is int for n in shape) and math.prod(shape) >= MANY_ADDED


def sum_of_terms(factors: Factors, b: JaxprBuilder, eqn: Any) -> Atom | None:
    """Emit the sum of an array by the sum of a simpler array, or return None.

    Terms leave the sum if no element of the simpler array is negative: then its sum has the relative precision of its
    elements.
    """
    (x,), axes = eqn.invars, eqn.params["axes"]
    array, terms = factors.split_terms(x)
    numbers = factors.split(array)
    if (terms and not factors.is_not_negative(numbers.array)) or not (terms or numbers.factors):
        return None
    total = numbers.scale(b, prims.reduce_sum(b, numbers.array, axes))
    count = b.constant(math.prod(x.aval.shape[axis] for axis in axes), x.aval.dtype)
    for term in reversed(terms):
        pair = [total if y.aval.shape else prims.mul(b, count, y) for y in term.invars]
        total = TERMS[term.primitive](b, *pair)
    return total


#: How many neighbours a block may have, and how many copies of the groups there may be. XLA computes blocks of 16 and
#: 32 in several loops, with arrays between them: log density and gradient of the radon model with 1,229,000 houses,
#: sorted by county, took 1.3 and 1.5 ms instead of 1.1.
BLOCKS, COPIES = (2, 4, 8), (8, 4, 2)

#: From how many blocks on they and the rows in no block are two arrays. XLA computes a concatenation on one core: on
#: two cores log density and gradient of the radon model with 369,000 and 1,229,000 houses took 0.43 and 1.65 ms instead
#: of 0.54 and 2.0. On one core, and for fewer houses, they take as long.
MANY_BLOCKS = 2**16

#: So many sums are added to each other again before they meet their groups.
MANY_SUMS = 2**13

#: The dimension numbers of reading and writing single numbers of a vector.
READ, WRITE = GatherDimensionNumbers((), (0,), (0,)), ScatterDimensionNumbers((), (0,), (0,))


class Rows(NamedTuple):
    """A plan that adds rows to their groups.

    Rows of grouped data stand by group, and each addition to a group waits for the one before it. So blocks of
    neighbours that are of one group are added first, and of many blocks again blocks. What is then added goes to
    several copies of the groups in turn: neighbours do not wait for each other. 1,000,000 rows in 400 groups took 2,930
    µs, in copies 530, in blocks and copies 190, on one core.
    """

    blocks: list[Blocks]  #: which neighbours are added first, then which of these sums
    groups: np.ndarray  #: the group of each sum; the number of groups if it has rows of several groups
    copies: int  #: how many copies of the groups there are
    is_empty: np.ndarray  #: which groups have no rows


class Blocks(NamedTuple):
    """Rows that are added to each other: neighbours, or rows at the same place of equal parts of all rows."""

    length: int  #: how many are a block
    are_stacked: bool  #: whether they are in parts, see `sorted_rows`: XLA adds vectors then
    rest: np.ndarray  #: rows outside of blocks of one group
    rest_groups: np.ndarray  #: their groups


def plan_rows(groups: np.ndarray, n: int) -> Rows:
    """Return a plan that adds rows to `n` groups; the group of each row is known."""
    is_empty = np.bincount(groups, minlength=n) == 0
    blocks: list[Blocks] = []
    while not blocks or len(groups) >= MANY_SUMS:
        plans = [in_blocks(groups, n, length) for length in BLOCKS]
        plans.append(in_blocks(groups, n, STACKED, are_stacked=True))
        # What is in no block is read, then added.
        best, sums = min(plans, key=lambda plan: len(plan[1]) + 2 * len(plan[0].rest))
        if 2 * (len(sums) + len(best.rest)) > len(groups):
            break
        blocks.append(best)
        groups = sums
    added = np.concatenate([groups, *(level.rest_groups for level in blocks)])
    is_grouped = 4 * np.count_nonzero(added[1:] == added[:-1]) > len(added)
    copies = next((c for c in COPIES if is_grouped and c * n <= len(added)), 1)
    return Rows(blocks, groups, copies, is_empty)


def in_blocks(groups: np.ndarray, n: int, length: int, are_stacked: bool = False) -> tuple[Blocks, np.ndarray]:
    """Return blocks of `length` rows, and the group of each; rows of group `n` are sums of several groups."""
    count = len(groups) // length
    parts = groups[: count * length]
    blocks = parts.reshape(length, count) if are_stacked else parts.reshape(count, length).T
    is_one = (blocks == blocks[:1]).all(0)
    of_rows = np.tile(is_one, length) if are_stacked else np.repeat(is_one, length)
    is_left = np.append(~of_rows, np.ones(len(groups) - len(parts), bool))
    rest = np.flatnonzero(is_left & (groups < n))
    return Blocks(length, are_stacked, rest, groups[rest]), np.where(is_one, blocks[0], n)


def sum_groups(eqns: list[Any], b: JaxprBuilder) -> list[Any]:
    """Rewrite the sums by group. The rule of an inner Jaxpr does it itself: a pass can't add constants to that."""
    replace = partial(add_to_groups, split=Factors(eqns, b).split, plans={})
    return replace_equations(eqns, b, is_sum_by_group, lambda b, eqn: replace(b, *eqn.invars))


def is_sum_by_group(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether an equation adds rows to groups that are known."""
    is_scatter = eqn.primitive is p.scatter_add_p and eqn.params["dimension_numbers"] == WRITE
    return is_scatter and b.known(eqn.invars[1]) is not None


def add_to_groups(
    b: JaxprBuilder,
    x: Atom,
    indices: Atom,
    rows: Atom,
    split: Callable[[Atom], Scaled] = Scaled,
    plans: dict[Atom, Rows] | None = None,
) -> Atom | None:
    """Emit many rows added to a vector's elements, the groups; None if `scatter_add` does as well, as on a GPU."""
    known, shape, plans = b.known(indices), x.aval.shape, {} if plans is None else plans
    if known is None or len(shape) != 1 or type(shape[0]) is not int or known.size < max(MANY_ADDED, 4 * shape[0]):
        return None
    if indices not in plans:
        groups = known.ravel().astype("int64")
        if groups.min() < 0 or groups.max() >= shape[0]:
            return None
        plans[indices] = plan_rows(groups, shape[0])
    (n,), plan, numbers = shape, plans[indices], split(rows)
    if not plan.blocks and plan.copies == 1 and not numbers.factors:
        return None
    array = numbers.array
    if plan.blocks and not are_cheap_rows(b, array):
        (array,) = prims.barrier(b, [array])
    sums = numbers.scale(b, add_by_plan(b, array, indices, n, plan))
    if numbers.factors and plan.is_empty.any():  # the sum of an empty group is not 0 / 0
        is_empty = b.constant_of(lambda: plan.is_empty, [indices], ("empty groups", n))
        sums = prims.select(b, is_empty, b.constant(0, sums.aval.dtype), sums)
    return prims.add(b, x, sums)


def add_by_plan(b: JaxprBuilder, rows: Atom, indices: Atom, n: int, plan: Rows) -> Atom:
    """Emit the sums of the rows of `n` groups, whose known indices are `indices`."""
    blocks, groups, copies, _ = plan
    rows = prims.reshape(b, rows, (b.known(indices).size,))
    added = []
    for level, (length, are_stacked, rest, rest_groups) in enumerate(blocks):
        if level:
            (rows,) = prims.barrier(b, [rows])
        if len(rest):
            at = b.constant_of(partial(as_column, rest), [indices], ("rest", n, level))
            added.append((prims.gather(b, rows, at, READ, (1,), (len(rest),)), rest_groups))
        rows = (add_stacked if are_stacked else add_neighbours)(b, rows, length)
    added.insert(0, (rows, groups))
    if len(blocks) < 2 and len(groups) < MANY_BLOCKS:
        arrays, places = zip(*added, strict=True)
        added = [(prims.concatenate(b, arrays, 0), np.concatenate(places))]
    sums = prims.broadcast_to(b, b.constant(0, rows.aval.dtype), (n * copies,))
    for part, (array, to) in enumerate(added):
        at = b.constant_of(partial(place_in_copies, to, n, copies), [indices], ("copies", n, copies, part))
        sums = prims.scatter_add(b, sums, at, array, WRITE)
    return sums if copies == 1 else prims.reduce_sum(b, prims.reshape(b, sums, (copies, n)), (0,))


def as_column(positions: np.ndarray) -> np.ndarray:
    """Return positions in a vector, as the primitives that read and write them take them."""
    return positions.astype("int32")[:, None]


def place_in_copies(groups: np.ndarray, n: int, copies: int) -> np.ndarray:
    """Return positions in copies of `n` groups, in turn; group `n` gets one past the end, where XLA drops it."""
    copied = groups.astype("int64") + n * (np.arange(len(groups)) % copies)
    return as_column(np.where(groups < n, copied, n * copies))


def add_neighbours(b: JaxprBuilder, x: Atom, block: int) -> Atom:
    """Emit the sums of blocks of neighbours, pair by pair; the number of neighbours is a power of two."""
    count = x.aval.shape[0] // block * block
    while block > 1:
        first, second = (prims.slice_(b, x, (i,), (count - 1 + i,), (2,)) for i in (0, 1))
        x, block, count = prims.add(b, first, second), block // 2, count // 2
    return x


def add_stacked(b: JaxprBuilder, x: Atom, length: int) -> Atom:
    """Emit the sum of the first `length` parts of a vector; the number of parts is a power of two."""
    count = x.aval.shape[0] // length
    parts = [prims.slice_(b, x, (i * count,), ((i + 1) * count,), (1,)) for i in range(length)]
    while len(parts) > 1:
        parts = [prims.add(b, *pair) for pair in batched(parts, 2)]
    return parts[0]
