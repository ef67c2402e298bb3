"""`Plan`, its `Region`s and its `HostStep`s, which say what runs where, and the large constants of a region."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor

from pytensor_jaxpr_linker.base.array_types import array_key, in_memory_order
from pytensor_jaxpr_linker.base.errors import Break, GraphBreakError, variable_name
from pytensor_jaxpr_linker.base.interpreter import identity
from pytensor_jaxpr_linker.base.rules import Rule
from pytensor_jaxpr_linker.graph.facts import is_array


class LargeConstants(NamedTuple):
    """The large constants of a region."""

    #: The arguments, with axes in the order of memory, in a dtype that holds their numbers. PyTensor folds the
    #: transpose of a constant into a second constant: both are views of one array here, which is uploaded, and read by
    #: the processor, once.
    arrays: list[np.ndarray]
    #: Which of the arrays each constant is, and the order of its axes.
    views: dict[Constant, tuple[int, tuple[int, ...]]]


class Step(NamedTuple):
    """One node, and the facts that lowering it needs."""

    node: Apply
    rule: Rule | None  #: its emission rule; in a region each node has one
    static: frozenset[int]  #: the positions of the operands whose values must be known
    names: tuple[str, ...]  #: the name stack of its equations
    inner: list[InnerPlan] | None = None  #: the plans of its inner graphs; None if the rule takes none


class Region(NamedTuple):
    """Nodes that become one Jaxpr."""

    steps: list[Step]  #: the nodes that become equations, in order
    inputs: list[Variable]  #: the arguments of the program; the arrays of `constants` follow
    outputs: list[Variable]  #: the results of the program
    static_inputs: list[Variable]  #: the inputs whose values determine a specialization
    #: The variables whose values key a specialization: static operands that follow from values and shapes of inputs.
    #: ``x[i : i + 3]`` demands a length, which is 3 for most `i`.
    demanded: list[Variable]
    draws: list[Apply]  #: the nodes that read a generator
    constants: LargeConstants = LargeConstants([], {})  #: further arguments, which `Program` passes


class HostStep(NamedTuple):
    """Nodes that run on the host one after the other, each by its Op's own implementation."""

    nodes: list[Apply]
    inputs: list[Variable]
    outputs: list[Variable]


class Plan(NamedTuple):
    """The regions and host steps of a graph, in the order in which they run."""

    #: At least one. A region may follow a region: then a value that the first computes determines a shape in the
    #: second.
    batches: list[Region | HostStep]
    breaks: list[Break]  #: why there is more than one batch
    inputs: list[Variable]  #: the inputs of the graph
    outputs: list[Variable]

    @property
    def regions(self) -> list[Region]:
        """The regions, in order."""
        return [batch for batch in self.batches if isinstance(batch, Region)]

    @property
    def is_one_program(self) -> bool:
        """Whether the graph is one region. Without breaks it is, unless an input or output is not an array."""
        return not self.breaks and len(self.batches) == 1 and [r.inputs for r in self.regions] == [self.inputs]

    def single_region(self) -> Region:
        """Return the region that is the graph, or raise a GraphBreakError with all breaks, or a TypeError."""
        if self.breaks:
            raise GraphBreakError(self.breaks)
        if not self.is_one_program:
            found = next(v for v in (*self.inputs, *self.outputs) if not is_array(v))
            raise TypeError(
                f"A JAX function takes and returns arrays; {variable_name(found)} is of type {found.type}, which is no"
                " array. Pass the arrays that it is made of instead, and return such."
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
    produced = {v for node in nodes for v in node.outputs}
    read = dict.fromkeys(v for node in nodes for v in node.inputs if not isinstance(v, Constant))
    return [v for v in read if v not in produced]


def node_names(node: Apply, op_names: dict[int, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the name stack of a node: its Op, and the user's name of its output; `op_names` keeps it by Op."""
    names = op_names.get(identity(node.op))
    if names is None:
        names = op_names[identity(node.op)] = (str(node.op).replace("/", "|"),)
    named = [v.name for v in node.outputs if v.name]
    return (f"{names[0]}[{named[0]}]",) if named else names


# -- large constants ---------------------------------------------------------------------------------------------------

#: Constants of more bytes than this are passed as arguments. XLA reads small index arrays faster from the program;
#: larger data bloats its text and its constant folding.
INLINE_CONSTANT_BYTES = 2**16
#: Constants of more bytes than this are read from memory in each call, and memory is slower than a conversion.
WIDE_CONSTANT_BYTES = 2**20
#: The dtypes that may hold the numbers of another one, the smallest first.
NARROW = [np.dtype(name) for name in ("int8", "uint8", "int16", "uint16", "int32", "float32")]


def find_large_constants(read: Iterable[tuple[Constant, Apply]]) -> LargeConstants:
    """Return the constants that are too large for a program's text, of constants and the nodes that read them."""
    found = LargeConstants([], {})
    places: dict[tuple, int] = {}
    only_elements: dict[int, bool] = {}
    for constant, node in read:
        data = constant.data
        if not isinstance(data, np.ndarray) or data.nbytes <= INLINE_CONSTANT_BYTES:
            continue
        base, order = in_memory_order(data)
        place = places.setdefault(array_key(base), len(found.arrays))
        if place == len(found.arrays):
            found.arrays.append(base)
        found.views[constant] = place, tuple(order.index(axis) for axis in range(data.ndim))
        only_elements[place] = only_elements.get(place, True) and reads_elements(node, constant)
    for place, array in enumerate(found.arrays):
        if only_elements[place]:
            found.arrays[place] = narrowed(array)
    return found


def reads_elements(node: Apply, constant: Constant) -> bool:
    """Return whether a node reads a constant elementwise, so XLA converts it there; a product would need a copy."""
    if isinstance(node.op, AdvancedSubtensor):
        return constant is not node.inputs[0]
    if isinstance(node.op, AdvancedIncSubtensor):
        return constant not in node.inputs[:2]
    return isinstance(node.op, Elemwise)


def narrowed(array: np.ndarray) -> np.ndarray:
    """Return a large array of real numbers in the smallest dtype that holds all of them bit by bit."""
    if array.nbytes <= WIDE_CONSTANT_BYTES or array.dtype.kind not in "iuf":
        return array
    for dtype in NARROW:
        if dtype.itemsize < array.dtype.itemsize and all(holds(dtype, part) for part in (array[:1], array)):
            return array.astype(dtype)
    return array


def holds(dtype: np.dtype, array: np.ndarray) -> bool:
    """Return whether a dtype holds the numbers of an array: -0.0 and NaN are not integers."""
    with np.errstate(invalid="ignore", over="ignore"):
        again = array.astype(dtype).astype(array.dtype)
    bits = f"u{array.dtype.itemsize}"
    return np.array_equal(again.view(bits), array.view(bits))
