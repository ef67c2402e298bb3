"""The graph that is differentiated: PyTensor's canonical and stable form of it, with the user's overrides of gradients.

A stable value does not make a stable gradient. The chain rule turns ``log(1 - sigmoid(x))`` into 0 times infinity once the sigmoid rounds to 1, and no
rewrite of the gradient brings back what is lost. So the graph is rewritten before `grad` sees it, as PyMC does (`pymc.pytensorf.rewrite_pregrad`),
the graphs inside Ops too. PyMC loses `zero_grad`, `grad_clip` and the like on the way; here they stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pytensor import config
from pytensor.compile.builders import SymbolicOp
from pytensor.compile.mode import optdb
from pytensor.compile.ops import ViewOp, view_op
from pytensor.compile.rewriting import rewrite_inner_graph
from pytensor.gradient import grad
from pytensor.graph.basic import Apply, Constant, Variable, clone
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.traversal import ancestors, graph_inputs

from pytensor_jaxpr_linker.base.array_types import has_names
from pytensor_jaxpr_linker.base.interpreter import gc_paused
from pytensor_jaxpr_linker.frontend.rewrite_cache import Entry, restorer
from pytensor_jaxpr_linker.frontend.rewriters import without_measurements
from pytensor_jaxpr_linker.frontend.stable_logarithms import REPLACED, STABLE_LOGARITHMS
from pytensor_jaxpr_linker.graph.rewritten.describe import NotDescribed
from pytensor_jaxpr_linker.graph.rewritten.environment import text_of_process
from pytensor_jaxpr_linker.graph.rewritten.store import STORE

#: PyMC's choice, with logarithms that it leaves out, and without what needs a C compiler.
PREGRAD = RewriteDatabaseQuery(include=["canonicalize", "stabilize", STABLE_LOGARITHMS], exclude=["cxx_only", REPLACED])
#: The rewrite that takes every view for the identity, whatever its gradient.
DROPS_OVERRIDES = "local_view_op"


@gc_paused()
def pregrad(outputs: Sequence[Variable]) -> list[Variable]:
    """Return what to differentiate in place of `outputs`: a graph of the same inputs. The given graph stays as it is."""
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
    # New nodes have no line of the user's, as in `pytensor.function`: JAX and this package are on the stack.
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
    """Return whether the graph inside an Op may be rewritten: in that of a `SymbolicOp`, `stabilize` would find the Op itself."""
    return isinstance(op, HasInnerGraph) and hasattr(op, "clone_with_inner_graph") and not isinstance(op, SymbolicOp)


def overrides_gradient(op: Op) -> bool:
    """Return whether an Op is the identity with a gradient of its own, as that of `zero_grad`."""
    return isinstance(op, ViewOp) and type(op) is not ViewOp


def ops_of(outputs: Sequence[Variable]) -> Iterator[Op]:
    """Give the Ops of a graph, and those of the graphs inside them."""
    for op in {v.owner.op for v in ancestors(outputs) if v.owner is not None}:
        yield op
        for kind in (op, getattr(op, "core_op", None)):
            if isinstance(kind, HasInnerGraph):
                yield from ops_of(kind.inner_outputs)


def value_and_gradient(cost: Any, wrt: Sequence[Variable]) -> tuple[Variable, list[Any]]:
    """Return a number and its gradient with respect to inputs of its graph, both of the graph that `pregrad` returns.

    The gradient is zero by an input on which the number does not depend, or no longer: ``x - x`` is 0 in canonical form.
    """
    (value,) = pregrad([cost])
    if value.owner is None:  # whoever names it shall not name the user's input
        value = view_op(value)  # type: ignore[assignment]  # one variable
    found: Any = grad(value, list(wrt), disconnected_inputs="ignore") if wrt else []
    return value, found
