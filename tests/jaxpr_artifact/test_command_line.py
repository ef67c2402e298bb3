"""``python -m jaxpr_artifact`` and ``python -m pytensor_jaxpr_linker``: inspect, run, bench."""

import re
import subprocess
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import pytensor_jaxpr_linker as pjl
from jaxpr_artifact.command_line import main


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    """A function of `x` and `scale` with a check and two outputs."""
    path = tmp_path_factory.mktemp("artifact") / "f.jaxpr"
    x, scale, i = pt.dvector("x"), pt.dscalar("scale"), pt.lscalar("i")
    total = x.sum()
    total.name = "total"
    f = pytensor.function([x, scale, i], [x * scale, total, x[i]], mode="JAXPR", name="scaled")
    pjl.export(f, path=path, examples=[np.ones(3), 1.0, 0], batched=True)
    return str(path)


def counting():
    """Return a function that updates two of three parts of its state."""
    by, count = pt.dscalar("by"), pytensor.shared(0.0, name="count")
    w, scale = pytensor.shared(np.arange(3.0), name="w"), pytensor.shared(2.0, name="scale")
    file = count + scale * by
    file.name = "file"  # the name of a parameter of `numpy.savez`
    return pytensor.function([by], file, updates={count: file, w: w + by}, mode="JAXPR", name="step")


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    """A function with updates, and one output."""
    path = tmp_path_factory.mktemp("step") / "step.jaxpr"
    pjl.export(counting(), path=path)
    return str(path)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The same, as files of IREE: a function, and a module with two functions."""
    pytest.importorskip("iree.compiler")
    pytest.importorskip("iree.runtime")
    folder = tmp_path_factory.mktemp("compiled")
    pjl.export(counting(), path=folder / "step.vmfb")
    x, w, bias = pt.dvector("x", shape=(3,)), pytensor.shared(np.zeros(3), name="w"), pytensor.shared(1.0, name="bias")
    total = (w * x).sum() + bias
    total.name = "total"

    class Model(pjl.Module):
        params = {"w": w, "bias": bias}  # noqa: RUF012
        predict = pjl.public({"features": {"x": x}}, [total, 2 * total])
        learn = pjl.public([x], total, updates={w: w + x, bias: bias + 1})

    class PartlyConstant(pjl.Module):
        parts = {"w": w, "fixed": pytensor.shared(2.0), "more": [pytensor.shared(3.0), bias]}  # noqa: RUF012
        learn = pjl.public([x], total, updates={w: w + x, bias: bias + 1})

    Model().save(folder / "model.vmfb")
    PartlyConstant().save(folder / "partly.vmfb")
    w.set_value(np.zeros(10_000))
    pjl.Module("other", functions={"f": pjl.public([], w.sum())}).save(folder / "other.vmfb", target="aarch64")
    return folder


@pytest.fixture
def files(tmp_path):
    """Files of arguments, by name."""
    x = np.array([1.0, 2.0, 4.0])
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "all.npz", x=x, scale=0.5, i=2)
    np.savez(tmp_path / "batch.npz", x=np.stack([x, 2 * x]), scale=np.array([0.5, 1]), i=np.array([0, 1]))
    np.savez(tmp_path / "odd.npz", y=x)
    np.save(tmp_path / "objects.npy", np.array([None]), allow_pickle=True)
    return tmp_path


@pytest.mark.parametrize("package", ["jaxpr_artifact", "pytensor_jaxpr_linker"])
def test_inspect_in_a_process(package, artifact):
    done = subprocess.run(
        [sys.executable, "-m", package, "inspect", artifact], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{pjl.load(artifact)}\n"
    done = subprocess.run([sys.executable, "-m", package, "--help"], capture_output=True, text=True, check=True)
    assert f"python -m {package}" in done.stdout and "bench" in done.stdout


@pytest.mark.parametrize(
    "inputs", [["all.npz"], ["x.npy", "0.5", "2"], ["i=2", "x=x.npy", "scale=0.5"], ["x.npy", "scale=0.5", "i=2"]]
)
def test_run(inputs, artifact, files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    assert main(["run", artifact, *inputs, "--out", "out.npz"]) == 0
    assert "saved output0, total, output2 in out.npz" in capsys.readouterr().out
    with np.load("out.npz") as out:
        np.testing.assert_array_equal(out["output0"], [0.5, 1, 2])
        assert out["total"] == 7 and out["output2"] == 4
    assert main(["run", artifact, *inputs]) == 0
    assert "total: float64[]\n7.0" in capsys.readouterr().out


def test_run_batched(artifact, files, capsys):
    assert main(["run", artifact, str(files / "batch.npz"), "--batched"]) == 0
    assert "total: float64[2]\n[ 7. 14.]" in capsys.readouterr().out


def test_names_and_kinds_of_files_of_outputs(step, files, capsys):
    assert main(["run", step, "1.5", "--out", str(files / "out.npy")]) == 0
    assert np.load(files / "out.npy") == 3
    assert main(["run", step, "1.5", "--out", str(files / "out.npz")]) == 0
    with np.load(files / "out.npz") as out:
        assert out.files == ["file"] and out["file"] == 3
    assert sorted(files.glob("out*")) == [files / "out.npy", files / "out.npz"]
    assert f"saved file in {files / 'out.npz'}" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["step.jaxpr", "step.vmfb"])
def test_state_is_kept_between_runs(kind, step, files, capsys, request):
    path = step if kind == "step.jaxpr" else str(request.getfixturevalue("compiled") / kind)
    for count in (3, 6, 9):
        assert main(["run", path, "by=1.5", "--state", str(files / "state.npz")]) == 0
        assert f"file: float64[]\n{count}" in capsys.readouterr().out
    with np.load(files / "state.npz") as state:
        assert state.files == ["count", "w"] and state["count"] == 9
        np.testing.assert_array_equal(state["w"], [4.5, 5.5, 6.5])


def test_functions_of_a_module(compiled, files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    path = str(compiled / "model.vmfb")
    for value in (1, 23, 45):
        assert main(["run", path, "x.npy", "--function", "learn", "--state", "state.npz", "--out", "out.npy"]) == 0
        assert np.load("out.npy") == value
    with np.load("state.npz") as state:
        np.testing.assert_array_equal(state["params.w"], [3, 6, 12])
        assert state["params.bias"] == 4
    capsys.readouterr()
    assert (
        main(["run", path, "features.x=x.npy", "--function=predict", "--state=state.npz", "--device=local-sync"]) == 0
    )
    assert "total: float64[]\n67.0\noutput1: float64[]\n134.0" in capsys.readouterr().out
    for arguments, message in [
        ([], "TypeError: Say which function of the module, by --function: predict, learn, get_params, set_params."),
        (["--function=fit"], "TypeError: The module has no function 'fit', by"),
        (["--function=predict", "--batched"], "TypeError: --batched is for files of JAX"),
        (["--function=predict", "--device=abacus"], "ValueError: IREE finds no device 'abacus'"),
    ]:
        assert main(["run", path, "x.npy", *arguments]) == 1
        assert capsys.readouterr().err.startswith(message)


def test_state_of_a_tree_that_is_partly_constant(compiled, files, capsys):
    state = files / "state.npz"
    for value in (1, 23, 45):
        arguments = [str(compiled / "partly.vmfb"), str(files / "x.npy"), "--function=learn", "--state", str(state)]
        assert main(["run", *arguments]) == 0
        assert capsys.readouterr().out == f"total: float64[]\n{value}.0\n"
    with np.load(state) as found:
        assert sorted(found.files) == ["parts.more.1", "parts.w"] and found["parts.more.1"] == 4
    np.savez(state, **{"parts.fixed": 1.0})
    assert main(["run", *arguments]) == 1
    assert "has 'parts.fixed', and the state that learn updates is parts.more.1, parts.w." in capsys.readouterr().err


def test_inspect_files_of_iree(compiled, capsys):
    assert main(["inspect", str(compiled / "step.vmfb")]) == 0
    text = capsys.readouterr().out
    assert text == f"{pjl.load(compiled / 'step.vmfb')}\n" and text.startswith(
        "step, a function compiled by IREE for host"
    )
    assert re.search(r"arguments +by +float64 \(\)\n +state .*count +float64 \(\) +updated", text)
    assert main(["inspect", str(compiled / "model.vmfb")]) == 0
    text = capsys.readouterr().out
    assert text == f"{pjl.load(compiled / 'model.vmfb')}\n"
    assert re.search(r"learn\(x\) +takes +x +float64 \(3,\)\n +returns +total +float64 \(\)\n", text)
    assert re.search(r"state +params.bias +float64 \(\)\n +params.w +float64 \(3,\)\n", text)
    assert main(["inspect", str(compiled / "other.vmfb")]) == 0  # for another machine
    text = capsys.readouterr().out
    assert "compiled by IREE for aarch64" in text
    assert re.search(r"state +w +float64 \(10000,\) +constant\n +parameters +w +float64 \(10000,\) +80.0 kB", text)


def test_bench_files_of_iree(compiled, files, capsys):
    for arguments in (["step.vmfb", "1.0"], ["model.vmfb", str(files / "x.npy"), "--function", "learn"]):
        assert main(["bench", str(compiled / arguments[0]), *arguments[1:], "--calls", "3"]) == 0
        assert re.search(r"median call +[\d.]+ ms of 3.*\non +local-task", capsys.readouterr().out)


def test_bench(artifact, files, capsys):
    assert main(["bench", artifact, str(files / "all.npz"), "--calls", "3"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"first result +[\d.]+ ms.*\nmedian call +[\d.]+ ms of 3", out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "nowhere"], "FileNotFoundError"),
        (["inspect", "x.npy"], "ArtifactError: x.npy: The file is no artifact"),
        (["run", "ARTIFACT"], "TypeError: The function does not get x, scale, i: it takes x, scale, i."),
        (
            ["run", "ARTIFACT", "z=x.npy"],
            "TypeError: z=x.npy gives 'z', and the function has no such argument: it takes",
        ),
        (["run", "ARTIFACT", "batch.npz", "z=1"], "TypeError: z=1 gives 'z'"),
        (["run", "ARTIFACT", "odd.npz"], "TypeError: odd.npz gives 'y', and the function has no such argument"),
        (["run", "ARTIFACT", "x.npy", "1", "0", "2"], "TypeError: The function gets 4 arguments by position"),
        (["run", "ARTIFACT", "x.npy", "1", "x=x.npy"], "TypeError: x is given twice"),
        (["run", "ARTIFACT", "all.npz", "--out", "o1"], "ValueError: Outputs are saved in a .npz file"),
        (["run", "ARTIFACT", "all.npz", "--out", "o1.npy"], "ValueError: A .npy file holds one array, and there are 3"),
        (["run", "ARTIFACT", "all.npz", "--state", "s.npz"], "TypeError: --state is for functions that update state"),
        (["run", "ARTIFACT", "all.npz", "--function", "f"], "TypeError: --function is for modules, and"),
        (["run", "ARTIFACT", "all.npz", "--device", "local-sync"], "TypeError: device='local-sync' is for .vmfb files"),
        (["run", "STEP", "1", "--state", "s"], "ValueError: State is in a .npz file, not 's'"),
        (["run", "STEP", "1", "--state", "odd.npz"], "TypeError: odd.npz has 'y', and the state that step updates is"),
        (["run", "ARTIFACT", "objects.npy", "1", "1"], "ValueError: Object arrays cannot be loaded"),
        (["run", "ARTIFACT", "three", "1", "1"], "TypeError: 'three' is no .npy or .npz file and no number"),
        (["run", "ARTIFACT", "all.npz", "i=1"], "TypeError: i is given twice"),
        (["run", "ARTIFACT", "x.npy", "1", "7"], "IndexError: index is out of bounds"),
        (["bench", "ARTIFACT", "all.npz", "--calls", "0"], "ValueError: --calls is 1 or more"),
    ],
)
def test_errors_are_one_line(arguments, message, artifact, step, files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    before = sorted(files.iterdir())
    assert main([{"ARTIFACT": artifact, "STEP": step}.get(a, a) for a in arguments]) == 1
    assert sorted(files.iterdir()) == before
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith(message) and captured.err.count("\n") == 1
