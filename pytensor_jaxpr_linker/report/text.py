"""An explanation as text, and as a tree of the library rich."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from pytensor_jaxpr_linker.base.words import OFFLINE, counted
from pytensor_jaxpr_linker.report import model
from pytensor_jaxpr_linker.report.model import ExplanationData, Node


def as_text(explanation: ExplanationData, most: int) -> str:
    """Return the report as lines, with at most `most` entries of each list."""
    lines = [summary(explanation)]
    for title, entries in sections(explanation, most):
        lines += ["", title, *(f"  {entry}" for entry in entries)]
    return "\n".join(lines)


def as_tree(explanation: ExplanationData, most: int = 12) -> Any:
    """Return the report as a `rich.tree.Tree`."""
    try:
        from rich.text import Text
        from rich.tree import Tree
    except ImportError as error:
        raise ImportError(
            "The tree form of an explanation needs the library rich: pip install 'pytensor_jaxpr_linker[report]'. Its"
            " text form, str(explanation), needs nothing."
        ) from error
    tree = Tree(Text(summary(explanation), style="bold"))
    for title, entries in sections(explanation, most):
        branch = tree.add(Text(title, style="bold"))
        for entry in entries:
            branch.add(Text(entry))
    return tree


def summary(explanation: ExplanationData) -> str:
    """Return the first line: the numbers of batches, nodes and breaks."""
    nodes, breaks = len(explanation.nodes), len(explanation.breaks)
    if not explanation.batches:
        return f"Nothing to run: {counted(nodes, 'node')}."
    if len(explanation.batches) == 1 and explanation.regions:
        return f"One XLA program, {counted(nodes, 'node')}, {counted(breaks, 'break')}."
    return (
        f"{counted(len(explanation.regions), 'region')} and {counted(len(explanation.host_steps), 'host step')},"
        f" {counted(nodes, 'node')}, {counted(breaks, 'break')}."
    )


def sections(explanation: ExplanationData, most: int) -> list[tuple[str, list[str]]]:
    """Return the titles of the report's parts and the entries of each."""
    found = [("The log density alone", [explanation.no_gradient])] if explanation.no_gradient else []
    found += [
        (f"{batch.title}: {counted(len(batch.nodes), 'node')}", batch_entries(explanation, batch, most))
        for batch in explanation.batches[:most]
    ]
    if len(explanation.batches) > most:
        found.append(("Further batches", rest(len(explanation.batches), most)))
    folded = [node for node in explanation.nodes if node.batch is None]
    if folded:
        found.append((f"Known when regions are built: {counted(len(folded), 'node')}", list_nodes(folded, most)))
    for title, nodes in (
        ("Traced leaves, Ops without a rule whose JAX function is traced", explanation.traced_leaves),
        ("Batched by JAX's rules, from the equations of one element", explanation.batched_nodes),
    ):
        if nodes:
            found.append((f"{title}: {len(nodes)}", list_nodes(nodes, most)))
    if explanation.breaks:
        entries = [line for b in explanation.breaks[:most] for line in break_lines(explanation, b)]
        found.append(("Breaks", [*entries, *rest(len(explanation.breaks), most)]))
    if (change := explanation.best_change) is not None:
        left = "one program is left" if change.batches == 1 else f"{counted(change.batches, 'batch')} would be left"
        found.append(("The change that would merge most", [f"{change.what}: {left}"]))
    elif explanation.breaks:
        tried = any(b.batches_without is not None for b in explanation.breaks)
        note = "none alone would leave fewer batches" if tried else "not looked for: the graph is large"
        found.append(("The change that would merge most", [note]))
    if explanation.placed:
        found.append(("On the devices of a mesh", placed_lines(explanation, most)))
    if explanation.transfers:
        there, back = (bytes_moved(explanation, place) for place in ("device", "host"))
        title = f"Between host and device in each call: {there} there, {back} back"
        found.append((title, transfer_lines(explanation.transfers, most)))
    if (p := explanation.platform) is not None:
        batches = "one program" if p.batches == 1 else counted(p.batches, "batch")
        known, regions = p.lowered
        of_some = "" if known == regions else f" of {known} of {counted(regions, 'region')}"
        lowered = [f"each operation{of_some} has a lowering"] if known and not p.missing else []
        found.append((f"On the platform {p.platform}: {batches}", [*p.missing, *lowered, *p.notes]))
    for subject, passes in groupby(explanation.passes, attrgetter("subject")):
        title = "Graph passes" if subject == "graph" else f"Jaxpr passes of {subject}"
        found.append((title, pass_lines(list(passes), most)))
    if spent := compile_seconds(explanation):
        programs = sum(len(batch.specializations) for batch in explanation.batches)
        of = f", {counted(programs, 'program')}" if programs else ""
        found.append((f"Compiling so far: {duration(sum(spent.values()))}{of}", [list_seconds(spent)]))
    return found


def compile_seconds(explanation: ExplanationData) -> dict[str, float]:
    """Return the seconds of each stage before calls could run, summed over the programs."""
    found = dict(explanation.seconds)
    for program in (s for batch in explanation.batches for s in batch.specializations):
        for stage, seconds in program.seconds.items():
            found[stage] = found.get(stage, 0.0) + seconds
    return found


def placed_lines(explanation: ExplanationData, most: int) -> list[str]:
    """Return the lines about the places of arrays, and about the collectives."""
    placed, collectives = explanation.placed, explanation.collectives
    lines = [f"{x.name}: {x.layout}, {x.bytes} bytes, {x.bytes_per_device} on a device" for x in placed[:most]]
    lines += rest(len(placed), most)
    for c in collectives[:most]:
        lines.append(f"{c.operation} in {c.region.lower()}: {counted(c.arrays, 'array')}, {c.bytes} bytes")
    return lines + (rest(len(collectives), most) if collectives else ["no collective is known"])


def bytes_moved(explanation: ExplanationData, to: str) -> str:
    """Return the bytes that each call moves to the device, or to the host, as text."""
    sizes = [t.bytes for t in explanation.transfers if t.direction == f"to the {to}"]
    unknown = sizes.count(None)
    text = f"{sum(size or 0 for size in sizes)} bytes"
    return f"{text} and {counted(unknown, 'array')} of unknown shape" if unknown else text


def transfer_lines(transfers: Sequence[model.TransferReport], most: int) -> list[str]:
    """Return a line for each direction and reason, with the names of the first values."""
    groups: dict[tuple[str, str], list[model.TransferReport]] = {}
    for t in transfers:
        groups.setdefault((t.direction, t.why), []).append(t)
    lines = []
    for direction, why in sorted(groups, key=lambda group: (group[0].startswith("stays"), group)):
        found = groups[direction, why]
        sizes = ["of unknown shape" if t.bytes is None else f"{t.bytes} bytes" for t in found[:most]]
        named = [f"{t.name} {size}".strip() for t, size in zip(found, sizes, strict=False)]
        lines.append(f"{direction:<21}{why}: {', '.join([*named, *rest(len(found), most)])}")
    return lines


def batch_entries(explanation: ExplanationData, batch: model.Batch, most: int) -> list[str]:
    """Return the entries of a batch."""
    lists = {
        "takes": [f"{v.name}: {v.type}" for v in batch.inputs],
        "returns": [f"{v.name}: {v.type}" for v in batch.outputs],
        "guards": [f"{guard.kind} of {guard.variable}" for guard in batch.guards],
        "values": [],
        "checks": batch.checks,
    }
    shown = {name: "; ".join([*x[:most], *rest(len(x), most)]) for name, x in lists.items()}
    shown["values"] = f"determined by {', '.join(batch.static_inputs)}" if batch.static_inputs else ""
    entries = [f"{name:<9}{x or 'nothing'}" for name, x in shown.items() if x or name in ("takes", "returns")]
    entries += [specialization_line(s) for s in batch.specializations[:most]]
    entries += rest(len(batch.specializations), most)
    return [*entries, *list_nodes([explanation.nodes[i] for i in batch.nodes[: most + 1]], most, len(batch.nodes))]


def specialization_line(s: model.SpecializationReport) -> str:
    """Return the line of a program."""
    static = "".join(f", {name} = {value}" for name, value in s.static.items())
    return (
        f"program  for ({', '.join(s.shapes)}){static}: {counted(s.equations, 'equation')}, {list_seconds(s.seconds)}"
        + (f" (padded: {s.padded})" if s.padded else "")
    )


def list_nodes(nodes: Sequence[Node], most: int, count: int | None = None) -> list[str]:
    """Return a line for each of the first nodes; `count` is the number of all."""
    return [node_line(node) for node in nodes[:most]] + rest(len(nodes) if count is None else count, most)


def node_line(node: Node) -> str:
    """Return the line of a node, with the last part of its file's path."""
    code = f" [{node.break_code}]" if node.break_code else ""
    place = line_place(node.line)
    role = f"  ({node.role})" if node.role and not node.name else ""
    return node_head(node) + code + role + (f"  {place}" if place else "")


def line_place(line: str) -> str:
    """Return file and number of a line, without the folder; the file of a notebook's cell is "cell"."""
    place = re.match(r"(?:.*[/\\])?(.*?:\d+): ", line)
    if place is None:
        return ""
    return re.sub(r"^.*:", "cell:", place[1]) if "ipykernel_" in line.partition(": ")[0] else place[1]


def node_head(node: Node) -> str:
    """Return number, Op and name of a node."""
    return f"#{node.index} {node.op}" + (f" = '{node.name}'" if node.name else "")


def pass_lines(passes: Sequence[model.PassReport], most: int) -> list[str]:
    """Return the lines of passes, each with the beginning of the graph or Jaxpr after it if it changed something."""
    width = 2 + max(len(p.name) for p in passes)
    found = []
    for p in passes:
        after = counted(p.after, "node" if p.subject == "graph" else "equation")
        what = f"{p.before} -> {after}" if p.changed else "unchanged"
        found.append(f"{p.name:<{width}}{what}, {duration(p.seconds)}")
        lines = p.text.splitlines() if p.changed else []
        found += [f"    {line}".rstrip() for line in [*lines[:most], *rest(len(lines), most)]]
    return found


def break_lines(explanation: ExplanationData, b: model.BreakReport) -> list[str]:
    """Return the lines of a break."""
    lines = [f"[{b.code}] {node_head(explanation.nodes[b.node])}", f"  why   {b.reason}"]
    if b.line:
        lines.append(f"  line  {b.line}")
    if b.variable:
        lines.append(f"  needs the value of {b.variable}")
    lines += [f"  to do {b.hint}", f"  more  {b.documentation}, or {OFFLINE} {b.code}"]
    if b.after:
        lines.append(f"        {b.before}  ->  {b.after}")
    if b.batches_without is not None:
        lines.append(f"  without it, {counted(b.batches_without, 'batch')} would be left")
    return lines


def rest(count: int, most: int) -> list[str]:
    """Return the line with the number of entries that are not listed, if there are any."""
    return [f"... and {count - most} more"] if count > most else []


def list_seconds(seconds: dict[str, float]) -> str:
    """Return durations as text."""
    return ", ".join(f"{stage} {duration(s)}" for stage, s in seconds.items()) or "not timed"


def duration(seconds: float) -> str:
    """Return a duration in the unit that suits it."""
    if seconds >= 59.95:
        return f"{seconds / 60:.1f} min"
    if seconds >= 0.9995:
        return f"{seconds:.3g} s"
    return f"{1000 * seconds:.3g} ms" if seconds >= 0.9995e-3 or not seconds else f"{1e6 * seconds:.3g} µs"
