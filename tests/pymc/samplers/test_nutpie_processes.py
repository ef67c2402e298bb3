"""nutpie's chains in processes: draws, options, errors, interrupts and scripts."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from multiprocessing import active_children
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.exceptions import SamplingError

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.pymc import sample
from pytensor_jaxpr_linker.pymc.samplers import nutpie
from tests.pymc.samplers.test_processes import run_script

pytest.importorskip("nutpie")

RUN = {"sampler": "nutpie", "chain_method": "processes", "cores": 2, "random_seed": 1, "quiet": True}


def make_model():
    with pm.Model() as model:
        x = pm.Normal("x", shape=2)
        pm.Deterministic("y", pt.exp(x))
        pm.Normal("z", x.sum(), 0.5, observed=1.0)
    return model


def test_draws():
    """Three chains in two processes, with warm-up and thinning; seeds decide them, whatever the number of processes."""
    model, more = make_model(), {"draws": 400, "tune": 200, "chains": 3, "thinning": 2, "discard_tuned_samples": False}
    with pjl.options(on_break="raise"):
        found = sample(model=model, **RUN, **more)
    assert found.posterior["y"].shape == (3, 200, 2) and found.warmup_posterior["x"].shape == (3, 200, 2)
    np.testing.assert_allclose(found.posterior["y"], np.exp(found.posterior["x"]))
    assert abs(float(found.posterior["x"].sum("x_dim_0").mean()) - 8 / 9) < 0.1
    assert not found.posterior.attrs["interrupted"] and found.posterior.attrs["sampling_time"] > 0
    assert len({float(x) for x in found.posterior["x"][:, -1, 0]}) == 3
    again = sample(model=model, **{**RUN, "cores": 1}, **more)
    np.testing.assert_array_equal(found.posterior["x"], again.posterior["x"])


def test_errors_are_those_of_the_chain():
    with pm.Model() as model:
        pm.Uniform("b", pm.Normal("a") + 10, 100, observed=0.0)
    with pytest.raises(SamplingError, match="the term of 'b' is -inf") as raised:
        sample(model=model, **RUN, draws=10, tune=10, chains=2)
    assert raised.value.__cause__ is None and "remote" not in str(raised.value).lower()


@pytest.mark.parametrize("sampler", ["blackjax", "numpyro", "mclmc", "pymc", None])
def test_other_samplers_refuse_it(sampler):
    with pytest.raises(ValueError, match="chain_method='processes' is for sampler='nutpie'"):
        sample(model=make_model(), sampler=sampler, chain_method="processes")


def test_a_process_that_ends():
    ended = SimpleNamespace(join=lambda: None, exitcode=-9)
    with pytest.raises(RuntimeError, match="A process of nutpie's chains ended with exit code -9"):
        nutpie.check_end(ended)
    nutpie.check_end(SimpleNamespace(join=lambda: None, exitcode=0))


def test_a_process_that_is_killed(monkeypatch):
    @contextmanager
    def progress(shown, total):
        def update(done, name, text):
            if "2 running" in text:
                active_children()[0].kill()

        yield update

    monkeypatch.setattr(nutpie, "progress", progress)
    with pytest.raises(RuntimeError, match="A process of nutpie's chains ended with exit code -9, for want of memory"):
        sample(model=make_model(), **RUN, draws=2_000_000, tune=100, chains=2)
    assert not active_children()


def test_processes_use_the_cache(tmp_path):
    """The program of the gradient, which only they compile, is in the folder."""
    code = f"""
import pytensor_jaxpr_linker as pjl
pjl.cache({str(tmp_path / "cache")!r})
sample(model=model(pt.exp), sampler="nutpie", chain_method="processes", **short)
"""
    done = run_script(tmp_path / "script.py", code)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "cache").glob("jit_value_and_gradient*"))


def test_an_interrupt_keeps_the_draws(monkeypatch):
    """Each of two chains would take minutes; Ctrl-C comes to this process when both run."""

    @contextmanager
    def progress(shown, total):
        def update(done, name, text):
            if "2 running" in text:
                threading.Timer(15, os.kill, (os.getpid(), signal.SIGINT)).start()

        yield update

    monkeypatch.setattr(nutpie, "progress", progress)
    # A shell starts processes in the background with SIGINT ignored, and pytest then never sees it.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        found = sample(model=make_model(), **RUN, draws=2_000_000, tune=100, chains=2, compute_convergence_checks=False)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert found.posterior.attrs["interrupted"] and found.posterior.sizes["chain"] == 2
    assert 0 < found.posterior.sizes["draw"] < 2_000_000


HALF = """
from pytensor.graph.op import Op

class Half(Op):
    itypes = otypes = [pt.dscalar]

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(inputs[0] / 2)

    def pullback(self, inputs, outputs, cotangents):
        return [cotangents[0] / 2]

short |= dict(sampler="nutpie", chain_method="processes")
"""


def test_a_script_with_steps_on_the_host(tmp_path):
    """What a script defines goes to the processes by value."""
    code = HALF + "print(sample(model=model(Half()), **short).posterior['x'].shape)"
    done = run_script(tmp_path / "script.py", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["runs", "(2, 5)"]
    # The processes' warning is shown once, at the user's line.
    assert done.stderr.count("GraphBreakWarning") == 1 and "script.py" in done.stderr.split("GraphBreakWarning")[0]


def test_a_script_that_must_run_again(tmp_path):
    """A function of `wrap_py` is pickled by its name."""
    code = """
with model(pt.exp) as m:
    pm.Deterministic("half", half(m["x"]))
    pm.Potential("p", half(pt.constant(1.0, dtype="float64")))
"""
    done = run_script(tmp_path / "script.py", HALF + code + "sample(model=m, **short)")
    assert done.returncode == 1 and done.stderr.count("Traceback") == 1, done.stderr
    assert "put the call under `if __name__" in done.stderr
