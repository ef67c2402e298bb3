"""`explain`: what it tells of regions, breaks and hints, and the forms in which it tells it."""

import contextlib
import io
import json
import pickle
import re
from pathlib import Path

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor import wrap_py
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.replace import vectorize_graph

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base import errors
from pytensor_jaxpr_linker.base.errors import CannotEmit
from pytensor_jaxpr_linker.base.options import for_platforms
from pytensor_jaxpr_linker.base.passes import PassRecord
from pytensor_jaxpr_linker.base.words import page_url
from pytensor_jaxpr_linker.graph.prepare import PASSES
from pytensor_jaxpr_linker.jaxpr.optimize.finish import CALL_PASSES
from pytensor_jaxpr_linker.report import stages
from pytensor_jaxpr_linker.report.text import duration
from pytensor_jaxpr_linker.run.program import FOR_CPUS

DOCUMENT = Path(__file__).parents[2] / "docs" / "breaks.md"
QUIET = Mode(pjl.JaxprLinker(pjl.Options(on_break="ignore")), "fast_run")


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
    """With the options of its mode, of contexts and of the environment, and with the parts built before a call."""
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
