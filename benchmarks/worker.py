"""One measurement in a process of its own. `run.py` starts it; it writes its results as JSON.

    python benchmarks/worker.py TASK SUBJECT BACKEND --out FILE [--reference FILE] [--seconds S]

Tasks: `reference` (values from PyTensor's Python implementations), `first` (stages and first call), `chain` (time to build
a chain of SUBJECT nodes), `planning` (to plan and explain it), and for several backends (`jaxpr+jax+hand`) whose calls take turns: `turns`
(later calls), and on one core `pinned` (later calls), `host` (a call with a host step between two regions, on SUBJECT numbers), `dispatch`
(what a call costs by itself) and `scan` (a loop).
"""

import argparse
import json
import warnings
from pathlib import Path
from time import perf_counter

from clock import Clock, count_equations, pin_to_one_core

TOLERANCE = 1e-6
#: In these tasks the calls of several backends take turns, on one core.
ONE_CORE = ("pinned", "host", "dispatch", "scan")


def reference(name: str, out: Path) -> None:
    """Save the outputs that PyTensor's own Python implementations compute."""
    import numpy as np
    from models import PROBLEMS
    from pytensor.compile.mode import Mode, get_mode

    problem = PROBLEMS[name]()
    rewrites = get_mode("FAST_COMPILE").provided_optimizer.including("stabilize")
    np.savez(out, *problem.compile(Mode("py", rewrites))(*problem.values))


def largest_error(results, file: Path) -> float:
    """Largest deviation from the reference, relative to the largest number of each output.

    Raises
    ------
    AssertionError
        If an output has another shape or dtype, or deviates by more than `TOLERANCE`.
    """
    import numpy as np

    worst = 0.0
    with np.load(file) as saved:
        for got, want in zip(results, saved.values(), strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype), (got.shape, got.dtype, want.shape, want.dtype)
            worst = max(worst, float(np.max(np.abs(got - want)) / np.max(np.abs(want))))
    assert worst <= TOLERANCE, f"outputs deviate from PyTensor's by {worst:.1e}"
    return worst


def measure(name: str, backend: str, args: argparse.Namespace) -> dict:
    """Compile and call one problem in one backend; time the stages, the first call, and the stages again."""
    from backends import as_compile, as_numpy, prepare, scope, take_apart
    from models import PROBLEMS

    problem, clock = PROBLEMS[name](), Clock()
    values = problem.values
    prepare(backend, clock)
    start = perf_counter()
    fn = as_compile(backend, problem)
    results = as_numpy(fn(*values))
    first = perf_counter() - start
    stages = clock.seconds()
    error = largest_error(results, args.reference)

    part = take_apart(backend, fn, values)
    with scope(backend):
        equations, bodies = (None, None) if backend == "numba" else equations_of(part)
    other = first - sum(stages.values())
    found = {"stages": stages | {"other": other}, "first": first, "error": error}
    found |= {"equations": equations, "bodies": bodies}
    if backend != "numba":
        clock.spans.clear()
        as_numpy(as_compile(backend, problem)(*values))
        found["again"] = clock.seconds()
    return found


def equations_of(part) -> tuple[int, int]:
    """Count the equations of the compiled part, see `count_equations`."""
    import jax

    return count_equations(jax.make_jaxpr(part.part)(*part.part_args))


def main() -> None:
    """Run the task that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=["reference", "first", "chain", "planning", "turns", *ONE_CORE])
    parser.add_argument("subject")
    parser.add_argument("backend")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")

    if args.task == "reference":
        return reference(args.subject, args.out)
    if args.task == "first":
        result = measure(args.subject, args.backend, args)
    else:
        is_pinned = args.task != "turns" and pin_to_one_core()
        result = measure_apart(args) if is_pinned or args.task != "pinned" else {}
    args.out.write_text(json.dumps(result))


def measure_apart(args: argparse.Namespace) -> dict:
    """Run one of the measurements of `micro.py`."""
    import micro
    from models import PROBLEMS

    backends = args.backend.split("+")
    match args.task:
        case "chain":
            return micro.build_chain(int(args.subject), args.backend)
        case "planning":
            return micro.planning(int(args.subject), args.backend)
        case "turns" | "pinned":
            return micro.later_calls(PROBLEMS[args.subject](), backends, args.seconds, args.task == "pinned")
        case "host":
            return micro.host_step(int(args.subject), backends, args.seconds)
        case "dispatch":
            return micro.dispatch(backends, args.seconds)
        case _:
            return micro.scan(args.subject, backends, args.seconds)


if __name__ == "__main__":
    main()
