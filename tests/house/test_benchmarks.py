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
import call_worker

sys.argv[1:] = "calls eight_schools jaxpr+jax+copy --seconds 0.01 --one-core".split() + ["--out", {out!r}, "--reference", {reference!r}]
call_worker.main()
"""

#: In a process of its own: `benchmarks` and `tests/whole/clients` both have a module `models`.
IN_SHORT = """
import sys; sys.path.insert(0, {folder!r})
import summary

print(f"{{summary.summary()}}\\n{{summary.FIRST}}")
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
    out, reference = tmp_path / "result.json", tmp_path / "values.npz"
    run_python(MEASUREMENT.format(folder=BENCHMARKS, out=str(out), reference=str(reference)))
    found = json.loads(out.read_text())
    assert found.keys() == {"jaxpr", "jax", "copy"}
    assert found["copy"]["bytes"] >= 2 * 8 * 8  # effects and their standard errors
    assert all(side["one"] > 0 for side in found.values())
    assert reference.exists()


def test_the_report_begins_with_the_summary_of_its_data():
    """``python benchmarks/summary.py`` writes it again."""
    report = Path(BENCHMARKS, "RESULTS.md").read_text(encoding="utf-8")
    expected = run_python(IN_SHORT.format(folder=BENCHMARKS))
    assert expected.strip().startswith("## In short")
    assert expected.strip() in report


SMALL_MEASUREMENTS = """
import sys; sys.path.insert(0, {folder!r})
import json, warnings; warnings.simplefilter("ignore")
import micro

both = ["jaxpr", "hand"]
found = [micro.build_chain(8, "jaxpr"), micro.planning(2000, "jaxpr"), micro.scan("AR(2)/forward/10", both, 0.01)]
found += [micro.host_step(10, both, 0.01), micro.dispatch(both, 0.01)]
print(json.dumps([*found, *(micro.later_calls(micro.chain(8), both, 0.01, is_pinned) for is_pinned in (False, True))]))
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
