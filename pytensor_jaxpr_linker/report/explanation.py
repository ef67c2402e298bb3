"""`Explanation`: the data of `explain`, as text, as a graph in Mermaid's language, and as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from pytensor_jaxpr_linker.base.errors import CannotEmit
from pytensor_jaxpr_linker.base.words import counted
from pytensor_jaxpr_linker.report import text as texts
from pytensor_jaxpr_linker.report.model import Batch, ExplanationData, Node, PassedValue, Result
from pytensor_jaxpr_linker.report.profile import Profile, shortened
from pytensor_jaxpr_linker.report.stages import NodeCode, RegionStages

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


def as_mermaid(explanation: ExplanationData, calls: Mapping[int, float] | None = None) -> str:
    """Return the graph; `calls` are the measured µs of batches in a call."""
    places = drawn_places(explanation)
    arrows = dict.fromkeys(arrows_of(explanation, places))
    return "\n".join(
        ["flowchart TB", STYLE, *box_lines(explanation, places, calls or {}), *port_lines(explanation), *arrows]
    )


def drawn_places(explanation: ExplanationData) -> list[str]:
    """Return the drawn place of each node: its own, or the place of all undrawn nodes of its batch."""
    whole = len(explanation.nodes) <= MOST_DRAWN
    return [f"n{n.index}" if whole or n.break_code else f"{box_of(n.batch)}_others" for n in explanation.nodes]


def box_of(batch: int | None) -> str:
    """Return the name of the box of a batch, or of the nodes that are not emitted."""
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
    """Return the title of a batch with its number of nodes, the time to build its programs, and the time of a call."""
    seconds = sum(sum(s.seconds.values()) for s in batch.specializations)
    built = [f"built in {texts.duration(seconds)}"] if seconds else []
    call = [f"{texts.duration(calls[batch.index] / 1e6)} a call"] if batch.index in calls else []
    return f"{batch.title}: {', '.join([counted(len(batch.nodes), 'node'), *built, *call])}"


def node_label(node: Node) -> str:
    """Return the label of a node: its number and Op, its name or expression, its type and line."""
    stands_for = " ".join(filter(None, [node.break_code, node.name or node.role or node.expression]))
    place = "  ".join(filter(None, [short_type(node.type), texts.line_place(node.line)]))
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
    """Return a text in quotation marks, with the signs escaped that Mermaid reads as its own or as HTML."""
    escaped = re.sub(r"[\"#<>&`]", lambda found: f"#{ord(found[0])};", text)
    return f'"{escaped}"'


#: How many entries of each list a notebook shows.
MOST_IN_NOTEBOOK = 40
#: Of graphs with more nodes a page has only the nodes with breaks: a browser would be slow.
MOST_ON_PAGE = 5000
#: A page loads this, and nothing else.
MERMAID = "https://cdn.jsdelivr.net/npm/mermaid@11.17.2/dist/mermaid.esm.min.mjs"
#: Draws a graph when its part is unfolded. Without a network Mermaid's text stays.
DRAW = (
    f"import('{MERMAID}').then(({{default: mermaid}}) => {{"
    " mermaid.initialize({startOnLoad: false, maxTextSize: 1e7, maxEdges: 1e5, themeVariables: {fontSize: '12px'},"
    " theme: matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'neutral', flowchart: {useMaxWidth: false,"
    " nodeSpacing: 15, rankSpacing: 25, padding: 6, wrappingWidth: 400, subGraphTitleMargin: {bottom: 10}}});"
    " mermaid.run({nodes: this.querySelectorAll('pre:not([data-processed])')}); })"
)
GRAPH = "<pre style='overflow:auto;max-height:80vh' tabindex='0' role='region' aria-label='The graph'>"
#: A text, whose lines break where they are wider than the page.
TEXT = "<pre style='white-space:pre-wrap;overflow-wrap:anywhere'>"
ADDRESS = re.compile(r"https://[^\s,&]+")
#: The number of a node where the line of a node, or of its break, begins; and a link to the node.
NODE, LINK = re.compile(r"^( *(?:\[JX\d+\] )?)#(\d+)", re.MULTILINE), r'\1<a href="#n\2">#\2</a>'
ABOUT_STAGES = (
    "The forms of each region on its way to the processor. If its shapes are unknown, call the function first, or give"
    " example arguments: <code>explain(f, args=...)</code>."
)
ABOUT_NODES = (
    "Each with its operands, and with its equations in the Jaxpr and in StableHLO. A node has none if an equal one is"
    " shared, if its value is known when regions are built, if it runs on the host, or if the shapes are not known."
)
#: Where an HLO instruction comes from: most of the text of a large program.
METADATA = re.compile(r', metadata=\{(?:[^{}"]|"[^"]*")*\}')
#: The names of XLA's costs of single operands.
OF_OPERANDS = re.compile(r"\d\{|^bytes accessedout")


def as_notebook(explanation: ExplanationData) -> str:
    """Return the report for a notebook, in the notebook's own colours."""
    report = report_parts(explanation, MOST_IN_NOTEBOOK, as_mermaid(explanation), unfolded=False)
    return "".join([f"<p><strong>{escape(texts.summary(explanation))}</strong></p>", *report])


def as_page(explanation: ExplanationData, compile: bool, calls: Mapping[int, float]) -> str:
    """Return the page; with `compile`, regions are compiled for their optimized HLO.

    `calls` are the measured µs of batches in a call.
    """
    shown = explanation.nodes
    if is_large := len(shown) > MOST_ON_PAGE:
        shown = tuple(node for node in shown if node.break_code)
    regions = known_regions(explanation)
    codes: dict[int, NodeCode] = {}
    for _, region in [] if is_large else reversed(regions):  # a node in several regions belongs to the first
        codes |= region.by_node(explanation.stages.index)
    links = [f'  click n{node.index} href "#n{node.index}"' for node in shown]
    report = report_parts(explanation, MOST_ON_PAGE, "\n".join([as_mermaid(explanation, calls), *links]), unfolded=True)
    parts = [
        f"<h1>{escape(texts.summary(explanation))}</h1>",
        *[NODE.sub(LINK, part) for part in report],
        f"<h2>Stages</h2><p>{ABOUT_STAGES}</p>",
        *[region_part(batch_title(batch, calls), region, compile) for batch, region in regions],
        f"<h2>Nodes{' with breaks: the graph is large' if is_large else ''}</h2><p>{ABOUT_NODES}</p>",
        *[node_part(explanation, node, codes.get(node.index)) for node in shown],
    ]
    return page("Explanation of a PyTensor graph in mode JAXPR", parts)


def page(title: str, parts: Iterable[str]) -> str:
    """Return a page of HTML with a title, which is a plain text, and parts."""
    template = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    return template.replace("<!--TITLE-->", title).replace("<!--REPORT-->", "\n".join(parts))


def report_parts(explanation: ExplanationData, most: int, graph: str, unfolded: bool) -> Iterator[str]:
    """Yield the graph, and the sections of the text, breaks first."""
    drawn = f"<summary>The graph</summary>{GRAPH}{escape(graph)}</pre>"
    yield f'<details{" open" * unfolded} ontoggle="{DRAW}">{drawn}</details>'
    for title, entries in sorted(texts.sections(explanation, most), key=lambda section: section[0] != "Breaks"):
        yield folded(title, text_part("\n".join(entries)), unfolded or title == "Breaks")


def folded(title: str, part: str, unfolded: bool = False) -> str:
    """Return a part that its title folds and unfolds."""
    return f"<details{' open' * unfolded}><summary>{escape(title)}</summary>{part}</details>"


def text_part(text: str) -> str:
    """Return a text, with links where it has addresses."""
    return f"{TEXT}\n{ADDRESS.sub(r'<a href="\g<0>">\g<0></a>', escape(text))}</pre>"


def known_regions(explanation: ExplanationData) -> list[tuple[Batch, RegionStages]]:
    """Return the regions whose shapes are known, with their stages."""
    known = [] if explanation.stages is None else explanation.stages.known_regions()
    found = []
    for batch, region in zip(explanation.regions, known, strict=False):
        # A rule may find that it can't emit a node for these shapes: the first call will cut the region there.
        with suppress(CannotEmit):
            if region is not None and region.jaxpr is not None:
                found.append((batch, region))
    return found


def region_part(title: str, region: RegionStages, compile: bool) -> str:
    """Return the texts of the stages of a region, and XLA's figures if it is compiled for them."""
    forms, figures = {"Jaxpr": str(region.jaxpr), "StableHLO": region.stablehlo}, ""
    if compile:
        forms["Optimized HLO"] = METADATA.sub("", region.hlo)
        costs = {name: x for name, x in region.cost.items() if x and not OF_OPERANDS.search(name)}
        memory = {f"bytes of {name.replace('_', ' ')}": size for name, size in region.memory.items() if size}
        lines = [f"{name}: {x:,.0f}" for name, x in (costs | memory).items()]
        figures = text_part("\n".join([f"Time: {texts.list_seconds(region.timings)}", *lines]))
    return folded(title, figures + "".join(folded(name, text_part(text)) for name, text in forms.items()))


def node_part(explanation: ExplanationData, node: Node, code: NodeCode | None) -> str:
    """Return the description of a node, with its equations."""
    place = "Known when regions are built" if node.batch is None else explanation.batches[node.batch].title
    operands = [texts.node_head(explanation.nodes[u]) if isinstance(u, int) else u for u in node.operands]
    lines = [node.role, node.expression, node.type, node.line, place, *(f"  {operand}" for operand in operands)]
    forms = [] if code is None else ["", *code.jaxpr, "", *code.stablehlo]
    part = text_part("\n".join([*filter(None, lines), *forms]))
    return f'<h3 id="n{node.index}">{escape(texts.node_line(node))}</h3>{NODE.sub(LINK, part)}'


class Explanation(ExplanationData):
    """How mode JAXPR runs a graph, and why, with the attributes of `ExplanationData`.

    Prints as text; a notebook shows it as HTML.
    """

    @property
    def summary(self) -> str:
        """The first line: the numbers of programs, nodes and breaks."""
        return texts.summary(self)

    def text(self, most: int = 12) -> str:
        """Return the report as text.

        Parameters
        ----------
        most
            The number of entries that are shown of each list: batches, nodes of each, breaks, programs.
        """
        return texts.as_text(self, most)

    def save(self, path: str | Path, compile: bool = True, profile: Profile | None = None) -> Path:
        """Write the report as one HTML page with the graph; return its path.

        Mermaid draws the graph: the browser loads it from the network. Everything else is on the page, also the graph
        in Mermaid's language. A file whose name ends in ``.mmd`` has only this text, which GitHub draws, too.

        Each node has its Jaxpr equations and StableHLO if the function has been called, was given example arguments, or
        declares every shape.

        Parameters
        ----------
        path
            Where to write it, with the suffix ``.html`` or ``.mmd``.
        compile
            Whether the optimized HLO and XLA's analyses are on the page: each region is compiled for them.
        profile
            The result of ``stages(f, *args).profile()``: the graph then has the time of each region and host step.
        """
        path, calls = Path(path), {} if profile is None else profile.batch_microseconds
        if path.suffix.lower() not in (".html", ".htm", ".mmd"):
            raise ValueError(
                "An explanation is saved as an HTML page or as the Mermaid text of its graph, so its name must end in"
                f" .html or .mmd, not {path.suffix or path.name!r}."
            )
        text = as_mermaid(self, calls) if path.suffix.lower() == ".mmd" else as_page(self, compile, calls)
        path.write_text(text, encoding="utf-8")
        return path

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def __rich__(self) -> Any:
        return texts.as_tree(self)

    def _repr_html_(self) -> str:
        return as_notebook(self)
