"""Numbers and describes the nodes of a plan, for all reports alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pytensor.graph.basic import Apply, Variable

from pytensor_jaxpr_linker.base.interpreter import identity
from pytensor_jaxpr_linker.emit.blockwise import is_batched_by_jax
from pytensor_jaxpr_linker.emit.traced_leaf import is_traced_leaf
from pytensor_jaxpr_linker.graph.walk import Graph
from pytensor_jaxpr_linker.plan.model import HostStep, Plan, Region
from pytensor_jaxpr_linker.report.hints import expression
from pytensor_jaxpr_linker.report.model import Node
from pytensor_jaxpr_linker.report.provenance import GRADIENT_BY, MOST_NAMES, Provenance, listed


def batch_nodes(batch: Region | HostStep) -> list[Apply]:
    """Return the nodes of a batch."""
    return [step.node for step in batch.steps] if isinstance(batch, Region) else batch.nodes


def number_nodes(graph: Graph, plan: Plan) -> tuple[dict[Apply, int], dict[Apply, int]]:
    """Return the number of each node, and the number of the batch that runs it, if one does."""
    places: dict[Apply, int] = {}
    for i, batch in enumerate(plan.batches):
        for node in batch_nodes(batch):
            places.setdefault(node, i)
    return {node: i for i, node in enumerate(dict.fromkeys((*graph.nodes, *places)))}, places


def gradient_roles(graph: Graph) -> dict[Apply, str]:
    """Return, for each node that only gradients need, by what they differentiate: "gradient by a, b and others"."""
    needed: dict[Apply, tuple[str, ...] | None] = {}  # None: something else needs the node, too
    for v in graph.outputs:
        if v.owner is not None:
            name = v.name or ""
            found = (name.removeprefix(GRADIENT_BY),) if name.startswith(GRADIENT_BY) else None
            needed[v.owner] = names_of_both(needed.get(v.owner, ()), found)
    for node in reversed(graph.nodes):
        for v in node.inputs:
            if v.owner is not None and node in needed:
                needed[v.owner] = names_of_both(needed.get(v.owner, ()), needed[node])
    return {node: f"{GRADIENT_BY}{listed(names)}" for node, names in needed.items() if names}


def names_of_both(first: tuple[str, ...] | None, second: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the names of both, at most one more than are listed."""
    if first is None or second is None:
        return None
    return tuple(dict.fromkeys((*first, *second)))[: MOST_NAMES + 1]


def describe_nodes(
    index: Mapping[Apply, int],
    places: Mapping[Apply, int],
    plan: Plan,
    texts: Texts,
    provenance: Provenance,
    roles: Mapping[Apply, str],
) -> Iterator[Node]:
    """Yield the description of each node in `index`, which holds the operands of each that have an owner.

    `roles` are those that are known of some nodes without their origin.
    """
    codes = {b.node: b.code.code for b in plan.breaks}
    steps = [step for region in plan.regions for step in region.steps]
    traced = {step.node for step in steps if is_traced_leaf(step.rule)}
    batched = {step.node for step in steps if is_batched_by_jax(step.node)}
    for node, i in index.items():
        yield Node(
            i,
            texts.op(node),
            provenance.name(node),
            ", ".join([texts.type(v) for v in node.outputs]),
            tuple([index[u.owner] if u.owner in index else texts.name(u) for u in node.inputs]),
            provenance.line(node),
            places.get(node),
            node in traced,
            node in batched,
            codes.get(node, ""),
            roles.get(node) or provenance.role(node),
            expression(node.outputs[0], 2, named=False),
        )


class Texts:
    """The texts of Ops, types and variables; each is made once."""

    def __init__(self) -> None:
        self._made: dict[int, str] = {}

    def name(self, variable: Variable) -> str:
        """Return the name of a variable, or its expression."""
        return self._text(variable, expression)

    def op(self, node: Apply) -> str:
        """Return the Op of a node as text."""
        return self._text(node.op, str)

    def type(self, variable: Variable) -> str:
        """Return the type of a variable as text."""
        return self._text(variable.type, str)

    def _text(self, thing: Any, show: Callable[[Any], str]) -> str:
        key = identity(thing)
        if key not in self._made:
            self._made[key] = show(thing)
        return self._made[key]
