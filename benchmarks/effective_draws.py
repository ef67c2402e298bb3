"""Effective draws a second from pressing Enter: this package's default sampler beside PyMC's, on the models of `pymc_models.py`.

    python benchmarks/effective_draws.py                       all models, for at most 60 minutes
    python benchmarks/effective_draws.py --add                 the models that the last run did not get to
    python benchmarks/effective_draws.py --models garch lkj --sides jaxpr/default jaxpr/numpyro --repeats 3
    python benchmarks/effective_draws.py --draws 10000         a section of its own: "Effective draws, 10,000 a chain"
    python benchmarks/effective_draws.py --render              the section again, from EFFECTIVE_DRAWS.json

Each measurement is two fresh processes one after the other: the first has empty caches, the second those that the first has filled. It writes
the section "Effective draws" of `--out`.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import geometric_mean
from time import monotonic

from pymc_models import MODELS
from report import EFFECTIVE, PACKAGES, describe_machine, figure, machine, replace_section, table, with_ratio
from run import HERE, medians, run_process

OURS, DEFAULT = "jaxpr/default", "pymc/nutpie"
SIDES = {OURS: "`pjl.pymc.sample`", DEFAULT: "`pm.sample`", "jaxpr/numpyro": '`sampler="numpyro"`'}
#: Draws of a chain of which the README tells.
DRAWS = 1000
CACHES = {"cold": "caches empty", "warm": "caches filled"}
PACKAGES_OF_SAMPLERS = (*PACKAGES, "nutpie", "numpyro", "blackjax", "arviz")

INTRODUCTION = """{setting}

Effective draws a second of the whole call: the smallest bulk effective sample size of all elements of the free variables of a model, divided by the wall time of the
call that samples it, {chains} chains of {draws} draws after {tune} of warm-up, with both sides' default arguments but one: the checks of convergence, the same code of PyMC and ArviZ for
both, are off. For 1,000 draws they add 0.01 to 0.3 s to either side, by the number of variables. `pm.sample` takes nutpie on Numba by default,
`pytensor_jaxpr_linker.pymc.sample` NUTS by the parts of BlackJAX. Each call is a fresh process; imports, making the model and starting JAX are not counted. *Caches
empty* is the first process, *caches filled* a second one for the same model: `pjl.cache(folder)` here; there PyTensor's and Numba's caches, which they use by themselves. nutpie
compiles a model again in each process. Each figure is {pairs}. "×" is the ratio to `pjl.pymc.sample`. `effective_draws.py` writes this section.

`mixture` and `hidden_markov` have a second mode of negligible probability. A chain that stays there takes R-hat to 1.5 and the effective draws to about 7. To `mixture` this happened
in 10 of 24 runs of nutpie, and in 19 of 48 of `pjl.pymc.sample` (docs/notes/warm-up.md, "Minor modes").
"""

PICTURE = "![For each model, seconds of the first call, and effective draws a second of later ones](../docs/images/draws.svg)\n"


def measure(model: str, side: str, seed: int, args: argparse.Namespace) -> dict:
    """Return what the first and the second process gave."""
    with tempfile.TemporaryDirectory() as folder:
        out, caches = Path(folder, "result.json"), Path(folder, "caches")
        command = [HERE / "sampler_worker.py", "sample", model, side, "--out", out, "--seed", seed, "--effective"]
        command += ["--draws", args.draws, "--tune", args.tune, "--chains", args.chains, "--cache", caches / "xla"]
        found = {}
        for key in CACHES:
            if failed := run_process(command, caches, args.timeout, jax_cache=True):
                return {"failed": failed}
            found |= {f"{key} {name}": value for name, value in json.loads(out.read_text()).items()}
        return found


def measure_model(model: str, args: argparse.Namespace) -> dict:
    """Return the medians of a model by side."""
    found: dict[str, list[dict]] = {side: [] for side in args.sides}
    for repeat in range(args.repeats):
        for side, results in found.items():
            results.append(measure(model, side, repeat + 1, args))
            print(f"{model:<22} {side:<14} {results[-1]}", flush=True)
    return {side: medians(results) for side, results in found.items()}


def rate(result: dict | None, cache: str, kind: str = "bulk") -> float | None:
    """Return the effective draws a second, or None."""
    if not result or "failed" in result:
        return None
    return result[f"{cache} {kind}"] / result[f"{cache} seconds"]


def ratios(results: dict, side: str, cache: str, kind: str = "bulk") -> dict[str, float]:
    """Return by model how many times as many effective draws a second this package's default has as a side."""
    found = {}
    for model, sides in results.items():
        ours, theirs = (rate(sides.get(name), cache, kind) for name in (OURS, side))
        if ours and theirs:
            found[model] = ours / theirs
    return found


def summary(results: dict, sides: list[str]) -> str:
    """Say how many models are ahead, the geometric means, and each model that is behind."""
    rows, behind = [], []
    for side in sides:
        for cache, title in CACHES.items():
            found = ratios(results, side, cache)
            if not found:
                continue
            tail = ratios(results, side, cache, "tail")
            least = min(found, key=found.get)
            rows.append(
                [
                    SIDES[side],
                    title,
                    f"{sum(r > 1 for r in found.values())} of {len(found)}",
                    f"{geometric_mean(found.values()):.1f}×",
                    f"{geometric_mean(tail.values()):.1f}×",
                    f"{found[least]:.2g}× ({least})",
                ]
            )
            lost = [f"{model} {found[model]:.2g}×" for model in sorted(found, key=found.get) if found[model] <= 1]
            behind += [f"- {SIDES[side]}, {title}: {', '.join(lost)}"] if lost else []
    header = ["beside", "caches", "ahead on", "geometric mean, bulk", "geometric mean, tail", "least"]
    return table(header, rows, 2) + "\n" + ("Behind:\n\n" + "\n".join(behind) + "\n" if behind else "Behind on none.\n")


def model_table(results: dict, sides: list[str]) -> str:
    """Effective draws a second, a line for each model."""
    rows = []
    for model, found in results.items():
        cells = []
        for cache in CACHES:
            base = rate(found.get(OURS), cache)
            cells += [figure(base), *(with_ratio(rate(found.get(side), cache), base) for side in sides)]
        rows.append([model, *cells])
    header = [f"{title}, {SIDES[side]}" for title in CACHES.values() for side in (OURS, *sides)]
    return table(["model", *header], rows, 1)


def quality_table(results: dict, sides: list[str]) -> str:
    """Seconds of the call, and how good its draws are, a line for each model."""
    rows = []
    for model, found in results.items():
        cells = []
        for side in (OURS, *sides):
            of = {} if "failed" in found.get(side, {"failed": ""}) else found[side]
            seconds = " / ".join(figure(of.get(f"{cache} seconds")) for cache in CACHES)
            effective = " / ".join(figure(of.get(f"warm {kind}")) for kind in ("bulk", "tail"))
            cells += [
                seconds,
                effective,
                f"{of.get('warm rhat', float('nan')):.3f}",
                figure(of.get("warm divergences")),
            ]
        rows.append([model, *cells])
    titles = ("seconds, empty / filled", "effective draws, bulk / tail", "R-hat", "divergences")
    header = [f"{title}, {SIDES[side]}" for side in (OURS, *sides) for title in titles]
    return table(["model", *header], rows, 1)


def heading(draws: int) -> str:
    """Return the heading of the section about runs of so many draws a chain."""
    return EFFECTIVE if draws == DRAWS else f"{EFFECTIVE.rstrip()}, {draws:,} a chain\n"


def data_file(out: Path, draws: int) -> Path:
    """Return the file of the medians of runs of so many draws a chain."""
    return out.with_name("EFFECTIVE_DRAWS.json" if draws == DRAWS else f"EFFECTIVE_DRAWS_{draws}.json")


def write(collected: dict, out: Path) -> list[str]:
    """Put the section in the place of the last one, and return the measurements that failed."""
    setting, results = collected["setting"], collected["results"]
    sides = [side for side in setting["sides"] if side != OURS]
    numbers = {key: f"{setting[key]:,}" for key in ("draws", "tune", "chains")}
    count = setting["repeats"]
    pairs = f"the median over {count} such pairs of processes" if count > 1 else "of one such pair of processes"
    failures = [
        f"{model}, {SIDES[side]}: {found['failed']}"
        for model, measured in results.items()
        for side, found in measured.items()
        if "failed" in found
    ]
    parts = [INTRODUCTION.format(setting=machine(setting), pairs=pairs, **numbers)]
    parts += [setting["remark"] + "\n"] if "remark" in setting else []
    parts += [PICTURE] if setting["draws"] == DRAWS else []
    parts += [summary(results, sides), model_table(results, sides), quality_table(results, sides)]
    if failures:
        parts += ["Without a result:\n", "\n".join(f"- {line}" for line in failures) + "\n"]
    title = heading(setting["draws"])
    replace_section(out, title, "\n".join([title, *parts]))
    return failures


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=[OURS, DEFAULT])
    for option, default in (("draws", DRAWS), ("tune", 1000), ("chains", 4), ("repeats", 1)):
        parser.add_argument(f"--{option}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--timeout", type=float, default=400, help="seconds for one process (default 400)")
    parser.add_argument("--minutes", type=float, default=60, help="begin no model after so many (default 60)")
    parser.add_argument("--add", action="store_true", help="keep the models of the last run, and measure others")
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    parser.add_argument("--render", action="store_true", help="only write the section again, from the JSON file")
    return parser.parse_args()


def main() -> int:
    """Run the benchmark and write its section; the exit status is 1 if a process failed."""
    args, began = parse_arguments(), monotonic()
    data = data_file(args.out, args.draws)
    setting = describe_machine(PACKAGES_OF_SAMPLERS)
    setting |= {key: getattr(args, key) for key in ("sides", "draws", "tune", "chains", "repeats")}
    collected = {"setting": setting, "results": {}}
    if args.render or (args.add and data.exists()):
        collected = json.loads(data.read_text())
    results = collected["results"]
    for model in [] if args.render else [m for m in args.models if m not in results]:
        if monotonic() - began > 60 * args.minutes:
            print(f"No time for {model} and what follows: go on with --add.")
            break
        results[model] = measure_model(model, args)
        data.write_text(json.dumps(collected, indent=1) + "\n")
    return 1 if write(collected, args.out) else 0


if __name__ == "__main__":
    sys.exit(main())
