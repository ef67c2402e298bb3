"""The benchmark: the summary's numbers, and the measurements at a small size."""

from __future__ import annotations

import json
from pathlib import Path

from helpers import run_python

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")

#: Prints the summary of three models and one of large data, of which one side has no figure.
SUMMARY = """
import sys; sys.path.insert(0, {folder!r})
import calls

def sides(jaxpr, jax, numba):
    return {{"jaxpr": {{"one": jaxpr}}, "jax": {{"one": jax}} if jax else {{"failed": "no Op"}}, "numba": {{"one": numba}}}}

print(calls.summary({{
    "garch": sides(2.0, 4.0, 16.0), "lkj": sides(2.0, 1.0, 1.5), "ode": sides(4.0, None, 1.0), "radon_12k": sides(4.0, None, 2.0)
}}))
"""

COPIES = """
import sys; sys.path.insert(0, {folder!r})
import calls

print(calls.beside_copies({{
    "garch": {{"jaxpr": {{"one": 1.0}}}},
    "radon_1m": {{"jaxpr": {{"one": 3000.0, "all": 2000.0}}, "copy": {{"one": 1500.0, "all": 1000.0, "bytes": 2e7}}}},
}}))
"""

MEASUREMENT = """
import sys; sys.path.insert(0, {folder!r})
import json, os, warnings; warnings.simplefilter("ignore")
import calls

os.chdir({files!r})
print(json.dumps(calls.later_calls("eight_schools", ["jaxpr", "jax", "copy"], 0.01, one_core=True)))
"""

#: In a process of its own: `benchmarks` and `tests/whole/clients` both have a module `models`.
REPORT = """
import sys; sys.path.insert(0, {folder!r})
from pathlib import Path
import report

sys.stdout.reconfigure(encoding="utf-8")
print(report.render(Path({folder!r}, "RESULTS.md")), end="")
"""


def test_the_summary_counts_and_names_models():
    """Large data count in the list of those behind only."""
    lines = run_python(SUMMARY.format(folder=BENCHMARKS)).splitlines()
    assert "| call, one core | mode JAX | 1 of 2 | 1.00× | 0.50× (lkj) |" in lines
    assert "| call, one core | mode NUMBA | 1 of 3 | 1.14× | 0.25× (ode) |" in lines
    assert "- call, one core, mode JAX: lkj 0.50×" in lines
    assert "- call, one core, mode NUMBA: ode 0.25×, radon_12k 0.50×, lkj 0.75×" in lines


def test_large_data_stand_beside_a_copy():
    printed = run_python(COPIES.format(folder=BENCHMARKS)).strip()
    assert printed == "[['radon_1m', '20.0', '1,500', '3,000 (2×)', '1,000', '2,000 (2×)']]"


def test_a_model_is_measured(tmp_path):
    found = json.loads(run_python(MEASUREMENT.format(folder=BENCHMARKS, files=str(tmp_path))))
    assert found.keys() == {"jaxpr", "jax", "copy"}
    assert found["copy"]["bytes"] >= 2 * 8 * 8  # effects and their standard errors
    assert all(side["one"] > 0 for side in found.values())
    assert (tmp_path / "eight_schools.npz").exists()


def test_the_report_begins_with_the_summary_of_its_data():
    """``python benchmarks/bench.py report`` writes it, and everything below it, again."""
    report = Path(BENCHMARKS, "RESULTS.md").read_text(encoding="utf-8")
    assert run_python(REPORT.format(folder=BENCHMARKS)) == report
    assert "\n## In short\n" in report.partition("## The first result")[0]


def test_results_of_processes_are_merged(tmp_path, monkeypatch):
    """A failure is one of all sides of the process, and ends what depends on it. Medians are of each figure."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    from processes import Job, collect, medians

    failing = Job("no_module:f", {}, ("first", "radon"), sides=("jax", "hand"), chain="radon")
    dependent = Job("os:cpu_count", {}, ("first", "radon", "numba"), chain="radon")
    good = Job("rendering:describe_machine", {"packages": ["numpy"]}, ("setting",))
    collected, data = {"setting": {"repeats": 3}, "draws": {}}, tmp_path / "RESULTS.json"
    collect([[failing, dependent], [good]], collected, data)
    assert json.loads(data.read_text()) == collected
    why = {"failed": "ModuleNotFoundError: No module named 'no_module'"}
    assert collected["first"]["radon"] == {"jax": why, "hand": why, "numba": why}
    assert collected["setting"]["repeats"] == 3 and collected["setting"]["versions"].keys() == {"Python", "numpy"}
    assert collected["draws"] == {}
    found = [{"f": {"x": 1, "y": None}}, {"f": {"x": 3, "failed": "no"}}, {"f": {"x": 5}}]
    assert medians(found) == {"f": {"x": 3, "y": None, "failed": "no"}}


SMALL_MEASUREMENTS = """
import sys; sys.path.insert(0, {folder!r})
import json, warnings; warnings.simplefilter("ignore")
import micro

both = ["jaxpr", "hand"]
found = [micro.build_chain(8, "jaxpr"), micro.planning(2000), micro.scan("AR(2)/forward/10", both, 0.01)]
found += [micro.host_step(10, both, 0.01), micro.dispatch(both, 0.01)]
print(json.dumps([*found, *(micro.later_calls("chain/8", both, 0.01, is_pinned) for is_pinned in (False, True))]))
"""


def test_the_small_measurements_run():
    """They call functions inside the package, which change."""
    measured = json.loads(run_python(SMALL_MEASUREMENTS.format(folder=BENCHMARKS)))
    build, planning, scan, host_step, dispatch, calls, pinned = measured
    assert build["build_us"] > 0
    assert planning.keys() == {"plan", "explain", "plan_breaks", "explain_breaks"}
    assert scan["jaxpr"].keys() == scan["hand"].keys() == {"call", "first"}
    assert host_step["jaxpr"].keys() == {"call", "thunk"}
    assert dispatch["jaxpr"].keys() > dispatch["hand"].keys()
    assert calls["jaxpr"].keys() == {"call", "part"} and pinned["hand"].keys() == {"call_pinned", "part_pinned"}
    found = (planning, *scan.values(), *host_step.values(), *calls.values(), *pinned.values())
    assert all(us > 0 for times in found for us in times.values())
