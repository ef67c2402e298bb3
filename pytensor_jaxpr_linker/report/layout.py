"""Places the nodes of an explanation for the drawing: batches are boxes, and the nodes in a box are ordered by rank."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from pytensor_jaxpr_linker.report.model import ExplanationData, Node

#: Sizes in pixels: of a node, the gaps between nodes, and the space of a box around its nodes and for its title.
NODE_WIDTH, NODE_HEIGHT, GAP_X, GAP_Y, MARGIN, TITLE = 190, 54, 18, 30, 16, 48
#: The height of an input or output of the function, and at most how many of each are drawn.
PORT_HEIGHT, MOST_PORTS = 38, 60
#: How many nodes stand beside each other before a rank goes on in the next row.
MOST_BESIDE = 5
#: How wide a drawing is for its height.
ASPECT = 1.6


class Box(NamedTuple):
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float


class Port(NamedTuple):
    """An input or output of the function."""

    kind: Literal["input", "output"]
    name: str
    type: str
    nodes: tuple[int, ...]
    """The nodes that read an input, or the one that computes an output."""
    x: float
    y: float


class Drawing(NamedTuple):
    """The box of each batch, None for nodes that are not emitted, the upper left corner of each drawn node, and inputs and outputs."""

    boxes: dict[int | None, Box]
    nodes: dict[int, tuple[float, float]]
    ports: list[Port]

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        right = [box.x + box.width for box in self.boxes.values()] + [port.x + NODE_WIDTH for port in self.ports]
        below = [box.y + box.height for box in self.boxes.values()] + [port.y + PORT_HEIGHT for port in self.ports]
        return max(right, default=0.0), max(below, default=0.0)


def lay_out(explanation: ExplanationData, shown: Sequence[Node]) -> Drawing:
    """Place the `shown` nodes, and a box for each batch. Boxes follow each other as words in lines of text."""
    members: dict[int | None, list[Node]] = {batch.index: [] for batch in explanation.batches}
    for node in shown:
        members.setdefault(node.batch, []).append(node)
    inside = {batch: place_rows(rows(nodes)) for batch, nodes in members.items()}
    sizes = {batch: box_size(places) for batch, places in inside.items()}
    area = sum((w + MARGIN) * (h + MARGIN) for w, h in sizes.values())
    limit = max([math.sqrt(area * ASPECT), *(w for w, _ in sizes.values())], default=0)
    readers = read_by(shown)
    inputs = [("input", v.name, v.type, tuple(readers.get(v.name, ()))) for v in explanation.inputs[:MOST_PORTS]]
    outputs = [
        ("output", v.name, v.type, () if v.node is None else (v.node,)) for v in explanation.outputs[:MOST_PORTS]
    ]
    layout = Drawing({}, {}, list(place_ports(inputs, limit, 0.0)))
    x, y, line_height = 0.0, bottom(layout.ports), 0.0
    for batch, (width, height) in sizes.items():
        if x and x + width > limit:
            x, y, line_height = 0.0, y + line_height + 2 * MARGIN, 0.0
        layout.boxes[batch] = Box(x, y, width, height)
        for index, (dx, dy) in inside[batch].items():
            layout.nodes[index] = (x + MARGIN + dx, y + TITLE + dy)
        x, line_height = x + width + 2 * MARGIN, max(line_height, height)
    layout.ports.extend(place_ports(outputs, limit, y + line_height + 2 * MARGIN))
    return layout


def read_by(nodes: Sequence[Node]) -> dict[str, list[int]]:
    """Return the nodes that read each input, by the input's name."""
    found: dict[str, list[int]] = {}
    for node in nodes:
        for u in dict.fromkeys(node.operands):
            if isinstance(u, str):
                found.setdefault(u, []).append(node.index)
    return found


def place_ports(ports: Sequence[tuple[Any, str, str, tuple[int, ...]]], limit: float, top: float) -> Iterator[Port]:
    """Place inputs or outputs in rows, as wide as the boxes."""
    beside = max(1, int((limit + GAP_X) // (NODE_WIDTH + GAP_X)))
    for i, port in enumerate(ports):
        yield Port(*port, (i % beside) * (NODE_WIDTH + GAP_X), top + (i // beside) * (PORT_HEIGHT + GAP_X))


def bottom(ports: Sequence[Port]) -> float:
    """Return where the boxes below inputs begin."""
    return ports[-1].y + PORT_HEIGHT + 2 * MARGIN if ports else 0.0


def rows(nodes: Sequence[Node]) -> list[list[int]]:
    """Return the nodes of a box in rows: each node is below its operands, near their middle."""
    ranks: dict[int, list[Node]] = {}
    rank = rank_nodes(nodes)
    for node in nodes:
        ranks.setdefault(rank[node.index], []).append(node)
    column: dict[int, float] = {}
    found = []
    for _, group in sorted(ranks.items()):
        middles = {}
        for node in group:
            above = [column[u] for u in node.operands if isinstance(u, int) and u in column]
            middles[node.index] = sum(above) / len(above) if above else math.inf
        ordered = sorted(middles, key=middles.__getitem__)
        for start in range(0, len(ordered), MOST_BESIDE):
            row = ordered[start : start + MOST_BESIDE]
            column.update({index: i - len(row) / 2 for i, index in enumerate(row)})
            found.append(row)
    return found


def rank_nodes(nodes: Sequence[Node]) -> dict[int, int]:
    """Return the rank of each node: one more than its operands'; a node without operands is just above its first reader."""
    rank: dict[int, int] = {}
    first_reader: dict[int, int] = {}
    for node in nodes:
        above = [u for u in node.operands if isinstance(u, int) and u in rank]
        r = rank[node.index] = 1 + max((rank[u] for u in above), default=-1)
        for u in above:
            first_reader[u] = min(first_reader.get(u, r), r)
    for node in nodes:
        if rank[node.index] == 0 and node.index in first_reader:
            rank[node.index] = first_reader[node.index] - 1
    return rank


def place_rows(found: Sequence[Sequence[int]]) -> dict[int, tuple[float, float]]:
    """Return the place of each node. The rows fill one column after the other; each is in the middle of its column."""
    if not found:
        return {}
    beside = max(map(len, found))
    width, height = beside * (NODE_WIDTH + GAP_X), NODE_HEIGHT + GAP_Y
    most = max(6, math.ceil(math.sqrt(len(found) * width / height / ASPECT)))
    places: dict[int, tuple[float, float]] = {}
    for i, row in enumerate(found):
        left = (i // most) * (width + GAP_X) + (width - len(row) * (NODE_WIDTH + GAP_X)) / 2
        for j, index in enumerate(row):
            places[index] = (left + j * (NODE_WIDTH + GAP_X), (i % most) * height)
    return places


def box_size(places: dict[int, tuple[float, float]]) -> tuple[float, float]:
    """Return width and height of the box around nodes."""
    width = max((x for x, _ in places.values()), default=0) + NODE_WIDTH + 2 * MARGIN
    height = max((y for _, y in places.values()), default=-NODE_HEIGHT) + NODE_HEIGHT + TITLE + MARGIN
    return width, height
