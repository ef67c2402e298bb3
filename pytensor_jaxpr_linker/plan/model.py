"""`Plan`, its `Region`s and its `HostStep`s: what runs where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytensor.graph.basic import Apply, Constant, Variable

from pytensor_jaxpr_linker.base.errors import Break, GraphBreakError, variable_name
from pytensor_jaxpr_linker.base.interpreter import identity
from pytensor_jaxpr_linker.base.rules import Rule
from pytensor_jaxpr_linker.graph.facts import is_array
from pytensor_jaxpr_linker.plan.large_constants import LargeConstants


class Step(NamedTuple):
    """One node, with what lowering it needs."""

    node: Apply
    rule: Rule | None  #: its emission rule; in a region each node has one
    static: frozenset[int]  #: the positions of the operands whose values must be known
    names: tuple[str, ...]  #: the name stack of its equations
    inner: list[InnerPlan] | None = None  #: the plans of its inner graphs; None if the rule takes none


class Region(NamedTuple):
    """Nodes that become one Jaxpr."""

    steps: list[Step]  #: the nodes that become equations, in order
    inputs: list[Variable]  #: what the program takes; the arrays of `constants` follow
    outputs: list[Variable]  #: what the program returns
    static_inputs: list[Variable]  #: the inputs whose values determine a specialization
    #: The variables whose values key a specialization: static operands that follow from values and shapes of inputs.
    #: ``x[i : i + 3]`` demands a length, which is 3 for most `i`.
    demanded: list[Variable]
    draws: list[Apply]  #: the nodes that read a generator
    constants: LargeConstants = LargeConstants([], {})  #: what `Program` passes as arguments


class HostStep(NamedTuple):
    """Nodes that run on the host one after the other, each by its Op's own implementation."""

    nodes: list[Apply]
    inputs: list[Variable]
    outputs: list[Variable]


class Plan(NamedTuple):
    """The regions and host steps of a graph, in the order in which they run."""

    #: At least one. A region may follow a region: then a value that the first computes determines a shape in the second.
    batches: list[Region | HostStep]
    breaks: list[Break]  #: why there is more than one batch
    inputs: list[Variable]  #: those of the graph
    outputs: list[Variable]

    @property
    def regions(self) -> list[Region]:
        """The regions, in order."""
        return [batch for batch in self.batches if isinstance(batch, Region)]

    @property
    def is_one_program(self) -> bool:
        """Whether the graph is one region. Without breaks it is, unless inputs or outputs are no arrays."""
        return not self.breaks and len(self.batches) == 1 and [r.inputs for r in self.regions] == [self.inputs]

    def single_region(self) -> Region:
        """Return the region that is the graph.

        Several batches are a `GraphBreakError`, which lists every break; an input or output that is no array is a TypeError.
        """
        if self.breaks:
            raise GraphBreakError(self.breaks)
        if not self.is_one_program:
            found = next(v for v in (*self.inputs, *self.outputs) if not is_array(v))
            raise TypeError(
                f"A JAX function takes and returns arrays; {variable_name(found)} is of type {found.type}, which is no array."
                " Pass the arrays that it is made of instead, and return such."
            )
        return self.regions[0]


class InnerPlan(NamedTuple):
    """The plan of an inner graph of a node, which must be one region. For `where` and `first` see `InnerGraph`."""

    plan: Plan
    where: str
    first: int

    def static_operands(self) -> list[int]:
        """Return the positions of the node's operands whose values the inner graph must know."""
        if not self.plan.is_one_program:
            return []
        (region,) = self.plan.regions
        return [self.first + region.inputs.index(v) for v in region.static_inputs]


@dataclass(frozen=True, kw_only=True)
class PlannedRule(Rule):
    """A rule with inner graphs; `plans` gives their plans."""

    plans: Callable[[Apply], list[InnerPlan]]


def describe_plan(plan: Plan) -> str:
    """Return the batches of a plan, one a line."""
    lines: list[str] = []
    for batch in plan.batches:
        nodes = [step.node for step in batch.steps] if isinstance(batch, Region) else batch.nodes
        counts = Counter(type(node.op).__name__ for node in nodes)
        ops = ", ".join(f"{n} {name}" for name, n in counts.most_common(SHOWN_OPS))
        kind = "region" if isinstance(batch, Region) else "host step"
        lines.append(
            f"{len(lines)}: {kind} of {len(nodes)} nodes ({ops}{', ...' if len(counts) > SHOWN_OPS else ''}), "
            f"{len(batch.inputs)} inputs, {len(batch.outputs)} outputs"
        )
    return f"{len(plan.batches)} batches, {len(plan.breaks)} breaks\n" + "\n".join(lines)


#: How many Ops the description of a batch names.
SHOWN_OPS = 8


def host_step(nodes: Sequence[Apply], outputs: Sequence[Variable]) -> HostStep:
    """Return the host step that runs nodes."""
    return HostStep(list(nodes), taken_by(nodes), list(outputs))


def taken_by(nodes: Sequence[Apply]) -> list[Variable]:
    """Return the variables that nodes read and do not compute, constants apart."""
    produced = produced_by(nodes)
    read = dict.fromkeys(v for node in nodes for v in node.inputs if not isinstance(v, Constant))
    return [v for v in read if v not in produced]


def node_names(node: Apply, op_names: dict[int, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the name stack of a node's equations: its Op, and the user's name of what it computes.

    `op_names` keeps the name stack of nodes without a name, by the id of their Op.
    """
    names = op_names.get(identity(node.op))
    if names is None:
        names = op_names[identity(node.op)] = (str(node.op).replace("/", "|"),)
    named = [v.name for v in node.outputs if v.name]
    return (f"{names[0]}[{named[0]}]",) if named else names


def produced_by(nodes: Sequence[Apply]) -> set[Variable]:
    """Return the variables that nodes compute."""
    return {v for node in nodes for v in node.outputs}
