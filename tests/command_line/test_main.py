"""``python -m pytensor_jaxpr_linker``: the doctor, the documentation offline, and reports on model files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base import errors, requirements
from pytensor_jaxpr_linker.base.words import SITE
from pytensor_jaxpr_linker.command_line import doctor, main
from pytensor_jaxpr_linker.command_line.main import run_command
from pytensor_jaxpr_linker.graph.rewritten.store import STORE

FUNCTION = """
import pytensor, pytensor.tensor as pt
import pytensor_jaxpr_linker as pjl

x = pt.vector("x", dtype="float64", shape=(3,))
f = pytensor.function([x], pt.exp(x).sum(), mode="JAXPR")
"""
MODEL = """
import pymc as pm

with pm.Model() as model:
    mu = pm.Normal("mu")
    pm.Normal("y", mu, 1, observed=[1.0, 2.0])

def build():
    return model

if __name__ == "__main__":
    raise AssertionError("a report runs no main program")
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Return a function that writes a file into the working folder and returns its name."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "given.py") -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return name

    return write


def run(capsys, *words: str) -> tuple[int, str, str]:
    status = run_command(words)
    said = capsys.readouterr()
    return status, said.out, said.err


# -- kept programs


def test_the_folder_of_kept_programs(tmp_path, capsys):
    """Its size; with a limit the programs that were used least recently go."""
    before = STORE.folder
    try:
        STORE.use(None)
        assert "No program is kept" in run(capsys, "cache")[1]
        STORE.use(tmp_path)
        for name, age in (("a", 30), ("b", 20), ("c", 10)):
            (tmp_path / name).write_bytes(bytes(2**20))
            os.utime(tmp_path / name, (time.time() - age,) * 2)
        assert run(capsys, "cache")[1] == f"{tmp_path}: 3 programs, 3.0 MiB\n"
        assert run(capsys, "cache", "--limit", "2.5")[1] == f"1 program deleted.\n{tmp_path}: 2 programs, 2.0 MiB\n"
        assert {path.name for path in tmp_path.iterdir()} == {"b", "c"}
        assert run(capsys, "cache", "--limit", "0")[1] == f"2 programs deleted.\n{tmp_path}: 0 programs, 0.0 MiB\n"
        assert run(capsys, "cache", "--limit", "-1")[0] == 1
    finally:
        STORE.use(before)


# -- the doctor


def test_doctor_finds_nothing_wrong_here(capsys):
    status, out, _ = run(capsys, "doctor")
    assert status == 0, out
    assert out.startswith("```text\n") and out.endswith("```\n")
    for part in (
        "Versions",
        f"jax            {metadata.version('jax')}",
        "cpu 0: cpu",
        "can be imported: pymc",
        "One XLA program",
        "N(3, 2) by 2 chains of 500 draws",
        "Nothing is wrong.",
    ):
        assert part in out


@pytest.fixture
def quick(monkeypatch):
    """Let the doctor draw from no posterior."""
    monkeypatch.setattr(doctor, "PARTS", {name: part for name, part in doctor.PARTS.items() if name != "A posterior"})


@pytest.mark.usefixtures("quick")
def test_doctor_says_which_version_does_not_fit_and_does_not_name_the_home(monkeypatch, capsys):
    folder = Path(pytensor.config.base_compiledir)
    monkeypatch.setattr(requirements.Path, "home", lambda: folder.parent)
    monkeypatch.setattr(requirements, "installed_version", lambda name: {"jax": "0.13.0"}.get(name))
    status, out, _ = run(capsys, "doctor")
    assert status == 1
    assert "- jax 0.13.0 does not fit >=0.11.2,<0.13: pip install 'jax>=0.11.2,<0.13'" in out
    assert "- pytensor is missing: pip install 'pytensor>=3.3,<3.4'" in out
    assert f"PyTensor compiles in ~/{folder.name}" in out and str(folder) not in out


@pytest.mark.usefixtures("quick")
def test_doctor_goes_on_where_one_part_fails(monkeypatch, capsys):
    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", lambda dir: 1 / 0)
    status, out, _ = run(capsys, "doctor")
    assert status == 1 and "- Folders: ZeroDivisionError: division by zero. Report it" in out
    assert "One XLA program" in out


def fail_without_text(*_):
    raise AssertionError


def test_doctor_says_why_jax_has_no_device(monkeypatch, capsys):
    """As with JAX_PLATFORMS=cuda where CUDA's plugin is not installed: JAX's error has no text."""
    monkeypatch.setattr(doctor.jax, "devices", fail_without_text)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    status, out, _ = run(capsys, "doctor")
    assert status == 1 and out.count("\n  - ") == 1
    assert re.search(r"JAX finds no device \(AssertionError at .*test_main\.py:\d+\)", out)
    assert "JAX_PLATFORMS=cuda forbids all other devices: unset it" in out and "not run: JAX has no device" in out


@pytest.mark.parametrize("text", ["raise ImportError('no name foo')", "raise ValueError"])
def test_doctor_imports_what_samplers_need(tmp_path, text):
    broken = tmp_path / "blackjax"
    broken.mkdir()
    (broken / "__init__.py").write_text(text)
    done = doctor_process(PYTHONPATH=tmp_path)
    assert done.returncode == 1 and not done.stderr
    assert "can't be imported: blackjax" in done.stdout and "pip install --force-reinstall 'blackjax>=" in done.stdout
    assert "not drawn from: no blackjax" in done.stdout and done.stdout.count("\n  - ") == 1


def doctor_process(PYTHONPATH="", **environment):
    """Run the doctor in a process of its own."""
    words = [sys.executable, "-m", "pytensor_jaxpr_linker", "doctor"]
    path = os.pathsep.join(filter(None, [str(PYTHONPATH), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, **environment, "PYTHONPATH": path}
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)


def test_doctor_misses_a_gpu_that_has_a_driver(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    if any(device.platform != "cpu" for device in doctor.jax.devices()):
        pytest.skip("JAX sees a GPU")
    (problem,) = doctor.devices().problems
    assert "jax[cuda13]" in problem


def test_doctor_names_a_folder_that_takes_no_file(tmp_path):
    (tmp_path / "file").touch()
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "file"))
    try:
        (problem,) = doctor.folders().problems
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    assert "can't be written to" in problem and "JAX_COMPILATION_CACHE_DIR" in problem


@pytest.mark.parametrize(
    ("bound", "fitting", "other"),
    [
        (">=3.3", "3.3.0", "3.2.9"),
        ("<3.4", "3.3.8", "3.4.0rc1"),
        (">=0.11.2", "0.12.0.1", "0.11.1"),
        ("==2", "2.0", "2.0.1"),
    ],
)
def test_a_version_fits_its_bounds(bound, fitting, other):
    assert requirements.is_within(fitting, bound) and not requirements.is_within(other, bound)


@pytest.mark.parametrize(
    ("version", "said"), [(None, "is missing"), ("0.10.2", r"0\.10\.2 does not fit >=0\.11\.2,<0\.13")]
)
def test_an_import_without_a_package_or_beside_an_old_one_says_so(monkeypatch, version, said):
    monkeypatch.setattr(requirements, "installed_version", lambda name: version if name == "jax" else "3.3.1")
    with pytest.raises(ImportError, match=rf"To do: jax {said}: pip install 'jax>=0\.11\.2,<0\.13'"):
        requirements.check()


def test_an_import_beside_another_version_warns(monkeypatch):
    monkeypatch.setattr(requirements, "installed_version", lambda name: "3.9")
    with pytest.warns(UserWarning, match=r"tested with other versions\. To do: pytensor 3\.9 does not fit"):
        requirements.check()


def test_doctor_speaks_where_the_package_cannot_be_imported(tmp_path):
    """A folder named like JAX's metadata stands for an older JAX."""
    info = tmp_path / "jax-0.4.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: jax\nVersion: 0.4.0\n")
    done = doctor_process(PYTHONPATH=tmp_path)
    assert done.returncode == 1 and not done.stderr
    assert done.stdout.startswith("```text\npytensor_jaxpr_linker ") and done.stdout.endswith("\n```\n")
    assert "- jax 0.4.0 does not fit" in done.stdout


def test_doctor_speaks_where_pytensor_can_not_be_imported():
    done = doctor_process(PYTENSOR_FLAGS="mode=JAXPR")
    assert done.returncode == 1 and not done.stderr and done.stdout.endswith("\n```\n")
    assert "PYTENSOR_FLAGS=mode=JAXPR when it is imported: correct it or unset it." in done.stdout
    assert "set pytensor.config.mode = 'JAXPR' after the import" in done.stdout


# -- the documentation


def test_docs_prints_the_section_of_each_break_code(capsys):
    for code in vars(errors).values():
        if isinstance(code, errors.BreakCode):
            status, out, _ = run(capsys, "docs", code.code.lower())
            assert status == 0
            assert out.startswith(f"## {code.code}\n") and out.rstrip().endswith(
                f"{SITE}breaks.html#{code.code.lower()}"
            )
            assert f"**{code.why[0].upper()}{code.why[1:]}.**" in out and out.count("## ") == 1


def test_docs_prints_addresses_of_other_words(capsys):
    assert run(capsys, "docs") == (0, f"{SITE}index.html\n", "")
    assert run(capsys, "docs", "from_pymc") == (0, f"{SITE}search.html?q=from_pymc\n", "")
    assert run(capsys, "docs", "random & large")[1] == f"{SITE}search.html?q=random+%26+large\n"
    assert "There is no break code JX999; there are JX001" in run(capsys, "docs", "JX999")[2]


# -- model files


def test_explain_and_stages_of_a_function_in_a_file(written, capsys, tmp_path):
    name = written(FUNCTION)
    assert "One XLA program, 2 nodes, 0 breaks." in run(capsys, "explain", name)[1]
    status, out, _ = run(capsys, "explain", name, "--save", "page.html")
    assert status == 0 and "page.html" in out and (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert "Stages of 2 nodes in 1 region" in run(capsys, "stages", f"{name}:f")[1]
    assert "stablehlo.exponential" in run(capsys, "stages", name, "--show", "stablehlo")[1]


def test_explain_for_another_platform(written, capsys):
    name = written(
        "import pytensor, pytensor.tensor as pt\nA = pt.dmatrix()\n"
        "f = pytensor.function([A], pt.linalg.eig(A), mode='JAXPR')"
    )
    assert "cuda" in run(capsys, "explain", name, "--platform", "cuda")[1]


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        run_command(["--version"])
    assert capsys.readouterr().out == f"pytensor_jaxpr_linker {pjl.__version__}\n"


def test_reports_name_no_line_of_python_itself(written):
    """A model file is run by a module of Python's that is frozen."""
    pytest.importorskip("pymc")
    words = [sys.executable, "-m", "pytensor_jaxpr_linker", "explain", written(MODEL)]
    out = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "frozen" not in out and "(log density of y)  given.py:6" in out


def test_reports_on_a_model_in_a_file(written, capsys):
    pytest.importorskip("pymc")
    name = written(MODEL)
    assert "One XLA program" in run(capsys, "explain", f"{name}:build")[1]
    status, out, err = run(capsys, "bench", name, "--calls", "3", "--modes", "JAXPR,FAST_COMPILE")
    assert status == 0, err
    head, columns, first, second, said = out.splitlines()
    assert "model" in head and columns.split()[:2] == ["mode", "first"]
    assert first.startswith("JAXPR") and second.startswith("FAST_COMPILE")
    assert said.startswith("FAST_COMPILE takes ") and said.endswith(" in 3 turns: no difference measurable.")
    assert "There is no mode 'JAXP': did you mean JAXPR?" in run(capsys, "bench", name, "--modes", "JAXP")[2]


def test_functions_take_turns(monkeypatch):
    """A load of the computer in some turns falls on both: the other function takes twice the time in each turn."""
    asked = []

    def seconds(run, count):
        asked.append((run, count))
        return [(3.0 if len(asked) > 20 else 1.0) * run] * count

    monkeypatch.setattr(main, "seconds_of", seconds)
    times = main.in_turns([1.0, 2.0], 50)
    assert asked[:4] == [(1.0, 3), (2.0, 3), (2.0, 3), (1.0, 3)] and len(times[0]) == len(times[1]) == 20
    assert main.verdict("A", "B", *times) == "B takes 2.00 to 2.00 times as long as A in 20 turns: A is faster."
    assert main.verdict("B", "A", *times[::-1]).endswith(
        "A takes 0.50 to 0.50 times as long as B in 20 turns: A is faster."
    )
    assert len(main.in_turns([1.0], 3)[0]) == 3


def test_a_ratio_on_both_sides_of_one_is_no_difference():
    times = [1.0] * 20
    assert main.verdict("A", "B", times, [0.9] * 5 + [1.5] * 15).endswith("in 20 turns: no difference measurable.")
    assert main.verdict("A", "B", times, [0.9] * 1 + [1.5] * 19).endswith("A is faster.")
    assert main.verdict("A", "B", times[:4], [1.5] * 4).endswith("in 4 turns: no difference measurable.")


@pytest.mark.parametrize(
    ("text", "target", "said"),
    [
        ("x = 1", "given.py", "defines no PyMC model and no function of mode JAXPR at its top level"),
        (FUNCTION, "given.py:g", "defines no 'g'"),
        (FUNCTION, "given.py:x", "x of given.py is no PyMC model"),
        (FUNCTION + "g = f.copy()", "given.py", "given.py defines f, g: name one of them, as in given.py:f"),
        ("1 / 0", "given.py", "ZeroDivisionError: division by zero"),
        ("", "nothing.py", "There is no file nothing.py"),
        ("", "nothing.jaxpr", "There is no file nothing.jaxpr"),
    ],
    ids=["no model", "no such name", "another thing", "two", "error", "no file", "no artifact"],
)
def test_a_file_without_a_model_is_one_line(written, capsys, text, target, said):
    written(text)
    status, out, err = run(capsys, "explain", target)
    assert status == 1 and not out and said in err and "Traceback" not in err


def test_a_file_of_another_kind_is_one_line(written, capsys):
    status, out, err = run(capsys, "explain", written("hello", "notes.txt"))
    assert status == 1 and not out
    assert "notes.txt is no model file, which is called model.py or model.py:NAME." in err and "no artifact" in err


def test_two_names_of_one_function_are_one(written, capsys):
    assert run(capsys, "explain", written(FUNCTION + "g = f"))[0] == 0


def test_traceback_is_shown_when_it_is_asked_for(written):
    with pytest.raises(ZeroDivisionError):
        run_command(["--traceback", "explain", written("1 / 0")])


def test_exported_functions_keep_their_commands(tmp_path, capsys):
    x = pt.vector("x", dtype="float64", shape=(2,))
    path = str(tmp_path / "f.jaxpr")
    pjl.export([x], pt.exp(x), path=path, platforms=("cpu",))
    np.save(tmp_path / "x.npy", np.zeros(2))
    assert "output0" in run(capsys, "inspect", path)[1]
    assert "One XLA program" in run(capsys, "explain", path)[1] and ".stablehlo" in run(capsys, "stages", path)[1]
    assert "was exported for cpu" in run(capsys, "explain", path, "--platform", "cuda")[2]
    assert "[1. 1.]" in run(capsys, "run", path, str(tmp_path / "x.npy"))[1]
    assert "median call" in run(capsys, "bench", path, str(tmp_path / "x.npy"), "--calls", "2")[1]


def test_a_reader_that_has_enough_is_no_error():
    command = f"'{sys.executable}' -m pytensor_jaxpr_linker docs JX001 | true"  # has ended before anything is printed
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr and not done.stdout
