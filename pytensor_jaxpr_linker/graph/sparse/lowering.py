"""The pass that replaces the Ops of `pytensor.sparse` by Ops on arrays. Uses no JAX.

An Op whose result has entries at places that only the host can find stays as it is, with its operands put together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytensor.tensor as pt
from pytensor.compile.ops import DeepCopyOp, ViewOp
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import toposort
from pytensor.sparse.basic import CSMProperties
from pytensor.sparse.type import SparseTensorType
from pytensor.tensor.shape import Shape, Shape_i

from pytensor_jaxpr_linker.graph.sparse.matrix import Matrix, Tensor, arranged, assembled, taken_apart

#: Gives what a node computes, or None if this one is not lowered.
type Lowering = Callable[[Operands, Apply], Variable | Matrix | None]

LOWERINGS: dict[type, Lowering] = {}


def lowers(*op_types: type) -> Callable[[Lowering], Lowering]:
    """Register the decorated function for Ops."""

    def register(lower: Lowering) -> Lowering:
        LOWERINGS.update(dict.fromkeys(op_types, lower))
        return lower

    return register


def is_sparse(variable: Variable) -> bool:
    """Tell whether a variable is a sparse matrix in a format that is lowered."""
    return isinstance(variable.type, SparseTensorType) and variable.type.format in ("csr", "csc")


def with_arrays_for_sparse(
    inputs: Sequence[Variable], outputs: list[Variable], nodes: list[Apply]
) -> tuple[list[Variable], list[Apply]]:
    """Return outputs and nodes of the graph in which what can be is computed on the arrays of sparse matrices."""
    lower = {op_type: found for op_type in {type(node.op) for node in nodes} if (found := lowering_of(op_type))}
    if lower.keys() <= ON_ANY_TYPE and not any(is_sparse(n.inputs[0]) for n in nodes if type(n.op) in lower):
        return outputs, nodes
    operands = Operands()
    for node in nodes:
        found = lower.get(type(node.op))
        result = found(operands, node) if found is not None and has_known_formats(node) else None
        if result is not None:
            operands.define(node.outputs[0], result)
        elif not isinstance(node.op, CSMProperties):
            operands.keep(node)
    outputs = [operands.variable(v) for v in outputs]
    return outputs, list(toposort(outputs, blockers=inputs))


#: Ops that are lowered for sparse matrices and stay as they are for other values.
ON_ANY_TYPE = frozenset((DeepCopyOp, Shape, Shape_i, ViewOp))


def lowering_of(op_type: type) -> Lowering | None:
    """Return how an Op is lowered; `CSMProperties` is, by `Operands`, where what it returns is read."""
    return next((LOWERINGS[base] for base in op_type.__mro__ if base in LOWERINGS), None)


def has_known_formats(node: Apply) -> bool:
    """Tell whether no sparse operand or result of a node is of a format, such as BSR, that is not lowered."""
    return all(is_sparse(v) or not isinstance(v.type, SparseTensorType) for v in (*node.inputs, *node.outputs))


class Operands:
    """What the variables of the graph are in the one that replaces it, made when it is asked for."""

    def __init__(self) -> None:
        self._variables: dict[Variable, Variable] = {}
        self._matrices: dict[Variable, Matrix] = {}

    def define(self, old: Variable, new: Variable | Matrix) -> None:
        """Note what an output became."""
        if isinstance(new, Matrix):
            self._matrices[old] = new
            return
        if new.owner is not None:
            new.name = new.name or old.name
        self._variables[old] = new

    def keep(self, node: Apply) -> None:
        """Keep a node, on what replaced its operands."""
        operands = [self.variable(v) for v in node.inputs]
        if all(a is b for a, b in zip(operands, node.inputs, strict=True)):
            return
        copied = node.clone_with_new_inputs(operands, strict=False)
        self._variables.update(zip(node.outputs, copied.outputs, strict=True))

    def variable(self, old: Variable) -> Tensor:
        """Return what a variable became; a matrix is put together."""
        if old in self._variables:
            return self._variables[old]
        if old in self._matrices:
            result = assembled(self._matrices[old], old.type)
            result.name = old.name
        elif old.owner is not None and isinstance(old.owner.op, CSMProperties) and is_sparse(old.owner.inputs[0]):
            result = properties(self.exact(old.owner.inputs[0]))[old.owner.outputs.index(old)]
        else:
            return old
        self._variables[old] = result
        return result

    def matrix(self, old: Variable) -> Matrix:
        """Return a sparse variable as its entries."""
        found = self._matrices.get(old)
        if found is None:
            self._variables.setdefault(old, old)
            found = self._matrices[old] = taken_apart(self._variables[old])
        return found

    def exact(self, old: Variable) -> Matrix:
        """Return a sparse variable as the very arrays that PyTensor would have; the host finds the places if it must."""
        found = self.matrix(old)
        if not found.is_exact:
            found = self._matrices[old] = arranged(found) if found.is_list else taken_apart(self.variable(old))
        return found


def properties(x: Matrix) -> tuple[Variable, Variable, Variable, Variable]:
    """Return what `CSMProperties` returns."""
    assert x.pattern is not None
    return x.data, *x.pattern, pt.stack(x.shape).astype("int32")
