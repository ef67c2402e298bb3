"""A region with inputs that are padded along changing axes, to the next power of two or to the marked length.

The first `count` lanes of a padded axis are active (see `graph.lanes`), and `count` is one more input. So one program
serves all lengths up to its own, and computes what the region computes. Where a node must know the length itself, there
is no such program, and `NotExact` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.configdefaults import config
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.shape import Shape_i

from pytensor_jaxpr_linker.base import marks
from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.base.errors import describe_node, variable_name
from pytensor_jaxpr_linker.base.interpreter import gc_paused
from pytensor_jaxpr_linker.base.rules import Rule
from pytensor_jaxpr_linker.graph import facts
from pytensor_jaxpr_linker.graph.decompose import inline
from pytensor_jaxpr_linker.graph.lanes.lanes import Lanes
from pytensor_jaxpr_linker.graph.lanes.ops import DynamicSlice, only_output
from pytensor_jaxpr_linker.graph.lanes.selection import PaddedRun
from pytensor_jaxpr_linker.graph.lanes.with_lanes import Rewriter
from pytensor_jaxpr_linker.graph.walk import FindRule, Graph, toposort
from pytensor_jaxpr_linker.plan.model import Plan, Region

#: The length to which fewer elements are padded.
SMALLEST = 16


class NotExact(Exception):
    """Raised where padding would change results, by `node` if it is one. The message is a sentence's second half."""

    def __init__(self, reason: str, node: Apply | None = None):
        super().__init__(reason)
        self.node = node


class Place(NamedTuple):
    """An axis of one of a region's inputs, or outputs."""

    position: int
    axis: int


class Group(NamedTuple):
    """Axes of inputs that have one length."""

    places: list[Place]
    longest: int | None = None
    """The length to which they are padded, if it is marked."""
    lengths: tuple[int, ...] = ()
    """The positions of inputs whose value is the length."""
    only: int | None = None
    """The one length that they have, if it is a constant of the padded region. Then nodes may know it."""

    def length(self, args: Sequence[Any]) -> int:
        """Return the length that the axes have."""
        i, axis = self.places[0]
        return args[i].shape[axis]

    def fits(self, args: Sequence[Any], least: int) -> bool:
        """Return whether the axes have one length, from `least` to the longest."""
        lengths = {args[i].shape[axis] for i, axis in self.places}
        return len(lengths) == 1 and least <= min(lengths) and not self.is_exceeded(args)

    def is_exceeded(self, args: Sequence[Any]) -> bool:
        """Return whether an axis is longer than it is marked."""
        return self.longest is not None and any(args[i].shape[axis] > self.longest for i, axis in self.places)

    def padded(self, n: int) -> int:
        """Return the length to which `n` elements are padded: 0 for 0, which leaves no element to repeat."""
        return bucket(n) if self.longest is None or not n else self.longest


class Padding(NamedTuple):
    """How a region is called for lengths that it is not compiled for."""

    region: Region  #: the padded region: its further inputs are the lengths before padding, unless they are constants
    groups: list[Group]  #: the padded axes of inputs
    #: The output axes that are cut after a call: the group whose length they have, and how many elements less than
    #: that.
    cuts: dict[Place, tuple[int, int]]
    least: list[int]  #: the smallest length of each group for which the cuts hold
    text: str  #: which axes are padded, for messages

    def text_for(self, shapes: Sequence[Sequence[int]]) -> str:
        """Return which axes of inputs are padded to these shapes, and which are empty, for messages."""
        first = [group.places[0] for group in self.groups]
        empty = [place for place, (i, axis) in enumerate(first) if not shapes[i][axis]]
        return spell_groups(self.region.inputs, self.groups, empty)

    def fits(self, args: Sequence[Any]) -> bool:
        """Return whether the axes of each group have one length, at least `least`, for arrays or avals."""
        return all(group.fits(args, least) for group, least in zip(self.groups, self.least, strict=True))

    def pad(self, args: Sequence[Any]) -> list[Any]:
        """Return the arguments of the padded region; arguments that change are copied to the host."""
        padded = list(args)
        lengths = [group.length(args) for group in self.groups]
        for group, n in zip(self.groups, lengths, strict=True):
            for i, axis in group.places:
                padded[i] = pad_axis(np.asarray(args[i]), axis, group.padded(n))
        return [*padded, *map(np.int64, lengths)]

    def cut(self, results: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """Return the results of a call with the padded arguments `args`, in the lengths that the region returns."""
        found = list(results)
        lengths = args[len(args) - len(self.groups) :]
        for (i, axis), (group, dropped) in self.cuts.items():
            index = (*[slice(None)] * axis, slice(int(lengths[group]) - dropped))
            found[i] = np.asarray(found[i])[index]
        return found


def bucket(n: int) -> int:
    """Return the length to which `n` elements are padded: a power of two, or 0 for 0, without an element to repeat."""
    return max(SMALLEST, 1 << (n - 1).bit_length()) if n else 0


def pad_axis(x: np.ndarray, axis: int, n: int) -> np.ndarray:
    """Pad an axis to `n` elements by repeating the first, which adds no failed check and no invalid value."""
    lead = (slice(None),) * axis
    padded = np.empty((*x.shape[:axis], n, *x.shape[axis + 1 :]), x.dtype)
    padded[(*lead, slice(x.shape[axis]))] = x
    padded[(*lead, slice(x.shape[axis], None))] = x[(*lead, slice(1))]
    return padded


def find_groups(inputs: Sequence[Variable], shapes: Sequence[Mapping[Variable, tuple[int, ...]]]) -> list[Group]:
    """Return the axes of inputs whose lengths differ, or are marked; axes with always equal lengths are one group."""
    groups: dict[tuple, Group] = {}
    for i, v in enumerate(inputs):
        if is_tensor(v.type):
            marked = marks.dynamic_axes(v)
            for axis in range(v.type.ndim):
                lengths, longest = tuple([found[v][axis] for found in shapes]), marked.get(axis)
                if len(set(lengths)) > 1 or longest is not None:
                    groups.setdefault((lengths, longest), Group([], longest)).places.append(Place(i, axis))
    return list(groups.values())


@gc_paused()
def find_padding(
    region: Region,
    shapes: Sequence[Mapping[Variable, tuple[int, ...]]],
    find_rule: FindRule,
    make_plan: Callable[[Graph], Plan],
) -> Padding:
    """Return how a region is padded, by the `shapes` of its inputs that were seen; raise `NotExact` if it can't be.

    Marked axes may have lengths of their own where the graph lets them; else axes that had the same length are one
    group.
    """
    groups = find_groups(region.inputs, shapes)
    check_groups(region, groups)
    if (split := split_marked(groups)) != groups:
        with suppress(NotExact):
            return padding_for(region, split, find_rule, make_plan)
    return padding_for(region, groups, find_rule, make_plan)


def split_marked(groups: Sequence[Group]) -> list[Group]:
    """Return groups in which each marked axis is alone."""
    return [
        part
        for group in groups
        for part in ([group] if group.longest is None else [Group([place], group.longest) for place in group.places])
    ]


def padding_for(
    region: Region, groups: list[Group], find_rule: FindRule, make_plan: Callable[[Graph], Plan]
) -> Padding:
    """Return how a region is padded along the axes of `groups`; raise `NotExact` if it can't be."""
    with config.change_flags(traceback__limit=0):  # new variables get the traces of the replaced ones
        graph, runs, cuts = padded_graph(region, groups, find_rule)
    plan = make_plan(graph)
    check_plan(plan, [run.count for run in runs])
    least = [run.least for run in runs]
    for group, run in zip(groups, runs, strict=True):
        if run.length is not None and run.length < run.least:
            i, axis = group.places[0]
            raise NotExact(
                f"a slice along axis {axis} of {variable_name(region.inputs[i])} leaves elements only of {run.least} or"
                f" more, and there are {run.length}"
            )
    return Padding(plan.regions[0], groups, cuts, least, spell_groups(region.inputs, groups))


def padded_graph(
    region: Region, groups: Sequence[Group], find_rule: FindRule
) -> tuple[Graph, list[PaddedRun], dict[Place, tuple[int, int]]]:
    """Return the padded region as a graph, the lanes of each group, and the `cuts` of `Padding`."""
    inputs = region.inputs

    def static(node: Apply) -> Iterable[int] | None:
        return None if (rule := find_rule(node)) is None else rule.static(node)

    _, results, nodes = without_wrappers(Graph(inputs, region.outputs, toposort(region.outputs, inputs)), find_rule)
    rewriter = Rewriter(facts.analyze(inputs, nodes, static).static, find_rule)
    runs = []
    padded_axes: dict[int, list[tuple[PaddedRun, int]]] = {}
    for group in groups:
        position, axis = group.places[0]
        first = inputs[position]
        name = f"{first.name or 'input'}.shape[{axis}]"
        count = pt.lscalar(name) if group.only is None else pt.constant(group.only, name, dtype="int64")
        run = PaddedRun(count, only_output(Shape_i(axis), first))
        rewriter.selections.counts[count] = run
        for i in group.lengths:
            rewriter.replace(inputs[i], count)
        for i, axis in group.places:
            padded_axes.setdefault(i, []).append((run, axis))
        runs.append(run)
    for i, ((run, axis), *others) in padded_axes.items():
        x = inputs[i]
        for other, cut in others:  # an array has lanes along one axis only
            x = other.compact(x, cut, other.flat)
        rewriter.replace(inputs[i], Lanes(run, axis, inputs[i], lambda x=x: x))  # type: ignore[misc]
    for node in nodes:
        rewriter.visit(node)
    outputs, cuts = [], {}
    for i, v in enumerate(results):
        result = rewriter.operand(v)
        if isinstance(result, Lanes) and isinstance(used := result.selection, PaddedRun) and used.length is None:
            cuts[Place(i, result.axis)] = runs.index(used.whole), used.dropped
            outputs.append(result.filled)
        else:
            outputs.append(rewriter.variable(v))
    padded = [*inputs, *(run.count for run in runs if run.length is None)]
    return Graph(padded, outputs, toposort(outputs, padded)), runs, cuts


def without_wrappers(graph: Graph, find_rule: FindRule) -> Graph:
    """Return a graph in which an `OpFromGraph`, such as softmax, is its inner graph: lanes may be reduced there."""

    def rule(node: Apply) -> Rule | None:
        return None if all(map(find_rule, node.op.fgraph.apply_nodes)) else find_rule(node)

    return inline(graph, rule)


def check_groups(region: Region, groups: Sequence[Group]) -> None:
    """Refuse inputs that can't be padded."""
    if not groups:
        raise NotExact("no length of an input changes")
    places = [place for group in groups for place in group.places]
    for i, _ in places:
        v = region.inputs[i]
        if v in region.static_inputs:
            raise NotExact(f"the values of {variable_name(v)} determine a shape")
        if sum(place.position == i for place in places) > 1:
            raise NotExact(f"two lengths of {variable_name(v)} change")


def check_plan(plan: Plan, counts: Sequence[Variable]) -> None:
    """Refuse a plan that is not one program for all lengths."""
    if plan.breaks:
        node = plan.breaks[0].node
        raise NotExact(f"{describe_node(node)} would not be part of one program then", node)
    region = plan.single_region()
    if any(count in region.static_inputs for count in counts):
        node = demander(region, counts)
        raise NotExact(f"{describe_node(node)} must know the length itself", node)


def demander(region: Region, counts: Sequence[Variable]) -> Apply:
    """Return the first node that must know a number, other than the slice that cuts its operand to the length."""
    nodes = [step.node for step in region.steps]
    node = next(
        step.node
        for step in region.steps
        if any(v in counts for i in step.static for v in ancestors([step.node.inputs[i]]))
    )
    if isinstance(node.op, DynamicSlice):
        return next((reader for reader in nodes if node.outputs[0] in reader.inputs), node)
    return node


def spell_groups(inputs: Sequence[Variable], groups: Sequence[Group], empty: Sequence[int] = ()) -> str:
    """Return the padded axes, for messages. The groups at the places `empty` have no element to repeat."""
    to = ["" if group.longest is None else f" to {group.longest}" for group in groups]
    return ", ".join(
        f"axis {axis} of {variable_name(inputs[i])}{' to 0, since it is empty' if place in empty else to[place]}"
        for place, group in enumerate(groups)
        for i, axis in group.places
    )
