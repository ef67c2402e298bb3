"""Draws depend on the model, the data, the arguments, versions and the device: never on time, load, caches or the order of threads."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading

import numpy as np
import pymc as pm
import pytest

from pytensor_jaxpr_linker.pymc import sample, sample_smc
from pytensor_jaxpr_linker.pymc.chains.programs import ChunkLengths
from pytensor_jaxpr_linker.pymc.kept_models import KEPT_MODELS

pytest.importorskip("blackjax")
SHORT = {"draws": 60, "tune": 60, "random_seed": 5, "quiet": True, "compute_convergence_checks": False}
SAMPLERS = {
    "blackjax": {"chains": 3},
    "numpyro": {"chains": 2, "sampler": "numpyro"},
    "mclmc": {"chains": 2, "sampler": "mclmc"},
    "chees": {"chains": 8, "sampler": "chees"},
    "smc": {},
}


def make_model():
    """Return eight schools, not centered: a chain's error in the last place grows to another draw within some transitions."""
    with pm.Model() as model:
        mu, tau, z = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5), pm.Normal("z", shape=8)
        pm.Normal("y", mu + tau * z, [15.0, 10, 16, 11, 9, 11, 10, 18], observed=[28.0, 8, -3, 7, -1, 1, 18, 12])
    return model


def digest(name, model):
    """Return a hash of the bits of all draws of a sampler."""
    if name == "smc":
        found = sample_smc(
            64, chains=2, model=model, random_seed=5, progressbar=False, compute_convergence_checks=False
        )
    else:
        found = sample(model=model, **SHORT, **SAMPLERS[name])
    arrays = [found.posterior[v].to_numpy() for v in sorted(found.posterior.data_vars)]
    return hashlib.sha256(b"".join(np.ascontiguousarray(x).tobytes() for x in arrays)).hexdigest()


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.mark.parametrize("name", SAMPLERS)
def test_kept_programs_load_and_lengths_of_chunks(model, name, monkeypatch):
    """Calls whose measured time is made up have other chunks; two threads compute meanwhile, and chains run on one core, too."""
    pytest.importorskip({"numpyro": "numpyro"}.get(name, "blackjax"))
    first, ended = digest(name, model), threading.Event()

    def compute():
        x = np.random.default_rng(0).normal(size=(100, 100))
        while not ended.is_set():
            np.linalg.svd(x)

    threads = [threading.Thread(target=compute, daemon=True) for _ in range(2)]
    took, rng = ChunkLengths.took, np.random.default_rng(1)
    monkeypatch.setattr(
        ChunkLengths, "took", lambda self, length, _: took(self, length, length * rng.uniform(0.005, 0.1))
    )
    for thread in threads:
        thread.start()
    try:
        assert digest(name, model) == first
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    monkeypatch.setattr(KEPT_MODELS, "_kept", [])
    assert digest(name, make_model()) == first


PROGRAM = """
import pytensor_jaxpr_linker as pjl
if {cache!r}:
    pjl.cache({cache!r})
from tests.whole.test_same_draws import SAMPLERS, digest, make_model
model = make_model()
print(digest("blackjax", model))
"""


def test_other_processes_with_and_without_a_folder_of_programs(model, tmp_path):
    expected = digest("blackjax", model)
    for cache in ("", str(tmp_path / "cache"), str(tmp_path / "cache")):
        code = PROGRAM.format(cache=cache)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=600)
        assert run.returncode == 0, run.stderr
        assert run.stdout.strip() == expected, cache
