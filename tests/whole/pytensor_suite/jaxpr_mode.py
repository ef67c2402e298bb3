"""Pytest plugin: every test that asks for PyTensor's default mode, for FAST_RUN, or for mode JAX, gets mode JAXPR.

Breaks are not warned of, so that tests that count warnings keep their counts; the summary counts the functions that mode
JAXPR compiled and names the Ops that broke graphs.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

BREAKS: Counter[tuple[str, str]] = Counter()
FUNCTIONS: Counter[str] = Counter()


def pytest_configure(config: Any) -> None:
    """Put mode JAXPR in place of the default modes and of mode JAX."""
    accept_nested_seeds()
    from pytensor.compile import mode
    from pytensor.graph.rewriting.db import RewriteDatabaseQuery
    from pytensor.link import jax

    from pytensor_jaxpr_linker import JaxprLinker, Options
    from pytensor_jaxpr_linker.frontend import linker

    jaxpr = mode.Mode(JaxprLinker(Options(on_break="ignore")), RewriteDatabaseQuery(include=["fast_run"]))
    mode.predefined_modes["MODE"] = mode.predefined_modes["FAST_RUN"] = jaxpr

    stand_in = jax_stand_in(JaxprLinker, Options(on_break="ignore", results="jax"))
    mode.JAX = mode.predefined_modes["JAX"] = mode.Mode(stand_in(), RewriteDatabaseQuery(include=["fast_run"]))
    jax.JAXLinker = stand_in

    prepare = linker.Runner.prepare

    def count(runner: Any) -> None:
        prepare(runner)
        FUNCTIONS["with breaks" if runner.plan.breaks else "one program"] += 1
        BREAKS.update((b.code.code, type(b.node.op).__name__) for b in runner.plan.breaks)

    linker.Runner.prepare = count  # type: ignore[method-assign]


def jax_stand_in(linker_class: Any, jax_options: Any) -> Any:
    """Return what the tests of mode JAX expect of its linker: results of JAX's, and a warning of shared generators."""

    class Linker(linker_class):
        def __init__(self, options: Any = jax_options, **kwargs: Any):
            super().__init__(options, **kwargs)

        def make_all(self, *args: Any, **kwargs: Any) -> Any:
            if generators := [v for v in self.fgraph.inputs if is_shared_generator(v)]:
                warnings.warn(f"The RandomType SharedVariables {generators} will not be used", stacklevel=2)
            return super().make_all(*args, **kwargs)

    return Linker


def is_shared_generator(variable: Any) -> bool:
    """Return whether a variable is a random generator that is shared."""
    from pytensor.compile.sharedvalue import SharedVariable
    from pytensor.tensor.random.type import RandomType

    return isinstance(variable, SharedVariable) and isinstance(variable.type, RandomType)


def flat_entropy(seed: Any) -> Iterator[Any]:
    """Yield the numbers of a nested seed: NumPy flattened them until it refused them; PyTensor's convolution tests pass some."""
    for entry in seed:
        yield from flat_entropy(entry) if isinstance(entry, tuple | list) else (entry,)


def accept_nested_seeds() -> None:
    """Let `np.random.default_rng` take a seed as older releases of NumPy do."""
    default_rng = np.random.default_rng
    np.random.default_rng = lambda seed=None: default_rng(
        list(flat_entropy(seed)) if isinstance(seed, tuple | list) else seed
    )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print which Ops broke graphs, and how often."""
    found = ", ".join(f"{code} {op} {count}" for (code, op), count in BREAKS.most_common())
    counts = ", ".join(f"{count} {kind}" for kind, count in FUNCTIONS.items())
    terminalreporter.write_line(f"plans: {counts or 'none'}")
    terminalreporter.write_line(f"breaks: {found or 'none'}")
