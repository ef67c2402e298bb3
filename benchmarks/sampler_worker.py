"""One measurement of `samplers.py` in a process of its own; it writes its result as JSON.

    python benchmarks/sampler_worker.py calls MODEL MODE+MODE --out FILE [--seconds S]
    python benchmarks/sampler_worker.py sample MODEL SIDE/SAMPLER --out FILE [--draws N] [--tune N] [--chains N] [--seed N]
                                        [--cache FOLDER] [--effective] [--again]

`calls` measures log density plus gradient in modes of PyTensor's, `sample` the wall time of a call that samples, and with `--again` that of a second one.
"""

import argparse
import importlib
import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from clock import least_us, pin_to_one_core
from micro import call_with_numpy


def calls(name: str, modes: str, args: argparse.Namespace) -> dict:
    """Return by mode the least µs of a call near the starting point; the calls of all modes take turns on one core.

    A mode that has no translation of one of the Ops is left out.

    Raises
    ------
    AssertionError
        If the modes do not agree on the log density.
    """
    pin_to_one_core()
    from pymc_models import MODELS

    import pytensor_jaxpr_linker  # noqa: F401  (registers mode JAXPR)

    model, rng = MODELS[name](), np.random.default_rng(1)
    start = model.initial_point()
    values = [np.asarray(start[v.name] + 0.1 * rng.standard_normal(np.shape(start[v.name]))) for v in model.value_vars]
    outputs = [model.logp(), model.dlogp()]
    functions = {}
    for mode in modes.split("+"):
        with suppress(NotImplementedError):
            functions[mode] = model.compile_fn(outputs, inputs=model.value_vars, mode=mode, point_fn=False)
    densities = [float(f(*values)[0]) for f in functions.values()]
    assert np.allclose(densities, densities[0], rtol=1e-8, atol=0), f"log densities differ: {densities}"
    return least_us({mode: partial(call_with_numpy, f, values) for mode, f in functions.items()}, args.seconds)


def sample(name: str, subject: str, args: argparse.Namespace) -> dict:
    """Return the seconds until one call's draws are NumPy arrays; importing, making the model and starting JAX are not counted.

    With `args.again` also those of a second call for the same model, with another seed.
    """
    side, sampler = subject.split("/")
    options = {"tune": args.tune, "chains": args.chains, "progressbar": False, "compute_convergence_checks": False}
    if side == "pymc":
        run, chosen = importlib.import_module("pymc").sample, {"nuts_sampler": sampler}
        # PyMC's module must come before JAX starts: it sets the number of devices for parallel chains.
        importlib.import_module("pymc.sampling.jax" if sampler != "nutpie" else "pytensor.link.numba.dispatch")
    else:
        run, chosen = importlib.import_module("pytensor_jaxpr_linker.pymc").sample, {"sampler": sampler}
        if sampler == "default":
            chosen, sampler = {}, "blackjax"
        if args.cache:
            importlib.import_module("pytensor_jaxpr_linker").cache(args.cache)
    importlib.import_module(sampler)
    if (side, sampler) == ("pymc", "blackjax"):
        mend_blackjax()
    from pymc_models import MODELS

    if (side, sampler) != ("pymc", "nutpie"):
        import jax

        jax.jit(jax.lax.neg)(np.ones(1, "float32"))
    with MODELS[name]() as model:
        call = partial(run, args.draws, **chosen, **options)
        seconds, found = timed(call, args, seed=args.seed)
        result = {"seconds": seconds}
        if args.again:
            result["again"], _ = timed(call, args, seed=args.seed + 1)
    return result | (effective(found, [v.name for v in model.free_RVs]) if args.effective else {})


def timed(call: Callable, args: argparse.Namespace, seed: int) -> tuple[float, Any]:
    """Return the seconds of a call that samples, and what it returned.

    Raises
    ------
    AssertionError
        If draws are missing, or are not finite.
    """
    start = perf_counter()
    found = call(random_seed=seed)
    # `pymc.sample` may return JAX's arrays while they are still being computed.
    posterior = {name: np.asarray(x) for name, x in found["posterior"].data_vars.items()}
    seconds = perf_counter() - start
    assert all(x.shape[:2] == (args.chains, args.draws) for x in posterior.values()), "draws of another shape"
    assert all(np.isfinite(x).all() for x in posterior.values()), "draws that are not finite"
    return seconds, found


def effective(found: Any, names: list[str]) -> dict[str, float]:
    """Return the smallest effective sample sizes and the largest R-hat of all elements of variables, and how many draws diverged."""
    import arviz as az

    posterior = found["posterior"].to_dataset()[names]
    result = {kind: min(float(x.min()) for x in az.ess(posterior, method=kind).values()) for kind in ("bulk", "tail")}
    result["rhat"] = max(float(x.max()) for x in az.rhat(posterior).values())
    stats = found["sample_stats"]
    return result | {"divergences": int(stats["diverging"].sum()), "steps": float(stats["n_steps"].sum())}


def mend_blackjax() -> None:
    """Take back for PyMC two changes of BlackJAX 1.7, with which its sampler raises a TypeError.

    `window_adaptation` has no argument `progress_bar` any more, and the function that makes a scan with a bar is gone.
    """
    import blackjax
    import jax

    if not hasattr(blackjax.progress_bar, "gen_scan_fn"):
        adapt = blackjax.window_adaptation
        blackjax.window_adaptation = lambda *args, progress_bar, **kwargs: adapt(*args, **kwargs)
        blackjax.progress_bar.gen_scan_fn = lambda length, shown: jax.lax.scan


def main() -> None:
    """Run the task that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=["calls", "sample"])
    parser.add_argument("model")
    parser.add_argument("subject")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--cache", type=Path, help="the folder of `pytensor_jaxpr_linker.cache`")
    parser.add_argument("--effective", action="store_true", help="whether to measure how good the draws are")
    parser.add_argument("--again", action="store_true", help="whether to measure a second call in the same process")
    for option in ("draws", "tune", "chains", "seed"):
        parser.add_argument(f"--{option}", type=int, default=1)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    task = {"calls": calls, "sample": sample}[args.task]
    args.out.write_text(json.dumps(task(args.model, args.subject, args)))


if __name__ == "__main__":
    main()
