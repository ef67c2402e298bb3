"""The report from the stored figures: RESULTS.md from RESULTS.json, CALLS.json, EFFECTIVE_DRAWS.json and SAMPLERS.json beside it.

A measurement writes it, too. The prose is in texts.md.
"""

import argparse
import json
from itertools import product
from pathlib import Path

import calls
import samplers
import sparse_products
import whole_programs
from backends import BACKENDS, TITLES
from rendering import NONE, compared, failures, figure, fill, listed, mark_models, of_processes, table, text, with_ratio

CALLS = {
    "call": "call",
    "part": "compiled part",
    "call_pinned": "call, one core",
    "part_pinned": "compiled part, one core",
}
STEPS = {
    "jit_device": "compiled part, device arrays in",
    "jit_numpy": "compiled part, NumPy arrays in",
    "jit_results": "compiled part, NumPy arrays in and out",
    "thunk": "the linker's thunk, `f.vm()`",
    "trusted": "`f(...)` with `trust_input=True`",
    "function": "`f(...)`",
}


def to_jaxpr(stages: dict | None) -> float | None:
    """Seconds from the rewritten graph to the Jaxpr; none where there is no Jaxpr."""
    return stages and (stages["analyze"] + stages["build"] + stages["trace"] or None)


def good(by_backend: dict) -> dict:
    """Give the results that are there, in the order in which backends are shown."""
    return {b: by_backend[b] for b in BACKENDS if b in by_backend and "failed" not in by_backend[b]}


def with_base(models: dict) -> list[tuple[str, str, dict, dict]]:
    """Return model, backend, its results, and those of mode JAXPR to compare them with."""
    return [
        (model, backend, result, {} if backend == "jaxpr" else good(found).get("jaxpr", {}))
        for model, found in models.items()
        for backend, result in good(found).items()
    ]


def first_table(models: dict) -> str:
    """Stages and the first result, a line for each model and backend."""
    rows = []
    for model, backend, result, base in with_base(models):
        stages = dict(result["stages"])
        if backend == "numba":
            stages |= {"xla": stages["other"], "other": None, "analyze": None, "trace": None, "lower": None}
        if backend in ("jax", "hand"):
            stages["analyze"] = None
        if backend == "hand":
            stages |= {"rewrite": None, "build": None}
        cells = [figure(stages[s], 1000) for s in ("rewrite", "analyze", "build", "trace", "lower", "xla", "other")]
        built = [
            NONE if backend == "numba" else with_ratio(to_jaxpr(result.get(key)), to_jaxpr(base.get(key)), 1000)
            for key in ("stages", "again")
        ]
        total = with_ratio(result["first"], base.get("first"), 1000)
        rows.append([model, TITLES[backend], *cells, *built, total])
    header = "model, backend, rewrite, analyze, build, trace, lower, compile, rest, graph to Jaxpr, again, first result"
    return table(header.split(", "), mark_models(rows), 2)


def later_table(models: dict) -> str:
    """Later calls and equations, a line for each model and backend."""
    keys = (*CALLS, "equations", "bodies")
    rows = [
        [model, TITLES[backend], *(with_ratio(result.get(key), base.get(key)) for key in keys)]
        for model, backend, result, base in with_base(models)
    ]
    return table(["model", "backend", *CALLS.values(), "equations", "in bodies"], mark_models(rows), 2)


def chain_table(sizes: dict) -> str:
    """Build plus trace by the number of nodes."""
    shown = [b for b in BACKENDS if any(b in good(found) for found in sizes.values())]
    rows = []
    for size in sorted(sizes, key=int):
        each = {b: r["build_us"] + r["trace_us"] for b, r in good(sizes[size]).items()}
        rows.append([f"{int(size):,}", *compared({b: each.get(b) for b in shown}, "jaxpr")])
    return table(["nodes", *(TITLES[b] for b in shown)], rows, 1)


def planning_table(sizes: dict) -> str:
    """Planning and explaining, without and with breaks."""
    rows = [
        [f"{int(size):,}, {title}", figure(found[f"plan{key}"]), figure(found[f"explain{key}"])]
        for size, by_name in sizes.items()
        for found in good(by_name).values()
        for title, key in (("no break", ""), ("100 host steps", "_breaks"))
    ]
    return table(["nodes", "plan", "explain"], rows, 1)


def host_table(sizes: dict) -> str:
    """Calls with a host step, by the number of elements."""
    rows = []
    for size in sorted(sizes, key=int):
        found = good(sizes[size])
        hand, ours = found.get("hand", {}).get("call"), found.get("jaxpr", {})
        rows.append([f"{int(size):,}", *(with_ratio(ours.get(key), hand) for key in ("call", "thunk")), figure(hand)])
    return table(["elements", TITLES["jaxpr"], "without PyTensor's call", TITLES["hand"]], rows, 1)


def dispatch_table(found: dict) -> str:
    """Cost of a call, layer by layer."""
    found = good(found["small"])
    rows = [[title, *(figure(r.get(step)) for r in found.values())] for step, title in STEPS.items()]
    return table(["", *(TITLES[b] for b in found)], rows, 1)


def scan_table(loops: dict) -> str:
    """Calls and first results of loops, a line for each loop, kind and length."""
    shown, rows = ("jaxpr", "jax", "hand"), []
    for subject, found in loops.items():
        name, kind, length = subject.split("/")
        by_key = {key: {b: good(found).get(b, {}).get(key) for b in shown} for key in ("call", "first")}
        cells = [*compared(by_key["call"], "jaxpr"), *compared(by_key["first"], "jaxpr", 1000)]
        rows.append([f"{name}, {kind}", f"{int(length):,}", *cells])
    header = [f"{what}, {TITLES[b]}" for what, b in product(("call", "first result"), shown)]
    return table(["loop", "steps", *header], mark_models(rows), 1)


def draws_table(draws: dict) -> str:
    """Time of a call, a line for each distribution."""
    titles = {"jaxpr": TITLES["jaxpr"], "jax": TITLES["jax"], "numpy": "NumPy"}
    rows = [
        [name, *compared({b: found.get(b, {}).get("ms") for b in titles}, "jaxpr")] for name, found in draws.items()
    ]
    return table(["distribution", *titles.values()], rows, 1)


#: The sections of RESULTS.json, by the name of their text.
SECTIONS = {
    "first": ("first", first_table),
    "later": ("first", later_table),
    "chain": ("chain", chain_table),
    "planning": ("planning", planning_table),
    "host": ("host", host_table),
    "scan": ("scan", scan_table),
    "sparse": ("sparse", sparse_products.sparse_table),
    "draws": ("draws", draws_table),
    "dispatch": ("dispatch", dispatch_table),
}


def introduction(setting: dict) -> str:
    """Return what comes first."""
    counts = [of_processes(setting[key]) for key in ("repeats", "numba_repeats")]
    of_numba = "" if counts[0] == counts[1] else f" (for NUMBA {counts[1]})"
    return text("introduction", setting, processes=counts[0], numba=of_numba, image="results.png")


def in_short(called: dict | None, drawn: list[dict]) -> list[str]:
    """Return where this package is ahead and where it is behind."""
    parts = [text("in_short")] if called or drawn else []
    for found in drawn:
        draws, sides = found["setting"]["draws"], found["setting"]["sides"]
        to = link(whole_programs.heading(found["setting"]))
        parts += [
            fill(f"Effective draws a second of a whole call of `sample` for {draws:,} draws a chain, {to}:") + "\n",
            whole_programs.summary(found["results"], [side for side in sides if side != whole_programs.OURS]),
        ]
    if called:
        parts += [f"Log density and gradient, {link('## PyMC models')}:\n", calls.summary(called["models"])]
    return parts


def link(heading: str) -> str:
    """Return a link to a section of the report, by GitHub's anchor."""
    title = heading.removeprefix("## ")
    return f"[{title}](#{title.lower().replace(' ', '-').replace(',', '')})"


def read(path: Path) -> dict | None:
    """Return the figures in a file, if there is one."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def render(out: Path) -> str:
    """Return the report from the files beside `out`, without the sections of those that are not there."""
    results, called = read(out.with_suffix(".json")), read(out.with_name("CALLS.json"))
    drawn = whole_programs.stored(out.parent)
    sampled = read(out.with_name("SAMPLERS.json"))
    parts = [introduction(results["setting"])] if results and "repeats" in results["setting"] else []
    parts += in_short(called, drawn)
    if results:
        for name, (key, make) in SECTIONS.items():
            parts += [text(name), make(results[key])] if results.get(key) else []
        failed = [", ".join(TITLES.get(key, key) for key in path[1:]) + f": {why}" for path, why in failures(results)]
        parts += ["## No result\n", listed(failed)] if failed else []
    parts += calls.section(called) if called else []
    parts += [part for found in drawn for part in whole_programs.section(found)]
    parts += samplers.section(sampled) if sampled else []
    return "\n".join(parts)


def add_options(parser: argparse.ArgumentParser) -> None:
    """There are none but those of all measurements."""


def run(args: argparse.Namespace) -> dict:
    """Write the report, and return what all measurements have returned."""
    args.out.write_text(render(args.out), encoding="utf-8")
    return {}
