"""Where nodes come from: the user's lines and names, also behind rewrites and gradients, and in the drawing."""

import pickle
import re
from html import unescape
from pathlib import Path

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor import gradient
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.printing import Print

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base import errors
from pytensor_jaxpr_linker.base.words import page_url
from pytensor_jaxpr_linker.report.explanation import as_mermaid
from pytensor_jaxpr_linker.report.text import duration, line_place
from tests.report.test_explain import QUIET, vector


def graph_of(text):
    """Return the Mermaid text of the graph on a page."""
    return unescape(re.search(r"<pre [^>]*aria-label='The graph'>(.*?)</pre>", text, re.DOTALL)[1])


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
    # Reports change nothing: these traces belong to copies.
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
        pjl.GraphBreakWarning, match=r"Made at .*report/test_nodes_provenance.py:\d+: y = op\(x\)  # applied here"
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
