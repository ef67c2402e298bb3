"""Interrupts and errors of runs, the threads of their chains, and small settings."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import jax
import numpy as np
import pymc as pm
import pytest
import rich
from pytensor import config
from rich.console import Console

from pytensor_jaxpr_linker.pymc import sample
from pytensor_jaxpr_linker.pymc.chains import chains, programs, runners
from pytensor_jaxpr_linker.pymc.chains.programs import xla_options
from pytensor_jaxpr_linker.pymc.functions.density import Layout
from pytensor_jaxpr_linker.pymc.progress import progress
from pytensor_jaxpr_linker.pymc.request import Request
from pytensor_jaxpr_linker.pymc.samplers import nutpie as nutpie_sampler
from tests.pymc.test_sampling import SHORT


@pytest.fixture(scope="module")
def model():
    """Return a small model with dims, shared data, a transform and a Deterministic."""
    with pm.Model(coords={"k": ["a", "b"]}) as model:
        x = pm.Data("x", np.linspace(-1, 1, 20))
        slope = pm.Normal("slope", dims="k")
        sigma = pm.HalfNormal("sigma")
        pm.Deterministic("double", 2 * slope, dims="k")
        pm.Normal("y", slope[0] + slope[1] * x, sigma, observed=np.linspace(0, 2, 20) + np.sin(np.arange(20.0)))
    return model


def test_interrupted_sampling_keeps_the_finished_draws(model, monkeypatch):
    chunks = chains.Chains.chunks

    def interrupted(*args):
        for i, chunk in enumerate(chunks(*args)):
            if i == 4:
                raise KeyboardInterrupt
            yield chunk

    monkeypatch.setattr(chains.Chains, "chunks", interrupted)
    monkeypatch.setattr(programs, "CALL_SECONDS", np.inf)
    short = {**SHORT, "tune": 50}
    found = sample(model=model, sampler="blackjax", chain_method="vectorized", **short)
    assert found.posterior.sizes["draw"] == 1 + 4 + 16 + 64 - 50  # four chunks
    with pytest.raises(KeyboardInterrupt):  # nothing is kept of the warm-up
        sample(model=model, sampler="blackjax", chain_method="vectorized", **{**short, "tune": 120})


def test_threads_of_nutpie_stay_known_to_python(model):
    pytest.importorskip("nutpie")
    seen = []  # the objects: while they are held, no other has their address

    def density(x):
        seen.append((threading.get_native_id(), threading.current_thread()))
        return -0.5 * float(x @ x), -x

    request = Request(
        draws=20,
        tune=20,
        chains=2,
        cores=2,
        model=model,
        sampler="nutpie",
        target_accept=0.8,
        max_treedepth=5,
        **dict.fromkeys(("initvals", "var_names", "mesh", "shard", "store", "random_seed")),
        jitter=True,
        gradient="pytensor",
        progressbar=False,
        compute_convergence_checks=False,
        options={},
        seeds=[1],
    )
    layout = Layout({"x": (2,)})
    found = nutpie_sampler.run_nutpie(request, density, layout, lambda seed: np.full(2, 0.1 * (seed % 10) + 0.1))
    assert found.draws.positions["x"].shape == (2, 20, 2)
    numbers = {number for number, _ in seen}  # one thread may run both chains
    assert len(set(seen)) == len(numbers) and threading.get_native_id() not in numbers
    assert len(seen) > 80


@pytest.mark.parametrize(("limit", "cores"), [(1e6, 1), (0, None)])
def test_nutpie_runs_chains_of_short_calls_one_after_the_other(model, monkeypatch, limit, cores):
    nutpie = pytest.importorskip("nutpie")
    asked, run = [], nutpie.sample
    monkeypatch.setattr(nutpie_sampler, "SHORT_CALL", limit)
    monkeypatch.setattr(nutpie, "sample", lambda *a, **k: asked.append(k["cores"]) or run(*a, **k))
    sample(model=model, sampler="nutpie", **SHORT)
    sample(model=model, sampler="nutpie", cores=2, **SHORT)
    assert asked == [cores, 2]


def test_nutpie_keeps_most_draws_of_an_interrupted_run(model, monkeypatch):
    nutpie = pytest.importorskip("nutpie")
    run = nutpie.sample

    def interrupted(*args, **options):
        trace = run(*args, **options)
        trace.posterior["position"][0, 40:] = np.nan
        trace.posterior["position"][1, 1:] = np.nan
        return trace

    monkeypatch.setattr(nutpie, "sample", interrupted)
    found = sample(model=model, sampler="nutpie", **SHORT)
    assert dict(found.posterior.sizes) == {"chain": 1, "draw": 40, "k": 2}
    assert found.sample_stats["lp"].shape == (1, 40)


def test_float32_model():
    with config.change_flags(floatX="float32"):
        with pm.Model() as model:
            pm.Normal("x", 1, 0.1, shape=2)
        found = sample(model=model, sampler="blackjax", chain_method="vectorized", **SHORT)
    assert found.posterior["x"].dtype == "float32"
    assert abs(float(found.posterior["x"].mean()) - 1) < 0.1
    assert jax.config.jax_enable_x64 is False


def test_no_chain_waits_for_a_slower_one_nor_runs_far_ahead():
    """The first chain is held back: the second goes on, but not beyond the chunks that are kept for it."""
    held, count, done = threading.Event(), 2 * runners.AHEAD, [0, 0]

    def run(state, _):
        chain, chunk = state
        if chain == 0:
            assert held.wait(30)
        done[chain] += 1
        assert done[1] <= done[0] + runners.AHEAD
        if done == [0, runners.AHEAD]:
            held.set()
        return (chain, chunk + 1), np.array([chain, chunk])

    with ThreadPoolExecutor(2) as pool:
        outputs = list(runners.side_by_side(pool, run, [(0, 0), (1, 0)], lambda number: number < count))
    assert [o.tolist() for o in outputs] == [[[0, i], [1, i]] for i in range(count)]
    assert done == [count, count]


def test_an_error_in_one_chain_ends_all():
    def run(state, _):
        if state == (1, 2):
            raise ArithmeticError("chain 1")
        return (state[0], state[1] + 1), np.array(state)

    with ThreadPoolExecutor(2) as pool, pytest.raises(ArithmeticError, match="chain 1"):
        list(runners.side_by_side(pool, run, [(0, 0), (1, 0)], lambda number: number < 5))


def test_chunks_that_wait_for_a_thread_are_dropped_after_an_error():
    """One thread for three chains: the first fails, the second is running by then, the third never runs."""
    seen, ended = [], threading.Event()

    def run(chain, _):
        seen.append(chain)
        if chain == 0:
            raise KeyboardInterrupt
        assert ended.wait(30)
        return chain, np.zeros(1)

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(KeyboardInterrupt):
            next(runners.side_by_side(pool, run, [0, 1, 2], lambda number: number < 1))
        ended.set()
    assert 2 not in seen


def test_bar_in_a_notebook_ends_where_sampling_ends(monkeypatch):
    """The widgets of a notebook, of which rich draws no last state by itself."""
    shown = []

    class Output:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def clear_output(self, wait=False):
            shown.clear()

    monkeypatch.setitem(sys.modules, "ipywidgets", SimpleNamespace(Output=Output))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=shown.append))
    monkeypatch.setattr(rich, "_console", Console(force_jupyter=True))
    with progress(True, 20) as update:
        update(20, "sampling", "of 2 chains")
    assert any("20/20 of 2 chains" in getattr(x, "text", "") for x in shown)


@pytest.mark.parametrize(("length", "are_short"), [(4096, True), (4097, False)])
def test_xla_reduces_short_arrays_in_one_pass(length, are_short):
    """Also inside a loop; a program without reductions has nothing to lose."""

    def looped(x):
        return jax.lax.fori_loop(0, 3, lambda i, total: total + (x * i).sum(), 0.0)

    options = xla_options(jax.jit(looped).trace(np.ones(length)))
    assert bool(options) == are_short
    assert xla_options(jax.jit(lambda x: x + 1).trace(np.ones(length)))
    assert float(jax.jit(looped, compiler_options=options)(np.ones(length))) == 3 * length
