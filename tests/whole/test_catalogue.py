"""The benchmark of a folder of models: each file is a row, whatever it does, and further runs add what is left."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
FILES = {
    "good": """
        import pathlib
        import pymc as pm

        def build_model():
            with pathlib.Path(__file__).with_suffix(".log").open("a") as log:
                log.write("built\\n")
            with pm.Model() as model:
                scale = pm.HalfNormal("scale")
                pm.Normal("y", pm.Normal("x", 0, 1, shape=3), scale, observed=[1.0, 2.0, 3.0])
            return model, model.initial_point()
    """,
    "no_function": "model = 1",
    "raises": "raise RuntimeError('no data\\nand a hint')",
    "no_package": "import no_package_of_this_name",
    "_helper": "raise RuntimeError",
}


@pytest.fixture
def module(monkeypatch):
    """Import modules of the benchmarks, and forget them: `tests/whole/clients` has a module `models`, too."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = set(sys.modules)
    yield lambda name: __import__(name)
    for name in set(sys.modules) - before:
        path = getattr(sys.modules[name], "__file__", None)
        if path and Path(path).parent == ROOT / "benchmarks":
            del sys.modules[name]


def write(folder: Path, files: dict[str, str]) -> None:
    """Write files of models."""
    folder.mkdir(parents=True)
    for name, code in files.items():
        lines = code.strip("\n").rstrip().splitlines()
        indent = len(lines[0]) - len(lines[0].lstrip())
        (folder / f"{name}.py").write_text("\n".join(line[indent:] for line in lines) + "\n", encoding="utf-8")


def run(folder: Path, out: Path, *options: str) -> tuple[dict, str]:
    """Measure a folder; return the stored results and the page."""
    where = ["--out", str(out / "RESULTS.md"), "--page", str(out / "page.md"), "--seconds", "0.01"]
    command = [sys.executable, str(ROOT / "benchmarks" / "bench.py"), "catalogue", str(folder), *where, *options]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads((out / "CATALOGUE.json").read_text())["results"], (out / "page.md").read_text(encoding="utf-8")


def test_every_file_is_a_row_and_further_runs_add_what_is_left(tmp_path):
    folder = tmp_path / "catalogue"
    write(folder / "models", FILES)
    good, _ = run(folder, tmp_path, "--models", "good", "--ours")
    assert good["models/good"].keys() == {"jaxpr first", "jaxpr later"}
    results, page = run(folder, tmp_path, "--add")
    built = (folder / "models" / "good.log").read_text()
    again, same = run(folder, tmp_path, "--add")
    assert (again, same) == (results, page)
    assert (folder / "models" / "good.log").read_text() == built  # not measured again
    assert results.keys() == {"models/good", "models/no_function", "models/raises", "models/no_package"}
    first = {name: found["jaxpr first"].get("failed") for name, found in results.items()}
    assert first["models/no_function"] == "AttributeError: no build_model"
    assert first["models/raises"] == "RuntimeError: no data"
    assert first["models/no_package"] == "ModuleNotFoundError: No module named 'no_package_of_this_name'"
    found = results["models/good"]
    assert found["jaxpr first"]["program"].items() >= {"regions": 1, "host": 0, "breaks": []}.items()
    assert (found["jaxpr first"]["kind"], found["jaxpr first"]["size"]) == ("gradient", 4)
    errors = found["jaxpr later"]["errors"]
    assert errors["apart"] == 0
    assert errors["compared"] > 10
    assert max(errors["value"], errors["gradient"]) < 1e-12
    assert max(errors["ulps"].values()) < 100
    assert all(found["turns"][side]["call"] > 0 for side in ("jaxpr", "jax", "numba"))
    lines = page.splitlines()
    assert "- 4 of 4 files were measured; 3 have no log density here." in lines
    assert "- `models/raises`: no log density: RuntimeError: no data" in lines
    assert any(re.match(r"\| models/good \| 4 \| and gradient \| one \|", line) for line in lines)


def test_a_file_that_never_ends_is_a_row(tmp_path):
    write(tmp_path / "folder", {"endless": "while True:\n    pass"})
    results, page = run(tmp_path / "folder", tmp_path, "--timeout", "10")
    assert results == {"endless": {"jaxpr first": {"failed": "TimeoutError: no result after 5 s", "at": "model"}}}
    assert "- `endless`: no log density: TimeoutError: no result after 5 s\n" in page


def test_a_process_has_a_limit_of_time(tmp_path, module):
    job = module("processes").Job("signal:pause", {}, timeout=0.1)
    assert job.run(tmp_path) == {"failed": "no result after 0.1 s"}


def test_a_process_has_a_limit_of_memory(tmp_path, module, monkeypatch):
    (tmp_path / "hungry.py").write_text("import time\n\ndef eat():\n    x = b'x' * (1 << 30)\n    time.sleep(100)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    job = module("processes").Job("hungry:eat", {}, memory=0.5)
    assert job.run(tmp_path) == {"failed": "more than 0.5 GiB of memory"}


def test_differences_are_found(module):
    """Where one side is not finite the point is apart; the gradient's error is of its largest element."""
    relative = module("model_file").relative
    theirs = [np.array([1.0, 2.0, np.nan]), np.array([[1.0, 100.0], [2.0, 4.0], [1.0, 1.0]])]
    ours = [np.array([1.0, 2.0, 3.0]), np.array([[2.0, 100.0], [2.0, 5.0], [1.0, 1.0]])]
    assert relative(ours, theirs) == {"apart": 1, "compared": 2, "value": 0.0, "gradient": 0.25}
    assert relative(theirs, theirs)["apart"] == 0


@pytest.mark.parametrize("values", [[np.zeros(2)], [np.zeros(2), np.array([3]), np.array(True)]])
def test_a_walk_moves_and_keeps_dtypes(values, module, tmp_path, monkeypatch):
    """With a gradient by leapfrog steps, without one by random steps of numbers, integers and truth values."""
    monkeypatch.chdir(tmp_path)

    def normal(x, n=0, b=False):
        value = np.asarray(-np.sum((100 * x) ** 2) / 2 - np.sum(np.square(n)) / 2)
        return [value] if len(values) > 1 else [value, -1e4 * x]

    walked = module("model_file").walk(normal, values)
    assert len(walked) > 10
    assert all(
        x.dtype == y.dtype and x.shape == y.shape for point in walked for x, y in zip(point, values, strict=True)
    )
    assert len({point[0].tobytes() for point in walked}) == len(walked)
    assert np.abs(walked[-1][0]).max() < 0.1  # ten standard deviations


def sides(jaxpr: dict, numba: dict) -> dict:
    """Return results of a model as processes give them."""
    program = {"regions": 1, "host": 0, "equations": 5, "bytes": 1000, "breaks": []} | jaxpr.pop("program", {})
    return {
        "jaxpr first": {"seconds": jaxpr["first"], "kind": "gradient", "why": "", "size": 2, "program": program},
        "jaxpr later": {
            "seconds": 0.5,
            "errors": {"apart": 0, "compared": 21, "value": jaxpr["error"], "gradient": 0.0},
        },
        "numba first": {"seconds": numba["first"]},
        "numba later": {"failed": "MemoryError"},
        "turns": {
            "jaxpr": {"call": 10.0},
            "numba": {"call": numba["call"]},
            "jax": {"failed": "NotImplementedError: A|B"},
        },
    }


def test_the_page_says_what_is_behind_wrong_slow_and_in_parts(module):
    page = module("catalogue_page")
    breaking = {"regions": 2, "host": 1, "breaks": ["JX002, Odd: it runs on the host"]}
    results = {
        "a": sides({"first": 1.0, "error": 1e-12}, {"first": 2.0, "call": 5.0}),
        "b": sides({"first": 20.0, "error": 1e-3, "program": breaking}, {"first": 10.0, "call": 40.0}),
    }
    lines = "\n".join(page.summary({"results": results, "files": 3}))
    assert "2 of 3 files" in lines
    assert "1 of 2 are one program; in parts: `b`." in lines
    assert "where the other is not: `b`." in lines
    assert "more than 10 s: `b`." in lines
    assert page.ahead(results)[0][2:] == ["1 of 2", "1", "1×", "0.5× (b)"]
    assert page.behind(results) == ["first result, NUMBA: b 0.5×", "call, NUMBA: a 0.5×"]
    said = page.remarks(results)
    assert "`a`: numba later: MemoryError" in said
    assert "`b`: JX002, Odd: it runs on the host" in said
    assert "`a`: turns, jax: NotImplementedError: A\\|B" in said
