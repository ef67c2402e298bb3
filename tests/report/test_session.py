"""`session_report`: what a process has built, by the user's line, and what to change first."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import run_python

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base import session as builds
from pytensor_jaxpr_linker.base.session import note_build, parts_of_build
from pytensor_jaxpr_linker.report import session

x = pt.dvector("x")


@pytest.fixture(autouse=True)
def new_session(monkeypatch):
    """A process that has built nothing yet."""
    empty = deque(maxlen=builds.MOST_BUILDS)
    monkeypatch.setattr(builds, "BUILDS", empty)
    monkeypatch.setattr(session, "BUILDS", empty)


def lines_of_this_file():
    return [line for line in pjl.session_report().lines if line.line.startswith(__file__)]


def test_functions_and_programs_by_line():
    f = pytensor.function([x], pt.exp(x).sum() + 0.25, mode="JAXPR")
    f(np.ones(3))
    made, called = sorted(lines_of_this_file(), key=lambda line: int(line.line.rpartition(":")[2]))
    assert made.code.startswith("f = pytensor.function") and called.code == "f(np.ones(3))"
    assert {build.kind for build in made.builds} == {"graph", "function"}
    assert [build.kind for build in called.builds] == ["program"] and "(3,)" in called.builds[0].cause
    assert {"rewrite", "plan"} <= set(made.stages) and "lower" in called.stages
    assert 0 < called.seconds < 60 and called.seconds == pytest.approx(sum(called.stages.values()))
    report = pjl.session_report()
    assert all(text in report.summary for text in ("1 graph", "1 function", "1 program"))
    assert report.seconds == pytest.approx(sum(line.seconds for line in report.lines))


def test_programs_for_other_shapes_come_first():
    f = pytensor.function([x], pt.exp(x).sum() + 0.5, mode="JAXPR")
    for n in (2, 3, 4, 5):
        f(np.ones(n))
    advice = [text for text in pjl.session_report().advice if "mark_dynamic" in text]
    assert len(advice) == 1 and "compiles 3 programs" in advice[0] and "the shape of 'x' is (5,), not (4,)" in advice[0]
    (line,) = [line for line in lines_of_this_file() if line.code == "f(np.ones(n))"]
    assert len(line.causes) == 3 and "the shape of 'x' is (3,), not (2,)" in "".join(line.causes)


def test_the_page_that_the_advice_names():
    headings = (Path(__file__).parents[2] / "docs" / "options.md").read_text()
    titles = [line[3:].lower().replace(" ", "-") for line in headings.splitlines() if line.startswith("## ")]
    assert session.OF_RECOMPILES in titles


def test_functions_made_in_a_loop():
    """Those of equal size; different ones have to be made."""
    for k in range(3):
        pytensor.function([x], x * 2.0 + (k + 1), mode="JAXPR")
    assert any("makes 3 functions" in text for text in pjl.session_report().advice)
    builds.BUILDS.clear()
    for y in (pt.exp(x), pt.exp(x).sum(), pt.dot(pt.exp(x), pt.log(x) + pt.exp(x).sum())):
        pytensor.function([x], y, mode="JAXPR")
    assert not any("functions" in text for text in pjl.session_report().advice)


def test_the_longest_builds_of_a_line():
    for k in range(session.MANY_BUILDS + 1):
        note_build("sampler", f"b{k}", {"build": 1.0 + k})
    assert "longest: sampler of b3 4 s; sampler of b2 3 s" in str(pjl.session_report())


def test_paths_begin_in_the_folder_of_the_process(monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)
    note_build("sampler", "chains", {"build": 1.0})
    assert pjl.session_report().lines[0].place.startswith("test_session.py:")


def test_graphs_that_were_kept():
    for _ in range(2):
        f = pytensor.function([x], pt.log(x) - 0.125, mode="JAXPR")
    assert f(np.ones(1)).tolist() == [-0.125]
    graphs = [build for line in lines_of_this_file() for build in line.builds if build.kind == "graph"]
    assert [build.kept for build in graphs] == [False, True]
    assert "1 kept from before" in pjl.session_report().summary


def test_parts_count_once():
    note_build("sampler", "chains", {"build": 2.0})
    with parts_of_build():
        note_build("graph", "3 nodes", {"rewrite": 1.5})
    note_build("graph", "4 nodes", {"rewrite": 0.5})
    (found,) = lines_of_this_file()[:1]
    assert pjl.session_report().seconds == 2.5
    assert found.line.startswith(__file__)


def test_other_threads_have_no_line():
    thread = threading.Thread(target=note_build, args=("sampler", "chains", {"XLA": 1.0}))
    thread.start()
    thread.join()
    (line,) = pjl.session_report().lines
    assert (line.line, line.code) == ("", "")
    assert "in threads of this package" in str(pjl.session_report())


def test_a_long_session_is_bounded(monkeypatch):
    found = deque(maxlen=builds.MOST_BUILDS)
    monkeypatch.setattr(builds, "BUILDS", found)
    monkeypatch.setattr(session, "BUILDS", found)
    for _ in range(builds.MOST_BUILDS + 5):
        found.append(builds.BuildRecord("program", "p", "a.py:1", {"lower": 0.001}, cause="<b>&"))
    report = pjl.session_report()
    assert not report.complete and "only the last 10,000" in report.summary
    assert report.seconds == pytest.approx(10.0)


def test_the_page(tmp_path):
    """It has the text of the report, escaped, in the style of `explain`, and is small."""
    note_build("program", "p", {"lower": 1.0}, cause=f"{session.AGAIN}the shape of <x> is (2,), not (1,)")
    path = pjl.session_report().save(tmp_path / "page.html")
    page = path.read_text()
    assert "compiled again: the shape of &lt;x&gt; is" in page and "<x>" not in page and "<!--" not in page
    assert "color-scheme: light dark" in page and len(page) < 10_000
    assert "<table>" in pjl.session_report()._repr_html_()


def test_an_empty_report():
    assert "has built nothing" in str(pjl.session_report())


def test_the_variable_writes_a_page(tmp_path):
    """At the end of the process, beside a log."""
    code = """
    import numpy as np, pytensor, pytensor.tensor as pt
    import pytensor_jaxpr_linker
    x = pt.dvector("x")
    pytensor.function([x], x + 1, mode="JAXPR")(np.ones(2))
    """
    path = tmp_path / "Session.html"
    run_python(code, PYTENSOR_JAXPR_LOGS=f"report={path},timing")
    assert "1 program" in path.read_text()


def test_a_sampler(tmp_path):
    pm = pytest.importorskip("pymc")
    with pm.Model():
        pm.Normal("z", 0.375, 1.25)
        pjl.pymc.sample(5, tune=5, chains=1, random_seed=1, progressbar=False, compute_convergence_checks=False)
    (line,) = [line for line in lines_of_this_file() if "sample(5" in line.code]
    kinds = {build.kind for build in line.builds}
    assert "sampler" in kinds and any(build.is_part for build in line.builds)
    assert {"trace and lower", "XLA (start)", "XLA (transitions)"} <= set(line.stages)


def test_a_model_with_other_data():
    """Data of the same length compile nothing; of another length, the report names the data, and why."""
    pm = pytest.importorskip("pymc")
    arguments = {"tune": 5, "chains": 1, "random_seed": 1, "progressbar": False, "compute_convergence_checks": False}
    with pm.Model() as model:
        data = pm.Data("data", np.ones(5))
        b = pm.Normal("b", 0.625)
        pm.Deterministic("twice", 2 * b * data)
        pm.Potential("y", -pt.sum((data - b) ** 2))
    compiled = pjl.pymc.compile(model)
    compiled.sample(5, **arguments)
    builds.BUILDS.clear()
    for sample in (compiled.sample, pjl.pymc.compile(model).sample):
        with model:
            pm.set_data({"data": np.zeros(5)})
        sample(5, **arguments)
    assert not builds.BUILDS
    with model:
        pm.set_data({"data": np.zeros(7)})
    compiled.sample(5, **arguments)
    compiled.with_data(data=np.zeros(8)).sample(5, **arguments)
    first, second = sorted(lines_of_this_file(), key=lambda line: int(line.line.rpartition(":")[2]))
    assert first.causes == ["compiled again: the shape of 'data' is (7,), not (5,)", session.STATIC]
    assert second.causes == ["compiled again: the shape of 'data' is (8,), not (7,)", session.STATIC]
    assert len(first.again) == 1  # the chains; what maps draws depends on their number, too
    assert first.whole[0].name == "b" and "1 sampler, 1 program (" in first.lines[0]
    advice = [text for text in pjl.session_report().advice if "is (7,), not (5,)" in text]
    assert len(advice) == 1 and session.STATIC in advice[0] and "mark_dynamic" not in advice[0]
