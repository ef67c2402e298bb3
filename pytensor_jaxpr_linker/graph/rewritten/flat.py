"""Graphs as tables of numbers, to build them again around other inputs, constants and lines of the user's code.

The key within one process stays a text until PyTensor releases the patch of docs/notes/upstream/pytensor-freeze.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import toposort

from pytensor_jaxpr_linker.base.interpreter import identity
from pytensor_jaxpr_linker.graph.rewritten.describe import Descriptions, NotDescribed

#: Tags that PyTensor computes from the values of constants.
OF_VALUES = frozenset({"is_arange", "is_non_negative", "is_permutation", "is_positive", "unique_indices"})
OF_VALUES |= {"is_diagonal", "is_selection", "is_tridiagonal"}  # of matrices
#: The tag of outputs that holds the graph before the rewrites.
ORIGINAL = "jaxpr_keep_original"
#: A tag of PyMC's on the inputs of a model, an object that no rewrite reads.
NOT_READ = frozenset({"transform"})
#: Tags of nodes that PyTensor writes as it goes.
OF_NODES = frozenset({"connection_pattern", "fake_node", "imported_by", "removed_by", "ufunc"})
#: Larger constants that share their memory have to share it in the graph that is built, too.
LEAST_SHARED_BYTES = 2**16


class Tables:
    """Ops, types, constants and lines of code by number, so that graphs can name them."""

    def __init__(self) -> None:
        self.ops: list[Any] = []
        self.types: list[Any] = []
        self.constants: list[Constant] = []
        #: Tracebacks to lines of the user's code. Variables share them: PyTensor's rewrites hand them on.
        self.traces: list[Any] = []
        self._numbers: dict[int, int] = {}

    def number(self, table: list, value: Any) -> int:
        """Return the number of a value in one of the tables, to which a new value is added. Identity counts."""
        found = self._numbers.get(identity(value))
        if found is None:
            found = self._numbers[identity(value)] = len(table)
            table.append(value)
        return found

    def traces_of(self, variable: Variable) -> list[int]:
        """Return the numbers of a variable's tracebacks."""
        return [self.number(self.traces, t) for t in getattr(variable.tag, "trace", ())]

    def known_traces_of(self, variable: Variable) -> list[int]:
        """Return the numbers of a variable's tracebacks, without the ones that have no number."""
        numbers = [self._numbers.get(identity(t)) for t in getattr(variable.tag, "trace", ())]
        return [i for i in numbers if i is not None]


class FlatNode(NamedTuple):
    """A node: the number of its Op, the numbers of its operands, and its outputs and tags.

    An output is the number of its type, its name, the numbers of its tracebacks, and its other tags.
    """

    op: int
    operands: list[int]
    outputs: list[tuple[int, str | None, list[int], dict[str, Any]]]
    tags: dict[str, Any]


class Flat(NamedTuple):
    """A graph: variables are numbered, inputs first, then the outputs of nodes; constants are negative."""

    nodes: list[FlatNode]
    outputs: list[int]


def flatten(inputs: Sequence[Variable], outputs: Sequence[Variable], tables: Tables) -> Flat:
    """Return a graph as numbers, and add its parts to the tables."""
    numbers: dict[Variable, int] = {v: i for i, v in enumerate(inputs)}

    def operand(v: Variable) -> int:
        if v in numbers:
            return numbers[v]
        if not isinstance(v, Constant):
            raise NotDescribed(f"{v} is no variable of the graph")
        return -1 - tables.number(tables.constants, v)

    nodes = []
    for node in toposort(outputs, blockers=inputs):
        operands = [operand(v) for v in node.inputs]
        for v in node.outputs:
            numbers[v] = len(numbers)
            if type(v) is not v.type.variable_type:
                raise NotDescribed(f"{v} is a {type(v)}")
        made = [(tables.number(tables.types, v.type), v.name, tables.traces_of(v), tags_of(v)) for v in node.outputs]
        tags = {k: v for k, v in vars(node.tag).items() if k not in OF_NODES}
        nodes.append(FlatNode(tables.number(tables.ops, node.op), operands, made, tags))
    return Flat(nodes, [operand(v) for v in outputs])


def tags_of(variable: Variable) -> dict[str, Any]:
    """Return the tags of a variable but for its tracebacks and `ORIGINAL`."""
    return {k: v for k, v in vars(variable.tag).items() if k not in ("trace", ORIGINAL)}


def read_tags(leaf: Variable) -> dict[str, Any]:
    """Return the tags of an input or a constant that a rewrite may read and that do not follow from its value."""
    unread = OF_VALUES if isinstance(leaf, Constant) else NOT_READ
    return {k: v for k, v in tags_of(leaf).items() if k not in unread}


def text_of(flat: Flat, inputs: Sequence[Variable], tables: Tables) -> str:
    """Return a text that equal graphs have, and no others: which variables share lines of code included."""
    describe = Descriptions()

    def described(tags: dict[str, Any]) -> Any:
        return describe(tags) if tags else None  # most variables and nodes have none

    leaves = [
        (type(v).__name__, describe.number(v.type), v.name, tables.traces_of(v), described(read_tags(v)))
        for v in (*inputs, *tables.constants)
    ]
    nodes = [(n.op, n.operands, [(*v[:3], described(v[3])) for v in n.outputs], described(n.tags)) for n in flat.nodes]
    ops, types = ([describe.number(x) for x in table] for table in (tables.ops, tables.types))
    constants = [describe.constant(c) for c in tables.constants]
    return "\n".join([repr((len(inputs), leaves, nodes, flat.outputs, ops, types, constants)), *describe.texts])


class Rewritten(NamedTuple):
    """A rewritten graph, and its additions to the tables of the graph before."""

    flat: Flat
    ops: list
    types: list
    constants: list[tuple]


def rewritten_graph(inputs: Sequence[Variable], outputs: Sequence[Variable], before: Tables) -> Rewritten:
    """Return a rewritten graph for the tables of the graph before, which grow by new parts."""
    ops, types, constants, traces = map(len, (before.ops, before.types, before.constants, before.traces))
    flat = flatten(inputs, outputs, before)
    if len(before.traces) > traces:
        raise NotDescribed("rewrites have added lines of code")
    new = [
        # Constants of graphs inside Ops have the lines of the code that made them first.
        (type(c), before.number(before.types, c.type), owned(c.data), c.name, before.known_traces_of(c))
        for c in before.constants[constants:]
    ]
    describe = Descriptions()
    for x in (*before.ops[ops:], *before.types[types:]):
        describe.number(x)
    for c in before.constants[constants:]:
        describe.constant(c)
    for n in flat.nodes:
        n.tags.clear()
        for v in n.outputs:
            describe(v[3])
    return Rewritten(flat, before.ops[ops:], before.types[types:], new)


def owned(data: Any) -> Any:
    """Return the value of a constant, unless it shares much memory with another one."""
    if isinstance(data, np.ndarray) and data.nbytes > LEAST_SHARED_BYTES and data.base is not None:
        raise NotDescribed("a constant is a view")
    return data


def rebuilt(graph: Rewritten, inputs: Sequence[Variable], before: Tables) -> list[Variable]:
    """Build a rewritten graph around inputs, constants and lines of the graph before, and return its outputs."""
    ops, types, traces = [*before.ops, *graph.ops], [*before.types, *graph.types], before.traces

    def with_tags(v: Any, lines: Iterable[int], tags: dict[str, Any]) -> Any:
        if lines:
            v.tag.trace = [traces[i] for i in lines]
        vars(v.tag).update(tags)
        return v

    constants: list[Variable] = [*before.constants]
    constants += [with_tags(cls(types[t], data, name=name), lines, {}) for cls, t, data, name, lines in graph.constants]
    known: list[Variable] = [*inputs]
    for op, operands, outputs, _ in graph.flat.nodes:
        made = [with_tags(types[t].make_variable(name), lines, tags) for t, name, lines, tags in outputs]
        Apply(ops[op], [known[i] if i >= 0 else constants[-1 - i] for i in operands], made)
        known += made
    return [known[i] if i >= 0 else constants[-1 - i] for i in graph.flat.outputs]
