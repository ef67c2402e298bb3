"""The drawing of an explanation as SVG: inputs, batches with their nodes, outputs, and an arrow for each value that a node reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import escape
from types import MappingProxyType

from pytensor_jaxpr_linker.base.words import counted
from pytensor_jaxpr_linker.report.layout import NODE_HEIGHT, NODE_WIDTH, PORT_HEIGHT, Drawing, lay_out
from pytensor_jaxpr_linker.report.model import ExplanationData, Node
from pytensor_jaxpr_linker.report.text import duration, line_place, summary

#: No batch was measured.
NO_CALLS: Mapping[int, float] = MappingProxyType({})
#: Space around the drawing.
BORDER = 12
#: Each name begins with "pjl": in a notebook these rules are those of the whole page.
STYLE = """
.pjl { font-family: system-ui, sans-serif; background: #fff; }
.pjl text { fill: #1b1f24; font-size: 12px; } .pjl .pjl-second { fill: #5a6472; font-size: 11px; }
.pjl .pjl-title { font-size: 14px; font-weight: 600; } .pjl .pjl-code { fill: #b3261e; font-size: 11px; font-weight: 600; }
.pjl rect { fill: #fff; stroke: #cfd5dd; } .pjl .pjl-port { fill: #eef1f4; stroke: #5a6472; }
.pjl .pjl-region { fill: #e8f0fb; stroke: #5b8bc9; stroke-width: 1.5; } .pjl .pjl-host { fill: #fdf0dc; stroke: #b97a1c; stroke-width: 1.5; }
.pjl .pjl-folded { fill: #f1f1f1; stroke: #8a8a8a; stroke-dasharray: 6 4; } .pjl .pjl-break { stroke: #b3261e; stroke-width: 2; }
.pjl .pjl-edge { fill: none; stroke: #6d7885; stroke-width: 1.2; } .pjl .pjl-head { fill: #6d7885; }
@media (prefers-color-scheme: dark) {
.pjl { background: #14171b; } .pjl text { fill: #e6e9ee; } .pjl .pjl-second { fill: #a3adba; } .pjl .pjl-code { fill: #ff8a80; }
.pjl rect { fill: #242a32; stroke: #39414c; } .pjl .pjl-port { fill: #1c2026; stroke: #a3adba; } .pjl .pjl-region { fill: #1a2838; }
.pjl .pjl-host { fill: #332714; } .pjl .pjl-folded { fill: #22252a; } .pjl .pjl-break { stroke: #ff8a80; }
.pjl .pjl-edge { stroke: #8d98a6; } .pjl .pjl-head { fill: #8d98a6; } }
"""


def as_svg(explanation: ExplanationData, calls: Mapping[int, float] = NO_CALLS) -> str:
    """Return the drawing, which needs nothing beside itself; `calls` are the µs that batches take in a call."""
    layout = lay_out(explanation, explanation.nodes)
    width, height = (int(n) + 2 * BORDER for n in layout.size)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="pjl" role="img" aria-label="{escape(summary(explanation))}"'
        f' width="{width}" height="{height}" viewBox="{-BORDER} {-BORDER} {width} {height}">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="pjl-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="pjl-head" d="M0,0L8,4L0,8z"/></marker></defs>',
        *box_parts(explanation, layout, calls),
        *edge_parts(explanation, layout),
        *(part for node in explanation.nodes for part in node_parts(node, layout)),
        *port_parts(layout),
        "</svg>",
    ]
    return "\n".join(parts)


def box_parts(explanation: ExplanationData, layout: Drawing, calls: Mapping[int, float]) -> Iterator[str]:
    """Yield the box of each batch, with its title."""
    for index, box in layout.boxes.items():
        kind = "folded" if index is None else explanation.batches[index].kind
        title, note = ("Known when", "regions are built") if index is None else batch_texts(explanation, index, calls)
        yield f'<rect class="pjl-{kind}" x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="8"/>'
        yield f'<text class="pjl-title" x="{box.x + 12}" y="{box.y + 20}">{escape(title)}</text>'
        yield f'<text class="pjl-second" x="{box.x + 12}" y="{box.y + 37}">{escape(note)}</text>'


def batch_texts(explanation: ExplanationData, index: int, calls: Mapping[int, float]) -> tuple[str, str]:
    """Return what a batch is; how many nodes it has, how long building its programs took, and a call."""
    batch = explanation.batches[index]
    count = counted(len(batch.nodes), "node")
    seconds = sum(sum(s.seconds.values()) for s in batch.specializations)
    built = [f"built in {duration(seconds)}"] if seconds else []
    call = [f"{duration(calls[index] / 1e6)} a call"] if index in calls else []
    return batch.title, ", ".join([count, *built, *call])


def edge_parts(explanation: ExplanationData, layout: Drawing) -> Iterator[str]:
    """Yield an arrow for each value that a node reads, and for each output."""
    for node in explanation.nodes:
        for u in dict.fromkeys(node.operands):
            if isinstance(u, int) and u in layout.nodes and node.index in layout.nodes:
                yield arrow(lower_end(layout.nodes[u], NODE_HEIGHT), upper_end(layout.nodes[node.index]))
    for port in layout.ports:
        for i in port.nodes:
            if i in layout.nodes and port.kind == "input":
                yield arrow(lower_end((port.x, port.y), PORT_HEIGHT), upper_end(layout.nodes[i]))
            elif i in layout.nodes:
                yield arrow(lower_end(layout.nodes[i], NODE_HEIGHT), upper_end((port.x, port.y)))


def upper_end(place: tuple[float, float]) -> tuple[float, float]:
    """Return where arrows end at what is drawn at a place."""
    return place[0] + NODE_WIDTH / 2, place[1]


def lower_end(place: tuple[float, float], height: float) -> tuple[float, float]:
    """Return where arrows begin at what is drawn at a place."""
    return place[0] + NODE_WIDTH / 2, place[1] + height


def arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Return a curve with an arrowhead."""
    (x0, y0), (x1, y1) = start, end
    bend = max(12.0, abs(y1 - y0) / 2)
    return f'<path class="pjl-edge" marker-end="url(#pjl-arrow)" d="M{x0},{y0}C{x0},{y0 + bend} {x1},{y1 - bend} {x1},{y1}"/>'


def node_parts(node: Node, layout: Drawing) -> Iterator[str]:
    """Yield a node: its Op, what it stands for, its type and line."""
    if node.index not in layout.nodes:
        return
    x, y = layout.nodes[node.index]
    kind = ' class="pjl-break"' if node.break_code else ""
    yield f'<rect{kind} x="{x}" y="{y}" width="{NODE_WIDTH}" height="{NODE_HEIGHT}" rx="5"/>'
    yield f'<text x="{x + 8}" y="{y + 16}">{escape(cut_to(node.op, 27))}</text>'
    if node.break_code:
        yield f'<text class="pjl-code" x="{x + NODE_WIDTH - 40}" y="{y + 48}">{node.break_code}</text>'
    yield f'<text class="pjl-second" x="{x + 8}" y="{y + 32}">{escape(cut_to(stands_for(node), 29))}</text>'
    place = line_place(node.line)
    last = "  ".join(filter(None, [short_type(node.type), place]))
    yield f'<text class="pjl-second" x="{x + 8}" y="{y + 48}">{escape(cut_to(last, 22 if node.break_code else 29))}</text>'


def port_parts(layout: Drawing) -> Iterator[str]:
    """Yield inputs and outputs."""
    for port in layout.ports:
        yield f'<rect class="pjl-port" x="{port.x}" y="{port.y}" width="{NODE_WIDTH}" height="{PORT_HEIGHT}" rx="18"/>'
        yield f'<text x="{port.x + 16}" y="{port.y + 16}">{escape(cut_to(port.name, 24))}</text>'
        text = cut_to(f"{port.kind}, {short_type(port.type)}", 26)
        yield f'<text class="pjl-second" x="{port.x + 16}" y="{port.y + 31}">{escape(text)}</text>'


def stands_for(node: Node) -> str:
    """Return the user's name of what a node computes, or what it is for, or its expression."""
    return node.name or node.role or node.expression


def short_type(text: str) -> str:
    """Return types as dtype and shape."""
    return re.sub(r"\w+\((\w+), shape=\((.*?),?\)\)", r"\1[\2]", text)


def cut_to(text: str, most: int) -> str:
    """Return the beginning of a text that is too long."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
