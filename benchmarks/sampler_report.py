"""The section "Samplers" of the benchmark's results, from what `samplers.py` collected."""

from collections.abc import Iterable
from pathlib import Path
from statistics import geometric_mean

from report import NONE, SAMPLERS, figure, machine, mark_models, of_processes, table, times, with_ratio

MODES = ("JAXPR", "JAX", "NUMBA")
SIDES = {"jaxpr": "`pjl.pymc.sample`", "pymc": "`pm.sample`"}
#: What the table of draws has: by title the part of `samplers.py` that measures it, and its name there.
DRAWN = {"first draw": ("first", "seconds"), "second call": ("first", "again"), "last draw": ("last", "seconds")}

INTRODUCTION = (
    SAMPLERS
    + """
{setting}

The models of `pymc_models.py`. Each figure is {processes} with empty caches. "×" is the
ratio to mode JAXPR: above 1, mode JAXPR is faster; below 1, it is slower. `samplers.py` writes this section.
"""
)

DRAWS = """### Time to draws

Seconds of a call of `pytensor_jaxpr_linker.pymc.sample(sampler=...)` and of `pymc.sample(nuts_sampler=...)`: "nutpie" is PyMC's default and runs on Numba
there, "numpyro" and "blackjax" on mode JAX. *First draw* is the wall time of the call for 1 draw after 1 step of warm-up in each of {chains} chains, until
the draws are NumPy arrays: so it has all compilation, and the compilation and running of what maps draws to constrained values. *Second call* is the same call once more in the same process, for the same model with another seed. *Last draw* is that of the
call for {draws} draws after {tune} steps of warm-up. (`pm.sample` with these two returns while JAX still computes the draws.) Imports, making the model and starting JAX are not counted. Each side has its own random numbers, so trajectories differ.
`pm.sample` raises a TypeError with BlackJAX 1.7, which has changed two functions; they are mended for it here (`mend_blackjax`).
"""

CALLS = """### Log density and gradient

Microseconds a call of the function of `model.compile_fn([model.logp(), model.dlogp()])`, NumPy arrays in and out: the least time of calls of all modes that
take turns in a process pinned to one core. On several cores a call of a JAX program may also wait for a thread, in both modes.
A mode without a translation of one of the model's Ops has no figure.
"""


def get(found: dict, key: str) -> float | None:
    """Return a figure, or None where there is none."""
    return found.get(key) if "failed" not in found else None


def mean_ratio(pairs: Iterable[tuple[float | None, float | None]]) -> str:
    """Write the geometric mean of the ratios of pairs that have both figures."""
    ratios = [value / base for value, base in pairs if value and base]
    return times(geometric_mean(ratios)) if ratios else NONE


def draw_table(results: dict, samplers: list[str]) -> str:
    """Seconds to the draws of each kind of call, a line for each model and sampler, then geometric means."""
    rows, pairs = [], {}
    for model, found in results.items():
        for sampler in samplers:
            cells = []
            for title, (part, key) in DRAWN.items():
                ours, theirs = (get(found.get(f"{part}/{side}/{sampler}", {}), key) for side in SIDES)
                pairs.setdefault((sampler, title), []).append((theirs, ours))
                cells += [figure(ours), with_ratio(theirs, ours)]
            rows.append([model, sampler, *cells])
    rows = mark_models(rows)
    for label, some in [(sampler, [sampler]) for sampler in samplers] + [("all", samplers)]:
        means = [mean_ratio(pair for s in some for pair in pairs.get((s, title), ())) for title in DRAWN]
        rows.append(["geometric mean", label, *(cell for mean in means for cell in (NONE, mean))])
    header = [f"{title}, {side}" for title in DRAWN for side in SIDES.values()]
    return table(["model", "sampler", *header], rows, 2)


def call_table(results: dict) -> str:
    """Microseconds a call, a line for each model, then the geometric mean."""
    rows, pairs = [], {mode: [] for mode in MODES}
    for model, found in results.items():
        values = {mode: get(found.get("calls/" + "+".join(MODES), {}), mode) for mode in MODES}
        base = values["JAXPR"]
        for mode, value in values.items():
            pairs[mode].append((value, base))
        rows.append([model, figure(base), *(with_ratio(values[mode], base) for mode in MODES[1:])])
    rows.append(["geometric mean", NONE, *(mean_ratio(pairs[mode]) for mode in MODES[1:])])
    return table(["model", *(f"mode {mode}" for mode in MODES)], rows, 1)


def failures_of(results: dict) -> list[str]:
    """Name every measurement that gave no result, with the reason; equal ones of several models in one line."""
    where: dict[tuple[str, str], list[str]] = {}
    for model, found in results.items():
        for subject, result in found.items():
            if "failed" in result:
                where.setdefault((subject, result["failed"]), []).append(model)
    return [f"{subject} ({', '.join(models)}): {reason}" for (subject, reason), models in where.items()]


def write(collected: dict, out: Path) -> list[str]:
    """Replace the section in the Markdown file `out`, and return the measurements that failed."""
    setting, results = collected["setting"], collected["results"]
    numbers = {key: f"{setting[key]:,}" for key in ("draws", "tune", "chains")}
    numbers["processes"] = of_processes(setting["repeats"])
    parts = [INTRODUCTION.format(setting=machine(setting), **numbers)]
    if "remark" in setting:
        parts.append(setting["remark"] + "\n")
    if setting["parts"] != ["calls"]:
        parts += [DRAWS.format(**numbers), draw_table(results, setting["samplers"])]
    if "calls" in setting["parts"]:
        parts += [CALLS, call_table(results)]
    failures = failures_of(results)
    if failures:
        parts += ["### Without a result\n", "\n".join(f"- {line}" for line in failures) + "\n"]
    before = out.read_text().partition(SAMPLERS)[0] if out.exists() else ""
    out.write_text(before + "\n".join(parts))
    return failures
