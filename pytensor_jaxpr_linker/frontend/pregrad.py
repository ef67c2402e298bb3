"""The graph that is differentiated: PyTensor's canonical and stable form of it, with the user's overrides of gradients.

A stable value does not make a stable gradient. The chain rule turns ``log(1 - sigmoid(x))`` into 0 times infinity once
the sigmoid rounds to 1, and no rewrite of the gradient brings lost digits back. So the graph is rewritten before
`grad` sees it, as PyMC does (`pymc.pytensorf.rewrite_pregrad`), the graphs inside Ops too. PyMC loses `zero_grad`,
`grad_clip` and the like on the way; here they stay.

`why_no_gradient` finds the Op by which an expression has no gradient: PyTensor's errors name the Op's class at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pytensor import config
from pytensor.compile.builders import SymbolicOp
from pytensor.compile.mode import optdb
from pytensor.compile.ops import ViewOp, view_op
from pytensor.compile.rewriting import rewrite_inner_graph
from pytensor.gradient import NullTypeGradError, grad
from pytensor.graph.basic import Apply, Constant, Variable, clone
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.traversal import ancestors, graph_inputs, toposort

from pytensor_jaxpr_linker.base.array_types import has_names
from pytensor_jaxpr_linker.base.errors import describe_node, user_line
from pytensor_jaxpr_linker.base.interpreter import gc_paused
from pytensor_jaxpr_linker.frontend.added_rewrites import REPLACED, STABLE_LOGARITHMS
from pytensor_jaxpr_linker.frontend.kept_graphs import Entry, restorer
from pytensor_jaxpr_linker.frontend.rewriters import without_measurements
from pytensor_jaxpr_linker.graph.rewritten.describe import NotDescribed
from pytensor_jaxpr_linker.graph.rewritten.environment import text_of_process
from pytensor_jaxpr_linker.graph.rewritten.store import STORE

#: PyMC's choice, with logarithms that it leaves out, and without rewrites for a C compiler.
PREGRAD = RewriteDatabaseQuery(include=["canonicalize", "stabilize", STABLE_LOGARITHMS], exclude=["cxx_only", REPLACED])
#: The rewrite that takes every view for the identity, whatever its gradient.
DROPS_OVERRIDES = "local_view_op"


@gc_paused()
def pregrad(outputs: Sequence[Variable]) -> list[Variable]:
    """Return the outputs of a graph of the same inputs, to be differentiated. The given graph stays as it is."""
    query = PREGRAD
    if any(has_names(v.type) for v in ancestors(outputs)):  # only Ops on tensors have gradients
        query = query.including("lower_xtensor")
    if any(overrides_gradient(op) for op in ops_of(outputs)):
        query = query.excluding(DROPS_OVERRIDES)
    leaves = list(graph_inputs(outputs))
    inputs = [v for v in leaves if not isinstance(v, Constant)]
    try:
        entry = Entry(inputs, outputs, f"pregrad {text_of_process(query, STORE.has_folder)}")
    except NotDescribed:
        entry = None
    if entry is not None and (found := entry.find()) is not None:
        return found
    restore = restorer(leaves)
    fgraph = FunctionGraph(*clone(inputs, list(outputs), copy_inputs=False, copy_orphans=False), clone=False)
    # New nodes have no line of the user's, as in `pytensor.function`: the stack has JAX's lines and this package's.
    with config.change_flags(traceback__limit=config.traceback__compile_limit):
        rewrite_with_inner_graphs(fgraph, without_measurements(optdb.query(query)))
    restore()
    if entry is not None:
        entry.keep(fgraph)
    return list(fgraph.outputs)


def rewrite_with_inner_graphs(fgraph: FunctionGraph, rewriter: GraphRewriter) -> None:
    """Rewrite a graph, and the graphs inside its Ops."""

    def rewrite_inner(linker: Any, op: Op, node: Apply, inner: FunctionGraph, *, mode: Any) -> None:
        rewrite_with_inner_graphs(inner, rewriter)

    rewriter.rewrite(fgraph)
    rewrite_inner_graph(fgraph, has_rewritable_graph, rewrite_inner)


def has_rewritable_graph(op: Op) -> bool:
    """Return whether an Op's inner graph may be rewritten: in a `SymbolicOp`, `stabilize` would find the Op itself."""
    return isinstance(op, HasInnerGraph) and hasattr(op, "clone_with_inner_graph") and not isinstance(op, SymbolicOp)


def overrides_gradient(op: Op) -> bool:
    """Return whether an Op is the identity with a gradient of its own, such as `zero_grad`."""
    return isinstance(op, ViewOp) and type(op) is not ViewOp


def ops_of(outputs: Sequence[Variable]) -> Iterator[Op]:
    """Yield the Ops of a graph, and of the graphs inside them."""
    for op in {v.owner.op for v in ancestors(outputs) if v.owner is not None}:
        yield op
        for kind in (op, getattr(op, "core_op", None)):
            if isinstance(kind, HasInnerGraph):
                yield from ops_of(kind.inner_outputs)


def value_and_gradient(cost: Any, wrt: Sequence[Variable]) -> tuple[Variable, list[Any]]:
    """Return a number and its gradient with respect to inputs of its graph, both of the graph that `pregrad` returns.

    The gradient by an input on which the number does not depend, or no longer, is zero: ``x - x`` is 0 in canonical
    form.
    """
    (value,) = pregrad([cost])
    if value.owner is None:  # whoever names it shall not name the user's input
        value = view_op(value)  # type: ignore[assignment]  # one variable
    found: Any = grad(value, list(wrt), disconnected_inputs="ignore") if wrt else []
    return value, found


#: PyTensor's errors where there is no gradient.
NO_GRADIENT = (NotImplementedError, NullTypeGradError)


#: The remedy for a model's Op without a gradient.
WITHOUT_GRADIENTS = "use sample(sampler='pymc'), which has steps without gradients"


def why_no_gradient(logp: Variable, values: Sequence[Variable], remedy: str = WITHOUT_GRADIENTS) -> str:
    """Return a sentence that names the Op by which a log density has no gradient, or nothing if each Op has one."""
    found = without_gradient(logp, values)
    if found is None:
        return ""
    names, node = found
    return (
        f"The log density has no gradient with respect to {', '.join(map(repr, names))}, since"
        f" {describe_node(node)} has none: {remedy}, or give the Op a gradient (its method pullback).{user_line(node)}"
    )


def without_gradient(cost: Variable, values: Sequence[Variable]) -> tuple[list[str], Apply] | None:
    """Return the names of the values that the first node without a gradient depends on, and that node."""
    nodes, reached = list(toposort([cost])), set(values)
    for node in nodes:  # a floating variable that depends on a value
        if not reached.isdisjoint(node.inputs):
            reached.update(v for v in node.outputs if getattr(v.type, "dtype", "").startswith("float"))
    for node in nodes:
        inputs = [v for v in node.inputs if v in reached]
        outputs = [v for v in node.outputs if v in reached]
        if inputs and not node_has_gradient(outputs, inputs):
            behind = set(ancestors(inputs))
            return [str(v.name) for v in values if v in behind], node
    return None


def node_has_gradient(outputs: list[Variable], inputs: list[Variable]) -> bool:
    """Return whether PyTensor defines a gradient, perhaps zero, of a node's outputs with respect to its inputs."""
    known: Any = {v: v * 0 + 1 for v in outputs}  # type: ignore[operator]  # also of variables with named dimensions
    try:
        grad(None, inputs, known_grads=known, disconnected_inputs="ignore")
    except NO_GRADIENT:
        return False
    return True
