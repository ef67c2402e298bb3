"""Compare log density and gradient of PyMC models in modes JAXPR, JAX and NUMBA: later calls, and first results with empty and full caches.

    python benchmarks/calls.py                                    everything, two hours
    python benchmarks/calls.py --tasks calls                      later calls only, some 20 minutes
    python benchmarks/calls.py --models garch lkj --out some/RESULTS.md
    python benchmarks/calls.py --add --models garch lkj           beside the other models of the last run
    python benchmarks/calls.py --add --tasks first                first results, beside the later calls of the last run
    python benchmarks/calls.py --render                           write the section again, from the JSON file

Writes the section "PyMC models" of `--out`, and the medians (JSON) beside it.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean

from backends import TITLES
from call_worker import COPY, LARGE
from pymc_models import MODELS
from report import NONE, PYMC_MODELS, describe_machine, machine, replace_section, table, with_ratio
from run import HERE, medians, run_process

SIDES = {"jaxpr": "mode JAXPR", "jax": "mode JAX", "numba": "mode NUMBA"}
RIVALS = ("jax", "numba")
FIGURES = {
    "one": "call, one core",
    "all": "call, all cores",
    "cold": "first result",
    "warm": "first result, caches full",
}
CALLS, FIRSTS = ("one", "all"), ("cold", "warm")
TASKS = ("calls", "first")

TEXT = """
{setting}

Log density and gradient of the models of `pymc_models.py`, compiled by `pm.compile`: {count} of {total} models. Each figure is the median over {processes} processes.
"×" is the ratio to mode JAXPR: above 1, mode JAXPR is faster; below 1, it is slower. Before anything is timed, the results of all sides are compared, to
1e-6 of the largest number of each output. A mode without a translation of one of the model's Ops has no figure. `calls.py` writes this section.
{remark}
### Summary

{summary}"""

LATER = """### Later calls of PyMC models

Microseconds a call, NumPy arrays in and out. The calls of all sides take turns in one process, pinned to one core or on all {cores}. A turn has calls for 3 ms, as a
sampler makes them one after the other; the median of all but those of the first millisecond counts, because a processor takes some calls to predict the branches of another side. BLAS has one thread, except for the large data on all cores. Mode JAX does not run on large data here
(`radon_12k`: 12,289 houses, `radon_1m`: each of these a hundred times, `logistic_1m_50`: 1,000,000 rows by 50 columns), and the geometric mean leaves these out.
"""

BANDWIDTH = """### Large data beside a copy of it

The same calls beside a copy of the model's data by NumPy, in as many threads as cores, in turns with them. A turn has calls for 0.3 s, of which those of the
first 0.1 do not count: before, threads of the side before may still run, and those of this side share a core. A copy reads and writes each byte once; log density and gradient of
`logistic_1m_50` read the matrix twice. "×" is how many times as long a call of mode JAXPR takes.
"""

FIRST = """### First results of PyMC models

Seconds from the graph to the first result, in a process of its own; imports, making the model and its gradient, and the start of JAX are not counted. *First result*: all caches
are empty. *Caches full*: an earlier process has compiled the same, and Numba's cache, or JAX's compilation cache (`pjl.cache`, for both modes), has kept it.
With empty caches mode NUMBA takes so long that its figure is of one process.

Part of the difference is Python's garbage collector, which mode JAXPR pauses while it makes a function: on some models a pass over all objects, 0.16 to 0.2 s, falls into the
time of the other modes. In mode JAXPR it comes later, or not in a short program.
"""


def jobs(args: argparse.Namespace, repeat: int) -> Iterator[tuple[str, str, str]]:
    """Give what to measure in the order in which it runs: figure, model and sides, in an order that changes with the repeat."""
    for model in args.models:
        sides = ["numba", "jaxpr", COPY] if model in LARGE else ["numba", "jax", "jaxpr"]
        turn = repeat % len(sides)
        sides = sides[turn:] + sides[:turn]
        if "calls" in args.tasks:
            yield from ((key, model, "+".join(sides)) for key in CALLS)
        if "first" in args.tasks and model not in LARGE:
            for side in sides:
                if repeat == 0 or side != "numba":
                    yield "cold", model, side
                if repeat == 0 and side != "numba":
                    yield "fill", model, side
                yield "warm", model, side


def measure(key: str, model: str, sides: str, repeat: int, folder: Path, args: argparse.Namespace) -> dict:
    """Run one process and return its result.

    Later calls find what Numba compiled for the model in an earlier process; so do first results with full caches.
    """
    out = folder / "result.json"
    options: list = ["--out", out, "--reference", folder / f"{model}.npz", "--seconds", args.seconds]
    if key in CALLS:
        caches, task = (args.caches or folder) / f"{model}-calls", "calls"
        options += ["--one-core"] * (key == "one")
    else:
        caches, task = folder / f"{model}-{sides}{'' if sides == 'numba' else repeat}", "first"
        if sides != "numba" and key != "cold":
            options += ["--programs", folder / f"{model}-{sides}-programs"]
    threads = len(os.sched_getaffinity(0)) if model in LARGE and key == "all" else 1
    if failed := run_process([HERE / "call_worker.py", task, model, sides, *options], caches, blas_threads=threads):
        return {"failed": failed}
    return json.loads(out.read_text())


def run_all(args: argparse.Namespace, data: Path, kept: dict) -> None:
    """Run the processes one after the other; after each repeat, save the medians of those so far, beside the other figures in `kept`."""
    raw: dict = defaultdict(lambda: defaultdict(list))
    setting = describe_machine()
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(args.processes):
            for key, model, sides in jobs(args, repeat):
                result = measure(key, model, sides, repeat, Path(folder), args)
                print(repeat, key, model, sides, result, flush=True)
                for side in sides.split("+"):
                    found = result.get(side, result)
                    raw[model, side][key].append({key: found["seconds"]} if "seconds" in found else found)
            models: dict = {
                name: dict(kept.get(name, {})) for name in (*MODELS, *LARGE) if name in kept or name in args.models
            }
            for (model, side), by_key in raw.items():
                new = {k: v for key in FIGURES for k, v in figures_of(by_key[key]).items()}
                models[model][side] = kept.get(model, {}).get(side, {}) | new
            collected = {"setting": setting | {"processes": repeat + 1}, "models": models}
            data.write_text(json.dumps(collected, indent=1) + "\n")


def figures_of(found: list[dict]) -> dict:
    """Return the median of one figure, or nothing if it was not measured."""
    return medians(found) if found else {}


def ratios(models: dict, key: str, rival: str) -> dict[str, float]:
    """Return by model the ratio of a rival's figure to that of mode JAXPR, where both have one."""
    pairs = {name: (found.get(rival, {}).get(key), found["jaxpr"].get(key)) for name, found in models.items()}
    return {name: theirs / ours for name, (theirs, ours) in pairs.items() if theirs and ours}


def summary(models: dict) -> str:
    """Return how often mode JAXPR is ahead, and the models where it is behind, worst first."""
    rows, behind = [], []
    for key, title in FIGURES.items():
        for rival in RIVALS:
            found = ratios(moderate(models), key, rival)
            if found:
                worst = min(found, key=found.__getitem__)
                ahead = f"{sum(ratio > 1 for ratio in found.values())} of {len(found)}"
                mean, least = f"{geometric_mean(found.values()):.2f}×", f"{found[worst]:.2f}× ({worst})"
                rows.append([title, TITLES[rival], ahead, mean, least])
            slower = sorted((r, name) for name, r in ratios(models, key, rival).items() if r < 1)
            if slower:
                behind.append(f"- {title}, {TITLES[rival]}: " + ", ".join(f"{name} {r:.2f}×" for r, name in slower))
    header = ["figure", "beside", "models where mode JAXPR is ahead", "geometric mean", "least ratio"]
    lines = "\n".join(behind) or "- none"
    return f"{table(header, rows, 2)}\nModels where mode JAXPR is behind, worst first:\n\n{lines}\n"


def moderate(models: dict) -> dict:
    """Leave out the models of large data."""
    return {name: found for name, found in models.items() if name not in LARGE}


def rows(models: dict, keys: tuple[str, ...], sides: list[str], scale: float) -> list[list[str]]:
    """Return a line for each model: figures of all sides, with their ratios to mode JAXPR."""
    result = []
    for name, found in models.items():
        cells = []
        for key in keys:
            base = found["jaxpr"].get(key)
            values = {side: found.get(side, {}).get(key) for side in sides}
            cells += [with_ratio(value, None if s == "jaxpr" else base, scale) for s, value in values.items()]
        if set(cells) != {NONE}:
            result.append([name, *cells])
    means = [
        f"{geometric_mean(found.values()):.2g}×"
        if (found := ratios(moderate(models), key, s)) and s != "jaxpr"
        else NONE
        for key in keys
        for s in sides
    ]
    return [*result, ["geometric mean", *means]]


def beside_copies(models: dict) -> list[list[str]]:
    """Return a line for each model of large data: how much there is, and for one core and all the time of a copy and of a call."""
    result = []
    for name, found in models.items():
        if COPY in found and "bytes" in found[COPY]:
            cells = [f"{found[COPY]['bytes'] / 1e6:,.1f}"]
            for key in CALLS:
                copy, call = found[COPY][key], found["jaxpr"][key]
                cells += [f"{copy:,.0f}", f"{call:,.0f} ({call / copy:.2g}×)"]
            result.append([name, *cells])
    return result


def failures_of(models: dict) -> list[str]:
    """Name every model that a side has no figures of, with the reason."""
    return [
        f"- {name}, {SIDES[side]}: {result['failed'].partition('{')[0]}"
        for name, found in models.items()
        for side, result in found.items()
        if "failed" in result
    ]


def section(found: dict) -> str:
    """Return the section of the report."""
    setting, models = found["setting"], found["models"]
    count = len(moderate(models))
    remark = f"\n{setting['remark']}\n" if "remark" in setting else ""
    text = TEXT.format(
        setting=machine(setting),
        count=count,
        total=len(MODELS),
        processes=setting["processes"],
        remark=remark,
        summary=summary(models),
    )
    parts = [PYMC_MODELS, text.strip() + "\n", LATER.format(cores=setting["cores"])]
    header = ["model", *(f"{title}, {FIGURES[key].split(', ')[1]}" for key in CALLS for title in SIDES.values())]
    parts.append(table(header, rows(models, CALLS, list(SIDES), 1.0), 1))
    if copies := beside_copies(models):
        header = [
            "model",
            "MB",
            *(f"{what}, {FIGURES[key].split(', ')[1]}" for key in CALLS for what in ("copy, µs", "mode JAXPR, µs")),
        ]
        parts += [BANDWIDTH, table(header, copies, 1)]
    if any(key in result for found in models.values() for result in found.values() for key in FIRSTS):
        header = ["model", *(f"{FIGURES[key]}, {title}" for key in FIRSTS for title in SIDES.values())]
        parts += [FIRST, table(header, rows(models, FIRSTS, list(SIDES), 1.0), 1)]
    failures = failures_of(models)
    if failures:
        parts += ["### Models without a figure\n", "\n".join(failures) + "\n"]
    return "\n".join(parts)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [*MODELS, *LARGE]
    parser.add_argument("--models", nargs="+", choices=known, default=known)
    parser.add_argument("--processes", type=int, default=5, help="processes for each figure (default 5)")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS, help="what to measure (default: both)")
    parser.add_argument("--seconds", type=float, default=0.5, help="for how long calls of each side are repeated")
    parser.add_argument("--caches", type=Path, help="a folder that keeps what Numba compiles for later calls")
    parser.add_argument("--add", action="store_true", help="keep the other models and tasks of the last run")
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    parser.add_argument("--render", action="store_true", help="only write the section again, from the JSON file")
    return parser.parse_args()


def main() -> int:
    """Run the benchmark and write its section; the exit status is 1 if a side failed that can translate the model."""
    args = parse_arguments()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    data = args.out.with_name("CALLS.json")
    if not args.render:
        last = json.loads(data.read_text()) if args.add and data.exists() else {"setting": {}, "models": {}}
        if last["setting"].get("processes", args.processes) != args.processes:
            raise SystemExit(f"{data} was measured with another number of processes: run without --add.")
        run_all(args, data, last["models"])
    collected = json.loads(data.read_text())
    replace_section(args.out, PYMC_MODELS, section(collected))
    return 1 if any("NotImplementedError" not in line for line in failures_of(collected["models"])) else 0


if __name__ == "__main__":
    sys.exit(main())
