"""The data of `explain`: names, lines and numbers, no graph and no JAX."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from pytensor_jaxpr_linker.base.interpreter import gc_paused


@dataclass(frozen=True, slots=True)
class PassedValue:
    """A variable that passes from one batch to another."""

    name: str
    """The user's name, or the expression."""
    type: str
    """Its type as PyTensor prints it."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the rewritten graph."""

    index: int
    """Its place in `Explanation.nodes`."""
    op: str
    name: str
    """The user's name of its result, or nothing."""
    type: str
    """The type of its result."""
    operands: tuple[int | str, ...]
    """For each operand the index of the node that computes it, or the operand's name."""
    line: str
    """File, number and text of the user's line that made it, if PyTensor recorded it."""
    batch: int | None
    """The index in `Explanation.batches` of its batch; None if its value is known when a region is built."""
    traced: bool
    """Whether it is a traced leaf: an Op without a rule, whose JAX function is traced."""
    batched: bool
    """Whether JAX's batching rules make its equations out of the equations of one element."""
    break_code: str
    """The code of the break that it is, or nothing."""
    role: str = ""
    """Its purpose, if known: "log density of y" in a PyMC model, "gradient by x" if only that gradient needs it."""
    expression: str = ""
    """Its expression, two Ops deep."""


@dataclass(frozen=True, slots=True)
class Result:
    """An output of the function."""

    name: str
    """The user's name of it, or "gradient by x", or the expression."""
    type: str
    """Its type as PyTensor prints it."""
    node: int | None
    """The index of the node that computes it; None for an input or a constant that is returned."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A property that a region is specialized on: when it changes, the region is compiled again."""

    kind: Literal["value", "shape"]
    """Either "value", if equations need the value of an integer, or "shape", if an input does not declare its shape."""
    variable: str


@dataclass(frozen=True, slots=True)
class SpecializationReport:
    """A program of a region, for one tuple of shapes and static values."""

    shapes: tuple[str, ...]
    """The shapes of the inputs, then of the large constants."""
    static: dict[str, str]
    """The values that were compiled in."""
    equations: int
    """The number of equations of its Jaxpr."""
    seconds: dict[str, float]
    """The seconds of each stage that has happened: "lower", "trace", "stablehlo", "xla"."""
    padded: str = ""
    """Which axes of the inputs are padded to these shapes, or nothing."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A region, which is one XLA program, or a host step."""

    index: int
    """Its place among the batches, which run in this order."""
    kind: Literal["region", "host"]
    nodes: tuple[int, ...]
    """The indices of its nodes. Cheap arithmetic may be in several regions."""
    inputs: tuple[PassedValue, ...]
    """Its inputs from the other batches and the caller."""
    outputs: tuple[PassedValue, ...]
    """Its outputs to them."""
    guards: tuple[Guard, ...] = ()
    """The properties that a region is specialized on."""
    static_inputs: tuple[str, ...] = ()
    """The inputs that determine the values among the guards."""
    checks: tuple[str, ...] = ()
    """The run-time checks of the programs so far."""
    specializations: tuple[SpecializationReport, ...] = ()
    """The programs so far."""

    @property
    def title(self) -> str:
        """Its name in texts."""
        return f"{'Region' if self.kind == 'region' else 'Host step'} {self.index}"


@dataclass(frozen=True, slots=True)
class BreakReport:
    """Why the graph is not one program."""

    code: str
    """The stable code."""
    why: str
    """The meaning of the code."""
    hint: str
    """The general remedy."""
    documentation: str
    """The address of its explanation."""
    reason: str
    """The reason for this node."""
    node: int
    """The index of the node."""
    variable: str
    """The operand whose value must be known, or nothing."""
    line: str
    """The user's line that made the node."""
    before: str = ""
    """The expression, if `after` is known."""
    after: str = ""
    """An expression that needs no break, if one is known."""
    batches_without: int | None = None
    """The number of batches that would be left without this break, or None if that was not tried.

    Each trial schedules the whole graph again, so large graphs get few trials, or none.
    """


@dataclass(frozen=True, slots=True)
class Change:
    """A change to the graph, and its effect."""

    what: str
    """The thing to do."""
    breaks: tuple[int, ...]
    """The breaks that it removes, as indices into `Explanation.breaks`."""
    batches: int
    """The number of batches that would be left."""


@dataclass(frozen=True, slots=True)
class PassReport:
    """The effect of one pass."""

    subject: str
    """Its object: "graph", or the title of the region whose Jaxpr it rewrites."""
    name: str
    before: int
    """The number of nodes of the graph, or of equations of the Jaxpr, before the pass."""
    after: int
    """The same number after the pass."""
    changed: bool
    seconds: float
    text: str
    """The graph, or the Jaxpr, after the pass, or nothing if the pass did not change it."""


@dataclass(frozen=True, slots=True)
class PlacedArray:
    """The place of an input of the function, if there is a mesh."""

    name: str
    layout: str
    """The axes of the mesh that divide it, or that each device has all of it."""
    bytes: int
    bytes_per_device: int


@dataclass(frozen=True, slots=True)
class Collective:
    """An operation that exchanges numbers between the devices of a region."""

    region: str
    operation: str
    """XLA's name: all-reduce, all-gather and others."""
    arrays: int
    bytes: int
    """The bytes of its result on one device."""


@dataclass(frozen=True, slots=True)
class TransferReport:
    """A value that each call moves between the host and the device, or leaves on the device."""

    direction: Literal["to the device", "to the host", "stays on the device"]
    why: str
    """Its kind: an argument, a result, an update, a random key, a check code, an input or output of a host step."""
    name: str
    """Its name or expression; nothing for a check code."""
    bytes: int | None
    """None if the shape is not known."""


@dataclass(frozen=True, slots=True)
class PlatformReport:
    """How the function would run on another platform."""

    platform: str
    batches: int
    """The number of batches there."""
    lowered: tuple[int, int]
    """The number of regions with known operations, which JAX was asked to lower, and the number of all regions."""
    missing: tuple[str, ...]
    """The nodes and operations without a lowering there, and why."""
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ExplanationData:
    """How mode JAXPR runs a graph, and why.

    Attributes
    ----------
    nodes, batches, breaks
        The rewritten graph, its regions and host steps, and why there are several.
    changes
        The changes that would leave fewer batches, the best first.
    seconds
        The seconds of the stages before a call: "rewrite" if it is known, "plan".
    passes
        The effect of each pass, if `explain` was asked for it.
    inputs, outputs
        The inputs of the function, then its shared variables, and its outputs, then its updates.
    placed, collectives
        The place of each input, and how the devices exchange numbers, if an input lies on a mesh.
    transfers
        The values that each call moves between the host and the device, and the values that stay there.
        `count_transfers` measures the transfers of calls.
    platform
        How the function would run on the platform that `explain` was asked for.
    no_gradient
        The reason, if a PyMC model's log density has no gradient to explain.
    stages
        The `Stages` of a compiled function, or of a graph that declares every shape; not part of the data.
    """

    nodes: tuple[Node, ...]
    batches: tuple[Batch, ...]
    breaks: tuple[BreakReport, ...]
    changes: tuple[Change, ...]
    seconds: dict[str, float]
    passes: tuple[PassReport, ...] = ()
    inputs: tuple[PassedValue, ...] = ()
    outputs: tuple[Result, ...] = ()
    placed: tuple[PlacedArray, ...] = ()
    collectives: tuple[Collective, ...] = ()
    transfers: tuple[TransferReport, ...] = ()
    platform: PlatformReport | None = None
    no_gradient: str = ""
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

    @property
    def batched_nodes(self) -> tuple[Node, ...]:
        """The nodes whose equations JAX's batching rules make out of the equations of one element."""
        return tuple(node for node in self.nodes if node.batched)

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
