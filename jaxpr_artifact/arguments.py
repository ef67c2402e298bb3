"""Checks and converts what a caller gives, before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxpr_artifact.header import Argument, Dimension


def signature_of(arguments: Sequence[Argument]) -> inspect.Signature:
    """Return the signature of a function with these arguments."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(a.name, kind) for a in arguments])


def taken(argument: Argument, value: Any) -> Any:
    """Return a value as an array of the argument's dtype, by PyTensor's rule: no dtype is narrowed, no number changed.

    Raises
    ------
    TypeError
        If it can't be one.
    """
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        if not argument.is_key:
            raise TypeError(f"{argument.name} takes numbers of dtype {argument.dtype}, not a random key.")
        return jax.random.key_data(value)
    dtype = np.dtype(argument.dtype)
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        if value.dtype == dtype:
            return value
        if np.can_cast(value.dtype, dtype, "safe"):
            return value.astype(dtype)
        raise TypeError(
            f"{argument.name} has dtype {dtype}, and its value has {value.dtype}, which can't be cast to it without a loss:"
            f" give {argument.name}.astype({dtype.name!r}) if that is what you mean."
        )
    try:
        given = np.asarray(value)
        array = given.astype(dtype)
        same = given.dtype.kind in "biufc" and (np.array_equal(given, array) or given.dtype.kind == dtype.kind == "f")
    except (TypeError, ValueError, OverflowError):
        same = False
    if not same:
        raise TypeError(f"{argument.name} takes an array of dtype {dtype}, which can't hold {value!r:.80}.")
    return array


def check_sizes(
    arguments: Sequence[Argument], values: Sequence[Any], known: Mapping[str, tuple[int, str]] | None = None
) -> dict[str, tuple[int, str]]:
    """Check rank and lengths, and return the length of each symbol with the argument that it was first seen in.

    Symbolic expressions are left to JAX, which compares them before anything runs, too.

    Raises
    ------
    TypeError
        If an argument has another rank or length.
    """
    found = dict(known or {})
    for argument, value in zip(arguments, values, strict=True):
        shape = np.shape(value)
        if len(shape) != len(argument.shape):
            raise TypeError(
                f"{argument.name} has {axes(len(argument.shape))}, {spelled(argument.shape)}, and its value has shape {shape}."
            )
        for axis, (wanted, n) in enumerate(zip(argument.shape, shape, strict=True)):
            if isinstance(wanted, int):
                if wanted != n:
                    raise TypeError(f"{argument.name} has shape {spelled(argument.shape)}, and its value has {shape}.")
            elif wanted.isidentifier():
                other, where = found.setdefault(wanted, (n, argument.name))
                if other != n:
                    raise TypeError(f"{wanted} is {other} for {where} and {n} for axis {axis} of {argument.name}.")
                if n < 1:
                    raise TypeError(f"{wanted} is 0 for {argument.name}: a symbolic length is 1 or more.")
    return found


def axes(rank: int) -> str:
    """Return a rank in words."""
    return f"{rank} ax{'i' if rank == 1 else 'e'}s"


def spelled(shape: Sequence[Dimension]) -> str:
    """Return a shape as a reader writes it: ``(n, 3)``."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
