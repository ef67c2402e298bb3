"""The pass that replaces the Ops of `pytensor.sparse` by Ops on arrays.

An Op stays as it is where only the host can find the places of the result's entries. It then reads matrices that the
host puts together from the arrays.

PyTensor imports SciPy's sparse matrices when they are first used, and this package never does. Therefore lowerings are
registered by the names of the Ops.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import pytensor.tensor as pt
from pytensor.compile.ops import DeepCopyOp, ViewOp
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.shape import Shape, Shape_i

from pytensor_jaxpr_linker.base.rules import Table, class_name
from pytensor_jaxpr_linker.graph.sparse.matrix import Matrix, Tensor, arranged, assembled, taken_apart
from pytensor_jaxpr_linker.graph.walk import FindRule, Graph, Operands, Rewrite, copied_onto, rewritten

#: Returns the replacement of a node's first output, or None if this node is not lowered.
type Lowering = Callable[..., Variable | Matrix | None]

LOWERINGS: Table[Rewrite] = Table()


def lowers(*ops: str | type, with_operands: bool = True) -> Callable[[Lowering], Lowering]:
    """Register the decorated function for Ops of `pytensor.sparse`, by name, or for classes of Ops on any type.

    It takes the node and its operands, sparse ones as matrices; or, without operands, a `SparseOperands` and the node.
    """

    def register(lower: Lowering) -> Lowering:
        @wraps(lower)
        def rewrite(known: SparseOperands, node: Apply) -> list[Variable | Matrix] | None:
            if not has_known_formats(node) or (type(node.op) in ON_ANY_TYPE and not is_sparse(node.inputs[0])):
                return None
            result = lower(node, *map(known.operand, node.inputs)) if with_operands else lower(known, node)
            return None if result is None else [result]

        for op in ops:
            LOWERINGS[f"pytensor.sparse.{op}" if isinstance(op, str) else op] = rewrite
        return lower

    return register


def sparse_format(variable: Variable) -> str | None:
    """Return the format of a sparse matrix, such as "csr"; None for other variables."""
    return getattr(variable.type, "format", None)  # no other type of PyTensor's has one


def is_sparse(variable: Variable) -> bool:
    """Return whether a variable is a sparse matrix in a format that is lowered."""
    return sparse_format(variable) in ("csr", "csc")


def has_known_formats(node: Apply) -> bool:
    """Return whether no sparse operand or result of a node is of a format, such as BSR, that is not lowered."""
    return all(sparse_format(v) in ("csr", "csc", None) for v in (*node.inputs, *node.outputs))


def sparse(graph: Graph, find_rule: FindRule) -> Graph:
    """Replace Ops on sparse matrices by Ops on their arrays, where that is possible."""
    lowered = {op_type for op_type in graph.op_types if LOWERINGS.of(op_type)}
    if lowered <= ON_ANY_TYPE and not any(is_sparse(n.inputs[0]) for n in graph.nodes if type(n.op) in lowered):
        return graph
    return rewritten(graph, find_rule, LOWERINGS, SparseOperands)


#: Ops that are lowered for sparse matrices and stay as they are for other values.
ON_ANY_TYPE = frozenset((DeepCopyOp, Shape, Shape_i, ViewOp))


class SparseOperands(Operands):
    """Maps variables of the graph to new variables and to matrices. Reading a whole matrix puts it together."""

    def __init__(self, graph: Graph, find_rule: FindRule):
        super().__init__(graph, find_rule)
        self._matrices: dict[Variable, Matrix] = {}

    def define(self, old: Variable, new: Variable | Matrix) -> None:
        """Replace a variable by another one, or by a matrix."""
        if isinstance(new, Matrix):
            self._matrices[old] = new
        else:
            super().define(old, new)

    def node(self, old: Apply) -> Apply:
        """Return a copy of a node on its new operands, or the node if they are the same."""
        operands = [self.variable(v) for v in old.inputs]
        is_same = all(a is b for a, b in zip(operands, old.inputs, strict=True))
        return old if is_same else copied_onto(old, operands)

    def variable(self, old: Variable) -> Tensor:
        """Return the variable that replaces `old`, or `old`. A matrix is put together."""
        if old in self._variables:
            return self._variables[old]
        if old in self._matrices:
            result = assembled(self._matrices[old], old.type)
            result.name = old.name
        elif is_properties(old.owner):
            result = properties(self.exact(old.owner.inputs[0]))[old.owner.outputs.index(old)]
        else:
            return old
        self._variables[old] = result
        return result

    def operand(self, old: Variable) -> Tensor | Matrix:
        """Return a sparse variable as its entries, and any other one as the variable that replaces it."""
        return self.matrix(old) if is_sparse(old) else self.variable(old)

    def matrix(self, old: Variable) -> Matrix:
        """Return a sparse variable as its entries."""
        found = self._matrices.get(old)
        if found is None:
            self._variables.setdefault(old, old)
            found = self._matrices[old] = taken_apart(self._variables[old])
        return found

    def exact(self, old: Variable) -> Matrix:
        """Return a sparse variable as the arrays that PyTensor would have. The host finds the places if it must."""
        found = self.matrix(old)
        if not found.is_exact:
            found = self._matrices[old] = arranged(found) if found.is_list else taken_apart(self.variable(old))
        return found


# -- the arrays of a matrix --------------------------------------------------------------------------------------------

PROPERTIES = "pytensor.sparse.basic.CSMProperties"


def is_properties(node: Apply | None) -> bool:
    """Return whether a node returns the arrays of a sparse matrix."""
    return node is not None and class_name(type(node.op)) == PROPERTIES and is_sparse(node.inputs[0])


def csm_properties(known: SparseOperands, node: Apply) -> list[Variable] | None:
    """Leave it to `SparseOperands`, which lowers the outputs that are read."""
    return node.outputs if is_properties(node) else None


LOWERINGS[PROPERTIES] = csm_properties


def properties(x: Matrix) -> tuple[Variable, Variable, Variable, Variable]:
    """Return the outputs of `CSMProperties`."""
    assert x.pattern is not None
    return x.data, *x.pattern, pt.stack(x.shape).astype("int32")
