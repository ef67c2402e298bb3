"""Forms of an explanation: dict, text, tree, notebook and page; large graphs; the documentation of codes."""

import cProfile
import json
import re
import sys
from html import unescape
from html.parser import HTMLParser

import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.fg import FunctionGraph

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base import errors
from pytensor_jaxpr_linker.base.words import page_url
from pytensor_jaxpr_linker.report import explanation, hints
from pytensor_jaxpr_linker.report.explain import report
from pytensor_jaxpr_linker.report.explanation import as_mermaid
from pytensor_jaxpr_linker.report.nodes import Provenance
from pytensor_jaxpr_linker.report.text import list_seconds
from pytensor_jaxpr_linker.report.text import sections as sections_of
from pytensor_jaxpr_linker.run.program import make_graph, make_plan
from tests.report.test_explain import DOCUMENT, QUIET, broken, hidden, vector

CODES = {code.code: code for code in vars(errors).values() if isinstance(code, errors.BreakCode)}


# Forms


def test_dict_is_json():
    x = vector()
    f = pytensor.function([x], broken(x), mode=QUIET)
    f([1.0, 2.0])
    data = pjl.explain(f).as_dict()
    assert json.loads(json.dumps(data)) == data
    assert [b["kind"] for b in data["batches"]] == ["region", "host", "region"]


def test_text_lists_at_most():
    y = vector()
    for i in range(30):
        y = pt.exp(y) if i % 2 else pt.sin(y)
    e = pjl.explain(y)
    assert "... and 18 more" in str(e)
    assert "more" not in e.text(most=100)
    assert repr(e) == str(e)


def test_rich_tree():
    rich = pytest.importorskip("rich.console")
    console = rich.Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(pjl.explain(broken(vector())))
    text = console.export_text()
    assert "Region 0" in text and "JX001" in text


def test_without_rich(monkeypatch):
    for name in ("rich", "rich.text", "rich.tree"):
        monkeypatch.setitem(sys.modules, name, None)
    e = pjl.explain(vector() * 2)
    with pytest.raises(ImportError, match=r"pytensor_jaxpr_linker\[report\]"):
        e.__rich__()
    assert str(e)


class Page(HTMLParser):
    """What a page asks the network for, and whether its elements are closed."""

    VOID = frozenset({"meta", "input", "br"})

    def __init__(self, text):
        super().__init__()
        self.open, self.links = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.links += [v for k, v in attrs if k in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def node_texts(text):
    """Return the text about each node on a page, by the node's number."""
    parts = re.findall(r'<h3 id="n(\d+)">.*?</h3><pre[^>]*>\n(.*?)</pre>', text, re.DOTALL)
    return {int(number): unescape(part) for number, part in parts}


def graph_of(text):
    """Return the Mermaid text of the graph on a page."""
    return unescape(re.search(r"<pre [^>]*aria-label='The graph'>(.*?)</pre>", text, re.DOTALL)[1])


def test_notebook_html_escapes():
    x = vector("<b>x</b>")
    text = pjl.explain(pt.exp(hidden([pt.dvector], [pt.dvector])(pt.exp(x))))._repr_html_()
    assert "<b>" not in text and "&lt;b&gt;" in text and "JX001" in text
    Page(text)


def test_page_is_complete_without_a_network_and_has_the_code_of_each_node(tmp_path):
    """Only the script that draws the graph is elsewhere, and its text is on the page."""
    x = vector("</script><b>")
    f = pytensor.function([x], broken(x), mode=QUIET)
    f([1.0, 2.0, 3.0])
    e = pjl.explain(f)
    text = e.save(tmp_path / "page.html").read_text()
    anchors = {f"#n{node.index}" for node in e.nodes}
    assert set(Page(text).links) == anchors | {b.documentation for b in e.breaks}
    assert "color-scheme: light dark" in text and re.findall(r"import\('([^']*)'", text) == [explanation.MERMAID]
    assert set(re.findall(r'href "(#n\d+)"', graph_of(text))) == anchors
    read = unescape(re.sub(r"</?a[^>]*>", "", text))
    for title, entries in sections_of(e, len(e.nodes)):
        assert title in read and "\n".join(entries) in read
    for region in e.stages.regions:
        assert (
            str(region.jaxpr) in read and region.stablehlo in read and explanation.METADATA.sub("", region.hlo) in read
        )
        assert "metadata=" not in read and f"\nTime: {list_seconds(region.timings)}\n" in read
        assert f"\nbytes of output: {region.memory['output']:,}" in read
        assert f"\nbytes accessed: {region.cost['bytes accessed']:,.0f}\n" in read
    for region in e.regions:
        for i in region.nodes:
            if e.nodes[i].op not in ("ScalarFromTensor",):
                _, jaxpr, stablehlo = node_texts(text)[i].split("\n\n")
                assert " = " in jaxpr and "stablehlo" in stablehlo, e.nodes[i]
    exp = next(n.index for n in e.nodes if n.op == "Exp")
    assert re.search(r"^%\d+ = stablehlo.exponential .*", node_texts(text)[exp], re.MULTILINE)


def test_pages_are_html(tmp_path):
    e = pjl.explain(pt.exp(vector()))
    for name in ("graph", "graph.html.png", "graph.svg"):
        with pytest.raises(ValueError, match=r"its name must end in \.html or \.mmd"):
            e.save(tmp_path / name)
    assert not list(tmp_path.iterdir())
    assert e.save(tmp_path / "graph.HTM", compile=False).exists()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 ms"), (12.3e-6, "12.3 µs"), (90.0, "1.5 min"), (0.0123, "12.3 ms"), (0.9994, "999 ms"), (15.04, "15 s")],
)
def test_durations(seconds, text):
    assert list_seconds({"xla": seconds}) == f"xla {text}"


def test_page_without_compiling(tmp_path):
    x = pt.vector("x", shape=(3,), dtype="float64")
    text = pjl.explain(pt.exp(x)).save(tmp_path / "p.html", compile=False).read_text()
    assert "exp" in node_texts(text)[0] and "<summary>Jaxpr" in text and "Optimized HLO" not in text


def test_page_of_example_arguments(tmp_path):
    x = vector()
    f = pytensor.function([x], pt.exp(x), mode="JAXPR")
    assert "f64[2]" in node_texts(pjl.explain(f, args=[[1.0, 2.0]]).save(tmp_path / "p.html").read_text())[0]
    text = pjl.explain(pt.exp(x)).save(tmp_path / "p.html").read_text()
    assert "<summary>Jaxpr" not in text and "explain(f, args=...)" in text


def test_page_of_a_graph_too_large_for_one(tmp_path, monkeypatch):
    monkeypatch.setattr(explanation, "MOST_ON_PAGE", 2)
    e = pjl.explain(broken(vector()))
    text = e.save(tmp_path / "p.html").read_text()
    assert {e.nodes[i].break_code for i in node_texts(text)} == {"JX001", "JX002"}
    assert "Nodes with breaks: the graph is large" in text


def test_a_graph_too_large_to_draw_has_one_node_for_those_without_breaks(monkeypatch):
    monkeypatch.setattr(explanation, "MOST_DRAWN", 2)
    e = pjl.explain(broken(vector()))
    drawn = [line.strip() for line in as_mermaid(e).splitlines()]
    assert sum(bool(re.match(r"n\d", line)) and "[" in line for line in drawn) == len(e.breaks) == 2
    assert f'b0_others["{len(e.batches[0].nodes)} nodes"]' in drawn
    host_step = next(b.node for b in e.breaks if b.code == "JX001")
    assert drawn.count(f"b0_others --> n{host_step}") == 1 and "b0_others --> b0_others" not in drawn


# Large graphs


def calls_of(function):
    """How many functions a call of `function` enters: its work, whatever else the machine does."""
    profile = cProfile.Profile()
    profile.runcall(function)
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize("every", [0, 10], ids=["no-break", "many"])
def test_the_work_is_linear(every, monkeypatch):
    monkeypatch.setattr(hints, "MOST_VISITS", 5_000)

    def work(count):
        x = vector()
        v, half = x, hidden([pt.dvector], [pt.dvector])
        with pytensor.config.change_flags(traceback__limit=1):
            for i in range(count):
                v = half(v) if every and i % every == every - 1 else pt.exp(v) if i % 2 else pt.sin(v)
        graph = make_graph(FunctionGraph([x], [v], clone=True))
        plan = make_plan(graph)
        e = report(graph, plan, {}, [], {}, None, Provenance(graph, None))
        assert len(e.nodes) == count and len(str(e)) < 20_000
        return calls_of(lambda: (report(graph, plan, {}, [], {}, None, Provenance(graph, None)).as_dict(), str(e)))

    assert work(2000) < 4.2 * work(500)


# The documentation of the codes


def sections():
    """Return the section of each code in the documentation."""
    return dict(re.findall(r"^## (JX\d+)\n(.*?)(?=^## |\Z)", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE))


def test_each_code_is_documented():
    assert sections().keys() == CODES.keys()
    for code in CODES.values():
        assert code.documentation == page_url("breaks", code.code.lower())


@pytest.mark.parametrize("code", CODES)
def test_each_example_has_its_break(code):
    if code == "JX004":
        pytest.importorskip("pytensor.conditional")  # older releases have no Op with branches inside
    section = sections()[code]
    assert "\nWhy: " in section and "\nWhat to do" in section
    names = {}
    exec(re.search(r"```python\n(.*?)```", section, re.DOTALL)[1], names)
    if "calls" in names:  # a break that depends on a call
        *first, last = names["calls"]
        for call in first:
            call()
        with pytest.warns(pjl.GraphBreakWarning, match=code):
            last()
        return
    found = pjl.explain(names["outputs"]).breaks
    assert code in {b.code for b in found}


def test_error_names_the_documentation():
    x = vector()
    mode = Mode(pjl.JaxprLinker(pjl.Options(on_break="raise")), "fast_run")
    with pytest.raises(
        pjl.GraphBreakError, match=r"breaks\.html#jx001, or `python -m pytensor_jaxpr_linker docs JX001`"
    ):
        pytensor.function([x], hidden([pt.dvector], [pt.dvector])(x), mode=mode)
