"""Log density and gradient of PyMC models in modes JAXPR, JAX and NUMBA: later calls, and first results with empty and full caches.

It takes two hours; `--tasks calls` alone some 20 minutes. It writes the section "PyMC models" and CALLS.json.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from time import perf_counter
from typing import Any

import numpy as np
from backends import MODES, TITLES, as_numpy, check, prepare
from clock import SETTLE_SECONDS_OF_SMALL, Clock, least_us, median_of_turns_us, pin_to_one_core
from micro import call_with_numpy
from processes import HERE, Job, collect, rotated
from pymc_models import MODELS
from rendering import (
    NONE,
    compared,
    count_ahead,
    count_cores,
    describe_machine,
    failures,
    listed,
    mean_ratio,
    ratios_of,
    table,
    text,
    times,
)

SIDES = {side: TITLES[side] for side in MODES}
FIGURES = {
    "one": "call, one core",
    "all": "call, all cores",
    "cold": "first result",
    "warm": "first result, caches full",
}
CALLS, FIRSTS = ("one", "all"), ("cold", "warm")
TASKS = ("calls", "first")
LARGE_ROWS, LARGE_COLUMNS = 1_000_000, 50


def radon_12k(copies: int = 1) -> Any:
    """The model of examples/radon.py: 12,289 houses, 386 counties."""
    sys.path.append(str(HERE.parent / "examples"))
    import pandas as pd
    import radon

    return radon.build_model(pd.concat([radon.load_houses(radon.DATA)] * copies, ignore_index=True))


def radon_1m() -> Any:
    """The same with each house a hundred times: 1,228,900 rows."""
    return radon_12k(copies=100)


def logistic_1m_50() -> Any:
    """Logistic regression, 1,000,000 rows by 50 columns, data as `pm.Data`."""
    import pymc as pm

    rng = np.random.default_rng(1)
    x = rng.standard_normal((LARGE_ROWS, LARGE_COLUMNS))
    y = rng.random(LARGE_ROWS) < 1 / (1 + np.exp(-(x @ np.linspace(-0.5, 0.5, LARGE_COLUMNS))))
    with pm.Model() as m:
        intercept, beta = pm.Normal("intercept", 0, 2), pm.Normal("beta", 0, 1, shape=LARGE_COLUMNS)
        pm.Bernoulli("y", logit_p=intercept + pm.Data("x", x) @ beta, observed=y.astype("int64"))
    return m


LARGE: dict[str, Callable[[], Any]] = {make.__name__: make for make in (radon_12k, radon_1m, logistic_1m_50)}
#: With large data a turn has calls for 0.3 s, of which those of the first 0.1 do not count: so long the threads of OpenBLAS wait for work, in the cores of the
#: next side, and so long it may take until a side's own threads have a core each.
LEAST_TURNS, SETTLE_SECONDS = 6, 0.1
#: A side that is no backend: it copies the data of a model, to show how fast memory is.
COPY = "copy"


def density(name: str) -> tuple[list, list, list[np.ndarray]]:
    """Return inputs and outputs of a model's log density and gradient, and a point beside the starting point."""
    model, rng = (MODELS | LARGE)[name](), np.random.default_rng(1)
    start = model.initial_point()
    values = [np.asarray(start[v.name] + 0.1 * rng.standard_normal(np.shape(start[v.name]))) for v in model.value_vars]
    return model.value_vars, [model.logp(), model.dlogp()], values


def copy_of_data(outputs: list) -> tuple[int, Callable[[], None]]:
    """Return how many bytes the data of a graph have, and a function that copies as many, a part in each core that the process may use."""
    from pytensor.graph.basic import Constant
    from pytensor.graph.traversal import graph_inputs

    variables = set(filter(has_data, graph_inputs(outputs)))
    arrays = [v.data if isinstance(v, Constant) else v.get_value(borrow=True) for v in variables]
    source = np.ones(sum(np.asarray(x).nbytes for x in arrays) // 8)
    cores = count_cores()
    parts = [*zip(np.array_split(np.empty_like(source), cores), np.array_split(source, cores), strict=True)]
    pool = ThreadPoolExecutor(cores)

    def copy() -> None:
        if cores == 1:
            np.copyto(*parts[0])
        else:
            list(pool.map(lambda part: np.copyto(*part), parts))

    return source.nbytes, copy


def has_data(variable: Any) -> bool:
    """Return whether a variable is an array with a value: a constant or shared data."""
    from pytensor.compile.sharedvalue import SharedVariable
    from pytensor.graph.basic import Constant
    from pytensor.tensor.type import TensorType

    return isinstance(variable, Constant | SharedVariable) and isinstance(variable.type, TensorType)


def later_calls(name: str, sides: list[str], seconds: float, one_core: bool, least: bool = False) -> dict:
    """Return by side the median µs of a call, or the least. A side that has no translation of one of the Ops has none. A copy also has how many bytes it copies.

    Raises
    ------
    AssertionError
        If the sides, or those of another process of the same model, do not agree.
    """
    if one_core:
        pin_to_one_core()
    import pymc as pm

    inputs, outputs, values = density(name)
    calls, found = {}, {}
    for side in sides:
        if side == COPY:
            copied, calls[side] = copy_of_data(outputs)
            continue
        prepare(side, Clock())
        try:
            fn = pm.compile(inputs, outputs, mode=MODES[side])
            compare(as_numpy(fn(*values)), name)
        except NotImplementedError as error:
            found[side] = {"failed": f"NotImplementedError: {error}".splitlines()[0]}
            continue
        calls[side] = partial(call_with_numpy, fn, values)
    if least:
        return {MODES[side]: us for side, us in least_us(calls, seconds).items()}
    turns = {"least": LEAST_TURNS, "settle": SETTLE_SECONDS} if name in LARGE else {"settle": SETTLE_SECONDS_OF_SMALL}
    key = "one" if one_core else "all"
    found |= {side: {key: us} for side, us in median_of_turns_us(calls, seconds, **turns).items()}
    if COPY in found:
        found[COPY]["bytes"] = copied
    return found


def first_result(name: str, side: str, key: str, programs: str | None) -> dict:
    """Return the seconds from the graph to the first result; importing, making the graph and starting JAX are not counted."""
    _, results, seconds = timed_first(side, *density(name), programs)
    compare(results, name)
    return {key: seconds}


def timed_first(
    side: str,
    inputs: list,
    outputs: list,
    values: list[np.ndarray],
    programs: str | Path | None,
    seconds: Callable[[], float] = perf_counter,
) -> tuple[Callable, list[np.ndarray], float]:
    """Return a compiled function, its first results and their seconds. With a folder, modes JAXPR and JAX keep programs."""
    import pymc as pm

    prepare(side, Clock())
    if programs:
        import jax

        import pytensor_jaxpr_linker as pjl

        jax.config.update("jax_enable_compilation_cache", True)
        pjl.cache(Path(programs).absolute())
    start = seconds()
    fn = pm.compile(inputs, outputs, mode=MODES[side])
    results = as_numpy(fn(*values))
    return fn, results, seconds() - start


def compare(results: list[np.ndarray], name: str) -> None:
    """Compare results with those of the first process of the model, which saves its own; an AssertionError says that they differ."""
    if not Path(f"{name}.npz").exists():
        np.savez(f"{name}.npz", *results)
    check(results, f"{name}.npz")


def rounds(args: argparse.Namespace, setting: dict) -> Iterator[list[Job]]:
    """Give the processes of each repeat, sides in an order that changes with it."""
    for repeat in range(args.processes):
        setting["processes"] = repeat + 1
        jobs = []
        for model in args.models:
            sides = rotated(["numba", "jaxpr", COPY] if model in LARGE else ["numba", "jax", "jaxpr"], repeat)
            if "calls" in args.tasks:
                jobs += [call_job(model, sides, key == "one", args) for key in CALLS]
            if "first" in args.tasks and model not in LARGE:
                jobs += [job for side in sides for job in first_jobs(model, side, repeat)]
        yield jobs


def call_job(model: str, sides: list[str], one_core: bool, args: argparse.Namespace) -> Job:
    """Return the process of later calls. It finds what Numba compiled for the model in an earlier one."""
    threads = count_cores() if model in LARGE and not one_core else 1
    arguments = {"name": model, "sides": sides, "seconds": args.seconds, "one_core": one_core}
    caches = (args.caches or Path()) / f"{model}-calls"
    return Job("calls:later_calls", arguments, ("models", model), tuple(sides), caches, blas_threads=threads)


def first_jobs(model: str, side: str, repeat: int) -> Iterator[Job]:
    """Give the processes of first results: with empty caches, one that fills them and does not count, and with full caches.

    Numba's caches are those of the first repeat, and filled by its first process.
    """
    is_numba = side == "numba"
    keys = {"cold": repeat == 0 or not is_numba, "fill": repeat == 0 and not is_numba, "warm": True}
    for key in [key for key, is_run in keys.items() if is_run]:
        programs = None if is_numba or key == "cold" else f"{model}-{side}-programs"
        arguments = {"name": model, "side": side, "key": key, "programs": programs}
        place = None if key == "fill" else ("models", model, side)
        yield Job("calls:first_result", arguments, place, caches=f"{model}-{side}{'' if is_numba else repeat}")


def ratios(models: dict, key: str, rival: str) -> dict[str, float]:
    """Return by model the ratio of a rival's figure to that of mode JAXPR, where both have one."""
    return ratios_of({name: (found.get(rival, {}).get(key), found["jaxpr"].get(key)) for name, found in models.items()})


def summary(models: dict) -> str:
    """Return how often mode JAXPR is ahead, and the models where it is behind, worst first."""
    rows, behind = [], []
    for key, rival in product(FIGURES, ("jax", "numba")):
        title, side = FIGURES[key], SIDES[rival]
        if found := ratios(moderate(models), key, rival):
            worst = min(found, key=found.__getitem__)
            mean, least = f"{geometric_mean(found.values()):.2f}×", f"{found[worst]:.2f}× ({worst})"
            rows.append([title, side, count_ahead(found), mean, least])
        slower = sorted((ratio, name) for name, ratio in ratios(models, key, rival).items() if ratio < 1)
        if slower:
            behind.append(f"{title}, {side}: " + ", ".join(f"{name} {ratio:.2f}×" for ratio, name in slower))
    header = ["figure", "beside", "models where mode JAXPR is ahead", "geometric mean", "least ratio"]
    return f"{table(header, rows, 2)}\nModels where mode JAXPR is behind, worst first:\n\n{listed(behind or ['none'])}"


def moderate(models: dict) -> dict:
    """Leave out the models of large data."""
    return {name: found for name, found in models.items() if name not in LARGE}


def rows(models: dict, keys: tuple[str, ...]) -> list[list[str]]:
    """Return a line for each model: figures of all sides, with their ratios to mode JAXPR."""
    result = []
    for name, found in models.items():
        values = [{side: found.get(side, {}).get(key) for side in SIDES} for key in keys]
        cells = [cell for by_side in values for cell in compared(by_side, "jaxpr")]
        if set(cells) != {NONE}:
            result.append([name, *cells])
    means = [
        NONE if side == "jaxpr" else mean_ratio(ratios(moderate(models), key, side).values())
        for key, side in product(keys, SIDES)
    ]
    return [*result, ["geometric mean", *means]]


def beside_copies(models: dict) -> list[list[str]]:
    """Return a line for each model of large data: how much there is, and for one core and all the time of a copy and of a call."""
    result = []
    for name, found in models.items():
        if "bytes" in found.get(COPY, {}):
            cells = [f"{found[COPY]['bytes'] / 1e6:,.1f}"]
            for key in CALLS:
                copy, call = found[COPY][key], found["jaxpr"][key]
                cells += [f"{copy:,.0f}", f"{call:,.0f} ({times(call / copy)})"]
            result.append([name, *cells])
    return result


def section(collected: dict) -> list[str]:
    """Return the parts of the section of the report."""
    setting, models = collected["setting"], collected["models"]
    counts = {"count": str(len(moderate(models))), "total": str(len(MODELS)), "processes": str(setting["processes"])}
    cores = [FIGURES[key].removeprefix("call, ") for key in CALLS]
    parts = [text("calls", setting, **counts), summary(models), text("calls_later", setting)]
    header = [f"{title}, {core}" for core, title in product(cores, SIDES.values())]
    parts.append(table(["model", *header], rows(models, CALLS), 1))
    if copies := beside_copies(models):
        header = [f"{what}, {core}" for core, what in product(cores, ("copy, µs", "mode JAXPR, µs"))]
        parts += [text("calls_copies"), table(["model", "MB", *header], copies, 1)]
    if any(key in result for found in models.values() for result in found.values() for key in FIRSTS):
        header = [f"{FIGURES[key]}, {title}" for key, title in product(FIRSTS, SIDES.values())]
        parts += [text("calls_first"), table(["model", *header], rows(models, FIRSTS), 1)]
    failed = [f"{name}, {SIDES[side]}: {why.partition('{')[0]}" for (name, side), why in failures(models)]
    return [*parts, "### Models without a figure\n", listed(failed)] if failed else parts


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measurement."""
    known = [*MODELS, *LARGE]
    parser.add_argument("--models", nargs="+", choices=known, default=known)
    parser.add_argument("--processes", type=int, default=5, help="processes for each figure")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS, help="what to measure")
    parser.add_argument("--seconds", type=float, default=0.5, help="for how long calls of each side are repeated")
    parser.add_argument("--caches", type=Path, help="a folder that keeps what Numba compiles for later calls")
    parser.add_argument("--add", action="store_true", help="keep the other models and tasks of the last run")


def run(args: argparse.Namespace) -> dict:
    """Measure."""
    data = args.out.with_name("CALLS.json")
    last = json.loads(data.read_text()) if args.add and data.exists() else {"setting": {}, "models": {}}
    if last["setting"].get("processes", args.processes) != args.processes:
        raise SystemExit(f"{data} was measured with another number of processes: run without --add.")
    kept = last["models"]
    models = {name: kept.get(name, {}) for name in (*MODELS, *LARGE) if name in kept or name in args.models}
    collected = {"setting": describe_machine(), "models": models}
    args.caches = args.caches and args.caches.absolute()
    collect(rounds(args, collected["setting"]), collected, data)
    return collected
