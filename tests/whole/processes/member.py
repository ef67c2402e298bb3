"""A process of a run of several: ``member.py PORT COUNT INDEX DEVICES WHAT [FOLDER]``. `tests/whole/test_processes.py` starts them."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import jax

port, count, index, devices = map(int, sys.argv[1:5])
what, folder = sys.argv[5], Path(sys.argv[6])
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", devices)
jax.config.update("jax_enable_x64", True)
if count > 1:
    jax.distributed.initialize(
        f"127.0.0.1:{port}", count, index, heartbeat_timeout_seconds=20, initialization_timeout=60
    )

import numpy as np  # noqa: E402
import pymc as pm  # noqa: E402
import pytensor  # noqa: E402
import pytensor.tensor as pt  # noqa: E402

import pytensor_jaxpr_linker as pjl  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "on_devices"))
sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from helpers import Doubled  # noqa: E402
from mesh_models import regression  # noqa: E402

RUN = {"draws": 8, "tune": 6, "chains": 4, "max_treedepth": 4, "random_seed": 7, "progressbar": False}


def both() -> jax.sharding.Mesh:
    """Return a mesh for chains and data."""
    return jax.make_mesh((2, 4), ("chains", "data"))


def density() -> None:
    """The log density and its gradient, of data that are padded."""
    logp = pjl.pymc.shard(regression(403), jax.make_mesh((8,), ("data",)), {"obs": "data"})
    value, gradient = jax.jit(jax.value_and_grad(logp))(np.linspace(-1, 1, logp.size), logp.data)
    save("density", value=value, gradient=gradient)


def draws() -> None:
    """Some draws of NUTS, of chains and data on one mesh."""
    found = pjl.pymc.sample(
        model=regression(203), mesh=both(), shard={"obs": "data"}, compute_convergence_checks=False, **RUN
    )
    save("draws", slope=found.posterior["slope"].values, steps=found.sample_stats["n_steps"].values)


def variables() -> None:
    """Shared variables, functions and updates of arrays that no process has whole; host steps say that they can't read them."""
    mesh = jax.make_mesh((8,), ("data",))
    w = pjl.shard(pytensor.shared(np.arange(16.0), name="w"), mesh, ["data"])
    x = pt.dvector("x")
    f = pytensor.function([x], (w * x).sum(), updates={w: w + x}, mode="JAXPR")
    sums = [f(np.ones(16)), f(np.ones(16))]
    with pjl.options(on_break="ignore", results="jax"):
        step = pytensor.function([], Doubled()(w).sum(), mode="JAXPR")
    try:
        step()
    except RuntimeError as error:
        host = str(error)
    else:
        host = ""
    try:
        w.get_value()
    except RuntimeError as error:
        value = str(error)
    else:
        value = ""
    save("variables", sums=np.array(sums), host=np.array(host), value=np.array(value))


def different() -> None:
    """Runs of which process 1 has something else: arguments, data, a program, a version."""

    def message(model: Any, **changes: Any) -> str:
        try:
            pjl.pymc.sample(model=model, mesh=both(), shard={"obs": "data"}, **{**RUN, **changes})
        except RuntimeError as error:
            return str(error)
        return ""

    model = regression(16)
    found = {"arguments": message(model, draws=8 + index), "programs": message(model, max_treedepth=3 + index)}
    if index:
        pm.set_data({"x": np.ones((16, 5))}, model=model)
    found["data"] = message(model)
    pm.set_data({"x": np.ones((16, 5))}, model=model)
    jax.__version__ += str(index)
    found["versions of packages"] = message(model)
    save(f"different{index}", **found)


def long() -> None:
    """A run with a store, which says what is done; it is slow enough to be killed."""

    def report(done: int, total: int) -> None:
        print(done, flush=True)
        time.sleep(0.05)

    several = {"mesh": both(), "shard": {"obs": "data"}} if count > 1 else {}
    run = {**RUN, **several, "draws": int(os.environ.get("DRAWS", "400")), "tune": 50}
    try:
        pjl.pymc.sample_on_mesh(model=regression(203), store=folder / "store", on_progress=report, **run)
    except RuntimeError as error:
        print(f"error {error}", flush=True)
        os._exit(3)  # the others are gone, so there is nobody to say goodbye to
    print("finished", flush=True)


def save(name: str, **arrays: object) -> None:
    """Write what this process found."""
    np.savez(folder / f"{name}-{count}-{index}.npz", **{key: np.asarray(x) for key, x in arrays.items()})


pjl.cache(folder / "programs")
for one in what.split(","):
    globals()[one]()
