"""Chains on several devices: each has its part of them, and its own loops."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("blackjax")

PROGRAM = """
from types import SimpleNamespace

import jax, numpy as np, pymc as pm
from pytensor_jaxpr_linker.pymc import sample
from pytensor_jaxpr_linker.pymc.chains.kernel import Kernel
from pytensor_jaxpr_linker.pymc.chains.chains import Chains, ChainRun
from pytensor_jaxpr_linker.pymc.kept_programs import KeptPrograms

assert len(jax.devices()) == 2

def walk(where):
    def transition(data, state):
        x, key = state
        key, subkey = jax.random.split(key)
        x = {"x": x["x"] + data["scale"] * jax.random.normal(subkey, (2,))}
        return (x, key), (x, {"diverging": False, "step_size": data["scale"], "device": where()})
    return Kernel(lambda data, key, x: (x, key), transition)

found = {}
places = {"parallel": lambda: jax.lax.axis_index("chains"), "vectorized": lambda: 0, "sequential": lambda: 0}
for method, where in places.items():
    start = {"x": np.zeros((3, 2))}
    data, kept = {"scale": np.array(0.5)}, KeptPrograms()
    chains = Chains(lambda: walk(where), {}, "walk", kept, 30, data, start, [1, 2, 3], ChainRun(10, method))
    found[method] = chains.draw(start, SimpleNamespace(add=lambda *_: None), None).draws
assert found["parallel"].stats["device"].tolist() == [[0] * 10, [0] * 10, [1] * 10]
for other in ("vectorized", "sequential"):
    np.testing.assert_allclose(found["parallel"].positions["x"], found[other].positions["x"], rtol=1e-12)

with pm.Model() as model:
    x = pm.Normal("x", 1, 0.1, shape=2)
    pm.Deterministic("y", pm.Data("scale", 2.0) * x)
for sampler in "blackjax", "mclmc":
    data = sample(100, tune=100, chains=3, model=model, sampler=sampler, random_seed=1, progressbar=False)
    assert data.posterior["y"].shape == (3, 100, 2)
    assert abs(float(data.posterior["y"].mean()) - 2) < 0.1
"""

SEVERAL_MESHES = """
import jax, numpy as np, pymc as pm
from pytensor_jaxpr_linker.pymc import logdensity, sample

with pm.Model() as model:
    x = pm.Normal("x", 1, 0.1, shape=2)
    pm.Normal("z", x, 1, observed=[1.0, 2.0])
short = {"draws": 10, "tune": 10, "random_seed": 1, "model": model, "quiet": True, "compute_convergence_checks": False}
four = sample(chains=4, **short).posterior["x"]
assert sample(sampler="chees", chains=8, **short).posterior["x"].shape == (8, 10, 2)
assert sample(chains=5, **short).posterior["x"].shape == (5, 10, 2)  # on three devices
one = sample(chains=4, chain_method="vectorized", **short).posterior["x"]
np.testing.assert_allclose(four, one, rtol=1e-9)

logp = logdensity(model)
with jax.enable_x64(True):
    points = np.ones((12, 2))
    for count in (4, 3, 2, 1):
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:count]), ("chain",))
        spec = jax.sharding.PartitionSpec("chain")
        gradients = jax.vmap(lambda y: jax.lax.fori_loop(0, 2, lambda i, y: y - 0.001 * jax.grad(logp)(y), y))
        mapped = jax.shard_map(gradients, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        want = np.array([1.0, 1.0])
        for _ in range(2):
            want = want - 0.001 * ((1 - want) / 0.01 + [1.0, 2.0] - want)
        np.testing.assert_allclose(jax.jit(mapped)(points), np.broadcast_to(want, (12, 2)))
"""


@pytest.mark.parametrize(
    ("program", "devices"), [(PROGRAM, 2), (SEVERAL_MESHES, 4)], ids=["parallel", "several meshes"]
)
def test_chains_on_several_devices(program, devices):
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    run = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **flags}, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stderr
