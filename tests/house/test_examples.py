"""The examples run: they are what a newcomer tries first."""

import ast
import importlib
import os
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from helpers import run_python

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def radon(monkeypatch):
    """The example's module; `jax_enable_x64`, which its `main` turns on, is restored."""
    pytest.importorskip("pymc")
    pytest.importorskip("blackjax")
    monkeypatch.syspath_prepend(EXAMPLES)
    enabled = jax.config.jax_enable_x64
    yield importlib.import_module("radon")
    jax.config.update("jax_enable_x64", enabled)


def test_radon_on_a_few_counties(radon, tmp_path, capsys):
    houses = pd.read_csv(radon.DATA)
    data = tmp_path / "houses.csv"
    houses[houses["county"].isin([4, 5, 8, 20, 57, 214])].to_csv(data, index=False)
    options = ["--draws", "60", "--tune", "60", "--chains", "2", "--out", str(tmp_path / "out"), "--data", str(data)]

    result = radon.main(options)

    assert result.difference < 1e-9
    assert list(result.table.index) == list(radon.MEANING)
    assert np.isfinite(result.table).all(axis=None)
    assert result.figure.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "120/120 draws in each of 2 chains" in printed
    assert "How to read it" in printed


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("county,floor,log_radon\n0,0,1.0\n", "log_uranium"),
        ("county,floor,log_radon,log_uranium\n0,0,,1.0\n", "missing values"),
        ("county,floor,log_radon,log_uranium\n0,9,1.0,1.0\n", "basement"),
    ],
)
def test_radon_says_what_is_wrong_with_the_data(radon, tmp_path, content, message):
    data = tmp_path / "houses.csv"
    data.write_text(content)
    with pytest.raises(SystemExit, match=message):
        radon.main(["--data", str(data), "--out", str(tmp_path)])


def test_radon_says_that_the_data_is_missing(radon, tmp_path):
    with pytest.raises(SystemExit, match=r"nowhere\.csv"):
        radon.main(["--data", str(tmp_path / "nowhere.csv"), "--out", str(tmp_path)])


def test_any_graph(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(EXAMPLES)
    any_graph = importlib.import_module("any_graph")

    result = any_graph.main(["--days", "60", "--out", str(tmp_path / "out")])

    assert result.difference < 1e-9
    assert {"JX001", "JX002"} <= {b.code for b in result.explanation.breaks}
    assert result.page.read_text().startswith("<!doctype html>")
    printed = capsys.readouterr().out
    assert "running_median" in printed
    assert "any_graph.py" in printed and "breaks.html" in printed


def test_any_graph_says_what_is_wrong(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(EXAMPLES)
    any_graph = importlib.import_module("any_graph")
    with pytest.raises(SystemExit):
        any_graph.main(["--days", "3"])
    assert "at least 10" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match=r"any_graph\.py"):
        any_graph.main(["--out", str(tmp_path / "file")])


@pytest.mark.parametrize(
    ("sampler", "printed"), [("mclmc", "theta[A]"), ("smc", "marginal likelihood"), ("pathfinder", "Pareto k")]
)
def test_eight_schools(monkeypatch, tmp_path, capsys, sampler, printed):
    monkeypatch.syspath_prepend(EXAMPLES)
    eight_schools = importlib.import_module("eight_schools")

    options = ["--draws", "100", "--tune", "50", "--chains", "2", "--out", str(tmp_path / "out")]
    path = eight_schools.main(["--sampler", sampler, *options])

    assert path.read_bytes().startswith(b"\x89PNG")
    assert printed in capsys.readouterr().out


def test_eight_schools_says_what_is_wrong(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(EXAMPLES)
    eight_schools = importlib.import_module("eight_schools")
    with pytest.raises(SystemExit, match=r"eight_schools\.py: draws must be an integer and at least 1"):
        eight_schools.main(["--sampler", "smc", "--draws", "0", "--out", str(tmp_path)])


def test_sharded(tmp_path):
    """In a process that has as many devices as it asks for."""
    pytest.importorskip("zarr")
    code = f"import sharded; print(sharded.main(['--observations', '2003', '--devices', '4', '--draws', '60', '--store', {str(tmp_path)!r}]))"
    printed = run_python(code, PYTHONPATH=f"{EXAMPLES}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", XLA_FLAGS="")
    assert "all-reduce in region 0" in printed
    means = ast.literal_eval(printed.splitlines()[-1])
    assert abs(means["a"] - 1) < 0.4 and abs(means["b"] + 0.5) < 0.4
