"""Lowers a JAX function, its derivatives and its batched form for several platforms, without a word of the machine that does it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
from jax import export

from jaxpr_artifact.functions import is_inexact
from jaxpr_artifact.header import Program
from jaxpr_artifact.programs import to_program

#: The platforms that JAX lowers for without a device of theirs.
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

_alone = threading.Lock()


class Lowerable(NamedTuple):
    """A JAX function with what its operands are."""

    fn: Callable[..., Sequence[Any]]
    avals: Sequence[Any]
    has_batch: Sequence[bool]
    """Which operands get the axis of a batch: arguments, and cotangents of results."""
    is_constant: Sequence[bool]
    """Which operands have no derivative."""
    places: Mapping[str, str] = MappingProxyType({})
    """The line of the user's program that made a node, by the name that its operations have."""

    def derivative(self, results: Sequence[Any]) -> Lowerable | None:
        """Return the pullback, or None if there is none; `results` are the avals of what the function returns.

        It takes the operands and cotangents of the inexact results, and returns cotangents of the inexact operands that are no constants.
        """
        of = [i for i, aval in enumerate(results) if is_inexact(aval)]
        wrt = [i for i, aval in enumerate(self.avals) if is_inexact(aval) and not self.is_constant[i]]
        if not of or not wrt:
            return None
        count = len(self.avals)

        def pullback(*args: Any) -> Sequence[Any]:
            def restricted(*active: Any) -> list[Any]:
                values = dict(enumerate(args[:count])) | dict(zip(wrt, active, strict=True))
                found = self.fn(*values.values())
                return [found[i] for i in of]

            return jax.vjp(restricted, *[args[i] for i in wrt])[1](list(args[count:]))

        cotangents = [jax.ShapeDtypeStruct(results[i].shape, results[i].dtype) for i in of]
        return Lowerable(
            pullback,
            [*self.avals, *cotangents],
            [*self.has_batch, *[True] * len(of)],
            [*self.is_constant, *[False] * len(of)],
            self.places,
        )

    def batched(self, size: Any) -> Lowerable:
        """Return the function over one more axis, of this size."""
        avals = [
            jax.ShapeDtypeStruct((size, *aval.shape), aval.dtype) if has_batch else aval
            for aval, has_batch in zip(self.avals, self.has_batch, strict=True)
        ]
        axes = [0 if has_batch else None for has_batch in self.has_batch]
        return self._replace(fn=jax.vmap(lambda *args: tuple(self.fn(*args)), in_axes=axes), avals=avals)


def with_derivatives(
    given: Lowerable, name: str, platforms: Sequence[str], order: int, member: str, members: dict[str, Any], size: Any
) -> tuple[export.Exported, Program]:
    """Return a function as a program with its derivatives, and add their bytes to the members.

    Parameters
    ----------
    size
        The length of the batch, or None for a function without a batch. A derivative over a batch has one row for each row, also by what all
        of them share.
    """
    exported = lowered(given if size is None else given.batched(size), name, platforms)
    vjp = None
    if order and (following := given.derivative(results_of(exported, size))):
        _, vjp = with_derivatives(following, name, platforms, order - 1, f"{member}_vjp", members, size)
    return exported, to_program(exported, f"{member}.mlirbc", vjp, members)


def results_of(exported: export.Exported, size: Any) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes and dtypes of results, without the axis of a batch."""
    first = 0 if size is None else 1
    return [jax.ShapeDtypeStruct(aval.shape[first:], aval.dtype) for aval in exported.out_avals]


def lowered(given: Lowerable, name: str, platforms: Sequence[str]) -> export.Exported:
    """Return a function lowered for platforms.

    Raises
    ------
    NotImplementedError
        If JAX can't lower it for a platform, which the message names.
    """

    def on(some: Sequence[str]) -> export.Exported:
        def call(*args: Any) -> tuple:
            return tuple(given.fn(*args))

        call.__name__ = call.__qualname__ = name
        return export.export(jax.jit(call), platforms=tuple(some))(*given.avals)

    with jax.enable_x64(True), without_source_paths():
        try:
            return on(platforms)
        except (NotImplementedError, ValueError) as error:
            reasons = why_not(on, platforms) if fault_in(error) else {}
            if not reasons:
                raise
            raise not_lowered(name, platforms, reasons, given.places) from error


def why_not(on: Callable[[Sequence[str]], Any], platforms: Sequence[str]) -> dict[str, LoweringFault]:
    """Return why each platform fails that does."""
    reasons = {}
    for platform in platforms:
        try:
            on([platform])
        except (NotImplementedError, ValueError) as error:
            if reason := fault_in(error):
                reasons[platform] = reason
    return reasons


class LoweringFault(NamedTuple):
    """Why JAX can't lower a function."""

    text: str
    names: str = ""
    """The names of the operation, with slashes between them, where JAX says them."""


#: A call of a library, in the ValueError of `jax.export`, and the names of the operation.
_LIBRARY_CALL = re.compile(r"custom_call @(?P<target>\w+).*? loc\((?P<names>[^\n]*)\)", re.DOTALL)


def fault_in(error: Exception) -> LoweringFault | None:
    """Return why JAX can't lower a function, or None if an error is another one."""
    if isinstance(error, NotImplementedError):
        return LoweringFault(str(error).splitlines()[0])
    if "no compatibility guarantees" not in str(error) or not (found := _LIBRARY_CALL.search(str(error))):
        return None
    text = f"it would call {found['target']}, which JAX does not promise to have in later versions"
    return LoweringFault(text, found["names"].replace('"', "/"))


def not_lowered(
    name: str, platforms: Sequence[str], reasons: Mapping[str, LoweringFault], places: Mapping[str, str]
) -> NotImplementedError:
    """Return the error that says which platforms JAX can't lower a function for, why, and where the user's program made the operation."""
    rest = tuple(p for p in platforms if p not in reasons)
    them = "it" if len(reasons) == 1 else "them"
    remedy = f"platforms={rest} leaves {them} out" if rest else "Name others by `platforms`, or leave the operation out"
    why = "; ".join(f"{platform}: {reason.text}" for platform, reason in reasons.items())
    lines = dict.fromkeys(line_of_names(reason.names, places) for reason in reasons.values())
    where = "".join(f" Made at {line}" for line in lines if line)
    return NotImplementedError(f"JAX can't lower {name} for {why}. {remedy}.{where}")


def line_of_names(names: str, places: Mapping[str, str]) -> str:
    """Return the line of the user's program that made an operation with these names, or nothing."""
    return next((places[name] for name in reversed(names.split("/")) if name in places), "")


def checked_platforms(platforms: Iterable[str]) -> tuple[str, ...]:
    """Return platforms in the order of `PLATFORMS`, each once.

    Raises
    ------
    ValueError
        If one is unknown, or there is none.
    """
    given = () if platforms is None or isinstance(platforms, str) else tuple(platforms)
    if not given:
        raise ValueError(f'platforms is a sequence of names such as ("cpu", "cuda"), not {platforms!r}.')
    for platform in given:
        if platform not in PLATFORMS:
            meant = {"gpu": " GPUs are 'cuda' and 'rocm'."}.get(str(platform).lower(), "")
            raise ValueError(
                f"The platforms of a file are among {', '.join(map(repr, PLATFORMS))}, not {platform!r}.{meant}"
            )
    return tuple(p for p in PLATFORMS if p in given)


@contextmanager
def without_source_paths() -> Iterator[None]:
    """Keep the paths of source files out of what is lowered. The setting is the process's: only the debug locations of others miss it."""
    with _alone:
        before = jax.config.jax_traceback_in_locations_limit
        try:
            jax.config.update("jax_traceback_in_locations_limit", 0)
            yield
        finally:
            jax.config.update("jax_traceback_in_locations_limit", before)
