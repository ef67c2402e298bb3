"""Which lengths are equal, though they are computed in different ways. Uses no JAX.

PyTensor says how long ``x[:k]`` is by comparisons of `k` with 0 and with the length of `x`; a gradient is as long. Whether that is the
length of a slice is found by random interpretation (Gulwani and Necula, Discovering affine equalities using random interpretation,
2003): both are computed for many values of what they are computed from. Sums and choices of few small integers that agree
on all of these agree.
"""

from __future__ import annotations

import random
from collections.abc import Hashable
from contextlib import suppress

from pytensor.graph.basic import Constant, Variable
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor.basic import Alloc, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Shape_i
from pytensor.tensor.subtensor import AdvancedIncSubtensor, IncSubtensor, Subtensor

from pytensor_jaxpr_linker.sized_ops import DynamicUpdate, SliceBounds, WriteLanes

#: How many values everything gets, and from where to where; lengths are not negative.
SAMPLES, LOWEST, HIGHEST = 96, -7, 9

#: How many operations deep a number is followed to what it is computed from.
DEEPEST = 40

#: The values of a variable.
type Values = tuple[int, ...]


class Interpretation:
    """Computes integers of a graph for random values of those that it can't compute."""

    def __init__(self) -> None:
        self._values: dict[Variable, Values] = {}
        self._unknown: dict[Hashable, Values] = {}

    def values(self, variable: Variable, depth: int = 0) -> Values:
        """Return what an integer is for each of the samples; it is `depth` operations away from the one that is asked for."""
        if variable not in self._values:
            self._values[variable] = self._interpret(variable, depth)
        return self._values[variable]

    def _interpret(self, variable: Variable, depth: int) -> Values:
        if isinstance(variable, Constant):
            return (int(variable.data),) * SAMPLES
        node = variable.owner
        if node is None or depth > DEEPEST:
            return self._sample(variable, LOWEST)

        def operands() -> list[Values]:
            return [self.values(v, depth + 1) for v in node.inputs]

        op = node.op
        if isinstance(op, Shape_i):
            source, axis = length_source(node.inputs[0], op.i)
            known = source.type.shape[axis]
            return self._sample((source, axis), 0) if known is None else (known,) * SAMPLES
        if isinstance(op, ScalarFromTensor | TensorFromScalar):
            return operands()[0]
        scalar_op = op.scalar_op if isinstance(op, Elemwise) else op
        if isinstance(scalar_op, ScalarOp) and len(node.outputs) == 1 and all(map(is_integer, node.inputs)):
            with suppress(ArithmeticError):
                return tuple(int(scalar_op.impl(*xs)) for xs in zip(*operands(), strict=True))
        if isinstance(op, SliceBounds):
            ranges = [range(n)[start:stop] for start, stop, n in zip(*operands(), strict=True)]
            return tuple(r.start if variable is node.outputs[0] else len(r) for r in ranges)
        return self._sample(variable, LOWEST)

    def _sample(self, key: Hashable, lowest: int) -> Values:
        if key not in self._unknown:
            draw = random.Random(len(self._unknown)).randint
            self._unknown[key] = tuple(draw(lowest, HIGHEST) for _ in range(SAMPLES))
        return self._unknown[key]


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
