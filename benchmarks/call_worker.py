"""One measurement of `calls.py` in a process of its own; it writes its result as JSON.

    python benchmarks/call_worker.py calls MODEL SIDE+SIDE --out FILE --reference FILE [--one-core] [--seconds S]
    python benchmarks/call_worker.py first MODEL SIDE --out FILE --reference FILE [--programs FOLDER]

`calls` measures later calls, of all sides in turns, of which one may be `copy`, a copy of the model's data; `first` the time to the first result, with JAX's compiled programs kept in `--programs`.
"""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from backends import MODES, as_numpy, prepare
from clock import SETTLE_SECONDS_OF_SMALL, Clock, median_of_turns_us, pin_to_one_core
from micro import call_with_numpy
from worker import largest_error

LARGE_ROWS, LARGE_COLUMNS = 1_000_000, 50


def radon_12k():
    """The model of examples/radon.py: 12,289 houses, 386 counties."""
    sys.path.append(str(Path(__file__).parents[1] / "examples"))
    import radon

    return radon.build_model(radon.load_houses(radon.DATA))


def radon_1m():
    """The same with each house a hundred times: 1,228,900 rows."""
    sys.path.append(str(Path(__file__).parents[1] / "examples"))
    import pandas as pd
    import radon

    return radon.build_model(pd.concat([radon.load_houses(radon.DATA)] * 100, ignore_index=True))


def logistic_1m_50():
    """Logistic regression, 1,000,000 rows by 50 columns, data as `pm.Data`."""
    import pymc as pm

    rng = np.random.default_rng(1)
    x = rng.standard_normal((LARGE_ROWS, LARGE_COLUMNS))
    y = rng.random(LARGE_ROWS) < 1 / (1 + np.exp(-(x @ np.linspace(-0.5, 0.5, LARGE_COLUMNS))))
    with pm.Model() as m:
        intercept, beta = pm.Normal("intercept", 0, 2), pm.Normal("beta", 0, 1, shape=LARGE_COLUMNS)
        pm.Bernoulli("y", logit_p=intercept + pm.Data("x", x) @ beta, observed=y.astype("int64"))
    return m


LARGE = {make.__name__: make for make in (radon_12k, radon_1m, logistic_1m_50)}
#: With large data a turn has calls for 0.3 s, of which those of the first 0.1 do not count: so long the threads of OpenBLAS wait for work, in the cores of the
#: next side, and so long it may take until a side's own threads have a core each.
LEAST_TURNS, SETTLE_SECONDS = 6, 0.1
#: A side that is no backend: it copies the data of a model, to show how fast memory is.
COPY = "copy"


def density(name: str) -> tuple[list, list, list[np.ndarray]]:
    """Return inputs and outputs of a model's log density and gradient, and a point beside the starting point."""
    from pymc_models import MODELS

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
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [*zip(np.array_split(np.empty_like(source), cores), np.array_split(source, cores), strict=True)]
    pool = ThreadPoolExecutor(cores)

    def copy() -> None:
        if cores == 1:
            np.copyto(*parts[0])
        else:
            list(pool.map(lambda part: np.copyto(*part), parts))

    return source.nbytes, copy


def has_data(variable: Any) -> bool:
    """Tell whether a variable is an array with a value: a constant or shared data."""
    from pytensor.compile.sharedvalue import SharedVariable
    from pytensor.graph.basic import Constant
    from pytensor.tensor.type import TensorType

    return isinstance(variable, Constant | SharedVariable) and isinstance(variable.type, TensorType)


def later_calls(name: str, sides: list[str], args: argparse.Namespace) -> dict:
    """Return by side the median µs of a call; a side that has no translation of one of the Ops has none. A copy also has how many bytes it copies.

    Raises
    ------
    AssertionError
        If the sides, or those of another process of the same model, do not agree.
    """
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
            results = as_numpy(fn(*values))
        except NotImplementedError as error:
            found[side] = {"failed": f"NotImplementedError: {error}".splitlines()[0]}
            continue
        compare(results, args.reference)
        calls[side] = partial(call_with_numpy, fn, values)
    key = "one" if args.one_core else "all"
    turns = {"least": LEAST_TURNS, "settle": SETTLE_SECONDS} if name in LARGE else {"settle": SETTLE_SECONDS_OF_SMALL}
    found |= {side: {key: us} for side, us in median_of_turns_us(calls, args.seconds, **turns).items()}
    if COPY in found:
        found[COPY]["bytes"] = copied
    return found


def first_result(name: str, side: str, args: argparse.Namespace) -> dict:
    """Return the seconds from the graph to the first result; importing, making the graph and starting JAX are not counted."""
    import pymc as pm

    inputs, outputs, values = density(name)
    prepare(side, Clock())
    if args.programs:
        import jax

        import pytensor_jaxpr_linker as pjl

        jax.config.update("jax_enable_compilation_cache", True)
        pjl.cache(args.programs)
    start = perf_counter()
    results = as_numpy(pm.compile(inputs, outputs, mode=MODES[side])(*values))
    seconds = perf_counter() - start
    compare(results, args.reference)
    return {"seconds": seconds}


def compare(results: list[np.ndarray], reference: Path) -> None:
    """Compare results with those of the first process of the model, which saves its own; an AssertionError says that they differ."""
    if not reference.exists():
        np.savez(reference, *results)
    largest_error(results, reference)


def main() -> None:
    """Run the task that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=["calls", "first"])
    parser.add_argument("model")
    parser.add_argument("sides")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--programs", type=Path)
    parser.add_argument("--one-core", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.5)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.one_core:
        pin_to_one_core()
    if args.task == "first":
        result = first_result(args.model, args.sides, args)
    else:
        result = later_calls(args.model, args.sides.split("+"), args)
    args.out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
