"""Finds the code of each node: its number is in the names of its equations, which reach StableHLO and HLO."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from pytensor.graph.basic import Apply

from pytensor_jaxpr_linker.jaxpr.lower import lower_region
from pytensor_jaxpr_linker.plan.model import InnerPlan, Region
from pytensor_jaxpr_linker.run.specialization import Specialization

#: The names that mark the equations of a node, and of a node of its inner graph.
MARK = re.compile(r"(?<![\w:])node:(\d+)")
INNER_MARK = re.compile(r"(?<![\w:])inner:(\d+)")
#: A line of MLIR with its location, and the definition of a location.
LINE = re.compile(r"^(.*\S)\s*loc\((#loc\d*)\)\s*$")
LOCATION = re.compile(r"^(#loc\d*) = loc\((.*)\)$")


class Marks:
    """Writes the number of its node into the names of each equation. `inner` has nodes of inner graphs, by number."""

    def __init__(self, index: Mapping[Apply, int]):
        self._index = index
        self.inner: list[Apply] = []

    def lower(self, s: Specialization, avals: Sequence[Any]) -> Any:
        """Return the Jaxpr of a specialization with marked equations; the region is lowered once more for it."""
        steps = [
            step._replace(names=(*step.names, f"node:{self._index[step.node]}"), inner=self._plans(step.inner))
            for step in s.region.steps
        ]
        return lower_region(s.region._replace(steps=steps), avals, s.static, s.checked, s.name).jaxpr

    def _plans(self, plans: Sequence[InnerPlan] | None) -> list[InnerPlan] | None:
        if plans is None:
            return None
        batches = [[self._region(b) if isinstance(b, Region) else b for b in p.plan.batches] for p in plans]
        return [p._replace(plan=p.plan._replace(batches=b)) for p, b in zip(plans, batches, strict=True)]

    def _region(self, region: Region) -> Region:
        steps = []
        for step in region.steps:
            names = (*step.names, f"inner:{len(self.inner)}")
            self.inner.append(step.node)
            steps.append(step._replace(names=names, inner=self._plans(step.inner)))
        return region._replace(steps=steps)


def equation_texts(jaxpr: Any) -> list[tuple[int, str]]:
    """Return the equations of a marked Jaxpr as texts, each with the number of its node."""
    lines = jaxpr.pretty_print(use_color=False).splitlines()
    first = next((i for i, line in enumerate(lines) if line.endswith(" let")), len(lines))  # inputs may take lines
    texts: list[str] = []
    for line in lines[first + 1 :]:
        if line.startswith("  in "):
            break
        if line.startswith("    ") and not line[4:5].isspace():
            texts.append(line[4:])
        elif texts:
            texts[-1] += "\n" + line[4:]
    if len(texts) != len(jaxpr.eqns):  # a short Jaxpr is printed on one line
        texts = [str(eqn) for eqn in jaxpr.eqns]
    found = []
    for eqn, text in zip(jaxpr.eqns, texts, strict=True):
        marks = MARK.findall(str(eqn.source_info.name_stack))
        if marks:
            found.append((int(marks[0]), text))
    return found


def located_lines(text: str) -> list[tuple[int, str]]:
    """Return the lines of an MLIR text that are located at a marked equation, each with the number of its node."""
    lines = text.splitlines()
    locations = {m[1]: m[2] for line in lines if (m := LOCATION.match(line))}

    @cache
    def number(name: str) -> int | None:
        content = locations.get(name, "")
        if found := MARK.search(content):
            return int(found[1])
        parent = re.match(r'"[^"]*"\((#loc\d+)\)', content)
        return number(parent[1]) if parent else None

    found = []
    for line in lines:
        if (m := LINE.match(line)) and not LOCATION.match(line) and (n := number(m[2])) is not None:
            found.append((n, m[1].strip()))
    return found


# -- optimized HLO -----------------------------------------------------------------------------------------------------


class Operation(NamedTuple):
    """An instruction of optimized HLO."""

    result: str
    """The type of its result, such as ``f64[3]{0}``."""
    nodes: frozenset[int]
    """The numbers of the nodes whose equations it computes, also inside the computations that it calls."""
    inner: frozenset[int]
    """The same for nodes of inner graphs."""
    within: frozenset[str]
    """The names of the instructions of the computations that it calls."""
    readers: frozenset[int] = frozenset()
    """If it computes no node, the numbers of the nodes that read its result."""


#: The first line of a computation, and an instruction: its name, the type of its result, its opcode and the rest.
COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
INSTRUCTION = re.compile(r"^ +(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
#: The name of an instruction's origin, all that it says about its origin, and the computations that it calls.
OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
ORIGIN = re.compile(r'metadata=\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}')
CALLED = re.compile(r"=\{?(%[\w.\-]+(?:, %[\w.\-]+)*)")
OPERAND = re.compile(r"%([\w.\-]+)")
#: The opcodes of instructions that compute nothing: their origin is of no interest.
FREE = frozenset(("bitcast", "constant", "get-tuple-element", "parameter", "tuple"))


class Instruction(NamedTuple):
    """A line of HLO text."""

    result: str
    opcode: str
    rest: str


class Reader(NamedTuple):
    """An instruction that reads a result as its operand at a position."""

    name: str
    x: Instruction
    position: int


def operations_of(hlo: str) -> dict[str, Operation]:
    """Return the instructions of an HLO text of a marked Jaxpr, by their names."""
    bodies: dict[str, dict[str, Instruction]] = {}
    body: dict[str, Instruction] = {}
    for line in hlo.splitlines():
        if m := INSTRUCTION.match(line):
            body[m[1]] = Instruction(m[2], m[3], m[4])
        elif m := COMPUTATION.match(line):
            body = bodies[m[1]] = {}
    return Origins(bodies).operations()


class Origins:
    """Finds the nodes that instructions compute; `bodies` are the instructions of each computation."""

    def __init__(self, bodies: Mapping[str, Mapping[str, Instruction]]):
        self._bodies = bodies
        self._calls: dict[str, list[str]] = {}
        self._callers: dict[str, tuple[str, Instruction]] = {}
        self._readers: dict[str, list[Reader]] = {}
        for computation, body in bodies.items():
            for name, x in body.items():
                lists = [m[1].split(", ") for m in CALLED.finditer(ORIGIN.sub("", x.rest))]
                self._calls[name] = [called[1:] for names in lists for called in names if called[1:] in bodies]
                self._callers.update(dict.fromkeys(self._calls[name], (computation, x)))
                for i, operand in enumerate(OPERAND.findall(x.rest.partition(")")[0])):
                    self._readers.setdefault(operand, []).append(Reader(name, x, i))
        self._inside: dict[str, Operation] = {}

    def operations(self) -> dict[str, Operation]:
        """Return all instructions."""
        found = {}
        for computation, body in self._bodies.items():
            for name, x in body.items():
                known = self._operation(name, x)
                if not known.nodes:
                    known = known._replace(nodes=self._named_by_readers(name) or self._around(computation))
                if not known.nodes:
                    known = known._replace(readers=self._read_by(name))
                found[name] = known
        return found

    def _operation(self, name: str, x: Instruction) -> Operation:
        """Return an instruction with the nodes that it names, also in the computations that it calls."""
        inside = [self._all_inside(called) for called in self._calls[name]]
        if x.opcode not in FREE:
            inner = frozenset(int(n) for origin in OP_NAME.findall(x.rest) for n in INNER_MARK.findall(origin)[-1:])
            inside.append(Operation("", nodes_named(x), inner, frozenset()))
        return Operation(x.result, *merged(inside))

    def _all_inside(self, computation: str) -> Operation:
        """Return all instructions of a computation as one."""
        if computation not in self._inside:
            body = self._bodies[computation]
            nodes, inner, within = merged([self._operation(name, x) for name, x in body.items()])
            self._inside[computation] = Operation("", nodes, inner, within | frozenset(body))
        return self._inside[computation]

    def _named_by_readers(self, name: str) -> frozenset[int]:
        """Return the nodes that the readers of a result name, where they pass it on unchanged.

        An instruction that XLA puts in the place of another may have no name, but a `bitcast` of its result has the
        name of the other.
        """
        found: frozenset[int] = frozenset()
        for reader in self._readers.get(name, ()):
            if reader.x.opcode == "bitcast":
                found |= nodes_named(reader.x)
            elif reader.x.opcode == "fusion":
                for called in self._calls[reader.name]:
                    for parameter, x in self._bodies[called].items():
                        if x.opcode == "parameter" and x.rest.startswith(f"{reader.position})"):
                            found |= self._named_by_readers(parameter)
        return found

    def _read_by(self, name: str) -> frozenset[int]:
        """Return the nodes that read a result, also out of a tuple."""
        readers = self._readers.get(name, ())
        found = [self._read_by(r.name) if r.x.opcode in FREE else self._operation(r.name, r.x).nodes for r in readers]
        return frozenset().union(*found)

    def _around(self, computation: str) -> frozenset[int]:
        """Return the nodes of the loop, branch or call around a computation."""
        if computation not in self._callers:
            return frozenset()
        outer, x = self._callers[computation]
        return nodes_named(x) or self._around(outer)


def nodes_named(x: Instruction) -> frozenset[int]:
    """Return the numbers of the nodes that an instruction names."""
    return frozenset(int(m[1]) for name in OP_NAME.findall(x.rest) if (m := MARK.search(name)))


def merged(found: Sequence[Operation]) -> tuple[frozenset[int], frozenset[int], frozenset[str]]:
    """Return the nodes, inner nodes and instructions of several operations together."""
    return (
        frozenset().union(*(o.nodes for o in found)),
        frozenset().union(*(o.inner for o in found)),
        frozenset().union(*(o.within for o in found)),
    )
