"""Each public way to run a program, used in a process that is forked or started otherwise.

``python doors.py fork`` uses what is quick of it, forks a child for each, and prints how the child ended. ``python doors.py spawn`` and ``loky`` use
them in a new process. No child may take longer than `LIMIT` seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

import pytensor_jaxpr_linker as pjl
import pytensor_jaxpr_linker.pymc as pjl_pymc

LIMIT = 120
#: What is not used before the fork, as it takes long; the others would find what they have compiled.
SLOW = ("mclmc", "chees", "vectorized", "processes", "sample_smc")
SHORT: dict[str, Any] = {"draws": 5, "tune": 5, "chains": 1, "random_seed": 1, "quiet": True}
SHORT["compute_convergence_checks"] = False
VALUE = np.ones(3)


def small_model() -> pm.Model:
    """Return a model with data, a Deterministic and an observation."""
    with pm.Model() as model:
        x = pm.Data("x", np.arange(3.0))
        a = pm.Normal("a", shape=2)
        pm.Deterministic("b", a * 2)
        pm.Normal("y", a[0] + a[1] * x, observed=np.zeros(3))
    return model


def of_graphs(folder: str) -> dict[str, Callable[[], Any]]:
    """Return the doors of functions and files."""
    x, s = pt.vector("x", dtype="float64"), pytensor.shared(VALUE, name="s")
    t, by = pytensor.shared(VALUE, name="t"), pt.dscalar("by")
    f = pytensor.function([x], x + s, updates={s: s + 1}, mode="JAXPR")
    on_device = pytensor.function([x], x * 2, mode=pjl.JaxprMode(results="jax"))
    pure = pjl.as_jax_function([x], pt.exp(x).sum())
    gradient = jax.value_and_grad(lambda value: pure(value))
    module = pjl.Module("m", functions={"scaled": pytensor.function([by], by * t.sum(), mode="JAXPR", name="scaled")})
    pjl.export([x], pt.exp(-x), path=f"{folder}/f.jaxpr", name="f", dims={"x": "n"})
    loaded = pjl.load(f"{folder}/f.jaxpr")

    def differentiated() -> Any:
        with jax.enable_x64(True):
            return gradient(VALUE)

    return {
        "function": lambda: f(VALUE),
        "function by name": lambda: f(x=VALUE),
        "function on device": lambda: on_device(VALUE),
        "compilation": lambda: pytensor.function([x], pt.cos(x), mode="JAXPR")(VALUE),
        "as_jax_function": lambda: pure(VALUE),
        "derivative": differentiated,
        "module": lambda: module.scaled(2.0),
        "Module.mlir": lambda: module.mlir().text(),
        "loaded": lambda: loaded(VALUE),
        "loaded.jax": lambda: loaded.jax(VALUE),
        "loaded.pure": lambda: loaded.pure({}, VALUE),
        "loaded.stablehlo": lambda: loaded.stablehlo,
        "load": lambda: pjl.load(f"{folder}/f.jaxpr")(VALUE),
        "explain(loaded)": lambda: str(pjl.explain(loaded)),
        "stages(loaded)": lambda: pjl.stages(loaded, VALUE).hlo,
        "export": lambda: pjl.export([x], pt.exp(-x), path=f"{folder}/{os.getpid()}.jaxpr", dims={"x": "n"}),
        "stages": lambda: pjl.stages(f, VALUE).hlo,
        "stablehlo": lambda: pjl.stages(f, VALUE).stablehlo,
        "profile": lambda: pjl.stages(f, VALUE).profile(),
        **of_iree(x, f"{folder}/f.vmfb"),
    }


def of_iree(x: Any, path: str) -> dict[str, Callable[[], Any]]:
    """Return the doors of files of IREE, if that is installed."""
    try:
        import iree.compiler
        import iree.runtime  # noqa: F401
    except ImportError:
        return {}
    loaded = pjl.export([x], pt.exp(-x), path=path, name="f", dims={"x": "3"})
    return {"IREE": lambda: loaded(VALUE), "load_iree": lambda: pjl.load_iree(path)(VALUE)}


def of_models(folder: str) -> dict[str, Callable[[], Any]]:
    """Return the doors of PyMC models."""
    model = small_model()
    compiled = pjl_pymc.compile(model)
    logp, constrained, point = pjl_pymc.logdensity(model), pjl_pymc.constrain(model), {"a": np.ones(2)}
    mesh, quiet = jax.make_mesh((1,), ("chains",)), {"model": model, "random_seed": 1, "progressbar": False}

    def sample(**given: Any) -> Callable[[], Any]:
        return lambda: pjl_pymc.sample(model=model, **{**SHORT, **given})

    draws = sample()()
    predictive = {"compile_kwargs": {"mode": "JAXPR"}, **quiet}
    return {
        "logdensity": lambda: logp(point),
        "logdensity of a new one": lambda: pjl_pymc.logdensity(model)(point),
        "constrain": lambda: constrained(point),
        "initial_points": lambda: pjl_pymc.initial_points(model, 1, 1, logp=logp),
        "compile": lambda: pjl_pymc.compile(model).sample(**SHORT),
        "compiled.sample": lambda: compiled.sample(**SHORT),
        "compiled.logdensity": lambda: compiled.logdensity(point),
        "compiled.constrain": lambda: compiled.constrain(point),
        "export_logdensity": lambda: pjl_pymc.export_logdensity(model, path=f"{folder}/{os.getpid()}.jaxpr"),
        "sample": sample(),
        "sample of an equal model": lambda: pjl_pymc.sample(model=small_model(), **SHORT),
        "numpyro": sample(sampler="numpyro"),
        "nutpie": sample(sampler="nutpie"),
        "pymc": sample(sampler="pymc", cores=1),
        "mesh": sample(mesh=mesh),
        "mclmc": sample(sampler="mclmc"),
        "chees": sample(sampler="chees", chains=4),
        "vectorized": sample(chain_method="vectorized"),
        "processes": sample(sampler="nutpie", chain_method="processes"),
        "sample_smc": lambda: pjl_pymc.sample_smc(20, chains=1, compute_convergence_checks=False, **quiet),
        "fit_pathfinder": lambda: pjl_pymc.fit_pathfinder(20, paths=1, **quiet),
        "predictive": lambda: pm.sample_posterior_predictive(draws, **predictive),
        "pm.draw": lambda: pm.draw(model["y"], 2, mode="JAXPR"),
    }


def end_of_child(call: Callable[[], Any]) -> str:
    """Return how a forked process ends that calls something."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LIMIT)
        try:
            call()
        except RuntimeError as error:
            os._exit(3 if "was forked from one in which" in str(error) else 4)
        except BaseException:
            os._exit(5)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {0: "ran", 3: "refused", -signal.SIGALRM: "hung"}.get(code, f"failed with {code}")


def use(function: Any, loaded: Any, compiled: Any) -> list[tuple[int, ...]]:
    """Use, in another process, what was pickled in this one, and what is made there. Return the shapes of results."""
    found = [function(VALUE), loaded(VALUE), compiled.constrain({"a": np.ones(2)})["b"]]
    found += [compiled.sample(**SHORT).posterior["a"], pjl_pymc.logdensity(compiled.model)({"a": np.ones(2)})]
    sampled = pjl_pymc.sample(model=small_model(), sampler="numpyro", **SHORT)
    return [np.shape(x) for x in (*found, sampled.posterior["b"])]


def to_send(folder: str) -> tuple[Any, Any, Any]:
    """Return a function, a function from a file and a compiled model, after each was used in this process."""
    x = pt.vector("x", dtype="float64")
    pjl.export([x], pt.exp(-x), path=f"{folder}/sent.jaxpr", name="f", dims={"x": "n"})
    function, loaded = pytensor.function([x], x * 2, mode="JAXPR"), pjl.load(f"{folder}/sent.jaxpr")
    compiled = pjl_pymc.compile(small_model())
    function(VALUE), loaded(VALUE), compiled.sample(**SHORT)
    return function, loaded, compiled


def end_of_task(result: Callable[[], Any]) -> str:
    """Return how a task ended that a pool of forked processes was given."""
    try:
        result()
    except RuntimeError as error:
        return "refused" if "was forked from one in which" in str(error) else f"failed: {error}"
    except multiprocessing.TimeoutError:
        return "hung"
    return "ran"


def main(method: str, folder: str) -> None:
    """Print how each use ended in forked processes, or the shapes of results from other ones."""
    if method == "fork":
        doors = {**of_graphs(folder), **of_models(folder)}
        for name, call in doors.items():
            if name not in SLOW:
                call()
        for name, call in doors.items():
            print(f"{name}: {end_of_child(call)}", flush=True)
        function, loaded, compiled = to_send(folder)
        with multiprocessing.get_context("fork").Pool(1) as pool:
            for called, args in ((function, (VALUE,)), (loaded, (VALUE,)), (compiled.sample, (5,))):
                task = pool.apply_async(called, args)
                print(f"pool: {end_of_task(lambda task=task: task.get(LIMIT))}", flush=True)
    elif method == "spawn":
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            print(pool.submit(use, *to_send(folder)).result(LIMIT))
    else:
        import joblib

        parts = to_send(folder)
        print(*joblib.Parallel(n_jobs=2, backend="loky", timeout=LIMIT)([joblib.delayed(use)(*parts)]))
        forks = joblib.Parallel(n_jobs=2, backend="multiprocessing", timeout=LIMIT)
        print(end_of_task(lambda: forks(joblib.delayed(use)(*parts) for _ in range(2))))


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # JAX's and Python's, about the fork
    with tempfile.TemporaryDirectory() as place:
        main(sys.argv[1], place)
