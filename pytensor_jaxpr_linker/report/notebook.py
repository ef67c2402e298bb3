"""An explanation as HTML for a notebook: tables and lists without scripts, in the notebook's own colours."""

from __future__ import annotations

from html import escape

from pytensor_jaxpr_linker.report.model import BreakReport, ExplanationData
from pytensor_jaxpr_linker.report.svg import as_svg
from pytensor_jaxpr_linker.report.text import break_lines, sections, summary

#: Graphs of more nodes are not drawn in a notebook: ``save("page.html")`` has a drawing to zoom and search.
MOST_IN_NOTEBOOK = 150
#: How many entries of each list are shown.
MOST = 40


def as_notebook(explanation: ExplanationData) -> str:
    """Return the HTML of an explanation."""
    parts = [f"<p><strong>{escape(summary(explanation))}</strong></p>"]
    if 0 < len(explanation.nodes) <= MOST_IN_NOTEBOOK:
        frame = "<div style='overflow:auto;max-height:32em' tabindex='0' role='region' aria-label='The graph'>"
        parts.append(f"{frame}{as_svg(explanation)}</div>")
    if explanation.breaks:
        rows = "".join(break_row(explanation, b) for b in explanation.breaks[:MOST])
        more = len(explanation.breaks) - MOST
        note = f"<p>... and {more} more breaks</p>" if more > 0 else ""
        head = "<tr><th>code</th><th>node</th><th style='text-align:left'>why, and what to do</th></tr>"
        parts.append(f"<table>{head}{rows}</table>{note}")
    for title, entries in sections(explanation, MOST):
        if title == "Breaks":
            continue
        lines = escape("\n".join(entries))
        parts.append(f"<details><summary>{escape(title)}</summary><pre>{lines}</pre></details>")
    return "".join(parts)


def break_row(explanation: ExplanationData, b: BreakReport) -> str:
    """Return the row of a break."""
    head, *lines = break_lines(explanation, b)
    node = head.partition("] ")[2]
    told = "<br>".join(escape(line.strip()) for line in lines)
    code = f"<a href='{escape(b.documentation)}' style='color:inherit'>{escape(b.code)}</a>"
    return (
        f"<tr><td>{code}</td><td>{escape(node)}</td><td style='text-align:left;overflow-wrap:anywhere'>{told}</td></tr>"
    )
