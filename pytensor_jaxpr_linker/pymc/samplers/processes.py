"""Processes and threads of chains: processes that do not run the user's script again, and shares of BLAS's threads."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_all_start_methods, get_context
from typing import Any

import jax

#: Not "fork", which does not copy the threads that JAX has.
BASE = get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")

#: The error if a process runs the script again, for what the script defines, and the script samples again.
SAMPLES_AGAIN = (
    "The process of a chain needs what this script defines (a wrap_py function, say), so it runs the script again,"
    ' which samples again: put the call under `if __name__ == "__main__":`, put the definitions into a module, or'
    " sample with cores=1."
)


def main_module() -> dict[str, Any]:
    """Return the variables of the script."""
    return vars(sys.modules["__main__"])


@contextmanager
def without_script() -> Iterator[None]:
    """Hide the file of the main module, so that a new process does not run it."""
    main = main_module()
    hidden: dict[str, Any] = {name: main[name] for name in ("__file__", "__spec__") if name in main}
    try:
        main.pop("__file__", None)
        main["__spec__"] = None
        yield
    finally:
        main.update(hidden)


class Process(BASE.Process):  # type: ignore[name-defined]
    """A process that runs the user's script only if it must.

    Python runs the script again in each new process, and raises an error if the script then starts processes, which it
    does without ``if __name__ == "__main__":``. PyMC sends its steps by cloudpickle, which takes along what the script
    defines. Only what a library pickles by its name, such as functions of ``wrap_py``, is looked up in the script.
    """

    def start(self) -> None:
        """Start the process."""
        self.script = main_module().get("__file__")
        self.platforms = jax.config.jax_platforms  # which a script may set at its top
        with without_script():
            super().start()

    def run(self) -> None:
        """Run in the new process."""
        jax.config.update("jax_platforms", self.platforms)
        if self.script is not None:
            main_module()["__getattr__"] = partial(from_script, self.script)
        super().run()


def from_script(script: str, name: str) -> Any:
    """Run a script and return its definition of a name.

    This is the ``__getattr__`` of the main module of a process that has not run the script.
    """
    main = main_module()
    if name.startswith("__"):
        raise AttributeError(name)
    del main["__getattr__"]
    main["__script_runs_again__"] = True
    main |= runpy.run_path(script, run_name="__mp_main__")
    return main[name]


def check_script() -> None:
    """Raise an error, with the remedy, if the script runs again only for its definitions."""
    if main_module().get("__script_runs_again__"):
        raise RuntimeError(SAMPLES_AGAIN)


class Context(type(BASE)):  # type: ignore[misc]
    """The start method of this system that does not fork, with processes that do not run the user's script again."""

    Process = Process

    def __repr__(self) -> str:
        return f"<start method {self.get_start_method()!r}, whose processes do not run the script again>"


def process_context() -> Context:
    """Return ``mp_ctx`` for `pymc.sample` with mode JAXPR: processes that are not forked, and do not run the script
    again.

    So a script needs no ``if __name__ == "__main__":``. `sample` does the same for ``sampler="pymc"``.

    Examples
    --------
    >>> from pytensor_jaxpr_linker.pymc import process_context
    >>> process_context().get_start_method() in ("forkserver", "spawn")
    True
    """
    return Context()
