"""The page of a catalogue of models, from what `catalogue.py` has collected. Its prose is in texts.md."""

from collections.abc import Callable, Iterable
from itertools import product
from statistics import geometric_mean
from typing import Any

from rendering import NONE, count_ahead, figure, listed, ratios_of, table, text, times
from whole_programs import BEHIND, DEFAULT, OURS

#: The processes of a model, by which its results are stored.
OURS_FIRST, OURS_LATER = "jaxpr first", "jaxpr later"
NUMBA_FIRST, NUMBA_LATER = "numba first", "numba later"
TURNS, JAX_LATER, SAMPLED = "turns", "jax later", "sampled"
#: A larger relative error is wrong; a first result of more seconds is slow.
WRONG, SLOW = 1e-9, 10.0
FIGURES = {"first": "first result", "later": "first result, programs kept", "call": "call"}
RIVALS = {"numba": "NUMBA", "jax": "JAX"}

type Found = dict[str, Any]  #: What was collected of a model.


def get(found: Any, *keys: str) -> Any:
    """Return an entry of nested dictionaries, None where there is none."""
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def no_model(found: Found) -> bool:
    """Return whether the first process has not got as far as to a log density: then nothing else is measured.

    It says so by an error of its own. If mode JAXPR fails, or takes too long, others go on.
    """
    return get(found, OURS_FIRST, "at") == "model"


def why_not(found: Found) -> str | None:
    """Return why there is no first result of mode JAXPR."""
    return get(found, OURS_FIRST, "failed")


def seconds(found: Found, side: str, key: str) -> float | None:
    """Return a figure of a side."""
    if key == "call":
        return get(found, TURNS, side, "call")
    if (side, key) == ("jax", "first"):
        return get(found, TURNS, side, "seconds")
    return get(found, f"{side} {key}", "seconds")


def error(found: Found) -> float | None:
    """Return the largest relative error, of value and gradient."""
    return largest(get(found, OURS_LATER, "errors"))


def largest(errors: dict | None) -> float | None:
    """Return the larger of the errors of value and gradient."""
    errors = errors or {}
    known = [errors[key] for key in ("value", "gradient") if key in errors]
    return max(known) if known else None


def is_wrong(found: Found) -> bool:
    """Return whether results differ from those of mode FAST_COMPILE, or only one of the two is finite."""
    return bool(get(found, OURS_LATER, "errors", "apart")) or (error(found) or 0) > WRONG


def is_whole(found: Found) -> bool | None:
    """Return whether the function is one program, None if that is not known."""
    program = get(found, OURS_FIRST, "program")
    if program is None or "failed" in program:
        return None
    return program["regions"] <= 1 and program["host"] == 0


def ratios(results: dict[str, Found], side: str, key: str) -> dict[str, float]:
    """Return by model the ratio of a rival's figure to that of mode JAXPR, where both have one."""
    return ratios_of({name: (seconds(f, side, key), seconds(f, "jaxpr", key)) for name, f in results.items()})


def measured(results: dict[str, Found]) -> dict[str, Found]:
    """Return the models that have a log density."""
    return {name: found for name, found in results.items() if not no_model(found)}


def named(names: Iterable[str]) -> str:
    """Write the names of models."""
    return ", ".join(f"`{name}`" for name in names) or "none"


def summary(collected: dict) -> list[str]:
    """Return sentences that count, and name each model that is behind, computed from the rows."""
    results = collected["results"]
    good = measured(results)
    ran = {name: found for name, found in good.items() if why_not(found) is None}
    whole = {name: is_whole(found) for name, found in ran.items()}
    compared = {name: found for name, found in ran.items() if get(found, OURS_LATER, "errors", "compared")}
    slow = {name: f for name, f in ran.items() if (seconds(f, "jaxpr", "first") or 0) > SLOW}
    alone = [name for name, found in good.items() if TURNS not in found]
    kinds = [get(found, OURS_FIRST, "kind") for found in ran.values()]
    lines = [
        f"{len(results)} of {collected['files']} files were measured; "
        f"{len(results) - len(good)} have no log density here.",
        f"Mode JAXPR runs {len(ran)} of the other {len(good)}; without a result: "
        f"{named(sorted(good.keys() - ran.keys()))}.",
        f"{kinds.count('gradient')} of these have log density and gradient, {kinds.count('discrete')} log density "
        f"alone because of discrete variables, {kinds.count('no gradient')} because PyTensor has no gradient.",
        f"{sum(w is True for w in whole.values())} of {len(ran)} are one program; in parts: "
        f"{named(name for name, w in whole.items() if w is False)}.",
        f"{len(compared)} were compared with mode FAST_COMPILE; different by more than {WRONG:g}, or finite where the "
        f"other is not: {named(name for name, found in compared.items() if is_wrong(found))}.",
        f"{len(alone)} have not been measured beside modes NUMBA and JAX: their times are those of mode JAXPR.",
        f"First results that take more than {SLOW:g} s: {named(slow)}.",
    ]
    return lines


def ahead(results: dict[str, Found]) -> list[list[str]]:
    """Return for each figure and rival how often mode JAXPR is ahead, the geometric mean and the least ratio."""
    rows = []
    for key, side in product(FIGURES, RIVALS):
        if found := ratios(results, side, key):
            least = min(found, key=found.__getitem__)
            behind = sum(ratio < BEHIND for ratio in found.values())
            mean = times(geometric_mean(found.values()))
            cells = [count_ahead(found), str(behind), mean, f"{times(found[least])} ({least})"]
            rows.append([FIGURES[key], RIVALS[side], *cells])
    return rows


def behind(results: dict[str, Found]) -> list[str]:
    """Return the models where mode JAXPR is behind, worst first."""
    lines = []
    for key, side in product(FIGURES, RIVALS):
        slower = sorted((ratio, name) for name, ratio in ratios(results, side, key).items() if ratio < BEHIND)
        if slower:
            found = ", ".join(f"{name} {times(ratio)}" for ratio, name in slower)
            lines.append(f"{FIGURES[key]}, {RIVALS[side]}: {found}")
    return lines


def of_rival(found: Found, side: str, key: str, scale: float = 1.0) -> str:
    """Write the figure of a rival with its ratio to mode JAXPR."""
    value, base = seconds(found, side, key), seconds(found, "jaxpr", key)
    return figure(value, scale) + (f" ({times(value / base)})" if value and base else "")


def small(value: float | None) -> str:
    """Write an error."""
    return NONE if value is None else f"{value:.1e}" if value else "0"


def program_cells(found: Found) -> list[str]:
    """Return the cells of a model's program."""
    program, size = get(found, OURS_FIRST, "program"), get(found, OURS_FIRST, "size")
    cells = [figure(size), "log density" if get(found, OURS_FIRST, "kind") != "gradient" else "and gradient"]
    if is_whole(found) is None:
        return [*cells, NONE, NONE, NONE]
    parts = "one" if is_whole(found) else f"{program['regions']} + {program['host']} host"
    return [*cells, parts, figure(program["equations"]), figure(program["bytes"], 1e-3)]


def error_cells(found: Found) -> list[str]:
    """Return the cells of a model's errors."""
    errors = get(found, OURS_LATER, "errors")
    apart = get(errors, "apart")
    cells = [small(get(errors, "value")), small(get(errors, "gradient"))]
    cells += [figure(get(errors, "ulps", key)) for key in ("value", "gradient")]
    cells.append(small(largest(get(found, TURNS, "numba", "errors"))))
    remark = [f"{apart} apart"] * bool(apart) + ["NUMBA"] * (get(errors, "beside") == "NUMBA")
    return [figure(get(errors, "compared")) + (f" ({', '.join(remark)})" if remark else ""), *cells]


def time_cells(found: Found) -> list[str]:
    """Return the cells of a model's times."""
    return [
        figure(seconds(found, "jaxpr", "first")),
        *(of_rival(found, side, "first") for side in RIVALS),
        figure(seconds(found, "jaxpr", "later")),
        *(of_rival(found, side, "later") for side in RIVALS),
        figure(seconds(found, "jaxpr", "call")),
        *(of_rival(found, side, "call") for side in RIVALS),
    ]


def rows(results: dict[str, Found], cells: Callable[[Found], list[str]]) -> list[list[str]]:
    """Return a line for each model that has a log density."""
    return [[name, *cells(found)] for name, found in measured(results).items()]


def remarks(results: dict[str, Found]) -> list[str]:
    """Return what there is to say of single models: errors, breaks, and why there is no gradient."""
    lines = []
    for name, found in results.items():
        said = [f"{place}: {why}" for place, why in failed(found)]
        said += get(found, OURS_FIRST, "program", "breaks") or []
        if why := get(found, OURS_FIRST, "why"):
            said.append(f"no gradient in PyTensor: {why}")
        lines += [f"`{name}`: {why.replace('|', '\\|').replace('<', '\\<')}" for why in dict.fromkeys(said)]
    return lines


def failed(found: Found, *path: str) -> list[tuple[str, str]]:
    """Return which measurements of a model gave no result, and why."""
    here = [(", ".join(path), found["failed"])] if "failed" in found else []
    if here and found.get("at") == "model":
        here = [("no log density", found["failed"])]
    return here + [
        line for key, value in found.items() if isinstance(value, dict) for line in failed(value, *path, key)
    ]


def sampled_rows(results: dict[str, Found]) -> list[list[str]]:
    """Return effective draws a second of both sides, where they were sampled."""
    lines = []
    for name, found in results.items():
        rates = {side: rate(get(found, SAMPLED, side)) for side in (OURS, DEFAULT)}
        if any(rates.values()):
            ratio = ratios_of({name: (rates[OURS], rates[DEFAULT])}).get(name)
            lines.append([name, *map(figure, rates.values()), NONE if ratio is None else times(ratio)])
    return lines


def rate(found: Found | None) -> float | None:
    """Return effective draws a second of a whole call."""
    return found["first bulk"] / found["first seconds"] if found and "failed" not in found else None


def page(collected: dict) -> str:
    """Return the page."""
    setting, results = collected["setting"], dict(sorted(collected["results"].items()))
    values = {key: f"{setting[key]:g}" for key in ("timeout", "memory", "workers", "seconds")}
    parts = [text("catalogue", setting, commit=setting["commit"], **values)]
    parts += [listed(summary(collected | {"results": results}))]
    header = ["figure", "beside mode", "ahead on", f"below {BEHIND}", "geometric mean", "least ratio"]
    parts += [table(header, ahead(results), 2), "Behind, worst first:\n", listed(behind(results) or ["none"])]
    header = ["model", "values", "log density", "programs", "equations", "KB"]
    parts += ["## Programs\n", table(header, rows(results, program_cells), 1)]
    header = [
        "model",
        "points",
        "value, relative",
        "gradient, relative",
        "value, ulp",
        "gradient, ulp",
        "NUMBA, relative",
    ]
    parts += ["## Errors\n", table(header, rows(results, error_cells), 1)]
    sides = ["JAXPR", *RIVALS.values()]
    header = [
        f"{what}, {unit}: {s}" for what, unit in zip(FIGURES.values(), ("s", "s", "µs"), strict=True) for s in sides
    ]
    parts += ["## Times\n", table(["model", *header], rows(results, time_cells), 1)]
    if lines := sampled_rows(results):
        header = ["model", "`pjl.pymc.sample`", "`pm.sample`", "ratio"]
        parts += [text("catalogue_sampled"), table(header, lines, 1)]
    parts += ["## Errors, breaks and missing gradients\n", listed(remarks(results) or ["none"])]
    return "\n".join(parts)
