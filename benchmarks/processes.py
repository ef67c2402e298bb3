"""Processes that measure: each calls one function in a fresh interpreter, and prints the result as JSON.

    python benchmarks/processes.py MODULE:FUNCTION ARGUMENTS

is such a process, its arguments a JSON object. Whoever measures gives a list of `Job` to `collect`.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Job:
    """One process to start. It runs in a folder of the whole run, where processes can leave files for later ones.

    Attributes
    ----------
    call
        The function, ``"module:function"``.
    arguments
        Its keyword arguments.
    place
        The keys under which its result is stored. None: the result is not stored.
    sides
        The keys of the result where it is one for each of several sides. A failure is one of each side.
    caches
        Where PyTensor and Numba keep what they compile. A folder of its own is an empty cache.
    chain
        Jobs of equal `chain` are not run after one of them has failed.
    blas_threads
        With more than one, a call on small matrices mostly waits for a core that somebody else is using. None: as for any user.
    keeps_programs
        Whether this package keeps programs for later processes, and JAX may, if the function turns that on.
    core
        The one core that the process runs on. None: any.
    memory
        How many GiB the process may use, where `/proc` says how many it does. None: any number.
    then
        Returns what to store, from the result, the folder and the seconds of the whole process.
    """

    call: str
    arguments: dict[str, Any]
    place: tuple[str, ...] | None = ()
    sides: tuple[str, ...] = ()
    caches: str | Path = "caches"
    chain: str | None = None
    timeout: float = 900
    blas_threads: int | None = 1
    keeps_programs: bool = False
    core: int | None = None
    memory: float | None = None
    then: Callable[[dict, Path, float], dict] = lambda result, folder, seconds: result

    def run(self, folder: Path) -> dict:
        """Return what the function returned, or the last line of what the process said when it failed."""
        caches = folder / self.caches
        env = os.environ | {
            "PYTENSOR_FLAGS": f"base_compiledir={caches}",
            "NUMBA_CACHE_DIR": str(caches / "numba_alone"),
            "JAX_ENABLE_COMPILATION_CACHE": str(self.keeps_programs).lower(),
            "PYTENSOR_JAXPR_CACHE": "" if self.keeps_programs else "off",
            "JAX_TRACEBACK_FILTERING": "off",  # else the last line of a traceback is not the error
            "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")])),
        }
        if self.blas_threads:
            env["OPENBLAS_NUM_THREADS"] = str(self.blas_threads)
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, __file__, self.call, json.dumps(self.arguments)]
        began = perf_counter()
        pipes: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE) | {"stdin": subprocess.DEVNULL}
        with subprocess.Popen(command, text=True, env=env, cwd=folder, start_new_session=True, **pipes) as process:
            if self.core is not None and hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(process.pid, {self.core})
            try:
                stdout, stderr = self.output(process, began)
            except (MemoryError, TimeoutError) as error:
                end(process)
                return {"failed": str(error)}
            except BaseException:
                end(process)
                raise
        if process.returncode:
            return {"failed": (stderr.strip().splitlines() or [f"exit status {process.returncode}"])[-1]}
        return self.then(json.loads(stdout.splitlines()[-1]) or {}, folder, perf_counter() - began)

    def output(self, process: subprocess.Popen, began: float) -> tuple[str, str]:
        """Return what a process wrote until it ended; a TimeoutError or a MemoryError says which limit it passed."""
        while True:
            left = began + self.timeout - perf_counter()
            try:
                return process.communicate(timeout=max(left if self.memory is None else min(left, POLL_SECONDS), 0))
            except subprocess.TimeoutExpired:
                if perf_counter() >= began + self.timeout:
                    raise TimeoutError(f"no result after {self.timeout:g} s") from None
                if self.memory is not None and resident_gib(process.pid) > self.memory:
                    raise MemoryError(f"more than {self.memory:g} GiB of memory") from None


#: How often the memory of a process is looked at.
POLL_SECONDS = 0.1


def resident_gib(pid: int) -> float:
    """Return how much memory a process uses, 0 where the system does not say."""
    status = Path(f"/proc/{pid}/status")
    try:
        lines = status.read_text(encoding="utf-8").splitlines()
    except OSError:  # another system, or the process has ended
        return 0.0
    return next((int(line.split()[1]) / (1 << 20) for line in lines if line.startswith("VmRSS")), 0.0)


def end(process: subprocess.Popen) -> None:
    """End a process, and those that it started, for they would keep its pipes open."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.communicate()


def collect(rounds: Iterable[list[Job]], collected: dict, data: Path | None) -> None:
    """Run processes one after the other; after each, merge the medians of all results into `collected`, and save that."""
    raw: list[dict] = []
    failed: dict[str | None, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        for jobs in rounds:
            for number, job in enumerate(jobs, 1):
                result = failed.get(job.chain) or job.run(Path(folder))
                print(f"{number} of {len(jobs)}: {job.call} {' '.join(job.place or ())} {result}", flush=True)
                if "failed" in result:
                    failed |= {job.chain: result} if job.chain else {}
                    result = dict.fromkeys(job.sides, result) or result
                if job.place is not None:
                    for key in reversed(job.place):
                        result = {key: result}
                    raw.append(result)
                    merge(collected, medians(raw))
                if data:
                    data.write_text(json.dumps(collected, indent=1) + "\n")


def medians(found: list[dict]) -> dict:
    """Combine results key by key into medians; a failure of one stays beside the figures of the others."""
    result = {}
    for key in dict.fromkeys(key for r in found for key in r):
        values = [r[key] for r in found if key in r]
        if isinstance(values[0], dict):
            result[key] = medians(values)
        elif None in values or isinstance(values[0], str | list):
            result[key] = None if None in values else values[0]
        else:
            result[key] = median(values)
    return result


def merge(old: dict, new: dict) -> None:
    """Put figures in the place of old ones."""
    for key, value in new.items():
        if isinstance(value, dict):
            merge(old.setdefault(key, {}), value)
        else:
            old[key] = value


def models_left(models: list[str], results: dict, minutes: float) -> Iterable[str]:
    """Give the models that have no results yet, until so many minutes have passed."""
    began = monotonic()
    for model in models:
        if model not in results:
            if monotonic() - began > 60 * minutes:
                print(f"No time for {model} and what follows: go on with --add.")
                return
            yield model


def rotated(sides: list[str], repeat: int) -> list[str]:
    """Return the sides in an order that changes with the repeat, so that none is always first."""
    return sides[repeat % len(sides) :] + sides[: repeat % len(sides)]


def main() -> None:
    """Call the function that the command line names."""
    warnings.simplefilter("ignore")
    module, function = sys.argv[1].split(":")
    print(json.dumps(getattr(import_module(module), function)(**json.loads(sys.argv[2]))))


if __name__ == "__main__":
    main()
