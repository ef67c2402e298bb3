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


@pytest.fixture
def files(tmp_path):
    """Files of arguments, by name."""
    x = np.array([1.0, 2.0, 4.0])
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "all.npz", x=x, scale=0.5, i=2)
    np.savez(tmp_path / "batch.npz", x=np.stack([x, 2 * x]), scale=np.array([0.5, 1]), i=np.array([0, 1]))
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


def test_bench(artifact, files, capsys):
    assert main(["bench", artifact, str(files / "all.npz"), "--calls", "3"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"first result +[\d.]+ ms.*\nmedian call +[\d.]+ ms of 3", out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "nowhere"], "FileNotFoundError"),
        (["inspect", "x.npy"], "ArtifactError: x.npy: The file is no artifact"),
        (["run", "ARTIFACT"], "TypeError: missing a required argument: 'x'"),
        (["run", "ARTIFACT", "objects.npy", "1", "1"], "ValueError: Object arrays cannot be loaded"),
        (["run", "ARTIFACT", "three", "1", "1"], "TypeError: 'three' is no .npy or .npz file and no number"),
        (["run", "ARTIFACT", "all.npz", "i=1"], "TypeError: i is given twice"),
        (["run", "ARTIFACT", "x.npy", "1", "7"], "IndexError: index is out of bounds"),
        (["bench", "ARTIFACT", "all.npz", "--calls", "0"], "ValueError: --calls is 1 or more"),
    ],
)
def test_errors_are_one_line(arguments, message, artifact, files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    assert main([artifact if a == "ARTIFACT" else a for a in arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith(message) and captured.err.count("\n") == 1
