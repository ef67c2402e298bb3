"""Stages, first results and later calls of six problems, loops, and small measurements, beside mode JAX, mode NUMBA and hand-written JAX.

It takes under twenty minutes on two cores, and with --quick about five. benchmarks/README.md explains the columns of the tables.
"""

import argparse
import json
from collections.abc import Iterator
from time import perf_counter

import charts
import numpy as np
from backends import BACKENDS, as_compile, as_numpy, check, prepare, scope, take_apart
from clock import Clock, count_equations
from models import PROBLEMS
from processes import Job, collect, rotated
from rendering import describe_machine
from scans import KINDS, LENGTHS, SCANS, make_problem

CHAINS = {"jaxpr": (1000, 10_000, 100_000), "jax": (1000, 10_000), "hand": (1000, 10_000)}
HOST_STEPS = (10, 1000, 100_000)
PLANNED = 100_000


def reference(name: str) -> None:
    """Save the outputs that PyTensor's own Python implementations compute."""
    from pytensor.compile.mode import Mode, get_mode

    problem = make_problem(name)
    rewrites = get_mode("FAST_COMPILE").provided_optimizer.including("stabilize")
    np.savez(f"{name}.npz", *problem.compile(Mode("py", rewrites))(*problem.values))


def first_result(name: str, backend: str) -> dict:
    """Compile and call one problem in one backend; time the stages, the first call, and the stages again."""
    problem, clock = make_problem(name), Clock()
    values = problem.values
    prepare(backend, clock)
    start = perf_counter()
    fn = as_compile(backend, problem)
    results = as_numpy(fn(*values))
    first = perf_counter() - start
    stages = clock.seconds()
    found = {"stages": stages | {"other": first - sum(stages.values())}, "first": first}
    found["error"] = check(results, f"{name}.npz")
    if backend == "numba":
        return found | {"equations": None, "bodies": None}
    import jax

    part = take_apart(backend, fn, values)
    with scope(backend):
        found["equations"], found["bodies"] = count_equations(jax.make_jaxpr(part.part)(*part.part_args))
    clock.spans.clear()
    as_numpy(as_compile(backend, problem)(*values))
    return found | {"again": clock.seconds()}


def rounds(args: argparse.Namespace, setting: dict) -> Iterator[list[Job]]:
    """Give the processes of each repeat.

    Repeats lie far apart in time and backends close together, in an order that changes with the repeat, so that a slow minute of the machine touches all
    backends alike. Caches start empty in every repeat. Only the calls that take turns find what the first result left there: Numba would compile the same again
    for minutes.
    """
    for repeat in range(args.repeats):
        setting |= {"repeats": repeat + 1, "numba_repeats": min(repeat + 1, args.numba_repeats)}
        order = [b for b in rotated(args.backends, repeat) if b != "numba" or repeat < args.numba_repeats]
        references = [Job("stages:reference", {"name": m}, ("reference", m, "py")) for m in args.models]
        yield [
            *(references if repeat == 0 else ()),
            *(job for model in args.models for job in jobs_of_model(model, order, repeat, args)),
            *micro_jobs(order, repeat, args),
        ]


def jobs_of_model(model: str, order: list[str], repeat: int, args: argparse.Namespace) -> Iterator[Job]:
    """Give the first result in each backend, then later calls of all in turns."""
    for backend in order:
        arguments = {"name": model, "backend": backend}
        yield Job("stages:first_result", arguments, ("first", model, backend), caches=f"{model}-{backend}-{repeat}")
    caches = f"{model}-{'numba' if 'numba' in order else '+'.join(order)}-{repeat}"
    for is_pinned in (False, True)[: 1 if args.quick else 2]:
        arguments = {"subject": model, "backends": order, "seconds": args.seconds, "is_pinned": is_pinned}
        yield Job("micro:later_calls", arguments, ("first", model), tuple(order), caches)


def micro_jobs(order: list[str], repeat: int, args: argparse.Namespace) -> Iterator[Job]:
    """Give the small measurements and the loops."""
    for backend in order:
        for n in CHAINS.get(backend, ()):
            yield Job("micro:build_chain", {"nodes": n, "backend": backend}, ("chain", str(n), backend))
    if "jaxpr" in order:
        yield Job("micro:planning", {"nodes": PLANNED}, ("planning", str(PLANNED), "jaxpr"))

    def in_turns(call: str, place: tuple[str, str], sides: list[str], **arguments: int | str) -> Job:
        arguments |= {"backends": sides, "seconds": args.seconds}
        return Job(f"micro:{call}", arguments, place, tuple(sides), f"{call}-{repeat}")

    if {"jaxpr", "hand"} <= set(order):
        for n in HOST_STEPS:
            yield in_turns("host_step", ("host", str(n)), ["jaxpr", "hand"], size=n)
    yield in_turns("dispatch", ("dispatch", "small"), order)
    for loop in [f"{name}/{kind}/{n}" for name in args.scans for kind in KINDS for n in args.lengths]:
        yield in_turns("scan", ("scan", loop), [b for b in order if b != "numba"], subject=loop)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measurement."""
    parser.add_argument("--models", nargs="*", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--scans", nargs="*", choices=list(SCANS), default=list(SCANS), help="loops; none with no name")
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS), help="how many steps loops take")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--repeats", type=int, default=3, help="processes for each figure")
    parser.add_argument("--numba-repeats", type=int, default=1, help="the same for NUMBA, which compiles for long")
    parser.add_argument("--seconds", type=float, default=0.5, help="for how long calls of each side are repeated")
    parser.add_argument("--quick", action="store_true", help="one repeat, shorter timings, no runs on one core")


def run(args: argparse.Namespace) -> dict:
    """Measure and draw the chart. What `random_draws` and `sparse_products` measured stays."""
    if args.quick:
        args.repeats, args.seconds = 1, min(args.seconds, 0.25)
    data = args.out.with_suffix(".json")
    saved = json.loads(data.read_text()) if data.exists() else {}
    collected = {"setting": describe_machine()} | {part: saved[part] for part in ("sparse", "draws") if part in saved}
    collect(rounds(args, collected["setting"]), collected, data)
    charts.draw_results(collected.get("first", {}), args.out.with_name("results.png"))
    return collected
