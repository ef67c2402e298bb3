"""Compare mode JAXPR with mode JAX, mode NUMBA and hand-written JAX, each measurement in a fresh process.

    python benchmarks/run.py                      everything, under twenty minutes on two cores
    python benchmarks/run.py --quick              one repeat, nothing on one core only, about five minutes
    python benchmarks/run.py --models radon --backends jaxpr jax

Writes a table to `--out`, a chart (PNG) and the raw medians (JSON) beside it. `benchmarks/README.md` explains the columns.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import report
from backends import BACKENDS
from models import PROBLEMS
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from scans import KINDS, LENGTHS, SCANS

HERE = Path(__file__).parent
CHAINS = {"jaxpr": (1000, 10_000, 100_000), "jax": (1000, 10_000), "hand": (1000, 10_000)}
HOST_STEPS = (10, 1000, 100_000)
PLANNED = 100_000
TIMEOUT = 900
#: What `sparse_products.py` and `random_draws.py` measured stays in the results.
MEASURED_APART = ("sparse", "draws")


@dataclass(frozen=True)
class Job:
    """One process to start: a task of `worker.py`, for the `repeat`-th time."""

    task: str
    subject: str
    backend: str
    repeat: int


def plan(
    models: list[str], backends: list[str], repeats: int, numba_repeats: int, pinned: bool, loops: list[str]
) -> list[Job]:
    """List the processes in the order in which they run.

    Repeats lie far apart in time and backends close together, in an order that changes with the repeat, so that a slow
    minute of the machine touches all backends alike.
    """
    jobs = [Job("reference", model, "py", 0) for model in models]
    for repeat in range(repeats):
        order = backends[repeat % len(backends) :] + backends[: repeat % len(backends)]
        order = [b for b in order if b != "numba" or repeat < numba_repeats]
        for model in models:
            jobs += [Job("first", model, backend, repeat) for backend in order]
            jobs += [Job(task, model, "+".join(order), repeat) for task in ("turns", "pinned")[: 1 + pinned]]
        jobs += [Job("chain", str(n), b, repeat) for b in order for n in CHAINS.get(b, ())]
        if "jaxpr" in order:
            jobs += [Job("planning", str(PLANNED), "jaxpr", repeat)]
        if {"jaxpr", "hand"} <= set(order):
            jobs += [Job("host", str(n), "jaxpr+hand", repeat) for n in HOST_STEPS]
        jobs += [Job("dispatch", "small", "+".join(order), repeat)]
        jobs += [Job("scan", loop, "+".join(b for b in order if b != "numba"), repeat) for loop in loops]
    return jobs


def run_job(job: Job, folder: Path, seconds: float) -> dict:
    """Run one process and read its result, or the last line of what it said when it failed.

    Caches start empty: JAX's persistent cache is off, and every repeat of a model in a backend has a compile directory of
    its own. Only the runs whose calls take turns find the one that the first run made: Numba would compile the same again for minutes.
    BLAS gets one thread: with more, a call on small matrices mostly waits for a core that somebody else is using.
    """
    out = folder / (f"{job.subject}.npz" if job.task == "reference" else "result.json")
    owner = "numba" if "numba" in job.backend else job.backend
    caches = folder / f"{job.subject.replace('/', '-')}-{owner}-{job.repeat}"
    options = {"--out": out, "--reference": folder / f"{job.subject}.npz", "--seconds": seconds}
    command = [HERE / "worker.py", job.task, job.subject, job.backend]
    command += [part for option in options.items() for part in option]
    if failed := run_process(command, caches):
        return {"failed": failed}
    return {} if job.task == "reference" else json.loads(out.read_text())


def run_process(
    command: list, caches: Path, timeout: float = TIMEOUT, blas_threads: int = 1, jax_cache: bool = False
) -> str | None:
    """Run a program of this folder with what PyTensor and Numba keep in `caches`; return why it failed, or None.

    With `jax_cache` JAX's compilation cache, which a program may turn on, is not forbidden.
    """
    env = os.environ | {
        "PYTENSOR_FLAGS": f"base_compiledir={caches}",
        "NUMBA_CACHE_DIR": str(caches / "numba_alone"),
        "JAX_ENABLE_COMPILATION_CACHE": str(jax_cache).lower(),
        "JAX_TRACEBACK_FILTERING": "off",  # else the last line of a traceback is not the error
        "OPENBLAS_NUM_THREADS": str(blas_threads),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")])),
    }
    command = [sys.executable, *map(str, command)]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"no result after {timeout:g} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return None


def run_all(jobs: list[Job], seconds: float) -> dict:
    """Run the processes one after the other under a progress bar.

    Returns
    -------
    dict
        ``{task: {subject: {backend: medians over the repeats}}}``, where `turns` and `pinned` results are merged into `first`, and those of backends that took turns are sorted by them.
    """
    raw: dict = defaultdict(list)
    bar = Progress(
        TextColumn("{task.description:<36}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with tempfile.TemporaryDirectory() as folder, bar:
        task = bar.add_task("", total=len(jobs))
        for job in jobs:
            bar.update(task, description=f"{job.subject} · {job.backend} · {job.task}")
            result = run_job(job, Path(folder), seconds)
            kind = "first" if job.task in ("turns", "pinned") else job.task
            for backend in job.backend.split("+"):
                raw[kind, job.subject, backend].append(result if "failed" in result else result.get(backend, result))
            if "failed" in result:
                bar.console.print(f"{job.subject} · {job.backend} · {job.task}: {result['failed']}", style="red")
            elif "first" in result:
                bar.console.print(f"{job.subject:<16} {job.backend:<6} first {result['first']:6.2f} s", highlight=False)
            bar.advance(task)
    results: dict = defaultdict(lambda: defaultdict(dict))
    for (kind, subject, backend), found in raw.items():
        results[kind][subject][backend] = medians(found)
    return results


def medians(found: list[dict]) -> dict:
    """Combine the results of several processes, key by key, into medians; a failure hides the rest."""
    failed = [r["failed"] for r in found if "failed" in r]
    if failed:
        return {"failed": failed[0]}
    result = {}
    for key in {key for r in found for key in r}:
        values = [r[key] for r in found if key in r]
        if isinstance(values[0], dict):
            result[key] = medians(values)
        else:
            result[key] = None if None in values else median(values)
    return result


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--scans", nargs="*", choices=list(SCANS), default=list(SCANS), help="loops; none with no name")
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS), help="how many steps loops take")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--repeats", type=int, default=3, help="processes for each figure (default 3)")
    parser.add_argument("--numba-repeats", type=int, default=1, help="the same for NUMBA, which compiles for long")
    parser.add_argument("--quick", action="store_true", help="one repeat, shorter timings, no runs on one core")
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    parser.add_argument("--render", action="store_true", help="only write table and chart again, from the JSON file")
    return parser.parse_args()


def main() -> int:
    """Run the benchmark and write its report; the exit status is 1 if a process failed."""
    args = parse_arguments()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    data = args.out.with_suffix(".json")
    if not args.render:
        repeats = 1 if args.quick else args.repeats
        loops = [f"{name}/{kind}/{n}" for name in args.scans for kind in KINDS for n in args.lengths]
        numba_repeats = min(repeats, args.numba_repeats)
        jobs = plan(args.models, args.backends, repeats, numba_repeats, not args.quick, loops)
        results = run_all(jobs, 0.25 if args.quick else 0.5)
        setting = report.describe_machine() | {"repeats": repeats, "numba_repeats": numba_repeats}
        saved = json.loads(data.read_text()) if data.exists() else {}
        kept = {part: saved[part] for part in MEASURED_APART if part in saved}
        data.write_text(json.dumps({"setting": setting, **results, **kept}, indent=1) + "\n")
    failures = report.write(json.loads(data.read_text()), args.out)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
