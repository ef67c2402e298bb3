"""The rules in force, with the plans of inner graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytensor.graph.basic import Apply
from pytensor.graph.fg import AbstractFunctionGraph

from pytensor_jaxpr_linker.base import marks
from pytensor_jaxpr_linker.base.errors import INNER_GRAPH, GraphBreakError, Reason
from pytensor_jaxpr_linker.base.rules import InnerGraphs, Rule
from pytensor_jaxpr_linker.graph.prepare import prepare
from pytensor_jaxpr_linker.graph.wide_counts import declared_outputs
from pytensor_jaxpr_linker.plan.model import InnerPlan, Plan, PlannedRule
from pytensor_jaxpr_linker.plan.partition import partition


class Rules:
    """The emission rules in force. Called with a node it returns the node's rule, or None.

    A rule that declares inner graphs is returned with their plans. Each inner graph is planned once, also if several others
    contain it.
    """

    def __init__(self, find: Callable[[Apply], Rule | None]):
        self._find = find
        self._planned: dict[Rule, PlannedRule] = {}
        self._plans: dict[tuple[AbstractFunctionGraph, int], Plan] = {}

    def __call__(self, node: Apply) -> Rule | None:
        rule = self._find(node)
        if rule is None or rule.inner is None:
            return rule
        planned = self._planned.get(rule)
        if planned is None:
            planned = self._planned[rule] = self._with_plans(rule, rule.inner)
        return planned

    def _with_plans(self, rule: Rule, inner: InnerGraphs) -> PlannedRule:
        """Return a rule with the static operands of its inner graphs, which refuses a node if one of them has breaks."""

        def plans(node: Apply) -> list[InnerPlan]:
            return [InnerPlan(self._plan(g.graph, g.varying), g.where, g.first) for g in inner(node)]

        def static(node: Apply) -> set[int]:
            return {*rule.static(node), *(i for plan in plans(node) for i in plan.static_operands())}

        def refuse(node: Apply) -> str | None:
            if (reason := rule.refuse(node)) is not None:
                return reason
            found = plans(node)
            breaks = [b for inner in found for b in inner.plan.breaks]
            return Reason(f"{found[0].where}: {GraphBreakError(breaks)}", INNER_GRAPH) if breaks else None

        return PlannedRule(rule.emit, static, refuse, inner, plans=plans)

    def _plan(self, fgraph: AbstractFunctionGraph, varying: int) -> Plan:
        """Return the plan of an inner graph with `varying` leading inputs that differ from step to step."""
        plan = self._plans.get((fgraph, varying))
        if plan is None:
            # The passes copy nodes, which a frozen graph does not allow. The marks are for this plan alone.
            graph: Any = fgraph
            thawed = graph.unfreeze() if hasattr(graph, "unfreeze") else graph.clone()
            for v in thawed.inputs[:varying]:
                marks.mark_varying(v)
            declared = declared_outputs(prepare(thawed, self), thawed.outputs)
            plan = self._plans[fgraph, varying] = partition(declared, self)
        return plan
