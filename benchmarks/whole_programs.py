"""Whole programs that sample a model: this package's default sampler beside PyMC's defaults.

Each measurement is two processes one after the other: the first has empty caches, the second those that the first has filled. Both are programs as a user writes them
(user.py). It writes the section "Whole programs" and WHOLE_PROGRAMS.json. Another number of `--draws` than 1,000, `--long` and other sides have a section and a file each.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
from long_models import MODELS as LONG
from processes import Job, collect, rotated
from pymc_models import MODELS
from rendering import (
    NONE,
    PACKAGES,
    count_ahead,
    describe_machine,
    failures,
    figure,
    last_commit,
    listed,
    table,
    text,
    times,
)
from samplers import add_options_of_runs, run_models
from stan_programs import PROGRAMS

OURS, DEFAULT = "ours", "pymc"
SIDES = {
    OURS: "`pjl.pymc.sample`",
    DEFAULT: "`pm.sample`",
    "low_rank": '`pm.sample`, `adaptation="low_rank"`',
    "owalnuts": "oWALNUTS",
    "walnutpie": "walnutpie",
    "stanli": "stanli",
}
#: Sides that are packages of their own, the extra `bench`.
OTHERS = ("owalnuts", "walnutpie", "stanli")
#: Draws of a chain of which the README tells.
DRAWS = 1000
CACHES = {"first": "first process", "later": "later process"}
#: What a process imports alone, by the name of the figure.
IMPORTS = {
    "pytensor, jax": ["pytensor", "jax"],
    "pytensor_jaxpr_linker": ["pytensor", "jax", "pytensor_jaxpr_linker"],
    "pymc, jax": ["pymc", "jax"],
    "pytensor_jaxpr_linker.pymc": ["pymc", "jax", "pytensor_jaxpr_linker.pymc"],
    "pymc": ["pymc"],
}
#: A ratio whose interval lies below this is behind.
BEHIND = 0.95

type Results = dict[str, dict[str, dict[str, dict]]]  #: By model, side and repeat.


def jobs(model: str, args: argparse.Namespace) -> Iterator[Job]:
    """Give the processes of a model. The sides take turns."""
    for repeat in range(args.repeats):
        for side in rotated(args.sides, repeat):
            caches = f"{model}-{side}-{repeat}"
            if side == "stanli" and model not in PROGRAMS:
                continue
            for key in CACHES:
                arguments = {"name": model, "side": side, "seed": repeat + 1}
                arguments |= {"draws": args.draws, "chains": args.chains, "file": f"{caches}-{key}.npz"}
                yield Job(
                    "user:sample",
                    arguments,
                    ("results", model, side, str(repeat)),
                    caches=caches,
                    chain=side,
                    timeout=args.timeout,
                    blas_threads=None,
                    keeps_programs=True,
                    then=partial(judge, key, arguments["file"]),
                )


def judge(key: str, file: str, result: dict, folder: Path, seconds: float) -> dict:
    """Return the figures of a process that ended: its own, its seconds, and how good the draws are that it wrote.

    That is: the smallest effective sample sizes and the largest R-hat of all elements of free variables.
    """
    import arviz as az

    with np.load(folder / file) as arrays:
        posterior = dict(arrays)
    (folder / file).unlink()
    assert all(np.isfinite(x).all() for x in posterior.values()), "draws that are not finite"
    data = az.from_dict({"posterior": posterior})["posterior"].to_dataset()
    result |= {kind: min(float(x.min()) for x in az.ess(data, method=kind).values()) for kind in ("bulk", "tail")}
    result["rhat"] = max(float(x.max()) for x in az.rhat(data).values())
    result["process"] = seconds - result.pop("writing")
    return {f"{key} {name}": value for name, value in result.items()}


def judge_import(result: dict, folder: Path, seconds: float) -> dict:
    """Return the figures of a process that imports modules alone."""
    return result | {"process": seconds}


def value(found: dict, key: str) -> float:
    """Return a figure of one repeat: a measured one, or effective draws a second ("first bulk rate")."""
    if not key.endswith(" rate"):
        return found[key]
    cache, kind, _ = key.split()
    return found[f"{cache} {kind}"] / found[f"{cache} seconds"]


def good(results: Results, model: str, side: str) -> dict[str, dict]:
    """Return the repeats of a side, or nothing if one of them failed."""
    repeats = results[model].get(side, {})
    return {} if any("failed" in found for found in repeats.values()) else repeats


def middle(results: Results, model: str, side: str, key: str) -> float | None:
    """Return the median of a figure over the repeats."""
    found = [value(repeat, key) for repeat in good(results, model, side).values()]
    return median(found) if found and None not in found else None


def ratios(results: Results, side: str, key: str) -> dict[str, tuple[float, float, float]]:
    """Return by model how many times this package's figure is that of a side: median, least and greatest of the paired repeats."""
    found = {}
    for model in results:
        ours, theirs = good(results, model, OURS), good(results, model, side)
        pairs = [value(ours[repeat], key) / value(theirs[repeat], key) for repeat in ours.keys() & theirs.keys()]
        if pairs:
            found[model] = (median(pairs), min(pairs), max(pairs))
    return found


def mean(found: dict[str, tuple[float, float, float]]) -> float:
    """Return the geometric mean of the medians."""
    return geometric_mean(ratio for ratio, _, _ in found.values())


def summary(results: Results, sides: list[str]) -> str:
    """Say how many models are ahead, the geometric means, and each model that is behind."""
    rows, behind = [], []
    for side, cache in [(side, cache) for side in sides for cache in CACHES]:
        if found := ratios(results, side, f"{cache} bulk rate"):
            tail, whole = (mean(ratios(results, side, f"{cache} {key}")) for key in ("tail rate", "process"))
            order = sorted(found, key=lambda model: found[model])
            least = f"{times(found[order[0]][0])} ({order[0]})"
            ahead = count_ahead({model: ratio for model, (ratio, _, _) in found.items()})
            rows.append([SIDES[side], CACHES[cache], ahead, times(mean(found)), times(tail), least, times(whole)])
            lost = [f"{model} {times(found[model][0])}" for model in order if found[model][2] < BEHIND]
            behind += [f"{SIDES[side]}, {CACHES[cache]}: {', '.join(lost)}"] if lost else []
    header = ["beside", "caches", "ahead on", "bulk", "tail", "least bulk", "seconds of the whole process"]
    return f"{table(header, rows, 2)}\n" + ("Behind:\n\n" + listed(behind) if behind else "Behind on none.\n")


def with_interval(found: tuple[float, float, float] | None) -> str:
    """Write a ratio with its interval, where there is more than one repeat."""
    if found is None:
        return NONE
    ratio, least, greatest = found
    return times(ratio) + (f" ({least:.2g} to {greatest:.2g})" if least < greatest else "")


def rate_table(results: Results, sides: list[str]) -> str:
    """Effective draws a second of the call, a line for each model, and the ratios of this package to each other side."""
    columns: list[tuple[str, Callable[[str], str]]] = []
    for cache, title in CACHES.items():
        key = f"{cache} bulk rate"
        columns += [(f"{title}, {SIDES[s]}", partial(of_model, results, s, key)) for s in sides]
        columns += [(f"× {SIDES[s]}", partial(of_ratio, ratios(results, s, key))) for s in sides[1:]]
    rows = [[model, *(cell(model) for _, cell in columns)] for model in results]
    return table(["model", *(title for title, _ in columns)], rows, 1)


def of_model(results: Results, side: str, key: str, model: str) -> str:
    """Write the figure of a model."""
    return figure(middle(results, model, side, key))


def of_ratio(found: dict[str, tuple[float, float, float]], model: str) -> str:
    """Write the ratio of a model."""
    return with_interval(found.get(model))


def quality_table(results: Results, sides: list[str]) -> str:
    """Seconds of the whole process, of the call and of sampling, the draws' quality, memory and modules: a line for each model and side."""
    rows = []
    for model in results:
        for side in sides:
            got = partial(middle, results, model, side)
            both = [
                " / ".join(figure(got(f"{cache} {key}")) for cache in CACHES)
                for key in ("process", "seconds", "sampling")
            ]
            quality = [" / ".join(figure(got(f"later {kind}")) for kind in ("bulk", "tail"))]
            quality += [f"{got('later rhat') or float('nan'):.3f}", figure(got("later divergences"))]
            used = [" / ".join(figure(got(f"{cache} memory")) for cache in CACHES), figure(got("first modules"))]
            rows.append([model, SIDES[side], *both, *quality, *used])
    header = (
        "model, side, whole process, call, sampling, effective draws (bulk / tail), R-hat, divergences, MiB, modules"
    )
    return table(header.split(", "), rows, 2)


def import_table(imports: dict[str, dict[str, dict]]) -> str:
    """Seconds, memory and modules of processes that only import."""
    rows = []
    for name, repeats in imports.items():
        found = list(repeats.values())
        figures = [median(of[key] for of in found) for key in ("process", "memory", "modules")]
        rows.append([f"`import {', '.join(dict.fromkeys(IMPORTS[name]))}`", *map(figure, figures)])
    return table(["process", "seconds", "MiB", "modules"], rows, 1)


def heading(setting: dict) -> str:
    """Return the heading of the section."""
    if setting["long"]:
        return "## Whole programs, long runs"
    if {*setting["sides"]} != {OURS, DEFAULT}:
        return "## Whole programs, other samplers"
    return "## Whole programs" + ("" if setting["draws"] == DRAWS else f", {setting['draws']:,} a chain")


def section(collected: dict) -> list[str]:
    """Return the parts of the section of the report."""
    setting, results = collected["setting"], collected["results"]
    sides = [OURS, *(side for side in setting["sides"] if side != OURS)]
    values = {"heading": heading(setting), "repeats": str(setting["repeats"]), "commit": setting["commit"]}
    parts = [text("whole", setting, **values)]
    parts += [summary(results, sides[1:]), rate_table(results, sides), quality_table(results, sides)]
    if "imports" in collected:
        parts += ["Processes that only import:\n", import_table(collected["imports"])]
    failed = [f"{path[0]}, {SIDES[path[1]]}: {why}" for path, why in failures(results)]
    return [*parts, "Without a result:\n", listed(dict.fromkeys(failed))] if failed else parts


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measurement."""
    parser.add_argument("--models", nargs="+", choices=[*MODELS, *LONG], default=None, help="default: all of the kind")
    parser.add_argument("--long", action="store_true", help="the models of long_models.py")
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=[OURS, DEFAULT])
    add_options_of_runs(parser, minutes=60, timeout=400)


def data_file(out: Path, setting: dict[str, Any]) -> Path:
    """Return the file of the figures of a kind of runs."""
    kind = "_LONG" if setting["long"] else "" if setting["draws"] == DRAWS else f"_{setting['draws']}"
    kind += "" if {*setting["sides"]} == {OURS, DEFAULT} else "_PEERS"
    return out.with_name(f"WHOLE_PROGRAMS{kind}.json")


def run(args: argparse.Namespace) -> dict:
    """Measure."""
    args.models = args.models or list(LONG if args.long else MODELS)
    setting = describe_machine((*PACKAGES, "nutpie", "arviz", *(s for s in args.sides if s in OTHERS)))
    setting |= {key: getattr(args, key) for key in ("sides", "draws", "chains", "repeats", "long")}
    setting["commit"] = last_commit()
    data = data_file(args.out, setting)
    collected = run_models(args, data, setting, jobs)
    if "imports" not in collected and not args.long:
        rounds = [
            [
                Job("user:imports", {"modules": IMPORTS[name]}, ("imports", name, str(repeat)), then=judge_import)
                for name in rotated(list(IMPORTS), repeat)
            ]
            for repeat in range(args.repeats)
        ]
        collect(rounds, collected, data)
    return collected


def stored(folder: Path) -> list[dict]:
    """Return what was measured, by the files of a folder."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("WHOLE_PROGRAMS*.json"))]
