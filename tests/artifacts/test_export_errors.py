"""Draws and checks of exported functions, what these refuse, and exports that fail."""

import inspect
import re
from pathlib import Path

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import Doubled
from pytensor.graph.utils import MissingInputError
from pytensor.raise_op import Assert

import pytensor_jaxpr_linker as pjl
from tests.artifacts.test_export import matrix_and_vector, run_elsewhere, stateful


@pytest.fixture
def path(tmp_path):
    return tmp_path / "function.jaxpr"


x, M = pt.dvector("x"), pt.dmatrix("M")


def test_draws_are_those_of_as_jax_function(path):
    rng = pytensor.shared(np.random.default_rng(3), name="rng")
    following, draws = pt.random.normal(size=(4,), rng=rng, return_next_rng=True)
    f = pytensor.function([], draws, updates={rng: following}, mode="JAXPR")
    loaded = pjl.export(f, path=path)
    (name,) = loaded.state
    fn, key = pjl.as_jax_function(f), loaded.state[name]
    assert loaded.header.state[0].is_key
    for _ in range(2):
        with jax.enable_x64(True):
            want, key = fn(key)
        np.testing.assert_array_equal(loaded(), want)
    loaded.state[name] = jax.random.key(1)
    first = loaded()
    loaded.state[name] = jax.random.key(1)
    np.testing.assert_array_equal(loaded(), first)


def test_transformations_with_32_bits(path):
    x = pt.dvector("x")
    loaded = pjl.export([x], x * 2, path=path)
    with pytest.raises(TypeError, match="computes with 64 bits"):
        jax.jit(loaded.jax)(np.ones(2))
    assert loaded.jax(np.ones(2)).dtype == loaded(np.ones(2)).dtype == "float64"
    x = pt.fvector("x")
    assert jax.jit(pjl.export([x], x * 2, path=path).jax)(np.ones(2, "float32")).dtype == "float32"


# Checks and arguments


@pytest.mark.parametrize("checks", [True, False])
def test_checks_raise_their_exceptions_elsewhere(checks, path):
    x = pt.dvector("x")
    y = pt.linalg.cholesky(pt.outer(x, x) + pt.eye(2)) * Assert("x must be small")(x.sum(), x.sum() < 9)
    pjl.export([x], y.sum(), path=path, examples=[np.ones(2)], checks=checks)
    out = run_elsewhere(
        f"""
        f = load({str(path)!r})
        print(np.isfinite(f([1, 2])))
        try:
            print(np.isfinite(f([8, 2])))
        except AssertionError as error:
            print(error, *error.__notes__)
        """
    ).splitlines()
    assert out[0] == "True"
    assert out[1].startswith("x must be small Raised by Assert" if checks else "True")


BAD_ARGUMENTS = {
    "missing": (lambda f: f(np.ones((2, 3))), "missing a required argument: 'w'"),
    "many": (lambda f: f(1, 2, 3), "too many positional"),
    "unknown": (lambda f: f(np.ones((2, 3)), z=1), "missing a required argument: 'w'|unexpected"),
    "dtype": (lambda f: f(np.ones((2, 3)), np.ones(3, complex)), "w has dtype float64, and its value has complex128"),
    "text": (lambda f: f(np.ones((2, 3)), "three"), "w takes an array of dtype float64"),
    "ragged": (lambda f: f([[1], [2, 3]], [1, 2, 3]), "x takes an array of dtype float64"),
    "none": (lambda f: f(None, [1, 2, 3]), "x takes an array of dtype float64"),
    "object": (lambda f: f(np.ones((2, 3)), np.array([None] * 3)), "w has dtype float64, and its value has object"),
    "rank": (lambda f: f(np.ones(3), np.ones(3)), r"x has 2 axes, \(n, m\), and its value has shape \(3,\)"),
    "size": (lambda f: f(np.ones((2, 3)), np.ones(4)), "m is 3 for x and 4 for axis 0 of w"),
    "empty": (lambda f: f(np.ones((0, 3)), np.ones(3)), "n is 0 for x"),
    "key": (lambda f: f(np.ones((2, 3)), jax.random.key(1)), "w takes numbers"),
}


@pytest.mark.parametrize(("call", "message"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_bad_arguments(call, message, path):
    x, w = matrix_and_vector()
    loaded = pjl.export([x, w], x @ w, path=path, dims={"x": "n, m", "w": "m"})
    loaded._backend.jitted["call"] = None  # nothing runs
    with pytest.raises(TypeError, match=message):
        call(loaded)


def test_numbers_are_cast_as_pytensor_does(path):
    x, i = pt.tensor("x", dtype="float32", shape=(2,)), pt.iscalar("i")
    loaded = pjl.export([x, i], x * i, path=path)
    np.testing.assert_array_equal(loaded([0.5, 2], 3), np.float32([1.5, 6]))
    np.testing.assert_array_equal(loaded(np.array([1, 2], "int8"), True), [1, 2])
    for wrong in ((np.ones(2), 1), ([1, 2], np.int64(3)), ([1, 2], 2.5), ([1, 2], 2**40)):
        with pytest.raises(TypeError, match=r"x has dtype float32|i has dtype int32|i takes an array"):
            loaded(*wrong)


def test_names_that_are_none(path):
    inputs = [pt.dscalar(), pt.dscalar("beta[0]"), pt.dscalar("lambda"), pt.dscalar("x"), pt.dscalar("x")]
    loaded = pjl.export(inputs, sum(inputs[1:], inputs[0]), path=path)
    assert str(inspect.signature(loaded)) == "(arg0, beta_0_, _lambda, x, x_)"
    assert loaded(1, 2, 3, x=4, x_=5) == 15


# Shapes


def test_symbols(path):
    x, y = pt.dvector("x"), pt.dvector("y")
    with pytest.raises(Exception) as raised:
        pjl.export([x, y], x + y, path=path)
    assert "dims={'x': 'n', 'y': 'n'}" in "".join(raised.value.__notes__)
    assert not path.exists()
    loaded = pjl.export([x, y], x + y, path=path, dims={"x": "n", "y": ("n",)})
    np.testing.assert_array_equal(loaded(np.ones(4), np.ones(4)), np.full(4, 2))
    loaded = pjl.export([x], pt.exp(x), path=path)
    assert loaded.header.arguments[0].shape == ("x_0",)


def test_expressions_and_constraints(path):
    x, y = pt.dvector("x"), pt.dvector("y")
    loaded = pjl.export([x, y], x.reshape((2, -1)) + y, path=path, dims={"x": "2*n", "y": "n"}, constraints=["n >= 3"])
    np.testing.assert_array_equal(loaded(np.zeros(6), np.arange(3)), [[0, 1, 2]] * 2)
    again = pjl.load(path)
    assert again.header.constraints == ("n >= 3",)
    for wrong in ((np.zeros(5), np.zeros(3)), (np.zeros(4), np.zeros(2))):
        with pytest.raises(TypeError, match="n is"):
            again(*wrong)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dims": {"z": "n"}}, TypeError, "dims names 'z', and the function takes x"),
        ({"dims": {"x": "n, m"}}, ValueError, "x has 1 axis, and dims gives it 2 axes"),
        ({"dims": {"x": "n +"}}, ValueError, "is none"),
        ({"dims": {"x": "ñ"}}, ValueError, "gives x the length 'ñ': symbols consist of ASCII"),
        ({"examples": {"z": 1}}, TypeError, "examples names 'z'"),
        ({"examples": [1, 2]}, TypeError, "There are 2 examples"),
        ({"examples": [np.ones((2, 2))]}, TypeError, r"its example has shape \(2, 2\)"),
        ({"static": {"x": 1}}, TypeError, "static names 'x', which does not determine a shape"),
        ({"vjp_order": 3}, ValueError, "vjp_order is 0, 1 or 2"),
        ({"gradient": "none"}, ValueError, 'gradient is "pytensor" or "jax"'),
        ({"platforms": "cpu"}, ValueError, "platforms is a sequence"),
        ({"platforms": ()}, ValueError, "platforms is a sequence"),
        ({"platforms": None}, ValueError, "platforms is a sequence"),
        ({"platforms": ["CPU"]}, ValueError, "among 'cpu', 'cuda', 'rocm', 'tpu', not 'CPU'"),
        ({"platforms": ["cpu", "metal"]}, ValueError, "not 'metal'"),
        ({"platforms": ["gpu"]}, ValueError, r"not 'gpu'. GPUs are 'cuda' and 'rocm'"),
        ({"platforms": [0]}, ValueError, "not 0"),
    ],
)
def test_wrong_options(options, error, message, path):
    with pytest.raises(error, match=message):
        pjl.export([x := pt.dvector("x")], x, path=path, **options)
    assert not path.exists()


def test_wrong_static_shape(path):
    x = pt.tensor("x", shape=(3, None), dtype="float64")
    with pytest.raises(ValueError, match=r"static shape \(3, None\)"):
        pjl.export([x], x, path=path, dims={"x": "4, n"})
    assert pjl.export([x], x, path=path, dims={"x": "_, n"}).header.arguments[0].shape == (3, "n")


def test_inputs_that_determine_shapes(path):
    n, x = pt.lscalar("n"), pt.dscalar("x")
    with pytest.raises(TypeError, match=r"n determines a shape.*static=\{'n': 5\}"):
        pjl.export([n, x], pt.arange(n) * x, path=path)
    loaded = pjl.export([n, x], pt.arange(n) * x, path=path, static={"n": 4})
    np.testing.assert_array_equal(loaded(2.0), [0, 2, 4, 6])
    assert str(inspect.signature(loaded)) == "(x)"
    assert "fixed       n  4" in str(loaded)


# What is refused


def test_graph_with_host_steps(path):
    x = pt.dvector("x")
    y = Doubled()(x + 1)
    y.name = "doubled"
    with pytest.raises(pjl.GraphBreakError, match=r"Doubled.*'doubled'.*no emission rule"):
        pjl.export([x], y * 2, path=path)
    with pytest.warns(pjl.GraphBreakWarning):
        f = pytensor.function([x], y * 2, mode="JAXPR")
    with pytest.raises(pjl.GraphBreakError, match="no emission rule"):
        pjl.export(f, path=path)
    assert not path.exists()


@pytest.mark.parametrize("checks", [True, False])
def test_what_a_rule_refuses(checks, path):
    x = pt.dvector("x")
    with pytest.raises(pjl.GraphBreakError, match="JX002"):
        pjl.export([x], pt.arange(x.sum().astype("int64")), path=path, checks=checks, examples=[np.ones(2)])


def test_missing_inputs_and_others(path):
    x, y = pt.dvector("x"), pt.dvector("y")
    with pytest.raises(MissingInputError, match="y"):
        pjl.export([x], x + y, path=path)
    with pytest.raises(TypeError, match="export takes a function compiled"):
        pjl.export(3, path=path)


def test_platform_that_jax_does_not_lower_for(path):
    x = pt.dmatrix("x")
    y = pt.linalg.eig(x)[0]
    with pytest.raises(NotImplementedError, match=r"JAX can't lower .* for .*tpu.*platforms=\("):
        pjl.export([x], y, path=path, examples=[np.eye(2)], platforms=("cpu", "tpu"))
    loaded = pjl.export([x], y, path=path, examples=[np.eye(2)], platforms=("cpu",))
    np.testing.assert_allclose(loaded(np.eye(2)), [1, 1])


@pytest.mark.parametrize("platforms", [("cpu", "cuda", "rocm", "tpu"), ("cuda",), ("cpu", "rocm")])
def test_a_library_call_that_jax_does_not_promise_to_keep(platforms, path):
    x = pt.dmatrix("x")
    y = pt.linalg.eig(x)[0]
    with pytest.raises(NotImplementedError, match=r"JAX can't lower .* would call .*hybrid_eig_real") as raised:
        pjl.export([x], y, path=path, examples=[np.eye(2)], platforms=platforms)
    message = str(raised.value)
    assert all(platform in message for platform in platforms if platform != "cpu")
    assert ("platforms=('cpu',) leaves" in message) == ("cpu" in platforms)
    assert f"Made at {__file__}:" in message


def test_platforms_in_any_container(path):
    x = pt.dvector("x")
    for given in ((p for p in ["tpu", "cpu"]), {"cpu", "tpu"}, ["tpu", "cpu", "tpu"]):
        assert pjl.export([x], x, path=path, platforms=given).header.platforms == ("cpu", "tpu")


def test_a_decomposition_that_jax_has_on_the_cpu_alone(path):
    """For all platforms it is a loop of basic operations."""
    x = pt.dmatrix("x")
    value = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.0], [0.5, 0.0, 1.0]])
    t, z = pjl.export([x], list(pt.linalg.schur(x)), path=path, examples=[value])(value)
    np.testing.assert_allclose(z @ t @ z.T, value, atol=1e-12)
    np.testing.assert_allclose(np.tril(t, -1), 0, atol=1e-12)


# The older file


def test_a_failed_export_leaves_the_older_file(path):
    """Also if the new file can't be loaded: the header of an artifact has shorter names than PyTensor allows."""
    x, long = pt.dvector("x"), pt.dvector("x" * 300)
    pjl.export([x], x.sum(), path=path)
    for given, options, error in (
        (([x], x + 1), {"dims": {"x": "ñ"}}, ValueError),
        (([long], long + 1), {}, pjl.ArtifactError),
    ):
        with pytest.raises(error) as raised:
            pjl.export(*given, path=path, **options)
        assert pjl.load(path)([1.0, 2.0]) == 3
        assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert str(raised.value).startswith(f"{path}: ") and "Nothing was written" in str(raised.value)


def test_a_failed_export_for_iree_leaves_the_older_file(tmp_path, monkeypatch):
    pytest.importorskip("iree.compiler"), pytest.importorskip("iree.runtime")
    from pytensor_jaxpr_linker.artifacts import iree

    def refuse(path):
        raise pjl.ArtifactError(path, "The runtime does not take it.")

    x, path = pt.tensor("x", shape=(2,), dtype="float32"), tmp_path / "f.vmfb"
    pjl.export([x], x.sum(), path)
    monkeypatch.setattr(iree, "load_iree", refuse)
    with pytest.raises(pjl.ArtifactError, match=r"does not take it\. Nothing was written") as raised:
        pjl.export([x], x + 1, path)
    assert raised.value.path == str(path)
    assert pjl.load_iree(path)([1.0, 2.0]) == 3
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


# What is in the file


def test_equal_exports_are_equal_files(tmp_path):
    x, w = matrix_and_vector()
    for name in ("a", "b"):
        f = pytensor.function([x, w], pt.exp(x @ w), mode="JAXPR", name="f")
        pjl.export(f, path=tmp_path / name, dims={"x": "n, 3"}, examples={"w": np.ones(3)}, vjp_order=2, batched=True)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_no_word_of_the_machine(path):
    x, w = matrix_and_vector()
    pjl.export([x, w], pt.exp(x @ w)[0], path=path, examples=[np.ones((2, 3)), np.ones(3)], vjp_order=1, batched=True)
    content = path.read_bytes()
    for word in (b".py", b"/site-packages", b"/home", str(path.parent).encode(), __file__.encode()):
        assert word not in content
    assert jax.config.jax_traceback_in_locations_limit != 0


def test_print_says_what_it_was_made_of(path):
    loaded = pjl.export(stateful(), path=path, dims={"x": "3"}, vjp_order=1, platforms=("cpu", "tpu"))
    text = str(loaded)
    for part in ("step, an artifact", "PyTensor 3.", "cpu, tpu", "x  float64 (3,)", "count", "updated", "order 1"):
        assert part in text
    assert repr(loaded).startswith("<step(x) loaded from ")


def test_large_state_is_mapped(path):
    out_of = pytensor.shared(np.random.default_rng(0).random((5_000, 5_000)), name="weights")  # 200 MB
    x = pt.dvector("x")
    f = pytensor.function([x], out_of @ x, mode="JAXPR")
    loaded = pjl.export(f, path=path, examples=[np.ones(5_000)])
    assert sum(size for name, size in loaded.sizes.items() if name.startswith("programs/")) < 1e6
    want = float(f(np.ones(5_000))[7])
    del loaded, f
    out = run_elsewhere(
        f"""
        def anonymous():  # memory that is no file's, in MB
            (line,) = [x for x in open("/proc/self/status") if x.startswith("RssAnon")]
            return int(line.split()[1]) / 1e3
        jax.device_put(1.0)
        before = anonymous()
        f = load({str(path)!r})
        print(anonymous() - before, f(np.ones(5_000))[7], anonymous() - before)
        """
    )
    loading, value, running = map(float, out.split())
    np.testing.assert_allclose(value, want, rtol=1e-12)
    assert loading < 20
    assert running < 100


def test_the_chapter_of_the_documentation_runs(tmp_path, monkeypatch, capsys):
    chapter = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    maker, user = re.findall(r"```python\n(.*?)```", chapter, flags=re.DOTALL)
    printed = re.search(r"```\n(predict, .*?)```", chapter, flags=re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    exec(maker, {})
    found = capsys.readouterr().out
    without_numbers = lambda text: re.sub(r"[\d.]+", "", text)  # noqa: E731
    assert without_numbers(found) == without_numbers(printed)
    run_elsewhere(f"import os\nos.chdir({str(tmp_path)!r})\n" + user)


def test_reports_on_a_loaded_function(tmp_path):
    """`explain`, `stages` and `make_jaxpr` take what `load` returns."""
    x, scale = pt.vector("x", dtype="float64"), pt.scalar("scale", dtype="float64")
    weights = pytensor.shared(np.ones(3), name="weights")
    decay = pt.exp(-x / scale)
    decay.name = "decay"
    f = pytensor.function([x, scale], [decay, x[2] * weights.sum()], updates={weights: weights + 1}, mode="JAXPR")
    loaded = pjl.export(f, path=tmp_path / "decay.jaxpr")
    told = pjl.explain(loaded)
    assert [v.name for v in told.batches[0].inputs] == ["x", "scale", "weights"]
    assert [v.type for v in told.batches[0].outputs] == ["float64[x_0]", "float64[]", "float64[3]"]
    assert {("Exp", "decay"), ("True_div", ""), ("Neg", "")} <= {(node.op, node.name) for node in told.nodes}
    assert "IndexError" in told.batches[0].checks[0]
    told.save(tmp_path / "page.html")
    view = pjl.stages(loaded, np.ones(3), 2.0)
    assert "stablehlo.exponential" in view.stablehlo[0] and "HloModule" in view.hlo[0] and view.cost[0]["flops"] > 0
    assert [v.aval.shape for v in pjl.make_jaxpr(loaded, np.ones(4), 2.0).invars] == [(4,), (), (3,)]
    with pytest.raises(TypeError, match="give examples of x, scale"):
        pjl.stages(loaded)


def test_reports_on_a_loaded_function_of_fixed_shapes(tmp_path):
    x = pt.vector("x", shape=(3,), dtype="float64")
    loaded = pjl.export([x], x.sum(), path=tmp_path / "sum.jaxpr")
    assert pjl.stages(loaded).jaxpr[0].out_avals[0].shape == ()
    assert pjl.explain(loaded).batches[0].guards == ()
