"""What `sample` shows while it runs, on a terminal, in notebooks and in a log."""

from __future__ import annotations

import io
import re
import sys
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
import rich
from rich.console import Console
from rich.theme import Theme

from pytensor_jaxpr_linker.pymc import fit_pathfinder, sample
from pytensor_jaxpr_linker.pymc.chains import chain_progress, runners
from pytensor_jaxpr_linker.pymc.chains.chain_progress import Watched
from pytensor_jaxpr_linker.pymc.chains.kernel import AboutChain
from pytensor_jaxpr_linker.pymc.chains.programs import ChainPrograms

SHORT = {"draws": 60, "tune": 60, "chains": 2, "random_seed": 1, "compute_convergence_checks": False}


def stats(chains, length, diverging=False):
    """Return the statistics of a chunk."""
    shape = chains, length
    return {
        "diverging": np.full(shape, diverging),
        "n_steps": np.full(shape, 7),
        "step_size": np.full(shape, 0.25),
    }


@pytest.fixture
def model():
    with pm.Model() as model:
        pm.Normal("x")
    return model


@pytest.fixture
def terminal(monkeypatch):
    """Return the text of a terminal."""
    written = io.StringIO()
    monkeypatch.setattr(rich, "_console", Console(file=written, force_terminal=True, width=150))
    return written


@pytest.mark.parametrize("shown", [True, False])
def test_paths(model, terminal, shown):
    fit_pathfinder(50, paths=3, maxiter=5, model=model, random_seed=1, progressbar=shown)
    assert ("3/3 ELBO " in terminal.getvalue()) == shown


def test_how_far_chains_are():
    watched = Watched(2, tune=20, total=40)
    watched.add([0], stats(1, 15, diverging=True))
    assert watched.stage([0]) == "warm-up" and watched.diverged.tolist() == [0, 0]
    watched.add([0], stats(1, 15, diverging=True))
    assert watched.stage([0]) == "sampling" and watched.diverged.tolist() == [10, 0]
    assert watched.stage([0, 1]) == "warm-up" and watched.done.tolist() == [30, 0]
    watched.add([0], stats(1, 15, diverging=True))  # the last chunk has more transitions than are wanted
    watched.add([1], stats(1, 15))
    assert watched.done.tolist() == [40, 15] and watched.diverged.tolist() == [20, 0]
    line = watched.line([0])
    assert line.startswith("sampling 40/40 20 diverged, step size 0.25, 7.88 gradients a draw, ") and "draws/s" in line
    assert " left" not in line and " left" in watched.line([1])


@pytest.mark.parametrize("method", ["sequential", "vectorized"])
def test_a_terminal_has_a_line_for_each_chain(model, terminal, method):
    sample(model=model, chain_method=method, sampler="blackjax", **SHORT)
    shown = terminal.getvalue()
    for text in ("chain 0 sampling", "chain 1 sampling", "120/120", "diverged", "step size", "draws/s"):
        assert text in shown
    assert "chain 2" not in shown


@pytest.mark.parametrize(
    ("width", "shown", "hidden"),
    [
        (50, ("━", "3000/9000", "0:30 left"), ("diverged", "…")),
        (80, ("━", "3000/9000", "0:30 left", "0 diverged, 200 draws/s"), ("step size", "…")),
        (150, ("━", "3000/9000", "0:30 left", "0.25, 1,023 gradients a draw, 200 draws/s"), ("…",)),
    ],
)
def test_a_narrow_terminal_leaves_details_out(monkeypatch, width, shown, hidden):
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=width)
    watched = Watched(1, tune=1000, total=9000)
    monkeypatch.setattr(chain_progress, "monotonic", lambda: watched.began + 15)
    with chain_progress.on_terminal(console, {"chain 0": [0]}, watched) as draw:
        watched.add([0], {**stats(1, 3000), "n_steps": np.full((1, 3000), 1023)})
        draw()
    last = written.getvalue().split("chain 0 ")[-1]
    assert last.startswith("sampling")
    assert all(text in last for text in shown) and not any(text in last for text in hidden)


def test_many_chains_have_one_line(model, terminal):
    with model:
        pm.Normal("y")  # ChEES, too, is for several dimensions
    sample(model=model, sampler="chees", progressbar_theme=Theme({}), **{**SHORT, "chains": 32})
    sample(model=model, sampler="chees", **{**SHORT, "chains": 32})
    assert "32 chains" in terminal.getvalue() and "chees tunes" in terminal.getvalue()
    assert "chain 0" not in terminal.getvalue()


def test_a_log_has_lines_of_a_long_run_only(model, monkeypatch, capsys, caplog):
    with caplog.at_level("INFO", "pymc"):
        sample(model=model, sampler="blackjax", **SHORT)
        assert not caplog.records
        monkeypatch.setattr(chain_progress, "LOG_SECONDS", 0.0)
        sample(model=model, sampler="blackjax", **SHORT)
    assert "2 chains, warm-up " in caplog.text and "2 chains, sampling 120/120" in caplog.text
    assert capsys.readouterr().out == ""


def test_a_notebook_without_ipywidgets(model, monkeypatch):
    shown, updates = [], []

    class Pretty:
        def __init__(self, text):
            self.text = text

    def display(x, display_id=False):
        if display_id:  # rich shows lines of its own by the same function
            shown.append(x)
        return SimpleNamespace(update=updates.append)

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display, Pretty=Pretty))
    monkeypatch.setattr(chain_progress, "can_import", lambda package: False)
    monkeypatch.setattr(rich, "_console", Console(force_jupyter=True))
    sample(model=model, sampler="blackjax", **SHORT)
    assert len(shown) == 1
    first, second = updates[-1].text.splitlines()
    assert first.startswith("chain 0 sampling 120/120") and second.startswith("chain 1 sampling 120/120")


def test_a_log_tells_of_the_tuning(monkeypatch, caplog):
    """MCLMC tunes before its first draw; the log says how far it is, or how long it has waited for the first step."""
    with pm.Model() as model:
        pm.Normal("x", shape=2)
    begun = runners.InThreads.begun

    def slow(*args):
        assert waited.wait(30)
        return begun(*args)

    waited = threading.Event()
    monkeypatch.setattr(runners.InThreads, "begun", slow)
    monkeypatch.setattr(chain_progress, "LOG_SECONDS", 0.001)
    info, lines = chain_progress.pymc_logger.info, []

    def log(text, *args):
        info(text, *args)
        lines.append(text % args)
        if "tunes" in lines[-1]:
            waited.set()

    monkeypatch.setattr(chain_progress.pymc_logger, "info", log)
    sample(model=model, sampler="mclmc", **SHORT)
    assert any(re.fullmatch(r"2 chains, mclmc tunes 0:\d\d", line) for line in lines)
    assert any(re.fullmatch(r"2 chains, mclmc tunes [1-9]\d+/\d{3}, 0:\d\d left", line) for line in lines)
    assert lines[-1].startswith("2 chains, sampling ")


def test_a_terminal_shows_the_tuning(terminal):
    with pm.Model() as model:
        pm.Normal("x", shape=2)
    sample(model=model, sampler="mclmc", **SHORT)
    shown = terminal.getvalue()
    assert re.search(r"chain 0 mclmc tunes .*\d/\d{3} ", shown) and re.search(r"chain 1 sampling .*60/60 ", shown)


def test_how_far_chains_are_that_tune(monkeypatch):
    watched, now = Watched(2, tune=0, total=40, beginning="mclmc tunes", tuning=300), [0.0]
    began = watched.began
    monkeypatch.setattr(chain_progress, "monotonic", lambda: began + now[0])
    watched.add_tuning([0], 100)
    now[0] = 10.0
    assert watched.line([0]) == "mclmc tunes 100/300, 0:20 left" and watched.line([1]) == "mclmc tunes 0:10"
    assert watched.of_stage([0])[1] == 300 and watched.details([0], 100) == ""
    watched.add_tuning([0], 200)
    watched.add_tuning([1], 300)
    now[0] = 12.0
    watched.add([0], stats(1, 10))  # in two seconds, so 30 more take six
    assert watched.line([0]).startswith("sampling 10/40 ") and watched.left([0]) == "0:06 left"
    assert watched.of_stage([0])[1] == 40


def test_a_thread_ends_with_the_first_chunk():
    watched, drawn = Watched(1, tune=0, total=10), threading.Event()
    with chain_progress.until_begun(watched, 0.001, drawn.set):
        assert drawn.wait(30)
        threads = {thread for thread in threading.enumerate() if thread.daemon and "run" in thread.name}
        assert len(threads) == 1
        watched.add([0], stats(1, 5))
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()


def test_what_chains_do_before_they_begin(monkeypatch):
    watched = Watched(2, tune=0, total=40, beginning="mclmc tunes")
    monkeypatch.setattr(chain_progress, "monotonic", lambda: watched.began + 75)
    assert watched.line([0, 1]) == "mclmc tunes 1:15"
    watched.add([0], stats(1, 10))
    assert watched.line([0]).startswith("sampling 10/40 ") and watched.line([1]) == "mclmc tunes 1:15"


def test_quiet_and_no_bar(model, terminal, caplog):
    with caplog.at_level("INFO", "pymc"):
        sample(model=model, quiet=True, **SHORT)
        sample(model=model, sampler="blackjax", progressbar=False, **SHORT)
    assert not caplog.records and terminal.getvalue() == ""


def test_an_interrupt_while_xla_compiles_is_explained(caplog):
    """The program is there soon after, as XLA can't be stopped."""

    class Interrupted(Future):
        def result(self, timeout=None):
            raise KeyboardInterrupt

    compiled = Interrupted()
    compiled.set_result(None)
    with caplog.at_level("WARNING", "pymc"), pytest.raises(KeyboardInterrupt):
        ChainPrograms(compiled, compiled, compiled, AboutChain(False, False, 1, 1)).result()
    assert "Interrupted while XLA compiles, which can't be stopped" in caplog.text
