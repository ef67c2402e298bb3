"""Programs that IREE can't have, compilers that fail, and files that are damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

pytest.importorskip("iree.compiler")
pytest.importorskip("iree.runtime")
import jax

import pytensor_jaxpr_linker as pjl
from jaxpr_artifact import ArtifactError, IreeFunction, IreeModule, load, load_iree, load_iree_module
from jaxpr_artifact.files import seal
from pytensor_jaxpr_linker.artifacts import iree
from pytensor_jaxpr_linker.artifacts.iree import IreeError, compile_mlir, tool_path
from pytensor_jaxpr_linker.artifacts.mlir.mlir_module import write_parameter_file

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")  # in the reference


def fails(message: str, tmp_path: Path, mlir: str = "module { }", **options: Any) -> IreeError:
    with pytest.raises(IreeError, match=message) as caught:
        compile_mlir(mlir, tmp_path / "f.vmfb", **options)
    assert not list(tmp_path.iterdir())
    return caught.value


def test_refused_programs(tmp_path: Path) -> None:
    """The first line of the compiler, and the names of the operation that it is about."""
    mlir = """module { func.func @main(%a: tensor<2x2xf64>) -> tensor<2x2xf64> {
        %0 = stablehlo.cholesky %a : tensor<2x2xf64> loc("f/Cholesky[factor]/cholesky")
        return %0 : tensor<2x2xf64> } }"""
    error = fails(r"refused the program: failed to legalize.*It is about f/Cholesky\[factor\]/cholesky", tmp_path, mlir)
    assert error.location == "f/Cholesky[factor]/cholesky" and "iree-compile" in error.command[0]
    fails("refused nonsense: custom op 'x'", tmp_path, "x", name="nonsense")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("kill -SEGV $$", r"crashed on the program \(Segmentation fault\): it said nothing"),
        ("exit 0", "refused the program: it said nothing"),
    ],
)
def test_compilers_that_fail(body: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin" / "iree-compile"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n{body}\n")
    tool.chmod(0o755)
    monkeypatch.setattr(iree, "tool_path", lambda *_: tool)
    folder = tmp_path / "out"
    folder.mkdir()
    fails(message, folder)


def test_missing_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iree.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install iree-base-compiler.*pytensor_jaxpr_linker\[iree\]"):
        compile_mlir("module { }", tmp_path / "f.vmfb")


def test_missing_runtime(step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "iree.runtime", None)
    for door in (load, load_iree):
        with pytest.raises(ImportError, match="pip install iree-base-runtime"):
            door(step[1].path)


def test_load_takes_what_the_file_is(step: Any, tmp_path: Path) -> None:
    """The contents of a file decide, not its name."""
    data = Path(step[1].path).read_bytes()
    for name in ("step.vmfb", "step.jaxpr", "step"):
        (tmp_path / name).write_bytes(data)
        found = load(tmp_path / name, device="local-sync")
        assert isinstance(found, IreeFunction) and found.header == step[1].header
    x = pt.dvector("x")
    pjl.export([x], 2 * x, path=tmp_path / "f.jaxpr")
    (tmp_path / "f.jaxpr").rename(tmp_path / "f.vmfb")
    assert load(tmp_path / "f.vmfb")([1.0]) == 2
    for option in ("device", "parameters"):
        with pytest.raises(TypeError, match=rf"{option}='local-sync' is for .vmfb files, and .*f.vmfb is none"):
            load(tmp_path / "f.vmfb", **{option: "local-sync"})
    with pytest.raises(TypeError, match=r"parameters='w.irpa' is for modules, and .*step is one function"):
        load(tmp_path / "step", parameters="w.irpa")
    (tmp_path / "cut.vmfb").write_bytes(data[:-100])
    np.savez(tmp_path / "data.npz", x=[1])
    for name in ("cut.vmfb", "data.npz"):
        with pytest.raises(ArtifactError, match=r"no checksum .*damaged, or was not written by this package"):
            load(tmp_path / name)


def test_doors_name_each_other(step: Any, tmp_path: Path) -> None:
    x = pt.dvector("x", shape=(3,))
    pjl.Module("m", functions={"f": pjl.public([x], 2 * x)}).save(tmp_path / "m.vmfb")
    assert isinstance(load(tmp_path / "m.vmfb"), IreeModule)
    with pytest.raises(ArtifactError, match=r"a module of functions that share state.* Load it by `load_iree_module`"):
        load_iree(tmp_path / "m.vmfb")
    with pytest.raises(ArtifactError, match=r"one function, not a module.* Load it by `load_iree`"):
        load_iree_module(step[1].path)


@pytest.mark.parametrize("door", [load, load_iree, load_iree_module])
def test_devices_that_are_not_there(door: Callable[..., Any], step: Any) -> None:
    with pytest.raises(ValueError, match=r"IREE finds no device 'abacus' .*the runtime has .*local-task") as caught:
        door(step[1].path, device="abacus")
    assert not isinstance(caught.value, ArtifactError)  # the file is as good as before


def test_damaged_files(step: Any, tmp_path: Path) -> None:
    whole = Path(step[1].path).read_bytes()
    for name, data, message in (
        ("empty", b"", "The file is empty"),
        ("cut", whole[: len(whole) // 2], "no checksum at its end"),
        ("other", b"hello" * 100, "no checksum at its end"),
        ("changed", whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:], "its checksum does not fit"),
    ):
        (tmp_path / f"{name}.vmfb").write_bytes(data)
        with pytest.raises(ArtifactError, match=message):
            load_iree(tmp_path / f"{name}.vmfb")
    bare = "%0 = stablehlo.constant dense<1.0> : tensor<f64> return %0 : tensor<f64>"
    compile_mlir(f"module {{ func.func @main() -> tensor<f64> {{ {bare} }} }}", tmp_path / "bare.vmfb")
    seal(tmp_path / "bare.vmfb")
    with pytest.raises(ArtifactError, match="does not say what its arguments are"):
        load_iree(tmp_path / "bare.vmfb")


def test_parameters(tmp_path: Path) -> None:
    """Archives that IREE's own program reads."""
    path = tmp_path / "arrays.irpa"
    write_parameter_file(path, {"weights": np.arange(6.0).reshape(2, 3), "flag": np.array(True)})
    tool = tool_path("iree._runtime_libs", "iree-dump-parameters")
    text = subprocess.run([tool, f"--parameters={path}"], env={}, capture_output=True, text=True, check=True).stdout
    assert "weights" in text and "flag" in text and os.listdir(tmp_path) == ["arrays.irpa"]


def test_draws_are_those_of_the_key(tmp_path: Path) -> None:
    rng = pytensor.shared(np.random.default_rng(5), name="rng")
    _, x = pt.random.gamma(2.0, scale=1.5, size=(4,), rng=rng, return_next_rng=True)
    fn = pytensor.function([], x, mode="JAXPR")
    draw = pjl.export(fn, path=tmp_path / "draw.vmfb")
    draw.state["rng"] = jax.random.key(7)
    by_jax = pjl.export(fn, path=tmp_path / "draw.jaxpr")
    by_jax.state["rng"] = jax.random.key(7)
    np.testing.assert_allclose(draw(), by_jax(), rtol=1e-12)
