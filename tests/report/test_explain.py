"""`explain`: what it tells of regions, breaks and hints, and the forms in which it tells it."""

import contextlib
import cProfile
import io
import json
import pickle
import re
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor import gradient, wrap_py
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.replace import vectorize_graph
from pytensor.printing import Print

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base import errors
from pytensor_jaxpr_linker.base.documentation import page_url
from pytensor_jaxpr_linker.base.errors import CannotEmit
from pytensor_jaxpr_linker.base.passes import PassRecord
from pytensor_jaxpr_linker.base.platforms import for_platforms
from pytensor_jaxpr_linker.graph.prepare import PASSES
from pytensor_jaxpr_linker.jaxpr.optimize.finish import CALL_PASSES
from pytensor_jaxpr_linker.report import mermaid, page, stages, whatif
from pytensor_jaxpr_linker.report.explain import report
from pytensor_jaxpr_linker.report.mermaid import as_mermaid
from pytensor_jaxpr_linker.report.provenance import Provenance
from pytensor_jaxpr_linker.report.text import duration, line_place, list_seconds
from pytensor_jaxpr_linker.report.text import sections as sections_of
from pytensor_jaxpr_linker.run.plans import FOR_CPUS, make_graph, make_plan

DOCUMENT = Path(__file__).parents[2] / "docs" / "breaks.md"
QUIET = Mode(pjl.JaxprLinker(pjl.Options(on_break="ignore")), "fast_run")
CODES = {code.code: code for code in vars(errors).values() if isinstance(code, errors.BreakCode)}


def hidden(itypes, otypes):
    """Return an Op that only Python can compute."""

    @wrap_py(itypes=itypes, otypes=otypes)
    def hidden(x):
        return x + 1

    return hidden


def vector(name="x"):
    """Return a vector input."""
    return pt.vector(name, dtype="float64")


def broken(x):
    """Return a graph with a host step and a value that crosses."""
    middle = hidden([pt.dvector], [pt.dvector])(pt.exp(x))
    middle.name = "middle"
    n = (x.sum() / 2).astype("int64")
    n.name = "n"
    return [(middle * 2).sum(), pt.arange(n).sum()]


# The data


def test_one_program():
    x = vector()
    y = pt.exp(x).sum()
    e = pjl.explain(y)
    assert [b.kind for b in e.batches] == ["region"] and not e.breaks and e.best_change is None
    assert e.batches[0].inputs == (pjl.report.model.PassedValue("x", "Vector(float64, shape=(?,))"),)
    assert [g.variable for g in e.batches[0].guards] == ["x"]
    assert str(e).startswith("One XLA program, 2 nodes, 0 breaks.")


class ThirdParty(Op):
    """An Op with a JAX function of somebody else."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] + 1


class Late(ThirdParty):
    """An Op whose rule finds that it can't emit it when it sees the shapes."""


@pjl.emits(Late)
def emit_Late(op, node, b, x):
    raise CannotEmit("it does not take this length")


@pytest.fixture
def registered():
    wide = jax.config.jax_enable_x64
    from pytensor.link.jax.dispatch import jax_funcify  # sets the flag

    jax.config.update("jax_enable_x64", wide)
    jax_funcify.register(ThirdParty)(lambda op, **kwargs: lambda x: x + 1)


@pytest.mark.parametrize("op", [ThirdParty(), Late()], ids=["leaf", "late"])
@pytest.mark.parametrize("traced", [True, False])
def test_a_graph_is_told_of_as_the_function_that_it_becomes(op, traced, registered):
    """With the options of its mode, of contexts and of the environment, and as far as a function is built before a call."""
    options = pjl.Options(allow_traced_leaves=traced, on_break="ignore")
    x = pt.tensor("x", dtype="float64", shape=(3,))
    y = op(pt.exp(x)) * 2
    mode = pjl.JaxprMode(pjl.JaxprLinker(options), "fast_run")
    told = [pjl.explain(y, [x], mode=mode), pjl.explain(pytensor.function([x], y, mode=mode))]
    with pjl.options(allow_traced_leaves=traced):
        told.append(pjl.explain(y))
    for e in told:
        assert [b.kind for b in e.batches] == [b.kind for b in told[1].batches]
        assert [b.code for b in e.breaks] == [b.code for b in told[1].breaks]
        assert len(e.traced_leaves) == (traced and type(op) is ThirdParty)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTENSOR_JAXPR_ON_BREAK", "raise")
        pjl.explain(y)  # that a function of it can't be compiled is what it tells


def test_output_that_is_an_input():
    assert str(pjl.explain(vector())).startswith("One XLA program, 0 nodes")


def test_regions_and_host_steps_before_compiling():
    e = pjl.explain(broken(vector()))
    assert [b.kind for b in e.batches] == ["region", "host", "region"]
    host = e.host_steps[0]
    assert [e.nodes[i].break_code for i in host.nodes] == ["JX001"]
    assert [v.name for v in host.outputs] == ["middle"]
    assert {b.code for b in e.breaks} == {"JX001", "JX002"}
    assert [g.kind for g in e.regions[1].guards].count("value") == 1
    assert "n" in e.regions[1].static_inputs


def test_breaks_name_variable_and_line():
    (b,) = [b for b in pjl.explain(broken(vector())).breaks if b.code == "JX002"]
    assert b.variable == "n"
    assert re.search(r"test_explain\.py:\d+: return \[\(middle", b.line)
    assert b.documentation == page_url("breaks", "jx002")


def test_no_line_is_one_of_our_passes():
    """`unique` is decomposed, behind a decorator that is a context manager."""
    lines = [node.line for node in pjl.explain(pt.unique(vector()) * 2).nodes]
    assert not [line for line in lines if line.startswith(errors.OURS)]
    assert errors.OURS.startswith(str(Path(pjl.__file__).parent))


def test_an_explanation_of_a_graph_can_be_pickled():
    e = pjl.explain(pt.exp(vector()))
    again = pickle.loads(pickle.dumps(e))
    assert again == e and str(again) == str(e) and again._repr_html_() == e._repr_html_()


def test_operands_are_nodes_or_names():
    e = pjl.explain(pt.exp(vector()) * vector("y"))
    (product,) = [n for n in e.nodes if n.op == "Mul"]
    assert "y" in product.operands
    assert [e.nodes[u].op for u in product.operands if isinstance(u, int)] == ["Exp"]


def test_compiled_function_tells_specializations_and_checks():
    x, i = vector(), pt.lscalar("i")
    f = pytensor.function([x, i], pt.exp(x)[i], mode="JAXPR")
    assert pjl.explain(f).batches[0].specializations == ()
    f([1.0, 2.0], 0)
    f([1.0, 2.0, 3.0], 0)
    (batch,) = pjl.explain(f).batches
    assert [s.shapes[0] for s in batch.specializations] == ["float64[2]", "float64[3]"]
    for s in batch.specializations:
        assert s.equations > 0 and set(s.seconds) == {"lower", "trace", "stablehlo", "xla"}
        assert all(duration > 0 for duration in s.seconds.values())
    assert any("IndexError: index is out of bounds" in check for check in batch.checks)


def test_the_time_of_compiling_has_xlas(tmp_path):
    """Both that of calls, and, where nothing was called, that of the regions which the page compiles."""
    x = pt.dscalar("x")
    f = pytensor.function([x], pt.exp(x) + 1, mode="JAXPR")
    f(1.0)
    e = pjl.explain(f)
    xla = e.batches[0].specializations[0].seconds["xla"]
    assert f"xla {duration(xla)}" in str(e).partition("Compiling so far: ")[2] and ", 1 program\n" in str(e)
    text = e.save(tmp_path / "called.html").read_text()
    assert re.search(rf"Compiling so far: .*\n.*, xla {duration(xla)}", text)
    assert re.search(rf"\nTime: .*, xla {duration(xla)}\n", text)
    e = pjl.explain(pt.exp(x) + 1)
    text = e.save(tmp_path / "graph.html").read_text()
    (region,) = e.stages.regions
    assert f"xla {duration(region.timings['xla'])}\n" in text.partition("\nTime: ")[2]


def test_static_values_of_specializations():
    x = vector()
    f = pytensor.function([x], broken(x), mode=QUIET)
    f([1.0, 2.0, 3.0])
    f([4.0, 2.0, 3.0])
    assert [s.static for s in pjl.explain(f).regions[1].specializations] == [{"n": "3"}, {"n": "4"}]


def test_nodes_known_when_built():
    x = vector()
    e = pjl.explain(pt.zeros(x.shape[0] * 2) + 1)
    assert any(n.batch is None for n in e.nodes)
    assert "Known when regions are built" in str(e)


def test_traced_leaf():
    @pytensor.wrap_jax
    def twice(x):
        return x * 2

    e = pjl.explain(twice(pt.vector("x", shape=(3,), dtype="float32")))
    assert len(e.traced_leaves) == 1 and "Traced leaves" in str(e)


def test_batches_that_jax_makes():
    x, rows = pt.dvector("x"), pt.dmatrix("rows")
    zero = pt.constant(0.0, dtype="float64")
    total = pytensor.scan(lambda v, a: 0.9 * a + v, sequences=[x], outputs_info=[zero], return_updates=False)
    told = pjl.explain([vectorize_graph(total, {x: rows}), pt.linalg.cholesky(pt.dtensor3())], mode=QUIET)
    (batched,) = told.batched_nodes  # a batch of Cholesky factorizations is one equation
    assert batched.op.startswith("Blockwise{Scan")
    assert "Batched by JAX's rules, from the equations of one element: 1" in str(told)


def test_shared_variables_are_inputs():
    s = pytensor.shared(np.ones(2), name="weights")
    assert {v.name for v in pjl.explain((s * vector()).sum()).batches[0].inputs} == {"weights", "x"}


def test_the_graph_is_left_as_it_is():
    x = vector()
    y = pt.log(pt.exp(x))
    pjl.explain(y)
    assert y.owner.inputs[0].owner.inputs[0] is x


def test_explaining_runs_and_compiles_nothing():
    x = vector()
    calls = []

    @wrap_py(itypes=[pt.dvector], otypes=[pt.dvector])
    def noted(x):
        calls.append(x)
        return x

    f = pytensor.function([x], noted(x) * 2, mode=QUIET)
    e = pjl.explain(f)
    assert not calls and not any(b.specializations for b in e.batches)


@pytest.mark.parametrize("what", [3, ["x"], np.ones(3)], ids=["number", "string", "array"])
def test_bad_argument(what):
    with pytest.raises(TypeError):
        pjl.explain(what)


def test_function_of_another_mode():
    x = vector()
    with pytest.raises(TypeError, match="not compiled with mode JAXPR"):
        pjl.explain(pytensor.function([x], x * 2, mode="FAST_COMPILE"))


# Hints and changes

MASKED = {
    "sum": lambda x, m: x[m].sum(),
    "prod": lambda x, m: x[m].prod(),
    "max": lambda x, m: x[m].max(),
    "min": lambda x, m: x[m].min(),
    "set": lambda x, m: x[m].set(0),
    "inc": lambda x, m: x[m].inc(2),
    "prefix": lambda x, m: x[: m.sum()].sum(),
    "prefix-max": lambda x, m: x[: m.sum()].max(),
}


@pytest.mark.parametrize("dtype", ["float64", "int64"])
@pytest.mark.parametrize("case", MASKED)
def test_rewritten_expression_computes_the_same_without_a_break(case, dtype):
    x, weights = pt.vector("x", dtype=dtype), vector("weights")
    mask = weights > 0.5
    mask.name = "mask"
    y = MASKED[case](x, mask)
    hints = [b for b in pjl.explain(y).breaks if b.after]
    if not hints:
        pytest.skip("this expression has no break")
    rewritten = eval(hints[0].after, {"pt": pt, "np": np, "x": x, "mask": mask})
    assert not pjl.explain(rewritten).breaks
    values = np.array([3, -2, 5, 7], dtype), np.array([1.0, 0, 1, 1])
    f = pytensor.function([x, weights], [y, rewritten], mode="FAST_COMPILE")
    np.testing.assert_allclose(*f(*values))


def test_hint_shows_the_size_as_an_input():
    e = pjl.explain(pt.arange(vector().sum().astype("int64")))
    assert (e.breaks[0].before, e.breaks[0].after.split(" with")[0]) == ("pt.arange(x.sum())", "pt.arange(n)")


def test_long_expressions_are_not_written_out():
    x = vector()
    y = pt.exp(pt.sin(pt.cos(x) * 2) + pt.tan(pt.log1p(x) - 3)) / (x**2 + 1)
    (b,) = pjl.explain(y[y > y.mean()]).breaks
    assert b.before == "x[mask]"


def test_best_change():
    x = vector()
    first = hidden([pt.dvector], [pt.dvector])(pt.exp(x))
    second = hidden([pt.dvector], [pt.dvector])(pt.exp(first))
    e = pjl.explain(pt.exp(second[second > 0]).sum() + second.sum(), [x])
    change = e.best_change
    assert change.batches == min(c.batches for c in e.changes) < len(e.batches)
    assert "FromFunctionOp" in change.what and len(change.breaks) == 2


def test_change_of_breaks_side_by_side():
    x = vector()
    e = pjl.explain([hidden([pt.dvector], [pt.dvector])(pt.exp(x)).sum(), pt.unique(pt.sin(x)[None], axis=1).sum()])
    assert [b.batches_without for b in e.breaks] == [3, 3]
    assert (e.best_change.what, e.best_change.batches) == ("do without all of host step 1", 1)


def test_without_the_only_break_one_program_is_left():
    x = vector()
    (b,) = pjl.explain(pt.exp(hidden([pt.dvector], [pt.dvector])(pt.exp(x)))).breaks
    assert b.batches_without == 1


# Passes


def test_passes_are_told_on_request(monkeypatch):
    x, counts = vector(), pt.lvector("counts")
    outputs = [pt.repeat(x, counts), x[x > 0].sum()]
    e = pjl.explain(outputs, [x, counts], passes=True)
    assert [p.name for p in e.passes] == [*(p.name for p in (*PASSES, *FOR_CPUS)), "column-major inputs"]
    assert {p.name: (p.before, p.after) for p in e.passes if p.changed} == {"decompose": (4, 10), "lanes": (10, 12)}
    assert {p.subject for p in e.passes} == {"graph"} and e.passes[-1].after == len(e.nodes)
    assert all(("FillLanes" in p.text) == (p.name == "lanes") for p in e.passes)
    assert all(bool(p.text) == p.changed and p.seconds > 0 for p in e.passes)
    text = str(e)
    assert re.search(
        r"Graph passes\n  outer products          unchanged, .* [mµ]s\n  inline                  unchanged, .* [mµ]s\n",
        text,
    )
    assert re.search(r"  decompose               4 -> 10 nodes, .* [mµ]s\n      AdvancedSubtensor", text)
    data = e.as_dict()
    assert json.loads(json.dumps(data))["passes"][3]["name"] == "decompose"

    def fail():
        pytest.fail("nobody asked for records")

    monkeypatch.setattr(stages, "record_passes", fail)
    e = pjl.explain(outputs, [x, counts])
    assert e.passes == () and "passes" not in str(e)


def test_jaxpr_passes_are_told(monkeypatch):
    records = [PassRecord("one", 3, 2, True, 0.001, lambda: "{ lambda ; }"), PassRecord("two", 2, 2, False, 0.001, str)]
    monkeypatch.setattr(stages.RegionStages, "passes", records)
    e = pjl.explain(broken(vector()), mode=QUIET, args=[[1.0, 2.0]], passes=True)
    told = [(p.subject, p.name, p.text) for p in e.passes if p.subject.startswith("Region")]
    assert told == [(f"Region {i}", *of) for i in (0, 2) for of in (("one", "{ lambda ; }"), ("two", ""))]
    assert "Jaxpr passes of Region 2\n  one  3 -> 2 equations, 1 ms\n      { lambda ; }\n  two  " in str(e)


def test_passes_of_calls_are_told():
    x = vector()
    e = pjl.explain(pytensor.function([x], pt.exp(x).sum(), mode=QUIET), args=[[1.0, 2.0]], passes=True)
    told = {p.name: p for p in e.passes if p.subject == "calls of Region 0"}
    assert list(told) == [p.name for p in CALL_PASSES]
    assert "dot_general" in told["shared sums"].text
    assert told["XLA's options"].text.startswith("XLA's options: {'xla_")
    with for_platforms(["cuda"]):
        e = pjl.explain(pytensor.function([x], pt.exp(x).sum(), mode=QUIET), args=[[1.0, 2.0]], passes=True)
    assert not any(p.subject.startswith("calls") for p in e.passes)


def test_program_of_the_page_prints_what_it_says():
    page = (DOCUMENT.parent / "graph-breaks.md").read_text(encoding="utf-8")
    program, printed = re.search(r"passes=True.*?```python\n(.*?)```\n\n```\n(.*?)```", page, re.DOTALL).groups()
    found = io.StringIO()
    with contextlib.redirect_stdout(found):
        exec(program, {})
    assert found.getvalue() == printed


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
    assert "color-scheme: light dark" in text and re.findall(r"import\('([^']*)'", text) == [page.MERMAID]
    assert set(re.findall(r'href "(#n\d+)"', graph_of(text))) == anchors
    read = unescape(re.sub(r"</?a[^>]*>", "", text))
    for title, entries in sections_of(e, len(e.nodes)):
        assert title in read and "\n".join(entries) in read
    for region in e.stages.regions:
        assert str(region.jaxpr) in read and region.stablehlo in read and page.METADATA.sub("", region.hlo) in read
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
    monkeypatch.setattr(page, "MOST_ON_PAGE", 2)
    e = pjl.explain(broken(vector()))
    text = e.save(tmp_path / "p.html").read_text()
    assert {e.nodes[i].break_code for i in node_texts(text)} == {"JX001", "JX002"}
    assert "Nodes with breaks: the graph is large" in text


def test_a_graph_too_large_to_draw_has_one_node_for_those_without_breaks(monkeypatch):
    monkeypatch.setattr(mermaid, "MOST_DRAWN", 2)
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
    monkeypatch.setattr(whatif, "MOST_VISITS", 5_000)

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


# Where nodes come from, and the drawing


def test_a_line_is_the_users_not_that_of_a_library():
    x = vector("x")
    v = pt.exp(x)
    user, library = (__file__, 7, "f", "y = g(x)"), (pt.__file__, 9, "g", "return x")
    for frames, line in (
        ([user, library], f"{__file__}:7: y = g(x)"),
        ([user, (re.__file__, 1, "sub", "")], f"{__file__}:7: y = g(x)"),
        ([user, ("<frozen runpy>", 88, "_run_code", None)], f"{__file__}:7: y = g(x)"),
        ([library], ""),
        (
            [(str(Path(jax.__file__).parent / "numpy.py"), 3, "h", "z"), library],
            f"{Path(jax.__file__).parent}/numpy.py:3: z",
        ),
    ):
        v.tag.trace = [frames]
        assert errors.source_line(v.owner) == line


def test_a_term_of_a_model_names_the_line_of_its_random_variable():
    """PyMC makes its nodes long after the user's line; what the user wrote within the term keeps its own."""
    pm = pytest.importorskip("pymc")
    with pm.Model() as model:
        a = pm.Normal("a", shape=2)
        mean = pt.exp(a)
        pm.Normal("y", mean, 2.0, observed=np.ones(2))
    nodes = pjl.explain(model).nodes
    for role, line in (("log density of a", 'pm.Normal("a"'), ("log density of y", 'pm.Normal("y"')):
        of_term = [node for node in nodes if node.role == role]
        assert of_term and all(line in node.line for node in of_term if node.op != "Exp")
    assert [node.op for node in nodes if "mean = pt.exp(a)" in node.line] == ["Exp"]
    assert not any("explain(model)" in node.line for node in nodes)  # gradients: PyTensor makes them for the report


def test_nodes_of_a_gradient_say_so():
    x = vector("x")
    e = pjl.explain(pt.grad(pt.log1p(pt.exp(x)).sum(), x), [x])
    assert any("(gradient by x)" in line for line in str(e).splitlines())
    assert all("gradient.py" not in node.line for node in e.nodes)


def gradient_function(**kwargs):
    """Return a function of a loss and its gradients, whose graph PyTensor rewrites."""
    x, w = vector("x"), vector("w")
    rate = pt.exp(x * w)
    y = pt.log1p(pt.exp(w) * x)
    loss = (rate + x).sum() + (y**2).sum()
    return pytensor.function([x, w], [loss, *pt.grad(loss, [x, w])], mode=QUIET, **kwargs)


@pytest.mark.parametrize("pickled", [False, True], ids=["compiled", "pickled"])
def test_nodes_of_a_gradient_name_what_it_differentiates_by(pickled):
    f = gradient_function()
    f([1.0, 2.0], [0.5, 1.0])
    e = pjl.explain(pickle.loads(pickle.dumps(f)) if pickled else f)
    roles = {node.role for node in e.nodes}
    assert {"gradient by x", "gradient by w"} <= roles and "gradient" not in roles
    # What the loss needs is the user's, though the gradient computes it, too.
    needed = [e.outputs[0].node]
    for i in needed:
        needed += [u for u in e.nodes[i].operands if isinstance(u, int) and u not in needed]
    assert len(needed) > 5 and all(not e.nodes[i].role for i in needed)
    assert [e.nodes[v.node].role for v in e.outputs[1:]] == ["gradient by x", "gradient by w"]
    assert all(f"{Path(__file__).name}:" in e.nodes[i].line for i in needed if e.nodes[i].op != "Exp")


def test_gradients_past_ops_without_one_are_only_called_gradients():
    class NoGradient(Op):
        def make_node(self, x):
            return Apply(self, [x], [x.type()])

        def perform(self, node, inputs, outputs):
            outputs[0][0] = inputs[0]

    x = vector("x")
    loss = (pt.exp(x) * NoGradient()(vector("z") * 2)).sum()
    e = pjl.explain(pt.grad(loss, x, consider_constant=[loss.owner.inputs[0].owner.inputs[1]]))
    assert {node.role for node in e.nodes} <= {"", "gradient"}


def test_zero_grad_is_no_gradient():
    x = vector("x")
    e = pjl.explain(gradient.zero_grad(pt.exp(x)) * 2, [x])
    assert {node.role for node in e.nodes} == {""}


def test_nodes_have_the_names_that_rewrites_drop():
    x = vector("x")
    rate = pt.exp(x)
    rate.name = "rate"
    e = pjl.explain(pt.log1p(rate).sum(), [x])
    assert [(node.op, node.line.rpartition(":")[2].strip()) for node in e.nodes][-1] == (
        "Sum{axes=None}",
        "e = pjl.explain(pt.log1p(rate).sum(), [x])",
    )
    e = pjl.explain(rate * 2, [x])
    assert [node.name for node in e.nodes if node.op == "Exp"] == ["rate"]


def test_nodes_of_a_model_name_the_random_variable():
    pm = pytest.importorskip("pymc")
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        a = pm.Normal("a", 0, scale, shape=4)
        pm.Poisson("counts", pm.math.exp(a), observed=[1, 2, 3, 4])
    before = model.logp().eval({v: model.initial_point()[v.name] for v in model.value_vars})
    e = pjl.explain(model)
    roles = {node.role for node in e.nodes}
    assert {"log density of scale", "log density of a", "log density of counts", "gradient by a"} <= roles
    assert [v.name for v in e.outputs] == ["log density", "gradient by scale_log__", "gradient by a"]
    assert [v.name for v in e.inputs] == ["scale_log__", "a"]
    assert all(e.nodes[v.node].batch is not None for v in e.outputs)
    # Reports change nothing: the traces that say so are those of copies.
    assert before == model.logp().eval({v: model.initial_point()[v.name] for v in model.value_vars})
    assert not any(errors.role_of(v.owner).startswith("log") for v in [model.logp()])


def test_drawing_says_how_long_regions_take(tmp_path):
    x = vector("x")
    f = pytensor.function([x], pt.exp(Print()(pt.exp(x))), mode=QUIET)
    f([1.0])
    e, profile = pjl.explain(f), pjl.stages(f, [1.0]).profile(calls=3)
    assert [*profile.batch_microseconds] == [b.index for b in e.batches] and len(e.batches) == 3
    assert sum(profile.batch_microseconds.values()) == pytest.approx(profile.microseconds)
    for name in ("g.mmd", "g.html"):
        text = e.save(tmp_path / name, profile=profile).read_text()
        for batch in e.batches:
            taken = duration(profile.batch_microseconds[batch.index] / 1e6)
            assert re.search(rf"{batch.title}: 1 node, .*{taken} a call", text)


def test_drawing(tmp_path):
    x, n = vector('x & "y"'), (vector("z") > 0).sum()
    f = pytensor.function([x, n.owner.inputs[0].owner.inputs[0]], [pt.arange(n) * 2, pt.exp(x)], mode=QUIET)
    f([1.0], [1.0, -1.0])
    e = pjl.explain(f)
    text = e.save(tmp_path / "g.mmd").read_text()
    assert text.startswith("flowchart TB\n")
    labels = [unescape(label.replace("#", "&#")) for label in re.findall(r'\["(.*?)"\]', text)]
    found = {line.removeprefix("JX002 ") for label in labels for line in label.split("<br>")}
    exp = next(node for node in e.nodes if node.op == "Exp")
    assert {'x & "y"', "z", "input, float64[?]", f"#{exp.index} Exp", 'pt.exp(x & "y")'} <= found
    assert any(re.fullmatch(r"Region 0: \d nodes, built in .*s", label) for label in labels)
    assert [f"n{b.node}" for b in e.breaks] == re.findall(r'(n\d+)\["[^"]*<br>JX002 [^"]*"\]:::break', text)
    for batch in e.batches:
        box = text.partition(f"subgraph b{batch.index}[")[2].partition("  end\n")[0]
        assert {int(i) for i in re.findall(r"^    n(\d+)\[", box, re.MULTILINE)} == set(batch.nodes)
    read = {(u, node.index) for node in e.nodes for u in node.operands if isinstance(u, int)}
    assert {(int(u), int(i)) for u, i in re.findall(r"^  n(\d+) --> n(\d+)$", text, re.MULTILINE)} == read
    assert len(re.findall(" --> ", text)) == len(read) + 2 + sum(v.node is not None for v in e.outputs)
    assert graph_of(e._repr_html_()) == text
    assert f'<a href="{page_url("breaks", "jx002")}">' in e._repr_html_()
    assert graph_of(e.save(tmp_path / "g.html").read_text()).startswith(text)


@pytest.mark.parametrize(
    ("line", "place"),
    [("/tmp/ipykernel_7/123.py:4: y = x", "cell:4"), ("/a/b.py:7: y: int = x", "b.py:7"), ("", "")],
    ids=["cell", "file", "none"],
)
def test_places_of_lines(line, place):
    assert line_place(line) == place


def test_a_function_without_nodes_is_drawn():
    x = vector("x")
    assert "0 nodes" in pjl.explain([x], [x]).summary
    assert as_mermaid(pjl.explain([x], [x])).count("([") == 2


def test_what_a_print_would_show_may_be_an_output():
    x = vector("x")
    (b,) = pjl.explain(Print("now")(pt.exp(x)) + 1, [x]).breaks
    assert pjl.explain(Print("now")(pt.exp(x)) + 1, [x]).best_change.what.startswith("take out each Print")
    assert b.code == "JX006" and b.hint.startswith("take it out of the graph")
    assert (b.before, b.after) == ("Print(...)(pt.exp(x))", "pt.exp(x) as one more output of the function")


class OwnOp(Op):
    """An Op of the user's, whose variables are made in its own methods."""

    __props__ = ()

    def make_node(self, x):
        x = pt.as_tensor(x)
        return Apply(self, [x], [self.out_type(x)])

    def out_type(self, x):
        return x.type()

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0]


class CalledOp(OwnOp):
    """An Op with a `__call__` of its own."""

    def __call__(self, x, **kwargs):
        return super().__call__(x * 1, **kwargs)


class Layer:
    """No Op: its `__call__` is the user's line."""

    def __call__(self, x):
        return OwnOp()(x)  # the layer's line


def line_told(f):
    """Return the line that the first break of a function names."""
    return pjl.explain(f).breaks[0].line


@pytest.mark.parametrize("op", [OwnOp(), CalledOp()], ids=["own", "with __call__"])
def test_a_break_names_the_line_that_applies_the_op(op):
    x = pt.dvector("x")
    with pytest.warns(
        pjl.GraphBreakWarning, match=r"Made at .*report/test_explain.py:\d+: y = op\(x\)  # applied here"
    ):
        y = op(x)  # applied here
        f = pytensor.function([x], y, mode="JAXPR")
    assert "# applied here" in line_told(f)


@pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.GraphBreakWarning")
def test_a_class_that_applies_an_op_is_the_users():
    x = pt.dvector("x")
    assert "# the layer's line" in line_told(pytensor.function([x], Layer()(x), mode="JAXPR"))


@pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.GraphBreakWarning")
def test_a_break_names_the_users_line_for_an_op_of_an_installed_package(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "third_party_ops"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import pytensor.tensor as pt\n"
        "from pytensor.graph.basic import Apply\n"
        "from pytensor.graph.op import Op\n"
        "class Theirs(Op):\n"
        "    __props__ = ()\n"
        "    def make_node(self, x):\n"
        "        return Apply(self, [x], [x.type()])\n"
        "    def perform(self, node, inputs, outputs):\n"
        "        outputs[0][0] = inputs[0]\n"
        "def theirs(x):\n"
        "    return Theirs()(x)\n"
    )
    monkeypatch.syspath_prepend(package.parent)
    import third_party_ops

    x = pt.dvector("x")
    f = pytensor.function([x], third_party_ops.theirs(x), mode="JAXPR")  # theirs, here
    assert "# theirs, here" in line_told(f)


@pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.GraphBreakWarning")
def test_a_line_without_text_is_told_by_its_number():
    names = {"pt": pt, "OwnOp": OwnOp}
    exec(compile("x = pt.dvector('x')\n\n\ny = OwnOp()(x)\n", "<stdin>", "exec"), names)
    f = pytensor.function([names["x"]], names["y"], mode="JAXPR")
    assert line_told(f) == "<stdin>:4"
    assert "None" not in str(pjl.explain(f))
