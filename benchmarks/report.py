"""The benchmark's table, from the medians that `run.py` collected."""

import os
import platform
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import chart
import sparse_products
from backends import BACKENDS, TITLES

PACKAGES = ("pytensor_jaxpr_linker", "pytensor", "jax", "jaxlib", "numpy", "numba", "pymc")
#: What `samplers.py` writes begins here and goes to the end of the file; what `calls.py` writes comes before it.
SAMPLERS = "## Samplers\n"
EFFECTIVE = "## Effective draws\n"
PYMC_MODELS = "## PyMC models\n"
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
NONE = "-"

INTRODUCTION = """# Benchmark results

{setting}

Each figure is {processes}{numba}. In each process a figure of µs a call is itself
the median of half a second's worth of calls. Before anything is timed, each backend's outputs are compared with those of
PyTensor's own Python implementations. Data is a constant of the program everywhere. "×" is the ratio to mode JAXPR:
above 1, mode JAXPR is faster or smaller; below 1, it is slower or larger. How each figure is taken: [README.md](README.md).
{remark}
![Time to a Jaxpr, to the first result, and of each later call]({image})
"""

FIRST = """## The first result

Milliseconds from the PyTensor graph to the first result, without imports and the start of JAX. *build* is funcify in mode JAX and code
generation in mode NUMBA; *trace* for mode JAXPR is JAX's trace of the one equation that holds the finished Jaxpr;
*compile* is XLA, or all that Numba does. *graph to Jaxpr* is analyze + build + trace; *again* is the same when the same function is compiled
a second time in the process, without what each library does only once.
"""

LATER = """## Later calls

Microseconds a call. *call* takes NumPy arrays and ends when results are NumPy arrays; *compiled part* takes and gives
device arrays (NumPy arrays for NUMBA), without PyTensor's `Function` around it. Calls of all backends take turns in one process, and their median counts.
*one core* is the least time of such calls in a process pinned to one core: without it, a call may wait for a thread of XLA's to wake up. *equations* counts those of inner Jaxprs, not the calls that wrap them.
A function with a derivative of its own (`custom_jvp_call`) is one equation, as the primitives are that JAX has for some special functions
and whose formulas are in XLA; the equations of such functions are *in bodies*.
"""

CHAIN = """## Building, by size

Microseconds a node from the graph of an elementwise chain to its Jaxpr, that is build + trace, the fastest time of a second's worth in a process; constant down a column means linear time.
"""

PLANNING = """## Planning and explaining

Seconds from a rewritten graph of 100,000 nodes to its plan, and from there to the text of `pjl.explain`: with no break, and with a hundred host steps. The least of three times.
"""

HOST = """## A host step in the middle

Microseconds a call, on one core, the least time of calls that take turns, for a function that computes on the device, sorts a vector with NumPy and computes on the device again.
By hand it is two functions of `jax.jit` and the transfers between them. *Without PyTensor's call* leaves out `Function.__call__`, which
takes and checks the arguments. The figure in brackets is the ratio to the program by hand.
"""

DISPATCH = """## What a call costs by itself

Microseconds for a function of three inputs and two outputs with hardly any arithmetic, on one core: the least time of calls that take turns. The first two lines end when results
are ready, the others when they are NumPy arrays. Each line includes the ones above it except the first; the last two are PyTensor's own call overhead. In mode JAXPR `f(...)` calls the program by a way of its own, past the lines above it.
"""

SCANS = """## Loops

The compiled part of `pytensor.scan` in both modes and of `jax.lax.scan` by hand, microseconds a call, pinned to one core: the least time
of calls that take turns in one process. *first result* is in milliseconds, and for mode JAXPR includes imports that happen once.
"""


DRAWS = """## Random draws

Milliseconds for a call that makes 100,000 draws and ends when they are a NumPy array, on one core: the least processor time of many calls.
NumPy is its own `Generator`, without PyTensor. No figure: mode JAX does not have the distribution, or NumPy no method of that name.
"""


def of_processes(count: int) -> str:
    """Return of how many processes a figure is."""
    return "from one fresh process" if count == 1 else f"the median over {count} fresh processes"


def describe_machine(packages: tuple[str, ...] = PACKAGES) -> dict:
    """Collect versions, processor and date."""
    versions = {"Python": platform.python_version()}
    for name in packages:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "from the checkout"
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        # Virtual machines say "AMD EPYC" for processors of any generation.
        lines = [line.partition(":") for line in info.read_text(encoding="utf-8").splitlines()]
        found = {name.strip(): value.strip() for name, _, value in lines}
        if "model name" in found:
            cpu = f"{found['model name']} (family {found.get('cpu family')}, model {found.get('model')})"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "versions": versions,
        "cpu": cpu,
        "cores": cores,
        "system": platform.system(),
        "date": date.today().isoformat(),
    }


def machine(setting: dict) -> str:
    """Say in a line what `describe_machine` collected."""
    versions = ", ".join(f"{name} {number}" for name, number in setting["versions"].items())
    return f"{setting['date']}. {versions}. {setting['cpu']}, {setting['cores']} cores, {setting['system']}."


def figure(value: float | None, scale: float = 1.0) -> str:
    """Write a number with three significant digits."""
    if value is None:
        return NONE
    value *= scale
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def with_ratio(value: float | None, base: float | None, scale: float = 1.0) -> str:
    """Write a number and its ratio to another, mode JAXPR's mostly."""
    if value is None or not base:
        return figure(value, scale)
    return f"{figure(value, scale)} ({times(value / base)})"


def times(ratio: float) -> str:
    """Write a ratio in two digits."""
    return f"{float(f'{ratio:.2g}'):,g}×"


def table(header: list[str], rows: list[list[str]], texts: int) -> str:
    """Write a Markdown table whose first `texts` columns are text and the others numbers."""
    lines = [header, ["---" if i < texts else "---:" for i in range(len(header))], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def to_jaxpr(stages: dict | None) -> float | None:
    """Seconds from the rewritten graph to the Jaxpr; none where there is no Jaxpr."""
    return stages and (stages["analyze"] + stages["build"] + stages["trace"] or None)


def good(by_backend: dict) -> dict:
    """Give the results that are there, in the order in which backends are shown."""
    return {b: by_backend[b] for b in BACKENDS if b in by_backend and "failed" not in by_backend[b]}


def first_table(models: dict) -> str:
    """Stages and the first result, a line for each model and backend."""
    rows = []
    for model, found in models.items():
        found = good(found)
        for backend, result in found.items():
            base = {} if backend == "jaxpr" else found.get("jaxpr", {})
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


def mark_models(rows: list[list[str]]) -> list[list[str]]:
    """Write each model's name once, on its first line."""
    shown = set()
    return [[row[0] if not (row[0] in shown or shown.add(row[0])) else "", *row[1:]] for row in rows]


def later_table(models: dict) -> str:
    """Later calls and equations, a line for each model and backend."""
    rows = []
    for model, found in models.items():
        found = good(found)
        for backend, result in found.items():
            base = {} if backend == "jaxpr" else found.get("jaxpr", {})
            cells = [with_ratio(result.get(key), base.get(key)) for key in (*CALLS, "equations", "bodies")]
            rows.append([model, TITLES[backend], *cells])
    return table(["model", "backend", *CALLS.values(), "equations", "in bodies"], mark_models(rows), 2)


def chain_table(sizes: dict) -> str:
    """Build plus trace by the number of nodes."""
    rows = []
    shown = [b for b in BACKENDS if any(b in good(found) for found in sizes.values())]
    for size in sorted(sizes, key=int):
        found = good(sizes[size])
        each = {b: r["build_us"] + r["trace_us"] for b, r in found.items()}
        rows.append(
            [f"{int(size):,}", *(with_ratio(each.get(b), None if b == "jaxpr" else each.get("jaxpr")) for b in shown)]
        )
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
        cells = [with_ratio(ours.get(key), hand) for key in ("call", "thunk")]
        rows.append([f"{int(size):,}", *cells, figure(hand)])
    return table(["elements", TITLES["jaxpr"], "without PyTensor's call", TITLES["hand"]], rows, 1)


def dispatch_table(found: dict) -> str:
    """Cost of a call, layer by layer."""
    found = good(found)
    rows = [[title, *(figure(r.get(step)) for r in found.values())] for step, title in STEPS.items()]
    return table(["", *(TITLES[b] for b in found)], rows, 1)


def scan_table(loops: dict) -> str:
    """Calls and first results of loops, a line for each loop, kind and length."""
    shown = ("jaxpr", "jax", "hand")
    rows = []
    for subject, found in loops.items():
        results = good(found)
        base = results.get("jaxpr", {})
        name, kind, length = subject.split("/")
        cells = [
            with_ratio(results.get(b, {}).get(key), None if b == "jaxpr" else base.get(key), scale)
            for key, scale in (("call", 1.0), ("first", 1000.0))
            for b in shown
        ]
        rows.append([f"{name}, {kind}", f"{int(length):,}", *cells])
    header = [f"{what}, {TITLES[b]}" for what in ("call", "first result") for b in shown]
    return table(["loop", "steps", *header], mark_models(rows), 1)


def draws_table(draws: dict) -> str:
    """Time of a call, a line for each distribution."""
    titles = {"jaxpr": TITLES["jaxpr"], "jax": TITLES["jax"], "numpy": "NumPy"}
    rows = []
    for name, found in draws.items():
        times = {b: found[b]["ms"] if b in found else None for b in titles}
        rows.append([name, *(with_ratio(ms, None if b == "jaxpr" else times["jaxpr"]) for b, ms in times.items())])
    return table(["distribution", *titles.values()], rows, 1)


def failures_of(results: dict) -> list[str]:
    """Name every measurement that gave no result, with the reason."""
    kinds = ("reference", "first", "chain", "planning", "host", "dispatch", "scan")
    return [
        f"{subject}, {TITLES.get(backend, backend)}: {result['failed']}"
        for kind in kinds
        for subject, found in results.get(kind, {}).items()
        for backend, result in found.items()
        if "failed" in result
    ]


def written_apart(out: Path) -> str:
    """Return the end of the report, the sections of `calls.py` and `samplers.py`."""
    text = out.read_text() if out.exists() else ""
    starts = [text.find(heading) for heading in (PYMC_MODELS, SAMPLERS)]
    return text[min((start for start in starts if start >= 0), default=len(text)) :]


def replace_section(out: Path, heading: str, section: str) -> None:
    """Replace a section in the report, or add it, before those of the samplers."""
    text = out.read_text() if out.exists() else ""
    before, found, after = text.partition(heading)
    if found:
        _, more, rest = after.partition("\n## ")
        rest = "## " + rest if more else ""
    else:
        before, found, after = text.partition(SAMPLERS)
        rest = found + after
    parts = [before.rstrip("\n"), section.rstrip("\n"), rest.rstrip("\n")]
    out.write_text("\n\n".join(part for part in parts if part) + "\n")


def write(results: dict, out: Path) -> list[str]:
    """Write the report and the chart.

    Parameters
    ----------
    results
        What `run.run_all` returned, and `setting`.
    out
        The Markdown file; the chart is put beside it.

    Returns
    -------
    list of str
        The measurements that failed.
    """
    setting = results["setting"]
    image = out.with_name("results.png")
    models = results.get("first", {})
    remark = f"\n{setting['remark']}\n" if "remark" in setting else ""
    counts = [of_processes(setting[k]) for k in ("repeats", "numba_repeats")]
    repeats = {"processes": counts[0], "numba": "" if counts[0] == counts[1] else f" (for NUMBA {counts[1]})"}
    parts = [INTRODUCTION.format(setting=machine(setting), image=image.name, remark=remark, **repeats)]
    if models:
        parts += [FIRST, first_table(models), LATER, later_table(models)]
    if results.get("chain"):
        parts += [CHAIN, chain_table(results["chain"])]
    if results.get("planning"):
        parts += [PLANNING, planning_table(results["planning"])]
    if results.get("host"):
        parts += [HOST, host_table(results["host"])]
    if results.get("scan"):
        parts += [SCANS, scan_table(results["scan"])]
    if results.get("sparse"):
        parts += [sparse_products.section(results["sparse"])]
    if results.get("draws"):
        parts += [DRAWS, draws_table(results["draws"])]
    if results.get("dispatch"):
        parts += [DISPATCH, dispatch_table(results["dispatch"]["small"])]
    failures = failures_of(results)
    if failures:
        parts += ["## No result\n", "\n".join(f"- {line}" for line in failures) + "\n"]
    out.write_text("\n".join([*parts, written_apart(out)]))
    if models:
        chart.draw({model: good(found) for model, found in models.items()}, image)
    return failures
