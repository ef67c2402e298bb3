"""Computes numbers that are known before PyTensor's other rewrites see them.

Two of five changes that PyTensor's `canonicalize` makes in the graph of a PyMC model are the folding of one number, such as `log(sqrt(2 * pi))` or the condition ``5 > 0``, one
node at a time. All that watches the graph hears of each. Before it is watched, whole expressions are folded at once, in a third of the time.
"""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph, Output
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.type import TensorType

from pytensor_jaxpr_linker.graph.static_values import perform

#: The name of the rewrite.
EARLY_FOLDING = "jaxpr_early_folding"


class EarlyFolding(GraphRewriter):
    """A rewrite that replaces by a constant each number that constants determine, where the number's readers need more than constants.

    PyTensor's `constant_folding` folds the same nodes later, and arrays of more numbers, for which other rewrites may find a shorter form first.
    """

    def add_requirements(self, fgraph: FunctionGraph) -> None:
        """Fold, before other rewrites watch the graph."""
        known = known_numbers(fgraph)
        pairs = []
        for variable, value in known.items():
            if any(
                isinstance(client.op, Output) or client.outputs[0] not in known
                for client, _ in fgraph.clients[variable]
            ):
                constant: Any = variable.type.make_constant(value)
                copy_stack_trace(variable, constant)
                pairs.append((variable, constant))
        fgraph.replace_all(pairs, reason=EARLY_FOLDING)

    def apply(self, fgraph: FunctionGraph) -> None:
        """Do nothing."""


def known_numbers(fgraph: FunctionGraph) -> dict[Variable, Any]:
    """Return the values of all results of a graph that are one number and depend on constants alone."""
    known: dict[Variable, Any] = {}
    for node in fgraph.toposort():
        if all(v in known or (v.owner is None and isinstance(v, Constant)) for v in node.inputs) and gives_numbers(
            node
        ):
            operands = [v.data if isinstance(v, Constant) else known[v] for v in node.inputs]
            try:
                known.update(zip(node.outputs, perform(node, operands), strict=True))
            except Exception:
                continue  # an error is PyTensor's to report, when it folds the node or the function is called
    return known


def gives_numbers(node: Apply) -> bool:
    """Return whether each result of a node is one number, and its Op leaves the decision to fold it to PyTensor."""
    if type(node.op).do_constant_folding is not Op.do_constant_folding or not all(
        is_number(v.type) for v in node.outputs
    ):
        return False
    return not isinstance(node.op, HasInnerGraph)


def is_number(of_type: Any) -> bool:
    """Return whether values of a type are one number, whatever their dimensions."""
    return all(n == 1 for n in of_type.shape) if isinstance(of_type, TensorType) else isinstance(of_type, ScalarType)
