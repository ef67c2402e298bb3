"""An explanation as one self-contained HTML page with a drawing of the graph."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from pytensor_jaxpr_linker.base.errors import CannotEmit
from pytensor_jaxpr_linker.report.layout import NODE_HEIGHT, NODE_WIDTH, PORT_HEIGHT, lay_out
from pytensor_jaxpr_linker.report.model import ExplanationData
from pytensor_jaxpr_linker.report.stages import RegionStages
from pytensor_jaxpr_linker.report.text import compile_seconds, summary

#: Graphs of more nodes are drawn by their batches and broken nodes only: a browser would be slow, a reader lost.
MOST_DRAWN = 5000

#: Where an HLO instruction comes from: most of the text of a large program.
METADATA = re.compile(r', metadata=\{(?:[^{}"]|"[^"]*")*\}')


def as_page(explanation: ExplanationData, compile: bool, calls: Mapping[int, float]) -> str:
    """Return the page; `compile` says whether regions are compiled for their optimized HLO, `calls` how many µs batches take in a call."""
    whole = len(explanation.nodes) <= MOST_DRAWN
    shown = [n for n in explanation.nodes if whole or n.break_code][:MOST_DRAWN]
    layout = lay_out(explanation, shown)
    data = explanation.as_dict()
    if not whole:
        kept = {node.index for node in shown}
        data["nodes"] = [node for node in data["nodes"] if node["index"] in kept]
        for batch in data["batches"]:
            batch["count"], batch["nodes"] = len(batch["nodes"]), []
    data |= {
        "summary": summary(explanation),
        "notes": [
            *filter(None, [explanation.no_gradient]),
            *([] if whole else [f"Of {len(explanation.nodes)} nodes those with breaks are drawn."]),
        ],
        "size": [NODE_WIDTH, NODE_HEIGHT],
        "boxes": [[batch, *box] for batch, box in layout.boxes.items()],
        "ports": [port._asdict() for port in layout.ports],
        "portHeight": PORT_HEIGHT,
        "calls": {str(i): microseconds / 1e6 for i, microseconds in calls.items()},
        "places": {str(i): place for i, place in layout.nodes.items()},
        "stages": region_texts(explanation, whole, compile),
    }
    measured = {int(i): found["timings"] for i, found in data["stages"].items() if "timings" in found}
    data["spent"] = compile_seconds(explanation, measured)
    # Inside a script element only "<" can end it.
    text = json.dumps(data, separators=(",", ":"), default=str).replace("<", "\\u003c")
    return files(__package__).joinpath("page.html").read_text(encoding="utf-8").replace("/*DATA*/null", text)


def region_texts(explanation: ExplanationData, whole: bool, compile: bool) -> dict[str, Any]:
    """Return the texts and numbers of the stages of each region, by the number of its batch."""
    if explanation.stages is None:
        return {}
    found = {}
    for batch, region in zip(explanation.regions, explanation.stages.known_regions(), strict=True):
        if region is not None:
            try:
                found[str(batch.index)] = texts(region, explanation.stages.index if whole else None, compile)
            except CannotEmit:  # found out for these shapes: the region will be cut when the function is called
                continue
    return found


def texts(region: RegionStages, index: dict | None, compile: bool) -> dict[str, Any]:
    """Return the texts and numbers of the stages of a region, and of its nodes if they are numbered."""
    found: dict[str, Any] = {"jaxpr": str(region.jaxpr), "stablehlo": region.stablehlo}
    if compile:
        found |= {
            "hlo": METADATA.sub("", region.hlo),
            "cost": region.cost,
            "memory": region.memory,
            "timings": region.timings,
        }
    if index is not None:
        code = region.by_node(index)
        found["nodes"] = {str(i): ["\n".join(c.jaxpr), "\n".join(c.stablehlo)] for i, c in code.items()}
    return found
