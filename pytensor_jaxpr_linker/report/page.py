"""An explanation as HTML: its text and its graph for a notebook, and on a page also the code of each node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from html import escape
from importlib.resources import files

from pytensor_jaxpr_linker.base.errors import CannotEmit
from pytensor_jaxpr_linker.report.mermaid import as_mermaid, batch_title
from pytensor_jaxpr_linker.report.model import Batch, ExplanationData, Node
from pytensor_jaxpr_linker.report.stages import NodeCode, RegionStages
from pytensor_jaxpr_linker.report.text import list_seconds, node_head, node_line, sections, summary

#: How many entries of each list a notebook shows.
MOST_IN_NOTEBOOK = 40
#: Of graphs with more nodes a page has only the nodes with breaks: a browser would be slow.
MOST_ON_PAGE = 5000
#: The only thing that is not on a page.
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
    "The forms of each region on its way to the processor. If its shapes are not known, call the function first, or give"
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
    return "".join([f"<p><strong>{escape(summary(explanation))}</strong></p>", *report])


def as_page(explanation: ExplanationData, compile: bool, calls: Mapping[int, float]) -> str:
    """Return the page. With `compile`, regions are compiled for their optimized HLO; `calls` are the µs of batches in a call."""
    shown = explanation.nodes
    if is_large := len(shown) > MOST_ON_PAGE:
        shown = tuple(node for node in shown if node.break_code)
    regions = known_regions(explanation)
    codes: dict[int, NodeCode] = {}
    for _, region in [] if is_large else reversed(regions):  # a node that is in several regions belongs to the first
        codes |= region.by_node(explanation.stages.index)
    links = [f'  click n{node.index} href "#n{node.index}"' for node in shown]
    report = report_parts(explanation, MOST_ON_PAGE, "\n".join([as_mermaid(explanation, calls), *links]), unfolded=True)
    parts = [
        f"<h1>{escape(summary(explanation))}</h1>",
        *[NODE.sub(LINK, part) for part in report],
        f"<h2>Stages</h2><p>{ABOUT_STAGES}</p>",
        *[region_part(batch_title(batch, calls), region, compile) for batch, region in regions],
        f"<h2>Nodes{' with breaks: the graph is large' if is_large else ''}</h2><p>{ABOUT_NODES}</p>",
        *[node_part(explanation, node, codes.get(node.index)) for node in shown],
    ]
    template = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    return template.replace("<!--REPORT-->", "\n".join(parts))


def report_parts(explanation: ExplanationData, most: int, graph: str, unfolded: bool) -> Iterator[str]:
    """Yield the graph, and the sections of the text, of which the breaks come first."""
    drawn = f"<summary>The graph</summary>{GRAPH}{escape(graph)}</pre>"
    yield f'<details{" open" * unfolded} ontoggle="{DRAW}">{drawn}</details>'
    for title, entries in sorted(sections(explanation, most), key=lambda section: section[0] != "Breaks"):
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
    texts, figures = {"Jaxpr": str(region.jaxpr), "StableHLO": region.stablehlo}, ""
    if compile:
        texts["Optimized HLO"] = METADATA.sub("", region.hlo)
        costs = {name: x for name, x in region.cost.items() if x and not OF_OPERANDS.search(name)}
        memory = {f"bytes of {name.replace('_', ' ')}": size for name, size in region.memory.items() if size}
        lines = [f"{name}: {x:,.0f}" for name, x in (costs | memory).items()]
        figures = text_part("\n".join([f"Time: {list_seconds(region.timings)}", *lines]))
    return folded(title, figures + "".join(folded(name, text_part(text)) for name, text in texts.items()))


def node_part(explanation: ExplanationData, node: Node, code: NodeCode | None) -> str:
    """Return what is known of a node, with its equations."""
    place = "Known when regions are built" if node.batch is None else explanation.batches[node.batch].title
    operands = [node_head(explanation.nodes[u]) if isinstance(u, int) else u for u in node.operands]
    lines = [node.role, node.expression, node.type, node.line, place, *(f"  {operand}" for operand in operands)]
    texts = [] if code is None else ["", *code.jaxpr, "", *code.stablehlo]
    part = text_part("\n".join([*filter(None, lines), *texts]))
    return f'<h3 id="n{node.index}">{escape(node_line(node))}</h3>{NODE.sub(LINK, part)}'
