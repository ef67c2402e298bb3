"""Lowers a JAX function for several platforms, without a word of the machine that does it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from jax import export

from jaxpr_artifact.header import Program
from jaxpr_artifact.programs import to_program

#: The platforms that JAX lowers for without a device of theirs.
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

_alone = threading.Lock()


@contextmanager
def without_source_paths() -> Iterator[None]:
    """Keep the paths of source files out of what is lowered. The setting is the process's: only the debug locations of others miss it."""
    with _alone:
        before = jax.config.jax_traceback_in_locations_limit
        jax.config.update("jax_traceback_in_locations_limit", 0)
        try:
            yield
        finally:
            jax.config.update("jax_traceback_in_locations_limit", before)


def lowered(
    fn: Callable[..., Any],
    name: str,
    avals: Sequence[Any],
    platforms: Sequence[str],
    vjp_order: int,
    member: str,
    members: dict[str, bytes],
) -> tuple[export.Exported, Program]:
    """Return a function as a program, and add its bytes, and those of its derivatives, to the members.

    Raises
    ------
    NotImplementedError
        If JAX can't lower it for a platform, which the message names.
    """
    with jax.enable_x64(True), without_source_paths():
        exported = for_platforms(fn, name, avals, tuple(platforms))
        return exported, to_program(exported, member, vjp_order, members)


def for_platforms(
    fn: Callable[..., Any], name: str, avals: Sequence[Any], platforms: tuple[str, ...]
) -> export.Exported:
    """Return a function exported for platforms, or raise an error that says which of them fail and why."""

    def on(some: tuple[str, ...]) -> export.Exported:
        def call(*args: Any) -> tuple:
            return tuple(fn(*args))

        call.__name__ = call.__qualname__ = name
        return export.export(jax.jit(call), platforms=some)(*avals)

    try:
        return on(platforms)
    except NotImplementedError as error:
        if len(platforms) == 1:
            raise
        reasons = {}
        for platform in platforms:
            try:
                on((platform,))
            except NotImplementedError as reason:
                reasons[platform] = str(reason).splitlines()[0]
        if not reasons:
            raise
        rest = tuple(p for p in platforms if p not in reasons)
        why = "; ".join(f"{platform}: {reason}" for platform, reason in reasons.items())
        remedy = (
            f"platforms={rest} leaves {'it' if len(reasons) == 1 else 'them'} out" if rest else "no platform is left"
        )
        raise NotImplementedError(f"JAX can't lower {name} for {why}. {remedy}.") from error
