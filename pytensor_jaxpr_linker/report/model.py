"""The data of `explain`: names, lines and numbers, no graph and no JAX."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from pytensor_jaxpr_linker.base.gc_pause import gc_paused


@dataclass(frozen=True, slots=True)
class PassedValue:
    """A variable that passes from one batch to another.

    Attributes
    ----------
    name
        The user's name of it, or the expression.
    type
        Its type as PyTensor prints it.
    """

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the rewritten graph.

    Attributes
    ----------
    index
        Its place in `Explanation.nodes`.
    op, name, type
        Its Op, the user's name of what it computes (or nothing), and the type of that.
    operands
        The index of the node that computes it, or what it is called, of each operand.
    line
        File, number and text of the user's line that made it, if PyTensor recorded it.
    batch
        Where it runs: an index into `Explanation.batches`. None where nothing is emitted for it, since its value is known
        when a region is built.
    traced
        Whether it is a traced leaf: an Op without a rule, whose JAX function is traced.
    break_code
        The code of the break that it is, or nothing.
    """

    index: int
    op: str
    name: str
    type: str
    operands: tuple[int | str, ...]
    line: str
    batch: int | None
    traced: bool
    break_code: str


@dataclass(frozen=True, slots=True)
class Guard:
    """What a region is specialized on: it is compiled again when this changes.

    Attributes
    ----------
    kind
        "value" where equations need the value of an integer, "shape" where an input does not declare its shape.
    variable
        Which variable it is.
    """

    kind: Literal["value", "shape"]
    variable: str


@dataclass(frozen=True, slots=True)
class SpecializationReport:
    """A program of a region, for one tuple of shapes and static values.

    Attributes
    ----------
    shapes
        Of the inputs and then of the large constants.
    static
        The values that were compiled in.
    equations
        How many equations its Jaxpr has.
    seconds
        How long each stage took, where it has happened: "lower", "trace", "stablehlo", "xla".
    padded
        Which axes of the inputs are padded to these shapes, or nothing.
    """

    shapes: tuple[str, ...]
    static: dict[str, str]
    equations: int
    seconds: dict[str, float]
    padded: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """A region, which is one XLA program, or a host step.

    Attributes
    ----------
    index, kind
        Its place among the batches, which run in this order, and what it is.
    nodes
        The indices of its nodes. Cheap arithmetic may be in several regions.
    inputs, outputs
        What it takes from, and gives to, the other batches and the caller.
    guards, static_inputs
        What a region is specialized on, and the inputs that determine those values.
    checks
        The run-time checks of the programs so far.
    specializations
        The programs so far.
    """

    index: int
    kind: Literal["region", "host"]
    nodes: tuple[int, ...]
    inputs: tuple[PassedValue, ...]
    outputs: tuple[PassedValue, ...]
    guards: tuple[Guard, ...] = ()
    static_inputs: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    specializations: tuple[SpecializationReport, ...] = ()

    @property
    def title(self) -> str:
        """What texts call it."""
        return f"{'Region' if self.kind == 'region' else 'Host step'} {self.index}"


@dataclass(frozen=True, slots=True)
class BreakReport:
    """Why the graph is not one program.

    Attributes
    ----------
    code, why, hint, documentation
        The stable code, what it means, what can be done in general, and where it is explained.
    reason
        Why it holds for this node.
    node
        The index of the node.
    variable
        The operand whose value must be known, or nothing.
    line
        The user's line that made the node.
    before, after
        The expression, and one that needs no break, where one is known.
    batches_without
        How many batches would be left without this break, or None if that was not tried: each trial schedules the whole
        graph again, so large graphs get few, or none.
    """

    code: str
    why: str
    hint: str
    documentation: str
    reason: str
    node: int
    variable: str
    line: str
    before: str = ""
    after: str = ""
    batches_without: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """Something to change, and what it would bring.

    Attributes
    ----------
    what
        What to do.
    breaks
        The breaks that it removes, as indices into `Explanation.breaks`.
    batches
        How many batches would be left.
    """

    what: str
    breaks: tuple[int, ...]
    batches: int


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one pass did.

    Attributes
    ----------
    subject
        What it ran over: "graph", or the title of a region, whose Jaxpr it ran over.
    name, seconds
        What it is called, and how long it took.
    before, after
        How many nodes of the graph, or equations of the Jaxpr, there were and are.
    changed
        Whether it changed anything.
    text
        The graph, or the Jaxpr, after the pass, or nothing if the pass did not change it.
    """

    subject: str
    name: str
    before: int
    after: int
    changed: bool
    seconds: float
    text: str


@dataclass(frozen=True)
class ExplanationData:
    """What mode JAXPR makes of a graph, and why.

    Attributes
    ----------
    nodes, batches, breaks
        The rewritten graph, what runs, and why it is more than one program.
    changes
        The changes that would leave fewer batches, the best first.
    seconds
        How long the stages before a call took: "rewrite" if it is known, "plan".
    passes
        What each pass did, if `explain` was asked for it.
    stages
        The `Stages` of a compiled function, or of a graph that declares every shape; not part of the data.
    """

    nodes: tuple[Node, ...]
    batches: tuple[Batch, ...]
    breaks: tuple[BreakReport, ...]
    changes: tuple[Change, ...]
    seconds: dict[str, float]
    passes: tuple[PassReport, ...] = ()
    stages: Any = field(compare=False, default=None)

    @property
    def regions(self) -> tuple[Batch, ...]:
        """The batches that are XLA programs."""
        return tuple(b for b in self.batches if b.kind == "region")

    @property
    def host_steps(self) -> tuple[Batch, ...]:
        """The batches that run on the host."""
        return tuple(b for b in self.batches if b.kind == "host")

    @property
    def best_change(self) -> Change | None:
        """The one change that would leave the fewest batches, or None if none is known."""
        return self.changes[0] if self.changes else None

    @property
    def traced_leaves(self) -> tuple[Node, ...]:
        """The nodes without a rule whose JAX function is traced."""
        return tuple(node for node in self.nodes if node.traced)

    @gc_paused()
    def as_dict(self) -> dict[str, Any]:
        """Return the report as dicts, lists, strings and numbers, which `json.dumps` takes."""
        return {f.name: as_dicts(getattr(self, f.name)) for f in fields(self) if f.name != "stages"}


#: Types that a dict takes as they are.
ATOMS = frozenset((str, int, float, bool, type(None)))


def as_dicts(value: Any) -> Any:
    """Return a value of the model as dicts and lists."""
    if type(value) in ATOMS:
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tuple):
        return [item if type(item) in ATOMS else as_dicts(item) for item in value]
    if isinstance(value, dict):
        return dict(value)
    return {name: as_dicts(getattr(value, name)) for name in value.__slots__}
