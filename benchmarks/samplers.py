"""Samplers of `pytensor_jaxpr_linker.pymc` beside those of `pymc.sample`: seconds to the first and to the last draw, and log density and gradient.

A model takes thirteen processes, and all models about 45 minutes. It writes the section "Samplers" and SAMPLERS.json.
"""

import argparse
import importlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
from backends import MODES, TITLES
from processes import Job, collect, models_left
from pymc_models import MODELS
from rendering import (
    NONE,
    PACKAGES,
    compared,
    describe_machine,
    failures,
    listed,
    mark_models,
    mean_ratio,
    of_processes,
    ratios_of,
    table,
    text,
)

SAMPLERS = ("nutpie", "numpyro", "blackjax")
PARTS = ("calls", "first", "last")
SIDES = {"jaxpr": "`pjl.pymc.sample`", "pymc": "`pm.sample`"}
#: What the table of draws has: by title the part of the measurement, and the figure's name there.
DRAWN = {"first draw": ("first", "seconds"), "second call": ("first", "again"), "last draw": ("last", "seconds")}
#: The key of what calls take.
CALLS = "calls/" + "+".join(MODES.values())


def sample(
    name: str,
    side: str,
    sampler: str,
    draws: int,
    tune: int,
    chains: int,
    seed: int,
    again: bool = False,
) -> dict:
    """Return the seconds until one call's draws are NumPy arrays; importing, making the model and starting JAX are not counted.

    Parameters
    ----------
    again
        Whether to measure also a second call for the same model, with another seed.
    """
    options = {"tune": tune, "chains": chains, "progressbar": False, "compute_convergence_checks": False}
    if side == "pymc":
        run, chosen = importlib.import_module("pymc").sample, {"nuts_sampler": sampler}
        # PyMC's module must come before JAX starts: it sets the number of devices for parallel chains.
        importlib.import_module("pymc.sampling.jax" if sampler != "nutpie" else "pytensor.link.numba.dispatch")
    else:
        run, chosen = importlib.import_module("pytensor_jaxpr_linker.pymc").sample, {"sampler": sampler}
    importlib.import_module(sampler)
    if (side, sampler) == ("pymc", "blackjax"):
        mend_blackjax()
    if (side, sampler) != ("pymc", "nutpie"):
        import jax

        jax.jit(jax.lax.neg)(np.ones(1, "float32"))
    with MODELS[name]():
        call = partial(run, draws, **chosen, **options)
        result = {"seconds": timed(call, (chains, draws), seed)}
        if again:
            result["again"] = timed(call, (chains, draws), seed + 1)
    return result


def timed(call: Callable, shape: tuple[int, int], seed: int) -> float:
    """Return the seconds of a call that samples.

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
    assert all(x.shape[:2] == shape for x in posterior.values()), "draws of another shape"
    assert all(np.isfinite(x).all() for x in posterior.values()), "draws that are not finite"
    return seconds


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


def jobs(model: str, args: argparse.Namespace) -> Iterator[Job]:
    """Give the processes of a model, so that what is compared runs close together. Who fails at the first draw is not asked for the last."""
    for repeat in range(args.repeats):
        if "calls" in args.parts:
            arguments = {"name": model, "sides": list(MODES), "seconds": 0.5, "one_core": True, "least": True}
            yield Job("calls:later_calls", arguments, ("results", model, CALLS), caches=f"calls-{repeat}")
        for sampler in args.samplers:
            for part, side in [(part, side) for part in PARTS[1:] if part in args.parts for side in SIDES]:
                arguments = {"name": model, "side": side, "sampler": sampler, "chains": args.chains, "seed": repeat + 1}
                is_first = part == "first"
                arguments |= {"draws": 1, "tune": 1} if is_first else {"draws": args.draws, "tune": args.tune}
                yield Job(
                    "samplers:sample",
                    arguments | {"again": is_first},
                    ("results", model, f"{part}/{side}/{sampler}"),
                    caches=f"{part}-{side}-{sampler}-{repeat}",
                    chain=f"{side}/{sampler}",
                    timeout=args.timeout,
                )


def get(found: dict, key: str) -> float | None:
    """Return a figure, or None where there is none."""
    return None if "failed" in found else found.get(key)


def draw_table(results: dict, samplers: list[str]) -> str:
    """Seconds to the draws of each kind of call, a line for each model and sampler, then geometric means."""
    rows, ratios = [], {}
    for model, found in results.items():
        for sampler in samplers:
            cells = []
            for title, (part, key) in DRAWN.items():
                seconds = {side: get(found.get(f"{part}/{side}/{sampler}", {}), key) for side in SIDES}
                of_kind = ratios.setdefault((sampler, title), {})
                of_kind |= ratios_of({model: (seconds["pymc"], seconds["jaxpr"])})
                cells += compared(seconds, "jaxpr")
            rows.append([model, sampler, *cells])
    rows = mark_models(rows)
    for label, some in [(sampler, [sampler]) for sampler in samplers] + [("all", samplers)]:
        means = [mean_ratio(r for s in some for r in ratios.get((s, title), {}).values()) for title in DRAWN]
        rows.append(["geometric mean", label, *(cell for mean in means for cell in (NONE, mean))])
    header = [f"{title}, {side}" for title in DRAWN for side in SIDES.values()]
    return table(["model", "sampler", *header], rows, 2)


def call_table(results: dict) -> str:
    """Microseconds a call, a line for each model, then the geometric mean."""
    values = {m: {mode: get(found.get(CALLS, {}), mode) for mode in MODES.values()} for m, found in results.items()}
    rows = [[model, *compared(by_mode, "JAXPR")] for model, by_mode in values.items()]
    modes = [mode for mode in MODES.values() if mode != "JAXPR"]
    means = [mean_ratio(ratios_of({m: (v[mode], v["JAXPR"]) for m, v in values.items()}).values()) for mode in modes]
    return table(["model", *(TITLES[side] for side in MODES)], [*rows, ["geometric mean", NONE, *means]], 1)


def section(collected: dict) -> list[str]:
    """Return the parts of the section of the report."""
    setting, results = collected["setting"], collected["results"]
    parts = [text("samplers", setting, processes=of_processes(setting["repeats"]))]
    if setting["parts"] != ["calls"]:
        parts += [text("samplers_draws", setting), draw_table(results, setting["samplers"])]
    if "calls" in setting["parts"]:
        parts += [text("samplers_calls"), call_table(results)]
    where: dict[tuple[str, str], list[str]] = {}
    for (model, *subject), why in failures(results):
        where.setdefault((subject[0], why), []).append(model)
    failed = [f"{subject} ({', '.join(models)}): {why}" for (subject, why), models in where.items()]
    return [*parts, "### Without a result\n", listed(failed)] if failed else parts


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measurement."""
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=list(SAMPLERS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    add_options_of_runs(parser, minutes=40, timeout=300)


def add_options_of_runs(parser: argparse.ArgumentParser, minutes: float, timeout: float) -> None:
    """Add the options of measurements that sample models one after the other."""
    for option, default in (("draws", 1000), ("tune", 1000), ("chains", 4), ("repeats", 1)):
        parser.add_argument(f"--{option}", type=int, default=default)
    parser.add_argument("--timeout", type=float, default=timeout, help="seconds for one process")
    parser.add_argument("--minutes", type=float, default=minutes, help="begin no model after so many")
    parser.add_argument("--add", action="store_true", help="keep the models of the last run, and measure others")


def run(args: argparse.Namespace) -> dict:
    """Measure."""
    keys = ("samplers", "parts", "draws", "tune", "chains", "repeats")
    setting = describe_machine((*PACKAGES, *SAMPLERS)) | {key: getattr(args, key) for key in keys}
    return run_models(args, args.out.with_name("SAMPLERS.json"), setting, jobs)


def run_models(args: argparse.Namespace, data: Path, setting: dict, jobs_of: Callable) -> dict:
    """Measure one model after the other, and save the medians after each."""
    collected = opened(args, data, setting)
    for model in models_left(args.models, collected["results"], args.minutes):
        collect([list(jobs_of(model, args))], collected, data)
    return collected


def opened(args: argparse.Namespace, data: Path, setting: dict) -> dict:
    """Return what the last run has collected, if this one adds to it, or nothing but the setting."""
    if not args.add or not data.exists():
        return {"setting": setting, "results": {}}
    collected = json.loads(data.read_text())
    if any(collected["setting"].get(key) != value for key, value in setting.items() if key != "date"):
        raise SystemExit(f"{data} was measured with other versions or options: run without --add.")
    return collected
