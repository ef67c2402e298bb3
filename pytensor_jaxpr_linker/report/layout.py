"""Places the nodes of an explanation for the drawing: batches are boxes, and the nodes in a box are ordered by rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pytensor_jaxpr_linker.report.model import ExplanationData, Node

#: Sizes in pixels: of a node, the gaps between nodes, and the space of a box around its nodes and for its title.
NODE_WIDTH, NODE_HEIGHT, GAP_X, GAP_Y, MARGIN, TITLE = 170, 40, 18, 26, 16, 34
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


class Drawing(NamedTuple):
    """The box of each batch, None for nodes that are not emitted, and the upper left corner of each drawn node."""

    boxes: dict[int | None, Box]
    nodes: dict[int, tuple[float, float]]


def lay_out(explanation: ExplanationData, shown: Sequence[Node]) -> Drawing:
    """Place the `shown` nodes, and a box for each batch. Boxes follow each other as words in lines of text."""
    members: dict[int | None, list[Node]] = {batch.index: [] for batch in explanation.batches}
    for node in shown:
        members.setdefault(node.batch, []).append(node)
    inside = {batch: place_rows(rows(nodes)) for batch, nodes in members.items()}
    sizes = {batch: box_size(places) for batch, places in inside.items()}
    area = sum((w + MARGIN) * (h + MARGIN) for w, h in sizes.values())
    limit = max([math.sqrt(area * ASPECT), *(w for w, _ in sizes.values())], default=0)
    layout = Drawing({}, {})
    x = y = line_height = 0.0
    for batch, (width, height) in sizes.items():
        if x and x + width > limit:
            x, y, line_height = 0.0, y + line_height + 2 * MARGIN, 0.0
        layout.boxes[batch] = Box(x, y, width, height)
        for index, (dx, dy) in inside[batch].items():
            layout.nodes[index] = (x + MARGIN + dx, y + TITLE + dy)
        x, line_height = x + width + 2 * MARGIN, max(line_height, height)
    return layout


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
