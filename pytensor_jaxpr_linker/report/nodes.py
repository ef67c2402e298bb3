"""Numbers and describes the nodes of a plan, and finds the variables of the user's graph that they come from."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytensor import config, gradient
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import toposort
from pytensor.scalar.basic import Second
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import continuous_dtypes

from pytensor_jaxpr_linker.base.errors import GRADIENT, is_of_gradient, lines_of, role_of
from pytensor_jaxpr_linker.base.interpreter import identity
from pytensor_jaxpr_linker.emit.blockwise import is_batched_by_jax
from pytensor_jaxpr_linker.emit.traced_leaf import is_traced_leaf
from pytensor_jaxpr_linker.frontend.kept_graphs import Original
from pytensor_jaxpr_linker.graph.walk import Graph
from pytensor_jaxpr_linker.plan.model import HostStep, Plan, Region
from pytensor_jaxpr_linker.report.hints import expression
from pytensor_jaxpr_linker.report.model import Node

#: Numbers of nodes.
type NodeNumbers = Mapping[Apply, int]

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

    `original` is the graph before PyTensor's rewrites, or None if nothing kept it.
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
        # The user's nodes come before equal nodes that a gradient made again: a node that computes both is the user's.
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
        """Find the origin of operands that rewrites made without a trace, in an origin of a reader with the same Op."""
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
        """Find the purpose of nodes; a node that a rewrite made without a trace has the purpose of all its readers."""
        readers: dict[Apply, set[str]] = {}
        for node in reversed(graph.nodes):
            origin = self._origins.get(node)
            if origin is not None and origin.owner is not None:
                by = names.get(numbering.of(origin), ()) if origin.owner in made else ()
                role = f"{GRADIENT_BY}{listed(by)}" if by else role_of(origin.owner)
            else:
                roles = readers.get(node, set())
                role = next(iter(roles)) if len(roles) == 1 else ""
            self._roles[node] = role
            for u in node.inputs:
                if u.owner is not None:
                    readers.setdefault(u.owner, set()).add(role)

    def name(self, node: Apply) -> str:
        """Return the user's name for the result of a node, or nothing."""
        own = next((v.name for v in node.outputs if v.name), "")
        return own or (self._same[node].name or "" if node in self._same else "")

    def line(self, node: Apply) -> str:
        """Return file, number and text of the user's line that made a node, else of a library's line, or nothing."""
        origin = self._origins.get(node)
        found = [lines_of(made) for made in (origin.owner if origin is not None else None, node) if made is not None]
        return next((line for column in zip(*found, strict=True) for line in column if line), "")

    def role(self, node: Apply) -> str:
        """Return the purpose of a node, or nothing: "gradient by x" for one that only a gradient needs."""
        noted = role_of(node)
        return noted if node not in self._roles or noted not in ("", GRADIENT) else self._roles[node]


def differentiated(nodes: Sequence[Apply], made: set[Apply], numbering: Numbering) -> dict[int, tuple[str, ...]]:
    """Return the names of the variables that gradients differentiate by, by the numbers of the gradients' variables.

    PyTensor does not say which gradient a node belongs to. So each gradient is derived again, by all variables on its
    way: a variable with the number of a node is the gradient by a known expression, and nodes that only such nodes need
    are part of it.
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
        by = {name: None for v in node.outputs for name in names.get(numbering.of(v), ())}
        for u in node.inputs:
            if by and u.owner in made and numbering.of(u) not in found:
                number = numbering.of(u)
                names[number] = tuple(dict.fromkeys((*names.get(number, ()), *by)))[: MOST_NAMES + 1]
    return {numbering.of(v): names[numbering.of(v)] for node in made for v in node.outputs if numbering.of(v) in names}


def costs(nodes: Iterable[Apply], made: set[Apply]) -> list[Variable]:
    """Return the numbers that gradients begin with: a gradient's first node is a one like them."""
    seconds = [n for n in nodes if n in made and isinstance(n.op, Elemwise) and isinstance(n.op.scalar_op, Second)]
    found = dict.fromkeys(n.inputs[0] for n in seconds if isinstance(n.inputs[1], Constant))
    return [v for v in found if v.owner is not None and is_continuous(v) and v.type.ndim == 0]


def gradients_by_all(cost: Variable) -> list[tuple[Variable, Variable]]:
    """Return the variables that a number depends on, each with its gradient; none if an Op has no gradient."""
    before = list(toposort([cost]))
    within = dict.fromkeys(u for node in before for u in (*node.inputs, *node.outputs))
    wrt = [v for v in within if is_continuous(v) and not isinstance(v, Constant)]
    lenient: Any = {"disconnected_inputs": "ignore", "return_disconnected": "none", "null_gradients": "return"}
    try:
        with warnings.catch_warnings(), config.change_flags(traceback__limit=0):  # lines take half of the time
            warnings.simplefilter("ignore")
            slopes: Any = gradient.grad(cost, wrt, add_names=False, **lenient)
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
    """Return the purpose of each node that only gradients need: "gradient by a, b and others"."""
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
    index: NodeNumbers,
    places: NodeNumbers,
    plan: Plan,
    texts: Texts,
    provenance: Provenance,
    roles: Mapping[Apply, str],
) -> Iterator[Node]:
    """Yield the description of each node in `index`, which also has the owners of its operands.

    `roles` has the purposes that are known without the origin.
    """
    codes = {b.node: b.code.code for b in plan.breaks}
    steps = [step for region in plan.regions for step in region.steps]
    traced = {step.node for step in steps if is_traced_leaf(step.rule)}
    batched = {step.node for step in steps if is_batched_by_jax(step.node)}
    for node, i in index.items():
        op, types = texts.op(node), ", ".join([texts.type(v) for v in node.outputs])
        operands = tuple([index[u.owner] if u.owner in index else texts.name(u) for u in node.inputs])
        name, line, batch = provenance.name(node), provenance.line(node), places.get(node)
        kind = node in traced, node in batched, codes.get(node, "")
        role, shown = roles.get(node) or provenance.role(node), expression(node.outputs[0], 2, named=False)
        yield Node(i, op, name, types, operands, line, batch, *kind, role, shown)


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
