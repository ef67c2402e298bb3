"""What users may write: the forms of a call of `export`, and the values of its options."""

import inspect

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.utils import MissingInputError

import pytensor_jaxpr_linker as pjl

x, w = pt.dvector("x"), pt.dvector("w")
total = (x * w).sum()
total.name = "total"
how = {"dims": {"x": "n", "w": "n"}, "platforms": ("cpu",)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "function.jaxpr"


def compiled():
    return pytensor.function([x, w], total, mode="JAXPR", name="total")


FORMS = {
    "inputs-first": (lambda path: pjl.export([x, w], total, path, **how), False),
    "inputs-first-list": (lambda path: pjl.export([x, w], [total], path=path, **how), True),
    "outputs-first": (lambda path: pjl.export(total, [x, w], path, **how), False),
    "outputs-first-list": (lambda path: pjl.export([total], (x, w), path=path, **how), True),
    "by-name": (lambda path: pjl.export(outputs=total, inputs=[x, w], path=path, **how), False),
    "function": (lambda path: pjl.export(compiled(), path, **how), False),
    "function-path-by-name": (lambda path: pjl.export(compiled(), path=str(path), **how), False),
    "function-with-its-inputs": (lambda path: pjl.export(compiled(), [x, w], path, **how), False),
    "jax-function": (lambda path: pjl.export(pjl.as_jax_function([x, w], total), path, **how), False),
    "jax-function-with-its-inputs": (
        lambda path: pjl.export(pjl.as_jax_function([x, w], total), [x, w], path, **how),
        False,
    ),
    "mode": (lambda path: pjl.export([x, w], total, path, mode="FAST_COMPILE", **how), False),
}


@pytest.mark.parametrize(("export", "is_list"), FORMS.values(), ids=FORMS)
def test_forms_of_the_call(export, is_list, path):
    loaded = export(path)
    assert path.exists() and str(inspect.signature(loaded)) == "(x, w)"
    assert loaded([1, 2], [3, 4]) == ([11] if is_list else 11)


BAD_FORMS = {
    "no-path": (lambda path: pjl.export(compiled()), TypeError, r"needs the path .*export\(f, 'f.jaxpr'\)"),
    "no-path-of-a-graph": (lambda path: pjl.export([x, w], total), TypeError, "needs the path"),
    "two-paths": (lambda path: pjl.export(compiled(), "f", path="g"), TypeError, "one path, not 'f' and 'g'"),
    "bytes": (lambda path: pjl.export(compiled(), path=b"f"), TypeError, "a str or an os.PathLike, not b'f'"),
    "name-of-a-mode": (
        lambda path: pjl.export([x, w], total, "JAXPR"),
        TypeError,
        r"'JAXPR' is a mode, not the path .*export\(inputs, outputs, 'f.jaxpr', mode='JAXPR'\)",
    ),
    "mode-in-its-place": (lambda path: pjl.export([x, w], total, pjl.JAXPR), TypeError, "a str or an os.PathLike"),
    "inputs-of-others": (
        lambda path: pjl.export(compiled(), [x], path),
        TypeError,
        r"of its own, \('x', 'w'\): leave out",
    ),
    "other-order": (lambda path: pjl.export(compiled(), [w, x], path), TypeError, r"of its own, \('x', 'w'\)"),
    "no-list": (lambda path: pjl.export(x, total, path), TypeError, "inputs of a graph as a list of variables"),
    "outputs-alone": (lambda path: pjl.export([total], path), TypeError, "or the inputs and the outputs of a graph"),
    "missing": (lambda path: pjl.export([x], total, path), MissingInputError, "w"),
    "missing-outputs-first": (lambda path: pjl.export(total, [x], path), MissingInputError, "w"),
    "roots-only": (lambda path: pjl.export([x], [x, w], path), MissingInputError, "w"),
    "ambiguous": (lambda path: pjl.export([x, x + 1], [x], path), TypeError, "can't tell which .* both could be"),
    "no-outputs": (lambda path: pjl.export([total], [], path), TypeError, "can't tell which"),
    "model-and-inputs": (lambda path: pjl.export(3, [x], path), TypeError, "export takes a function compiled"),
    "variables-and-numbers": (lambda path: pjl.export([x, 3], [total], path), TypeError, "a list of variables, not"),
}


@pytest.mark.parametrize(("export", "error", "message"), BAD_FORMS.values(), ids=BAD_FORMS)
def test_calls_that_have_no_meaning(export, error, message, path, monkeypatch):
    monkeypatch.chdir(path.parent)
    with pytest.raises(error, match=message):
        export(path)
    assert not list(path.parent.iterdir())


def test_an_input_that_is_also_an_output(path):
    assert pjl.export([x], [x], path, platforms=("cpu",))([1.0])[0] == 1
    computed = x + 1  # an input of the graph, which ends there
    loaded = pjl.export([computed], [computed * 2], path, platforms=("cpu",))
    assert loaded([3.0])[0] == 6


# Options


def exported(path, given=x, **options):
    return pjl.export([given], given.sum(), path, **({"platforms": ("cpu",)} | options))


@pytest.mark.parametrize(
    ("dims", "shape"),
    [
        ({x: "n"}, ("n",)),
        ({"x": 5}, (5,)),
        ({"x": np.int64(5)}, (5,)),
        ({"x": ["n"]}, ("n",)),
        ({"x": (None,)}, ("x_0",)),
        ({"x": None}, ("x_0",)),
        ({"x": "_"}, ("x_0",)),
        ({"x": "(n,)"}, ("n",)),
        ({"x": "max(n, 3)"}, None),
        ({"x": "n**2"}, None),
    ],
)
def test_dims(dims, shape, path):
    if shape is None:  # that JAX could not solve for n
        with pytest.raises(ValueError, match="Cannot solve for values"):
            exported(path, dims=dims)
    else:
        assert exported(path, dims=dims).header.arguments[0].shape == shape


def test_dims_of_a_compiled_function_by_its_variables(path):
    step = pytensor.shared(np.ones(2), name="step")
    f = pytensor.function([x, w], x * step, updates={step: step * 2}, mode="JAXPR", on_unused_input="ignore")
    loaded = pjl.export(f, path, dims={x: "n", w: "m", step: "n"}, platforms=("cpu",))
    assert [a.shape for a in loaded.header.arguments] == [("n",), ("m",)]
    assert loaded.header.state[0].symbolic == ("n",)


def test_other_options_by_variables(path):
    count, scale = pt.lscalar("count"), pt.dvector("lambda")
    graph = [count, scale], pt.arange(count) * scale.sum()
    loaded = pjl.export(*graph, path, static={count: 3}, examples={scale: np.ones(2)}, platforms=("cpu",))
    np.testing.assert_array_equal(loaded([1, 1]), [0, 2, 4])
    loaded = pjl.export(*graph, path, examples={"lambda": np.ones(4), "count": 2}, platforms=("cpu",))
    assert loaded.header.arguments[0].name == "_lambda" and loaded.header.arguments[0].shape == (4,)


def test_names_that_several_inputs_have(path):
    one, two = pt.dvector("class"), pt.dvector("class")
    graph = [one, two], one.sum() + two.sum()
    with pytest.raises(TypeError, match="dims names 'class', and the function takes _class, _class_"):
        pjl.export(*graph, path, dims={"class": "n"})
    loaded = pjl.export(*graph, path, dims={one: "n", "_class_": "m"}, platforms=("cpu",))
    assert [a.shape for a in loaded.header.arguments] == [("n",), ("m",)]


def test_one_constraint(path):
    assert exported(path, dims={"x": "n"}, constraints="n >= 2").header.constraints == ("n >= 2",)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dims": {"x": True}}, TypeError, "dims gives x the shape True: a length is a number, a text"),
        ({"dims": {"x": (2.5,)}}, TypeError, r"dims gives x the shape \(2.5,\)"),
        ({"dims": {"x": ("n", 3)}}, ValueError, "x has 1 axis, and dims gives it 2 axes"),
        ({"dims": {"x": -1}}, ValueError, r"The shape \(-1\) of x is none: a length is 0 or more"),
        ({"dims": {"x": "-1"}}, ValueError, "a length is 0 or more"),
        ({"dims": ["n"]}, TypeError, r"dims is a dict from the names of inputs, not \['n'\]"),
        ({"dims": {w: "n"}}, TypeError, "dims names 'w', and the function takes x"),
        ({"static": {w: 3}}, TypeError, "static names 'w'"),
        ({"examples": {w: 3}}, TypeError, "examples names 'w'"),
        ({"constraints": ["n >> 2"]}, ValueError, r"constraints=\['n >> 2'\] are none"),
    ],
)
def test_wrong_values_of_options(options, error, message, path):
    with pytest.raises(error, match=message):
        exported(path, **options)
    assert not path.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("f.mlir", r"does not write \.mlir files.*\.jaxpr is for JAX.*mlir\(\)\.save\(path\) writes MLIR"),
        ("f.onnx", r"does not write \.onnx files"),
        ("f.NPZ", r"does not write \.npz files"),
    ],
)
def test_names_of_other_formats(name, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        exported(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_paths_where_no_file_can_be(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"the folder .*nowhere is missing"):
        exported(tmp_path / "nowhere" / "f.jaxpr")
    with pytest.raises(IsADirectoryError, match=r"is a folder: export writes a file, such as .*f\.jaxpr"):
        exported(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["function", "function.jaxpr", "function.v1", "function.JAXPR"])
def test_names_of_artifacts(name, tmp_path):
    exported(tmp_path / name)
    assert pjl.load(tmp_path / name)([1.0]) == 1


def test_a_name_in_capitals_is_for_iree_too(tmp_path):
    pytest.importorskip("iree.compiler"), pytest.importorskip("iree.runtime")
    assert exported(tmp_path / "F.VMFB", dims={"x": "2"}, platforms=pjl.artifacts.writing.PLATFORMS)([1.0, 2.0]) == 3
