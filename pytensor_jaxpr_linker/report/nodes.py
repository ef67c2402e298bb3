"""Numbers and describes the nodes of a plan, for all reports alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pytensor.graph.basic import Apply, Variable

from pytensor_jaxpr_linker.base.errors import source_line
from pytensor_jaxpr_linker.base.identity import identity
from pytensor_jaxpr_linker.emit.blockwise import is_batched_by_jax
from pytensor_jaxpr_linker.emit.traced_leaf import is_traced_leaf
from pytensor_jaxpr_linker.graph.walk import Graph
from pytensor_jaxpr_linker.plan.model import HostStep, Plan, Region
from pytensor_jaxpr_linker.report.hints import expression
from pytensor_jaxpr_linker.report.model import Node


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


def describe_nodes(index: Mapping[Apply, int], places: Mapping[Apply, int], plan: Plan, texts: Texts) -> Iterator[Node]:
    """Yield the description of each node in `index`, which holds the operands of each that have an owner."""
    codes = {b.node: b.code.code for b in plan.breaks}
    steps = [step for region in plan.regions for step in region.steps]
    traced = {step.node for step in steps if is_traced_leaf(step.rule)}
    batched = {step.node for step in steps if is_batched_by_jax(step.node)}
    for node, i in index.items():
        yield Node(
            i,
            texts.op(node),
            next((v.name for v in node.outputs if v.name), ""),
            ", ".join([texts.type(v) for v in node.outputs]),
            tuple([index[u.owner] if u.owner in index else texts.name(u) for u in node.inputs]),
            source_line(node),
            places.get(node),
            node in traced,
            node in batched,
            codes.get(node, ""),
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
