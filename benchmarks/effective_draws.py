"""Effective draws a second of a whole call of `sample`: this package's default sampler beside PyMC's.

Each measurement is two processes one after the other: the first has empty caches, the second those that the first has filled. Three repeats take over an hour. It
writes the section "Effective draws" and EFFECTIVE_DRAWS.json. Another number of `--draws` than 1,000 has a section and a file of its own.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean

from processes import Job
from pymc_models import MODELS
from rendering import (
    PACKAGES,
    compared,
    count_ahead,
    describe_machine,
    failures,
    figure,
    listed,
    ratios_of,
    table,
    text,
)
from samplers import add_options_of_runs, run_models

OURS, DEFAULT = "jaxpr/default", "pymc/nutpie"
SIDES = {OURS: "`pjl.pymc.sample`", DEFAULT: "`pm.sample`", "jaxpr/numpyro": '`sampler="numpyro"`'}
#: Draws of a chain of which the README tells.
DRAWS = 1000
CACHES = {"cold": "caches empty", "warm": "caches filled"}
PICTURE = "![For each model, seconds of the first call, and effective draws a second of later ones](../docs/images/draws.svg)\n"


def jobs(model: str, args: argparse.Namespace) -> Iterator[Job]:
    """Give the processes of a model."""
    numbers = {key: getattr(args, key) for key in ("draws", "tune", "chains")}
    for seed in range(1, args.repeats + 1):
        for side in args.sides:
            caches = f"{side.replace('/', '-')}-{seed}"
            names = dict(zip(("side", "sampler"), side.split("/"), strict=True))
            for key in CACHES:
                yield Job(
                    "samplers:sample",
                    names | numbers | {"name": model, "seed": seed, "cache": f"{caches}/xla", "prefix": f"{key} "},
                    ("results", model, side),
                    caches=caches,
                    chain=side,
                    timeout=args.timeout,
                    keeps_programs=True,
                )


def rate(result: dict, cache: str, kind: str = "bulk") -> float | None:
    """Return the effective draws a second, or None."""
    return result[f"{cache} {kind}"] / result[f"{cache} seconds"] if result and "failed" not in result else None


def ratios(results: dict, side: str, cache: str, kind: str = "bulk") -> dict[str, float]:
    """Return by model how many times as many effective draws a second this package's default has as a side."""
    pairs = {model: [rate(found.get(s, {}), cache, kind) for s in (OURS, side)] for model, found in results.items()}
    return ratios_of({model: (ours, theirs) for model, (ours, theirs) in pairs.items()})


def summary(results: dict, sides: list[str]) -> str:
    """Say how many models are ahead, the geometric means, and each model that is behind."""
    rows, behind = [], []
    for side, cache in [(side, cache) for side in sides for cache in CACHES]:
        if found := ratios(results, side, cache):
            bulk, tail = (geometric_mean(ratios(results, side, cache, kind).values()) for kind in ("bulk", "tail"))
            order = sorted(found, key=found.__getitem__)
            least = f"{found[order[0]]:.2g}× ({order[0]})"
            rows.append([SIDES[side], CACHES[cache], count_ahead(found), f"{bulk:.1f}×", f"{tail:.1f}×", least])
            lost = [f"{model} {found[model]:.2g}×" for model in order if found[model] <= 1]
            behind += [f"{SIDES[side]}, {CACHES[cache]}: {', '.join(lost)}"] if lost else []
    header = ["beside", "caches", "ahead on", "geometric mean, bulk", "geometric mean, tail", "least"]
    return f"{table(header, rows, 2)}\n" + ("Behind:\n\n" + listed(behind) if behind else "Behind on none.\n")


def model_table(results: dict, sides: list[str]) -> str:
    """Effective draws a second, a line for each model."""
    rows = [
        [model, *(c for key in CACHES for c in compared({s: rate(found.get(s, {}), key) for s in sides}, OURS))]
        for model, found in results.items()
    ]
    header = [f"{title}, {SIDES[side]}" for title in CACHES.values() for side in sides]
    return table(["model", *header], rows, 1)


def quality_table(results: dict, sides: list[str]) -> str:
    """Seconds of the call, and how good its draws are, a line for each model."""
    rows = []
    for model, found in results.items():
        cells = []
        for side in sides:
            of = {} if "failed" in found.get(side, {"failed": ""}) else found[side]
            cells += [
                " / ".join(figure(of.get(f"{cache} seconds")) for cache in CACHES),
                " / ".join(figure(of.get(f"warm {kind}")) for kind in ("bulk", "tail")),
                f"{of.get('warm rhat', float('nan')):.3f}",
                figure(of.get("warm divergences")),
            ]
        rows.append([model, *cells])
    titles = ("seconds, empty / filled", "effective draws, bulk / tail", "R-hat", "divergences")
    return table(["model", *(f"{title}, {SIDES[side]}" for side in sides for title in titles)], rows, 1)


def heading(draws: int) -> str:
    """Return the heading of the section about runs of so many draws a chain."""
    return "## Effective draws" + ("" if draws == DRAWS else f", {draws:,} a chain")


def section(collected: dict) -> list[str]:
    """Return the parts of the section of the report."""
    setting, results = collected["setting"], collected["results"]
    sides = [OURS, *(side for side in setting["sides"] if side != OURS)]
    count = setting["repeats"]
    pairs = f"the median over {count} such pairs of processes" if count > 1 else "of one such pair of processes"
    parts = [text("effective", setting, heading=heading(setting["draws"]), pairs=pairs)]
    parts += [PICTURE] if setting["draws"] == DRAWS else []
    parts += [summary(results, sides[1:]), model_table(results, sides), quality_table(results, sides)]
    failed = [f"{model}, {SIDES[side]}: {why}" for (model, side), why in failures(results)]
    return [*parts, "Without a result:\n", listed(failed)] if failed else parts


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measurement."""
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=[OURS, DEFAULT])
    add_options_of_runs(parser, minutes=60, timeout=400)


def data_file(out: Path, draws: int) -> Path:
    """Return the file of the medians of runs of so many draws a chain."""
    return out.with_name("EFFECTIVE_DRAWS.json" if draws == DRAWS else f"EFFECTIVE_DRAWS_{draws}.json")


def run(args: argparse.Namespace) -> dict:
    """Measure."""
    keys = ("sides", "draws", "tune", "chains", "repeats")
    setting = describe_machine((*PACKAGES, "nutpie", "numpyro", "blackjax", "arviz"))
    setting |= {key: getattr(args, key) for key in keys}
    return run_models(args, data_file(args.out, args.draws), setting, jobs)
