"""Programs as users write them, each a process of its own: imports, a model, one call of a sampler.

Nothing but the standard library is imported before the function runs, as in a user's script.
"""

import resource
import sys
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

#: The arguments of PyMC's sides beyond draws, chains and seed.
OPTIONS: dict[str, dict[str, Any]] = {
    "ours": {},
    "pymc": {},
    "low_rank": {"nuts_sampler_kwargs": {"adaptation": "low_rank"}},
}


def imports(modules: list[str]) -> dict:
    """Import modules, and return how many there are in the process then."""
    for name in modules:
        import_module(name)
    return used()


def used() -> dict:
    """Return the peak memory of the process in MiB, and the number of imported modules."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    if sys.platform == "linux":  # where the other figure is at least that of the process that started this one
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / (1 << 10)
    return {"memory": peak, "modules": len(sys.modules)}


def sample(name: str, side: str, draws: int, chains: int, seed: int, file: str) -> dict:
    """Make a model, sample it, and write its draws to a file.

    Returns
    -------
    dict
        The seconds of the call, of sampling alone as the sampler says, and of writing the file, which is no part of a user's program; memory and modules.
    """
    run = {"stanli": run_stanli, "owalnuts": run_owalnuts, "walnutpie": run_walnutpie}.get(side, run_pymc)
    seconds, sampling, divergences, arrays = run(name, side, draws, chains, seed)
    result = {"seconds": seconds, "sampling": sampling, "divergences": divergences, **used()}
    began = perf_counter()
    import_module("numpy").savez(file, **arrays)
    return result | {"writing": perf_counter() - began}


type Run = tuple[
    float, float | None, int | None, dict[str, Any]
]  #: Seconds of the call and of sampling, divergences, draws.


def run_pymc(name: str, side: str, draws: int, chains: int, seed: int) -> Run:
    """Sample with a function of PyMC's signature."""
    run = import_module("pymc").sample
    if side == "ours":
        run = import_module("pytensor_jaxpr_linker.pymc").sample
    with pymc_model(name) as model:
        began = perf_counter()
        found = run(draws, chains=chains, random_seed=seed, progressbar=False, **OPTIONS[side])
        seconds = perf_counter() - began
    posterior = found["posterior"]
    arrays = {v.name: posterior[v.name].values for v in model.free_RVs}
    return seconds, posterior.attrs.get("sampling_time"), int(found["sample_stats"]["diverging"].sum()), arrays


def pymc_model(name: str) -> Any:
    """Return a model of `pymc_models.py` or `long_models.py`, or of a file outside of this folder."""
    if name.endswith(".py"):
        return import_module("model_file").load(name)[0]
    module = import_module("long_models")
    return module.MODELS[name]() if name in module.MODELS else import_module("pymc_models").MODELS[name]()


def run_owalnuts(name: str, side: str, draws: int, chains: int, seed: int) -> Run:
    """Sample with oWALNUTS and PyMC's density by Numba; draws are of the unconstrained space."""
    owalnuts, cores = import_module("owalnuts"), len(import_module("os").sched_getaffinity(0))
    model = pymc_model(name)
    began = perf_counter()
    target, dim, *_ = owalnuts.from_pymc(model, gil_free=True)
    found = owalnuts.sample(target, dim, chains=chains, draws=draws, seed=seed, threads=min(chains, cores))
    divergent = int(found.divergent[:, -draws:].sum())
    return perf_counter() - began, found.wall_seconds, divergent, {"x": found.samples}


def run_walnutpie(name: str, side: str, draws: int, chains: int, seed: int) -> Run:
    """Sample with walnutpie, which ends when R-hat is small, and the same density; draws are of the unconstrained space."""
    import ctypes

    import numba
    from numba import types

    walnutpie, owalnuts, np = (import_module(module) for module in ("walnutpie", "owalnuts", "numpy"))
    model = pymc_model(name)
    began = perf_counter()
    target, dim, *_ = owalnuts.from_pymc(model, gil_free=True)
    pointer = ctypes.POINTER(ctypes.c_double)
    density = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_ssize_t, pointer, pointer, ctypes.c_void_p)(target.address)
    numbers = types.CPointer(types.float64)

    @numba.cfunc(types.int32(types.uintp, numbers, numbers, numbers, types.voidptr))
    def log_density(size, x, gradient, result, data):
        result[0] = density(size, x, gradient, data)
        return 0

    prepared = perf_counter()
    found = walnutpie.walnuts_pyfunc(log_density, num_params=dim, num_chains=chains, max_sampling_iter=draws, seed=seed)
    ended = perf_counter()
    length = min(len(chain) for chain in found)
    return ended - began, ended - prepared, None, {"x": np.stack([np.asarray(chain)[:length] for chain in found])}


def run_stanli(name: str, side: str, draws: int, chains: int, seed: int) -> Run:
    """Sample the model's Stan program."""
    stanli = import_module("stanli")
    code, data = import_module("stan_programs").PROGRAMS[name]
    values = data()
    began = perf_counter()
    model = stanli.Model(stan_code=code, data=values)
    prepared = perf_counter()
    fit = model.sample(chains=chains, samples=draws, seed=seed, refresh=0)
    ended = perf_counter()
    return ended - began, ended - prepared, int(fit.divergences.sum()), {"x": fit.draws()}
