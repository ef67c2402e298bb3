"""The loggers, one for each artifact, and the progress of a long build on the terminal.

Nothing is computed for a logger before it says that it is enabled, and none is asked where a function only runs.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches

#: The loggers by the names of their artifacts.
ARTIFACTS = {
    name: logging.getLogger(f"pytensor_jaxpr_linker.{name}")
    for name in ("breaks", "recompiles", "guards", "jaxpr", "hlo", "plan", "timing")
}
breaks, recompiles, guards, jaxpr, hlo, plan, timing = ARTIFACTS.values()

#: The environment variable that shows logs on stderr: ``PYTENSOR_JAXPR_LOGS=recompiles,timing``.
LOGS_VARIABLE = "PYTENSOR_JAXPR_LOGS"


#: What a file for the report of the session follows in the variable.
REPORT = "report="


def show_logs(text: str) -> str | None:
    """Write all records of the artifacts that a text names, with commas between them, to stderr.

    Return the file that it names for the report of the session, ``report=FILE.html``, if it does.
    """
    given = [name.strip() for name in text.split(",") if name.strip()]
    report = next((name.removeprefix(REPORT) for name in given if name.startswith(REPORT)), None)
    if report == "":
        raise ValueError(f"the environment variable {LOGS_VARIABLE} names no file: write {REPORT}FILE.html")
    names = [name.lower().replace(" ", "") for name in given if not name.startswith(REPORT)]
    for name in names:
        if name not in ARTIFACTS:
            near = get_close_matches(name, ARTIFACTS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(ARTIFACTS)}"
            raise ValueError(f"the environment variable {LOGS_VARIABLE} names no log {name!r}: {hint}")
        ARTIFACTS[name].setLevel(logging.DEBUG)
    package = logging.getLogger("pytensor_jaxpr_linker")
    if names and not package.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
        package.addHandler(handler)
    return report


#: Seconds after which a build shows its progress, and between two drawings of it.
PATIENCE, INTERVAL = 2.0, 0.5


class Progress:
    """The build of a function, from its partition to the compiled program; calls test `active`.

    A thread draws one line on stderr, if that is a terminal and the build takes longer than `PATIENCE`.
    """

    def __init__(self) -> None:
        self.active = False
        self._stage = ""
        self._begun = self._began_stage = 0.0
        self._drawn: tuple[threading.Thread, threading.Event] | None = None
        self._lock = threading.Lock()  # threads may build the same function

    def begin(self, stage: str, nodes: int) -> bool:
        """Enter a stage of the build; return whether the build begins with it."""
        now = time.perf_counter()
        with self._lock:
            is_first = not self.active
            if not is_first:
                self._log(now)
            self._stage, self._began_stage = f"{stage} ({nodes} nodes)", now
            if is_first:
                self.active, self._begun = True, now
                if is_terminal():
                    stop = threading.Event()
                    thread = threading.Thread(target=self._draw, args=(stop,), daemon=True)
                    self._drawn = thread, stop
                    thread.start()
            return is_first

    def end(self) -> None:
        """Leave the build, successful or not."""
        with self._lock:
            if not self.active:
                return
            self.active = False
            self._log(time.perf_counter())
            if self._drawn is not None:
                thread, stop = self._drawn
                self._drawn = None
                stop.set()
                thread.join()

    @contextmanager
    def stage(self, stage: str, nodes: int) -> Iterator[None]:
        """Enter a stage that ends the build, unless another one is under way."""
        is_first = self.begin(stage, nodes)
        try:
            yield
        finally:
            if is_first:
                self.end()

    def _log(self, now: float) -> None:
        if timing.isEnabledFor(logging.INFO):
            timing.info("%s took %.1f ms", self._stage, (now - self._began_stage) * 1e3)

    def _draw(self, stop: threading.Event) -> None:
        """Draw the line until the build ends, then wipe it off."""
        drawn = False
        while not stop.wait(INTERVAL if drawn else PATIENCE):
            elapsed = time.perf_counter() - self._begun
            sys.stderr.write(f"\r\x1b[Kpytensor_jaxpr_linker: {self._stage}, {elapsed:.0f} s")
            sys.stderr.flush()
            drawn = True
        if drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def is_terminal() -> bool:
    """Return whether somebody can watch stderr."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # none (pythonw), or closed
        return False
