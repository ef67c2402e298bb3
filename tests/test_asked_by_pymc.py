"""What PyMC is told of the linker, and the user where PyMC does not pass mode JAXPR on."""

from __future__ import annotations

import pickle

import jax
import pytest
from pytensor.link.jax.linker import JAXLinker

import pytensor_jaxpr_linker as pjl

pm = pytest.importorskip("pymc")
from pymc.sampling.parallel import _initialize_multiprocessing_context  # noqa: E402

SHORT = {"draws": 5, "tune": 5, "chains": 2, "random_seed": 1, "progressbar": False, "quiet": True}
SHORT["compute_convergence_checks"] = False
pytestmark = pytest.mark.usefixtures("jax_settings")


@pytest.fixture
def model():
    with pm.Model() as model:
        pm.Normal("x", 1.0, 0.1)
    return model


@pytest.mark.parametrize("mode", ["JAXPR", pjl.JAXPR, pjl.JaxprMode(pjl.JaxprLinker(), "fast_run")])
@pytest.mark.parametrize("sampler", ["nutpie", "numpyro", "blackjax"])
def test_a_sampler_that_gets_no_mode_is_named(model, monkeypatch, sampler, mode):
    monkeypatch.setattr(pm.sampling.mcmc, "_sample_external_nuts", lambda **kwargs: kwargs["compile_kwargs"]["mode"])
    with pytest.warns(pjl.IgnoredModeWarning, match=f"nuts_sampler='{sampler}', which runs .*in_place_of_jax") as seen:
        pm.sample(model=model, nuts_sampler=sampler, compile_kwargs={"mode": mode}, **SHORT)
    assert {w.filename for w in seen} == {__file__}
    with pjl.in_place_of_jax():  # warnings are errors
        pm.sample(model=model, nuts_sampler=sampler, compile_kwargs={"mode": mode}, **SHORT)


@pytest.mark.parametrize("sampler", [None, "pymc"])
def test_pymcs_own_samplers_get_the_mode(model, sampler):
    found = pm.sample(model=model, nuts_sampler=sampler, backend="JAXPR", cores=1, **SHORT)
    assert found.posterior.attrs["inference_library"] == "pymc"
    assert found.posterior["x"].shape == (2, 5)


def test_nutpie_without_the_block_when_mode_jaxpr_is_the_default(model, monkeypatch):
    nutpie = pytest.importorskip("nutpie")

    class Asked(Exception):
        pass

    def compile_pymc_model(*args, backend, **kwargs):
        raise Asked(backend)

    monkeypatch.setattr(nutpie, "compile_pymc_model", compile_pymc_model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pytensor.config.mode", pjl.JAXPR)
        with pytest.warns(pjl.IgnoredModeWarning, match="runs mode NUMBA"), pytest.raises(Asked, match="numba"):
            pm.sample(model=model, nuts_sampler="nutpie", **SHORT)
        with pjl.in_place_of_jax(), pytest.raises(Asked, match="jax"):
            pm.sample(model=model, nuts_sampler="nutpie", **SHORT)


def test_processes_are_not_forked(model):
    """JAX has threads, which a fork does not copy: a compilation in the child would wait forever."""
    assert _initialize_multiprocessing_context(None, mode="JAXPR").get_start_method() != "fork"
    with pytest.warns(UserWarning, match="may deadlock"):
        _initialize_multiprocessing_context("fork", mode=pjl.JAXPR)
    jax.jit(jax.lax.neg)(1.0)
    found = pm.sample(model=model, backend="JAXPR", cores=2, **SHORT)
    assert found.posterior["x"].shape == (2, 5)


def test_everybody_else_gets_the_linker_itself():
    linker = pjl.JaxprLinker(pjl.Options(on_break="raise"))
    mode = pjl.JaxprMode(linker, "fast_run")
    assert mode.linker is linker and not isinstance(linker, JAXLinker)
    assert type(pickle.loads(pickle.dumps(mode)).linker) is pjl.JaxprLinker
    assert type(mode.including("local_add_canonizer").linker) is pjl.JaxprLinker
