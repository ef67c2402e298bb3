"""The pass that computes the integers of both branches before a conditional chooses.

Most are lengths of the conditional's arrays. The analysis then sees when each of them is known.
"""

from __future__ import annotations

from pytensor.compile.ops import DeepCopyOp, TypeCastingOp
from pytensor.graph.basic import Apply, Variable
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor.basic import ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import Elemwise

from pytensor_jaxpr_linker.base.pytensor_compat import IfElse, LazyIfElse
from pytensor_jaxpr_linker.base.rules import Table
from pytensor_jaxpr_linker.graph.facts import SHAPE_READERS
from pytensor_jaxpr_linker.graph.walk import FindRule, Graph, Operands, Rewrite, rewritten

#: Ops that compute numbers from numbers at no cost.
ARITHMETIC = (DeepCopyOp, Elemwise, ScalarFromTensor, ScalarOp, TensorFromScalar, TypeCastingOp)


def eager_numbers(graph: Graph, find_rule: FindRule) -> Graph:
    """Let an `IfElse` choose each integer that both branches of a `LazyIfElse` compute by arithmetic."""
    return rewritten(graph, find_rule, REWRITES)


def choice_of_numbers(known: Operands, node: Apply) -> list[Variable]:
    """Return the outputs of a `LazyIfElse`, with an `IfElse` for integers."""
    copied = known.node(node)
    condition, *operands = copied.inputs
    branches = (node.op.true_branch.fgraph, node.op.false_branch.fgraph)
    results = list(copied.outputs)
    for i, output in enumerate(node.outputs):
        if getattr(output.type, "ndim", None) == 0 and all(is_arithmetic(branch.outputs[i]) for branch in branches):
            pair = [branch.bind(dict(zip(branch.inputs, operands, strict=True)))[i] for branch in branches]
            results[i] = IfElse(1)(condition, *pair)  # type: ignore[assignment]
    return results


REWRITES: Table[Rewrite] = Table({LazyIfElse: choice_of_numbers})


def is_arithmetic(variable: Variable) -> bool:
    """Return whether a variable is an integer that follows from shapes and other integers by arithmetic."""
    integer = getattr(variable.type, "dtype", "").startswith(("int", "uint", "bool"))
    if not integer or variable.type.ndim != 0:
        return False
    node = variable.owner
    if node is None or isinstance(node.op, SHAPE_READERS):
        return True
    return isinstance(node.op, ARITHMETIC) and all(map(is_arithmetic, node.inputs))
