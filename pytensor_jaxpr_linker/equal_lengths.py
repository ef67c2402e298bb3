"""Which lengths are equal, though they are computed in different ways. Uses no JAX.

PyTensor says how long ``x[:k]`` is by comparisons of `k` with 0 and with the length of `x`; a gradient is as long. Whether that is the
length of a slice is found by random interpretation (Gulwani and Necula, Discovering affine equalities using random interpretation,
2003): both are computed for many values of what they are computed from. Only sums, comparisons and choices are followed, with
small constants, so that what such formulas distinguish is within the range of the values; what else there is, a large
constant too, may be anything.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.basic import Alloc, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Shape_i
from pytensor.tensor.subtensor import AdvancedIncSubtensor, IncSubtensor, Subtensor

from pytensor_jaxpr_linker.sized_ops import DynamicUpdate, SliceBounds, WriteLanes

#: How many values everything gets, and from where to where; lengths are not negative.
SAMPLES, LOWEST, HIGHEST = 4096, -9, 12

#: How far constants may move a comparison from 0. As the bound of a slice, the largest integer stands for the end of an axis.
FARTHEST, END = 4, np.iinfo("int64").max

#: How many operations deep a number is followed to what it is computed from.
DEEPEST = 40

#: Operations of which a comparison in a formula moves by all of the constants that are added; in the others by one of them.
SUMS: dict[type, Callable[..., np.ndarray]] = {
    ps.Add: lambda *xs: sum(xs),
    ps.Neg: np.negative,
    ps.Sub: np.subtract,
}
CHOICES: dict[type, Callable[..., np.ndarray]] = {
    ps.Cast: np.positive,
    ps.EQ: np.equal,
    ps.GE: np.greater_equal,
    ps.GT: np.greater,
    ps.LE: np.less_equal,
    ps.LT: np.less,
    ps.Maximum: np.maximum,
    ps.Minimum: np.minimum,
    ps.NEQ: np.not_equal,
    ps.Switch: lambda condition, x, y: np.where(condition != 0, x, y),
}


class Values(NamedTuple):
    """What a number is for each of the samples (int64), and how far constants move comparisons with it."""

    samples: np.ndarray
    reach: int


class Interpretation:
    """Computes integers of a graph for random values of those that it can't compute."""

    def __init__(self) -> None:
        self._values: dict[Variable, Values] = {}
        self._unknown: dict[Hashable, Values] = {}

    def are_equal(self, x: Variable, y: Variable) -> bool:
        """Tell whether two integers are the same whatever they are computed from."""
        return x is y or np.array_equal(self._follow(x).samples, self._follow(y).samples)

    def _follow(self, variable: Variable, depth: int = 0) -> Values:
        """Return the values of an integer, `depth` operations away from the one that is asked for."""
        if variable not in self._values:
            if isinstance(variable, Constant):
                self._values[variable] = self._constant(int(variable.data))
            else:
                self._values[variable] = self._computed(variable, depth) or self._any(variable, LOWEST)
        return self._values[variable]

    def _constant(self, value: int) -> Values:
        if abs(value) > FARTHEST and value != END:
            return Values(np.sign(value) * self._any(abs(value), 0).samples, 0)
        return Values(np.full(SAMPLES, value), abs(value))

    def _computed(self, variable: Variable, depth: int) -> Values | None:
        """Return the values of what can be followed, or None."""
        node = variable.owner
        if node is None or depth > DEEPEST:
            return None
        if isinstance(node.op, Shape_i):
            source, axis = length_source(node.inputs[0], node.op.i)
            known = source.type.shape[axis]
            return self._any((source, axis), 0) if known is None else self._constant(known)
        rule = rule_of(node)
        if rule is None:
            return None
        operands = [self._follow(v, depth + 1) for v in node.inputs]
        far = [x.reach for x in operands]
        reach = sum(far) if rule in SUMS.values() else max(far)
        if reach > FARTHEST and (reach != END or rule in SUMS.values()):
            return None
        found = rule(*(x.samples for x in operands))
        return Values(
            np.asarray(found[node.outputs.index(variable)] if isinstance(found, tuple) else found, "int64"), reach
        )

    def _any(self, key: Hashable, lowest: int) -> Values:
        """Return values of their own for what can't be computed."""
        if key not in self._unknown:
            random = np.random.default_rng(len(self._unknown))
            self._unknown[key] = Values(random.integers(lowest, HIGHEST, SAMPLES, endpoint=True), 0)
        return self._unknown[key]


def rule_of(node: Apply) -> Callable[..., np.ndarray | tuple[np.ndarray, ...]] | None:
    """Return how a node computes its numbers from others, or None."""
    if isinstance(node.op, ScalarFromTensor | TensorFromScalar):
        return np.positive
    if isinstance(node.op, SliceBounds):
        return slice_bounds
    kind = type(node.op.scalar_op if isinstance(node.op, Elemwise) else node.op)
    return (SUMS.get(kind) or CHOICES.get(kind)) if all(map(is_integer, node.inputs)) else None


def slice_bounds(start: np.ndarray, stop: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what `SliceBounds` does."""
    first, end = (np.clip(np.where(v < 0, v + n, v), 0, n) for v in (start, stop))
    return first, np.maximum(end - first, 0)


def is_integer(variable: Variable) -> bool:
    """Tell whether a variable is one integer, or a truth value."""
    dtype = getattr(variable.type, "dtype", "")
    return getattr(variable.type, "ndim", 1) == 0 and dtype.startswith(("int", "uint", "bool"))


def lengths_read(variable: Variable) -> list[Variable]:
    """Return the lengths of axes that a number is computed from by few operations."""
    found, seen = [], {variable}
    for v in (stack := [variable]):
        if v.owner is None or len(stack) > DEEPEST:
            continue
        if isinstance(v.owner.op, Shape_i):
            found.append(v)
        else:
            new = [u for u in dict.fromkeys(v.owner.inputs) if is_integer(u) and u not in seen]
            seen.update(new)
            stack += new
    return found


def length_source(x: Variable, axis: int) -> tuple[Variable, int]:
    """Return the first variable that has the length of an axis of `x`, and its axis."""
    while x.type.shape[axis] is None and (node := x.owner) is not None:
        if isinstance(node.op, Elemwise):  # which does not broadcast lengths that are not declared to be 1
            x = next(u for u in node.inputs if u.type.shape[axis] is None)
        elif isinstance(node.op, DimShuffle):
            x, axis = node.inputs[0], int(node.op.new_order[axis])
        elif isinstance(node.op, AdvancedIncSubtensor | DynamicUpdate | IncSubtensor | WriteLanes):
            x = node.inputs[0]
        elif isinstance(node.op, Subtensor):
            indices = [*node.op.idx_list, *[slice(None)] * node.inputs[0].type.ndim]
            source = [i for i, entry in enumerate(indices) if isinstance(entry, slice)][axis]
            if indices[source] != slice(None):
                break
            x, axis = node.inputs[0], source
        elif isinstance(node.op, Alloc) and isinstance(getattr(node.inputs[1 + axis].owner, "op", None), Shape_i):
            n = node.inputs[1 + axis].owner
            x, axis = n.inputs[0], n.op.i
        else:
            break
    return x, axis
