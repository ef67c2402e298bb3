"""A module as MLIR: its text, the files next to it, and, where IREE is installed, its results."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.raise_op import Assert

import pytensor_jaxpr_linker as pjl
from jaxpr_artifact import ArtifactError
from jaxpr_artifact.descriptions import module_description_of
from jaxpr_artifact.header import Aval, Program
from jaxpr_artifact.programs import from_program
from jaxpr_artifact.trees import TreeDescription, described_tree, tree_like
from tests.artifacts.module.test_module import Params, readme_module

x, w_input = pt.dvector("x"), pt.tensor("w", dtype="float64", shape=(3,))


def with_state(nbytes=2**17):
    """Return a module that has state of this size, a key and a check, and constants."""
    rng = np.random.default_rng(0)
    table = pytensor.shared(rng.normal(size=(nbytes // 32, 4)), name="table")
    bias = pytensor.shared(np.arange(4.0), name="bias")
    key = pytensor.shared(np.random.default_rng(1), name="key")
    i = pt.lscalar("i")
    following, noise = pt.random.normal(size=4, rng=key, return_next_rng=True)
    offsets = pt.constant(rng.normal(size=(2**12, 4)))
    row = Assert("i must be even")(table[i] + offsets[i], pt.eq(i % 2, 0))

    class Model(pjl.Module):
        params = {"table": table, "bias": bias}  # noqa: RUF012
        rng = key
        take = pjl.public([i], [row, row.sum()], updates={bias: bias + 1, key: following})
        draw = pjl.public([], noise + bias, updates={key: following})
        change = pjl.public([i], updates={table: pt.set_subtensor(table[i], 0.0)})

    return Model()


# The text


def test_text_of_a_module():
    text = str(readme_module()[0]().mlir())
    assert text.startswith("module @trivial_kernel {")
    assert "@trivial_kernel" in readme_module()[0]().mlir() and "@other" not in readme_module()[0]().mlir()
    globals_ = re.findall(r'"ml_program.global"\(\) \{(is_mutable, )?sym_name = "([\w.]+)".* type = (\S+), value', text)
    assert globals_ == [("is_mutable, ", f"_params.{name}", "tensor<3x4xf32>") for name in "xb"]
    assert re.findall(r"func.func public @(\w+)", text) == ["get_params", "run", "set_params"]
    run = text[text.index("func.func public @run(") :].partition("return")[0]
    assert re.findall(r"ml_program.global_(\w+).*global = @([\w.]+)", run) == [
        ("load", "_params.x"),
        ("load", "_params.b"),
        ("store", "_params.x"),
    ]


def test_getters_and_setters():
    names = [f.name for f in with_state().mlir().description.functions]
    assert names == ["take", "draw", "change", "get_params", "set_params", "get_rng", "set_rng"]
    w = pytensor.shared(np.ones(3), name="w")
    own = pjl.Module("own", functions={"get_w": pjl.public([], 2.0 * w), "f": pjl.public([w_input], w + w_input)})
    found = own.mlir().description.functions
    assert [(f.name, f.kind) for f in found] == [("get_w", "function"), ("f", "function")]  # w is constant: no setter


def test_the_description_names_what_callers_need(tmp_path):
    mlir = with_state().mlir()
    take = mlir.description.functions[0]
    assert [(a.name, a.dtype, a.shape) for a in take.arguments] == [("i", "int64", ())]
    assert [(r.name, r.dtype, r.shape) for r in take.results] == [
        ("output0", "float64", (4,)),
        ("output1", "float64", ()),
        ("check", "int32", ()),
    ]
    assert set(take.writes) == {"params.bias", "rng"} and "params.table" in take.reads
    messages = {(c.type, c.message) for c in take.checks}
    assert ("AssertionError", "i must be even") in messages and any(kind == "IndexError" for kind, _ in messages)
    known = {g.name: (g.dtype, g.shape, g.is_key, g.is_mutable, g.parameter) for g in mlir.description.globals}
    assert known == {
        "params.table": ("float64", (4096, 4), False, True, "params.table"),
        "params.bias": ("float64", (4,), False, True, None),
        "rng": ("uint32", (2,), True, True, None),
        "constant0": ("float64", (4096, 4), False, False, "constant0"),
    }
    mlir.save(tmp_path / "model.mlir")
    written = json.loads((tmp_path / "model.json").read_text())
    assert written["scope"] == "model" and written["functions"][0]["checks"][0]["type"] in (
        "AssertionError",
        "IndexError",
    )


def test_the_description_has_trees(tmp_path):
    m = with_state()
    description = m.mlir().description
    text = description.as_text()
    assert module_description_of(tmp_path, text) == description
    (params, rng) = description.state
    assert (params.name, params.globals, rng.tree) == ("params", ("params.bias", "params.table"), None)
    assert tree_like(params.tree, iter([1, 2])) == {"bias": 1, "table": 2}
    point = Params(None, [(), {"a b": 0}])
    found = tree_like(described_tree(point), iter([5]))
    assert found == (None, [(), {"a b": 5}]) and found._fields == ("x", "b") and type(found).__name__ == "Params"
    keyword = TreeDescription("record", "Node", ("class",), (None,))  # a node that others have made JAX know
    assert tree_like(keyword, iter([5])) == {"class": 5}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["state"][0]["tree"].update(kind="set"), "a tree is a 'set'"),
        (lambda d: d["state"][0]["tree"].update(names=["table", "table"]), "not one name for each child"),
        (lambda d: d["state"][0]["tree"].update(names=["table"]), "not one name for each child"),
        (lambda d: d["state"][0].update(tree=None), "'params' has not the globals"),
        (lambda d: d["state"][1].update(globals=["key"]), "'rng' has not the globals"),
        (lambda d: d["functions"][0]["signature"].pop(), "take takes other arrays than its trees have"),
        (lambda d: d["functions"][0]["signature"][0].update(name="class"), "take has arguments without a name each"),
        (lambda d: d["functions"][0].update(returned=None), "take returns other arrays than its tree has"),
        (lambda d: d["functions"][0]["results"].pop(), "take does not return the code of its checks"),
        (lambda d: d["globals"][0].update(dtype="float1"), "params.bias has the dtype 'float1'"),
        (lambda d: d["globals"][0].update(parameter="p"), "params.bias has not both a parameter and its checksum"),
        (lambda d: d["globals"][0].pop("is_mutable"), "has not the parts"),
    ],
)
def test_descriptions_whose_parts_do_not_fit(change, message):
    description = json.loads(with_state().mlir().description.as_text())
    description["globals"].sort(key=lambda g: g["name"] != "params.bias")
    change(description)
    with pytest.raises(ArtifactError, match=message):
        module_description_of("model.vmfb", json.dumps(description))


def test_names_of_parts_that_are_no_symbols():
    value = {name: pytensor.shared(np.ones(3), name=name) for name in ("a b", 'q"', "a-b", "é", "plain")}
    m = type("Model", (pjl.Module,), {"part": pjl.Module.state(value, mutable=True)})()
    names = [g.name for g in m.mlir(inline_bytes=8).description.globals]
    assert names == ["part.a_b", "part.a_b_", "part.plain", "part.q_", "part._"]
    m.part["a b"].set_value(np.zeros(3))
    assert m.part.get_value()["a b"][0] == 0 != m.part.get_value()["a-b"][0]
    text = m.mlir(inline_bytes=8).text()
    assert all(f'sym_name = "{name}"' in text and f'"model"::"{name}"' in text for name in names)


def test_the_values_are_those_of_the_moment():
    m = with_state()
    m.params.set_value({"table": np.zeros((4096, 4)), "bias": np.full(4, 7.5)})
    assert 'sym_name = "params.bias", sym_visibility = "private", type = tensor<4xf64>, value = dense<7.5' in str(
        m.mlir()
    )
    assert not m.mlir().parameters["params.table"].any()


def test_locations_name_nodes_and_no_files():
    mlir = with_state().mlir()
    assert "Subtensor" not in mlir.text()
    located = mlir.text(locations=True)
    assert "Subtensor" in located and os.getcwd() not in located and ".py" not in located


def test_symbols_do_not_clash():
    """Functions inside a Jaxpr have names, too, which may equal the names of globals."""
    s, v = pytensor.shared(np.ones(3), name="_where"), pt.tensor("v", dtype="float64", shape=(3,))
    z = pytensor.scan(lambda a, b: pt.tanh(a) + b, sequences=[v], outputs_info=[v[0]], return_updates=False)
    calls = {name: pjl.public([v], pt.special.softmax(pt.gammainc(v, s) + z)) for name in ("f", "g", "f_body")}
    text = str(pjl.Module("main", functions=calls).mlir())
    names = re.findall(r'(?:func.func \w+ @|sym_name = ")([\w.]+)', text)
    assert len(set(names)) == len(names) >= 7


# Parameters next to the module


def test_large_arrays_are_not_copied_and_not_in_the_text():
    m = with_state(2**25)
    mlir = m.mlir()
    assert mlir.parameters.keys() == {"params.table", "constant0"}
    assert len(mlir.text()) < 1e5 > len(mlir.bytecode())
    again = m.mlir().parameters["params.table"]
    assert again.nbytes == 2**25
    if jax.default_backend() == "cpu":
        assert np.shares_memory(again, mlir.parameters["params.table"])


def test_the_threshold_is_the_callers():
    m = with_state()
    assert m.mlir(inline_bytes=2**40).parameters == {} == m.mlir(inline_bytes=None).parameters
    assert "flow.parameter" not in m.mlir(inline_bytes=None).text()
    assert m.mlir(inline_bytes=8).parameters.keys() == {"params.table", "params.bias", "constant0"}
    assert '#flow.parameter.named<"model"::"params.bias"> : tensor<4xf64>' in m.mlir(inline_bytes=8).text()


def test_small_constants_may_be_parameters_too():
    value = np.arange(3.0) / 7
    m = pjl.Module("m", functions={name: pjl.public([w_input], w_input * value) for name in "fg"})
    (found,) = m.mlir(inline_bytes=8).parameters.values()  # one for both functions
    np.testing.assert_array_equal(found, value)
    assert m.mlir().parameters == {}


def test_complex_numbers_stay_in_the_module():
    z = pytensor.shared(np.ones(3) * 1j, name="z")
    m = pjl.Module("m", functions={"f": pjl.public([w_input], w_input * z)})
    assert m.mlir(inline_bytes=8).parameters == {}


def test_files_of_parameters(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    mlir = with_state().mlir(inline_bytes=8)
    mlir.save(tmp_path / "model.mlirbc", parameters=tmp_path / "weights.safetensors")
    found = safetensors.load_file(tmp_path / "weights.safetensors")
    assert found.keys() == mlir.parameters.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, mlir.parameters[name])
    names = {"model.mlirbc", "model.json", "weights.safetensors"}
    assert {path.name for path in tmp_path.iterdir()} == names
    mlir.save(tmp_path / "model.mlirbc", parameters=tmp_path / "weights.safetensors")  # in place of the old ones
    assert {path.name for path in tmp_path.iterdir()} == names


def test_nothing_is_written_if_something_fails(tmp_path, monkeypatch):
    mlir = with_state().mlir()
    with pytest.raises(ValueError, match=r"into a .mlir or .mlirbc file"):
        mlir.save(tmp_path / "model.txt")
    with pytest.raises(ValueError, match=r"into .irpa or .safetensors files"):
        mlir.save(tmp_path / "model.mlir", parameters=tmp_path / "model.npz")
    for kind, package, extra in [("safetensors", "safetensors.numpy", "export"), ("irpa", "iree.runtime", "iree")]:
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ImportError, match=rf"pip install 'pytensor_jaxpr_linker\[{extra}\]'"):
            mlir.save(tmp_path / "model.mlir", parameters=tmp_path / f"model.{kind}")
    assert not list(tmp_path.iterdir())


# Versions of StableHLO, and what can't be lowered


def test_portable_bytecode_computes_the_same():
    """JAX reads it, as any reader of StableHLO does."""
    y = pt.tensor("y", dtype="float64", shape=(3,))
    outputs = [pt.gammaln(y), pt.erfinv(y / 9), pt.sort(y)[::-1]]
    f = pytensor.function([y], outputs, mode="JAXPR")
    value = np.array([0.5, 3.0, 2.0])
    for version in ("1.0.0", "1.9.0", None):
        data = pjl.Module(f).mlir().portable(version)
        avals = tuple(Aval("float64", (3,)) for _ in range(3))
        highest = jax.export.maximum_supported_calling_convention_version
        program = Program("main", "main", avals[:1], avals, (0,), False, highest)
        exported = from_program("", program, {"main": data}, ("cpu",), ())
        with jax.enable_x64(True):
            found = exported.call(value)
        np.testing.assert_allclose(found, f(value), rtol=1e-14)


def test_pure_functions_take_and_return_globals():
    m = with_state()
    text = m.mlir().pure_text()
    assert "ml_program" not in text
    draw = next(f for f in m.mlir().description.functions if f.name == "draw")
    taken, returned = re.search(r"func.func public @draw\((.*)\) -> \((.*)\) \{", text).groups()
    assert draw.reads == ("rng", "params.bias") and draw.writes == ("rng",)
    assert re.findall(r"tensor<(\S+)>", taken) == ["2xui32", "4xf64"]
    assert re.findall(r"tensor<(\S+)>", returned) == ["4xf64", "2xui32"]


def test_versions_that_can_not_be_written():
    mlir = pjl.Module("m", functions={"f": pjl.public([w_input], w_input + 1)}).mlir()
    assert mlir.portable("0.9.0") != mlir.portable()
    for version in ("0.1.0", "99.0.0"):
        with pytest.raises(
            ValueError, match=rf"can't be written in version {version} of StableHLO: .* writes 0.9.0 to 1"
        ):
            mlir.portable(version)
    for odd in ("new", "1.9", "", 19):
        with pytest.raises(ValueError, match=r"A version of StableHLO is a text such as \"1.9.0\", not "):
            mlir.portable(odd)


def test_shapes_must_be_known():
    f = pytensor.function([x], x.sum(), mode="JAXPR")
    m = pjl.Module("m", functions={"f": f})
    with pytest.raises(
        TypeError, match=r"The argument x of f is a Vector.* fixed shapes.* like=\{'x': .* or call f once"
    ):
        m.mlir()
    m.f(np.ones(5))
    assert m.mlir().description.functions[0].arguments[0].shape == (5,)
    n = pt.lscalar("n")
    m = pjl.Module("m", functions={"f": pjl.public([n], pt.arange(n).sum())})
    assert m.f(4) == 6
    with pytest.raises(TypeError, match="The argument n of f determines a shape"):
        m.mlir()


@pytest.mark.parametrize("mutable", [True, False], ids=["mutable", "constant"])
def test_state_that_determines_a_shape(mutable):
    size = pytensor.shared(np.int64(4), name="size")

    class Model(pjl.Module):
        n = pjl.Module.state(size, mutable=mutable)
        squares = pjl.public([], pt.arange(size) ** 2)

    m = Model()
    np.testing.assert_array_equal(m.squares(), [0, 1, 4, 9])
    if mutable:
        with pytest.raises(TypeError, match="The state n of squares determines a shape"):
            m.mlir()
    else:
        assert m.mlir().description.functions[0].results[0].shape == (4,)


def test_what_calls_python_can_not_leave():
    with pytest.raises(pjl.GraphBreakError):
        pjl.Module("m", functions={"f": pjl.public([w_input], pytensor.printing.Print("x")(w_input) + 1)})


def test_what_only_jax_has_is_replaced_for_iree():
    square = pt.tensor("square", dtype="float64", shape=(3, 3))
    m = pjl.Module("m", functions={"f": pjl.public([square], pt.linalg.cholesky(square))})
    assert "lapack" in m.mlir().text()
    assert "custom_call" not in m.mlir(platform="iree").text()


def test_a_platform_that_jax_can_not_lower_for():
    square = pt.tensor("square", dtype="float64", shape=(3, 3))
    m = pjl.Module("m", functions={"f": pjl.public([square], pt.linalg.eig(square)[0].real)})
    with pytest.raises(NotImplementedError, match="eig"):
        m.mlir(platform="tpu")
    with pytest.raises(ValueError, match="platform is one of 'cpu', 'cuda', 'rocm', 'tpu', 'iree', not 'abacus'"):
        m.mlir(platform="abacus")


# IREE


def compiled(mlir, folder):
    """Return a function that calls the text alone, compiled by IREE, and the path of the compiled module."""
    compiler, runtime = pytest.importorskip("iree.compiler"), pytest.importorskip("iree.runtime")
    mlir.save(folder / "model.mlir")
    vmfb, flags = folder / "model.vmfb", ["--iree-input-demote-f64-to-f32=false", "--iree-llvmcpu-target-cpu=host"]
    given = {"target_backends": ["llvm-cpu"], "input_type": "auto", "extra_args": flags}
    compiler.compile_file(str(folder / "model.mlir"), output_file=str(vmfb), **given)
    config = runtime.Config("local-task")
    context = runtime.SystemContext(config=config)
    context.add_vm_module(runtime.VmModule.mmap(config.vm_instance, str(vmfb)))
    functions = context.modules[mlir.description.name]

    def call(name, *args):
        found = functions[name](*args)
        results = found if isinstance(found, tuple | list) else () if found is None else (found,)
        return [np.array(r.to_host(), copy=True) for r in results]

    return call, vmfb


def test_program_of_the_readme_in_iree(tmp_path):
    ones = np.ones((3, 4), "float32")
    m = readme_module()[0]()
    call, vmfb = compiled(m.mlir(), tmp_path)
    for name, *args in [
        ("get_params",),
        ("run", 2 * ones),
        ("run", 3 * ones),
        ("get_params",),
        ("set_params", 0 * ones, 5 * ones),
        ("run", ones),
    ]:
        want = getattr(m, name)(*([Params(*args)] if name == "set_params" else args))
        np.testing.assert_array_equal(call(name, *args), [] if want is None else np.reshape(want, (-1, 3, 4)))
    np.save(tmp_path / "multiplier.npy", 2 * ones)
    import iree.runtime

    run = Path(iree.runtime.__file__).parents[1] / "_runtime_libs" / "iree-run-module"
    command = [run, "--device=local-task", f"--module={vmfb}", "--function=run", f"--input=@{tmp_path}/multiplier.npy"]
    out = subprocess.run(command, env={}, check=True, capture_output=True, text=True).stdout
    assert "3x4xf32=[9 9 9 9][9 9 9 9][9 9 9 9]" in out
