"""Any folder of models: log density and gradient of each file, beside modes FAST_COMPILE, NUMBA and JAX.

A file has a `build_model`. It takes five processes, about 40 seconds on one core. After each file it writes
docs/catalogue.md and CATALOGUE.json.
"""

import argparse
import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import catalogue_page
from catalogue_page import JAX_LATER, NUMBA_FIRST, NUMBA_LATER, OURS_FIRST, OURS_LATER, SAMPLED, TURNS
from processes import HERE, Job, collect, models_left
from rendering import PACKAGES, describe_machine, last_commit
from samplers import opened
from whole_programs import DEFAULT, OURS, judge

#: Sub-folders of a catalogue. Without them its models are in the folder itself.
FOLDERS = ("models", "models_discrete")
PACKAGE = HERE.parent / "pytensor_jaxpr_linker"


def files(folder: Path) -> dict[str, Path]:
    """Return the files of models by name, which is the path below the folder without its suffix."""
    found = [path for name in FOLDERS for path in sorted((folder / name).glob("*.py"))]
    paths = [path for path in found or sorted(folder.glob("*.py")) if not path.name.startswith("_")]
    return {path.relative_to(folder).with_suffix("").as_posix(): path.absolute() for path in paths}


def chosen(args: argparse.Namespace, found: dict[str, Path]) -> list[str]:
    """Return the models that are to be measured, those of the core list first."""
    wanted = set(args.models or found)
    if lost := wanted - {name for path in found for name in (path, Path(path).name)}:
        raise SystemExit(f"{args.folder} has no {', '.join(sorted(lost))}.")
    core = re.findall(r"`([\w/.-]+)\.py`", args.core.read_text(encoding="utf-8")) if args.core else []
    order = dict.fromkeys([*(name for name in core if name in found), *found])
    return [name for name in order if {name, Path(name).name} & wanted]


def rounds(name: str, file: Path, core: int, args: argparse.Namespace, collected: dict) -> Iterator[list[Job]]:
    """Give the processes of a model: the first, and the others if that has got as far as to the model's log density."""
    limits = {"timeout": args.timeout, "core": core, "memory": args.memory, "keeps_programs": True}

    def job(function: str, place: str, caches: str, **arguments) -> Job:
        arguments["file"] = str(file)
        return Job(f"model_file:{function}", arguments, ("results", name, place), caches=caches, **limits)

    limit = args.timeout / 2
    yield [job("first", OURS_FIRST, "jaxpr", side="jaxpr", limit=limit)]
    if catalogue_page.no_model(collected["results"][name]):
        return
    yield [job("later", OURS_LATER, "jaxpr", side="jaxpr", seconds=limit / 2)]
    if args.ours:
        return
    yield [
        job("first", NUMBA_FIRST, "numba", side="numba", limit=limit),
        job("later", NUMBA_LATER, "numba", side="numba", seconds=limit),
        job("in_turns", TURNS, "numba", sides=["jax", "jaxpr", "numba"], seconds=args.seconds, limit=limit),
    ]
    if args.jax_later:
        yield [job("later", JAX_LATER, "numba", side="jax", seconds=limit)]
    for side in (OURS, DEFAULT) if args.sample else ():
        draws = f"{side}.npz"
        arguments = {"name": str(file), "side": side, "draws": 1000, "chains": 4, "seed": 1, "file": draws}
        place, then = ("results", name, SAMPLED, side), partial(judge, "first", draws)
        yield [Job("user:sample", arguments, place, caches=side, blas_threads=None, then=then, **limits)]


def measured(name: str, file: Path, cores: SimpleQueue, args: argparse.Namespace) -> dict:
    """Measure a model on a core that no other model has, and return what was collected."""
    core, collected = cores.get(), {"results": {name: {}}}
    try:
        collect(rounds(name, file, core, args, collected), collected, None)
    finally:
        cores.put(core)
    return collected


def is_done(found: dict, args: argparse.Namespace) -> bool:
    """Return whether a model has all that this run would measure, but for draws."""
    return catalogue_page.no_model(found) or args.ours or TURNS in found


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measurement."""
    parser.add_argument(
        "folder", type=Path, help="models, in its sub-folders models and models_discrete if it has these"
    )
    parser.add_argument("--models", nargs="+", help="names of files without .py; default: all")
    parser.add_argument("--core", type=Path, help="a Markdown list of files like `models/radon.py`, which come first")
    parser.add_argument("--minutes", type=float, default=120, help="begin no model after so many")
    parser.add_argument("--timeout", type=float, default=240, help="seconds for one process")
    parser.add_argument("--memory", type=float, default=8, help="GiB for one process")
    parser.add_argument("--workers", type=int, default=1, help="processes at a time, each on a core of its own")
    parser.add_argument("--seconds", type=float, default=0.3, help="for how long calls of each side are repeated")
    parser.add_argument("--ours", action="store_true", help="only mode JAXPR and its errors; --add measures the rest")
    parser.add_argument("--jax-later", action="store_true", help="also a later process of mode JAX")
    parser.add_argument("--sample", action="store_true", help="also sample with this package and with PyMC's default")
    parser.add_argument("--add", action="store_true", help="keep the models of the last run, and measure others")
    parser.add_argument("--again", nargs="+", default=[], help="models that --add measures again")
    parser.add_argument(
        "--page", type=Path, default=HERE.parent / "docs" / "catalogue.md", help="where to write the page"
    )


def describe(args: argparse.Namespace) -> dict:
    """Return the setting: the machine, versions, the limits, and the last commit of the package."""
    setting = describe_machine((*PACKAGES, "scipy"))
    limits = {key: getattr(args, key) for key in ("timeout", "memory", "workers", "seconds")}
    return setting | limits | {"commit": last_commit(str(PACKAGE))}


def run(args: argparse.Namespace) -> dict:
    """Measure, and write figures and page after each model."""
    found, data = files(args.folder), args.out.with_name("CATALOGUE.json")
    names, collected = chosen(args, found), opened(args, data, describe(args))
    results = collected["results"]
    for name in args.again:
        results.pop(name, None)
    collected["files"] = len(found)
    cores: SimpleQueue[int] = SimpleQueue()
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    for core in [*reversed(available)][: args.workers]:
        cores.put(core)

    def save(of_model: dict) -> None:
        collected["results"] |= of_model.get("results", {})
        data.write_text(json.dumps(collected, indent=1) + "\n", encoding="utf-8")
        args.page.write_text(catalogue_page.page(collected), encoding="utf-8")

    running: set[Future] = set()
    with ThreadPoolExecutor(args.workers) as pool:
        for name in models_left(names, {n: f for n, f in results.items() if is_done(f, args)}, args.minutes):
            running.add(pool.submit(measured, name, found[name], cores, args))
            if len(running) == args.workers:
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    save(future.result())
        for future in running:
            save(future.result())
    save({})
    return {}
