"""Finds out from which variables of the user's graph the nodes of the rewritten one come, and what its gradients differentiate."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from pytensor import config, gradient
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import toposort
from pytensor.scalar.basic import Second
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import continuous_dtypes

from pytensor_jaxpr_linker.base.errors import GRADIENT, is_of_gradient, lines_of, role_of
from pytensor_jaxpr_linker.base.interpreter import identity
from pytensor_jaxpr_linker.frontend.kept_graphs import Original
from pytensor_jaxpr_linker.graph.walk import Graph
from pytensor_jaxpr_linker.report.hints import expression

#: How many expressions the text of a node names.
MOST_NAMES = 2
#: Constants of more bytes are equal if they are the same array.
MOST_HASHED = 1 << 20
#: How the text of a node that a gradient needs begins.
GRADIENT_BY = "gradient by "


class Numbering:
    """Numbers variables: two that equal Ops compute from equal operands have one number."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._of: dict[Variable, int] = {}

    def identify(self, variables: Iterable[Variable], others: Iterable[Variable]) -> None:
        """Give each variable the number of another one."""
        for v, other in zip(variables, others, strict=False):
            self._of[v] = self.of(other)

    def of(self, variable: Variable) -> int:
        """Return the number of a variable, whose operands have theirs."""
        if variable not in self._of:
            self._of[variable] = self._numbers.setdefault(self._key(variable), len(self._numbers))
        return self._of[variable]

    def add(self, nodes: Iterable[Apply]) -> None:
        """Number what nodes compute, which are in topological order."""
        for node in nodes:
            for v in node.outputs:
                self.of(v)

    def _key(self, variable: Variable) -> Hashable:
        if isinstance(variable, Constant):
            data = variable.data
            return identity(data) if getattr(data, "nbytes", 0) > MOST_HASHED else variable.signature()
        if (node := variable.owner) is None:
            return identity(variable)
        return node.op, node.outputs.index(variable), *map(self.of, node.inputs)


class Provenance:
    """The variables of the user's graph, for the nodes of the rewritten one.

    Parameters
    ----------
    graph
        The rewritten graph.
    original
        The graph before PyTensor's rewrites, or None if nothing kept it.
    """

    def __init__(self, graph: Graph, original: Original | None):
        self._same: dict[Apply, Variable] = {}
        self._origins: dict[Apply, Variable] = {}
        self._roles: dict[Apply, str] = {}
        if original is None:
            return
        nodes = list(toposort(original.outputs))
        numbering = Numbering()
        numbering.add(nodes)
        by_number: dict[int, Variable] = {}
        by_trace: dict[int, Variable] = {}
        by_name: dict[str, Variable] = {}
        # What the user wrote comes before what a gradient made again: a node that computes both is the user's.
        made = {node for node in nodes if is_of_gradient(node)}
        for v in (v for node in sorted(nodes, key=made.__contains__) for v in node.outputs):
            by_number.setdefault(numbering.of(v), v)
            for trace in getattr(v.tag, "trace", None) or ():
                by_trace.setdefault(identity(trace), v)
            if v.name:
                by_name.setdefault(v.name, v)
        numbering.identify(graph.inputs, original.inputs)
        for node in graph.nodes:
            first = node.outputs[0]
            if (same := by_number.get(numbering.of(first))) is not None:
                self._same[node] = same
            traces = [identity(t) for t in getattr(first.tag, "trace", None) or ()]
            candidates = [same, by_name.get(first.name or ""), *map(by_trace.get, traces)]
            if (found := next((v for v in candidates if v is not None), None)) is not None:
                self._origins[node] = found
        for v, asked in zip(graph.outputs, original.outputs, strict=False):
            if v.owner is not None and asked.owner is not None:
                self._origins.setdefault(v.owner, asked)
        self._follow_operands(graph)
        self._find_roles(graph, made, differentiated(nodes, made, numbering) if made else {}, numbering)

    def _follow_operands(self, graph: Graph) -> None:
        """Find the origin of operands that rewrites made without a trace: that of the operand in its reader's origin, if their Ops are equal."""
        for node in reversed(graph.nodes):
            origin = self._origins.get(node)
            if origin is None or origin.owner is None or origin.owner.op != node.op:
                continue
            for u, asked in zip(node.inputs, origin.owner.inputs, strict=False):
                ndims = [getattr(v.type, "ndim", None) for v in (u, asked)]
                if u.owner is not None and asked.owner is not None and ndims[0] == ndims[1]:
                    self._origins.setdefault(u.owner, asked)

    def _find_roles(
        self, graph: Graph, made: set[Apply], names: Mapping[int, tuple[str, ...]], numbering: Numbering
    ) -> None:
        """Find what nodes are for; one that a rewrite made without a trace is for what all its readers are."""
        readers: dict[Apply, set[str]] = {}
        for node in reversed(graph.nodes):
            origin = self._origins.get(node)
            if origin is not None and origin.owner is not None:
                told = names.get(numbering.of(origin), ()) if origin.owner in made else ()
                role = f"{GRADIENT_BY}{listed(told)}" if told else role_of(origin.owner)
            else:
                roles = readers.get(node, set())
                role = next(iter(roles)) if len(roles) == 1 else ""
            self._roles[node] = role
            for u in node.inputs:
                if u.owner is not None:
                    readers.setdefault(u.owner, set()).add(role)

    def name(self, node: Apply) -> str:
        """Return the user's name of what a node computes, or nothing."""
        own = next((v.name for v in node.outputs if v.name), "")
        return own or (self._same[node].name or "" if node in self._same else "")

    def line(self, node: Apply) -> str:
        """Return file, number and text of the user's line that made a node, else those of a library's line, or nothing."""
        origin = self._origins.get(node)
        found = [lines_of(made) for made in (origin.owner if origin is not None else None, node) if made is not None]
        return next((line for column in zip(*found, strict=True) for line in column if line), "")

    def role(self, node: Apply) -> str:
        """Return what a node is for, or nothing: "gradient by x" for one that only a gradient needs."""
        noted = role_of(node)
        return noted if node not in self._roles or noted not in ("", GRADIENT) else self._roles[node]


def differentiated(nodes: Sequence[Apply], made: set[Apply], numbering: Numbering) -> dict[int, tuple[str, ...]]:
    """Return, for the numbers of what gradients compute, the names of what they differentiate by.

    PyTensor does not say what a node of a gradient is for. So each gradient is derived again, by all that it passes: what has the number
    of a node is the gradient by a known expression, and what only such nodes need is part of it.
    """
    found: dict[int, list[Variable]] = {}
    for cost in costs(nodes, made):
        slopes = gradients_by_all(cost)
        numbering.add(toposort([slope for _, slope in slopes]))
        for v, slope in slopes:
            found.setdefault(numbering.of(slope), []).append(v)
    names = {number: shown_names(variables) for number, variables in found.items()}
    for node in reversed(nodes):
        if node not in made:
            continue
        told = {name: None for v in node.outputs for name in names.get(numbering.of(v), ())}
        for u in node.inputs:
            if told and u.owner in made and numbering.of(u) not in found:
                number = numbering.of(u)
                names[number] = tuple(dict.fromkeys((*names.get(number, ()), *told)))[: MOST_NAMES + 1]
    return {numbering.of(v): names[numbering.of(v)] for node in made for v in node.outputs if numbering.of(v) in names}


def costs(nodes: Iterable[Apply], made: set[Apply]) -> list[Variable]:
    """Return the numbers that gradients begin with: a gradient's first node is a one like them."""
    ones = [node for node in nodes if node in made and is_one_like(node) and isinstance(node.inputs[1], Constant)]
    found = dict.fromkeys(node.inputs[0] for node in ones)
    return [v for v in found if v.owner is not None and is_continuous(v) and v.type.ndim == 0]


def is_one_like(node: Apply) -> bool:
    """Return whether a node is a number in the shape of its first operand."""
    return isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, Second)


def gradients_by_all(cost: Variable) -> list[tuple[Variable, Variable]]:
    """Return the variables that a number depends on, each with the number's gradient by it; none if an Op has no gradient."""
    before = list(toposort([cost]))
    within = dict.fromkeys(u for node in before for u in (*node.inputs, *node.outputs))
    wrt = [v for v in within if is_continuous(v) and not isinstance(v, Constant)]
    try:
        with warnings.catch_warnings(), config.change_flags(traceback__limit=0):  # lines take half of the time
            warnings.simplefilter("ignore")
            slopes: Any = gradient.grad(
                cost,
                wrt,
                disconnected_inputs="ignore",
                return_disconnected="none",
                null_gradients="return",
                add_names=False,
            )
    except Exception:  # whatever an Op raises: the user's gradient may not have passed it
        return []
    return [(v, slope) for v, slope in zip(wrt, slopes, strict=True) if slope is not None]


def is_continuous(variable: Variable) -> bool:
    """Return whether gradients by a variable are arrays."""
    return getattr(variable.type, "dtype", "") in continuous_dtypes


def shown_names(variables: Iterable[Variable]) -> tuple[str, ...]:
    """Return the users' names of variables with one gradient, or their expressions if none has a name."""
    variables = [*variables]
    named = [v.name for v in variables if v.name]
    return tuple(dict.fromkeys(named or [expression(v, 2) for v in variables]))[: MOST_NAMES + 1]


def listed(names: tuple[str, ...]) -> str:
    """Return names with commas between them."""
    return ", ".join(names[:MOST_NAMES]) + (" and others" if len(names) > MOST_NAMES else "")
