"""The graph of an explanation in Mermaid's language: batches are boxes, and each node has an arrow from each operand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from pytensor_jaxpr_linker.base.words import counted
from pytensor_jaxpr_linker.report.model import Batch, ExplanationData, Node, PassedValue, Result
from pytensor_jaxpr_linker.report.profile import shortened
from pytensor_jaxpr_linker.report.text import duration, line_place

#: No batch was measured.
NO_CALLS: Mapping[int, float] = MappingProxyType({})
#: Of larger graphs the nodes with breaks are drawn, and one node for the others of each batch: Mermaid would be slow.
MOST_DRAWN = 400
#: How many inputs and how many outputs are drawn, and how many letters of a line of a node.
MOST_PORTS, MOST_LETTERS = 60, 30
#: Colours for a light and a dark ground alike.
STYLE = """\
  classDef region fill:none,stroke:#5b8bc9,stroke-width:2px
  classDef host fill:none,stroke:#b97a1c,stroke-width:2px
  classDef folded fill:none,stroke:#8a8a8a,stroke-dasharray:6 4
  classDef break stroke:#d64545,stroke-width:3px"""


def as_mermaid(explanation: ExplanationData, calls: Mapping[int, float] = NO_CALLS) -> str:
    """Return the graph; `calls` are the µs that batches take in a call."""
    places = drawn_places(explanation)
    arrows = dict.fromkeys(arrows_of(explanation, places))
    return "\n".join(["flowchart TB", STYLE, *box_lines(explanation, places, calls), *port_lines(explanation), *arrows])


def drawn_places(explanation: ExplanationData) -> list[str]:
    """Return what stands for each node in the drawing: itself, or all undrawn nodes of its batch together."""
    whole = len(explanation.nodes) <= MOST_DRAWN
    return [f"n{n.index}" if whole or n.break_code else f"{box_of(n.batch)}_others" for n in explanation.nodes]


def box_of(batch: int | None) -> str:
    """Return the name of a batch's box, or of the box of nodes that are not emitted."""
    return "folded" if batch is None else f"b{batch}"


def box_lines(explanation: ExplanationData, places: list[str], calls: Mapping[int, float]) -> Iterator[str]:
    """Yield a box for each batch, with its nodes."""
    members: dict[int | None, list[Node]] = {}
    for node in explanation.nodes:
        members.setdefault(node.batch, []).append(node)
    for index, nodes in members.items():
        batch = None if index is None else explanation.batches[index]
        title = "Known when regions are built" if batch is None else batch_title(batch, calls)
        yield f"  subgraph {box_of(index)}[{quoted(title)}]"
        drawn = [node for node in nodes if places[node.index] == f"n{node.index}"]
        for node in drawn:
            yield f"    n{node.index}[{node_label(node)}]{':::break' * bool(node.break_code)}"
        if len(drawn) < len(nodes):
            yield f"    {box_of(index)}_others[{quoted(counted(len(nodes) - len(drawn), 'node'))}]"
        yield f"  end\n  class {box_of(index)} {'folded' if batch is None else batch.kind}"


def batch_title(batch: Batch, calls: Mapping[int, float]) -> str:
    """Return what a batch is, how many nodes it has, how long building its programs took, and a call."""
    seconds = sum(sum(s.seconds.values()) for s in batch.specializations)
    built = [f"built in {duration(seconds)}"] if seconds else []
    call = [f"{duration(calls[batch.index] / 1e6)} a call"] if batch.index in calls else []
    return f"{batch.title}: {', '.join([counted(len(batch.nodes), 'node'), *built, *call])}"


def node_label(node: Node) -> str:
    """Return the label of a node: its number and Op, what it stands for, its type and line."""
    stands_for = " ".join(filter(None, [node.break_code, node.name or node.role or node.expression]))
    place = "  ".join(filter(None, [short_type(node.type), line_place(node.line)]))
    return label(f"#{node.index} {node.op}", stands_for, place)


def port_lines(explanation: ExplanationData) -> Iterator[str]:
    """Yield the inputs and outputs of the function."""
    ports: dict[str, Sequence[PassedValue | Result]] = {"input": explanation.inputs, "output": explanation.outputs}
    for kind, values in ports.items():
        for i, v in enumerate(values[:MOST_PORTS]):
            yield f"  {kind}{i}([{label(v.name, f'{kind}, {short_type(v.type)}')}])"


def arrows_of(explanation: ExplanationData, places: list[str]) -> Iterator[str]:
    """Yield an arrow for each operand of each node, and for each output; one may come several times."""
    inputs = {v.name: f"input{i}" for i, v in enumerate(explanation.inputs[:MOST_PORTS])}
    for node in explanation.nodes:
        for u in node.operands:
            source = places[u] if isinstance(u, int) else inputs.get(u)
            if source is not None and source != places[node.index]:
                yield f"  {source} --> {places[node.index]}"
    for i, v in enumerate(explanation.outputs[:MOST_PORTS]):
        if v.node is not None:
            yield f"  {places[v.node]} --> output{i}"


def short_type(text: str) -> str:
    """Return types as dtype and shape."""
    return re.sub(r"\w+\((\w+), shape=\((.*?),?\)\)", r"\1[\2]", text)


def label(*lines: str) -> str:
    """Return lines as the label of a node, each cut if it is long."""
    return quoted("\n".join(shortened(line, MOST_LETTERS) for line in lines if line)).replace("\n", "<br>")


def quoted(text: str) -> str:
    """Return a text in quotation marks, without the signs that Mermaid reads there as its own or as HTML."""
    escaped = re.sub(r"[\"#<>&`]", lambda found: f"#{ord(found[0])};", text)
    return f'"{escaped}"'
