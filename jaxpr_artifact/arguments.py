"""Checks and converts what a caller gives, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import export

from jaxpr_artifact.dimensions import Length, Numbers, check_constraints, check_expressions
from jaxpr_artifact.header import Argument, Dimension, Stored


def argument_of(stored: Stored) -> Argument:
    """Return the state as an argument: what a new value of it must be."""
    shape = stored.shape if stored.symbolic is None else stored.symbolic
    return Argument(stored.name, stored.dtype, shape, stored.is_key)


def is_typed_key(value: Any) -> bool:
    """Return whether a value is a key of `jax.random.key`."""
    return isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def like_key(given: Any, data: Any) -> Any:
    """Return the data of a key as a key of the kind that was given."""
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(given)) if is_typed_key(given) else data


def taken(argument: Argument, value: Any) -> Any:
    """Return a value as an array of the argument's dtype, by PyTensor's rule: no dtype is narrowed, no number changed.

    Raises
    ------
    TypeError
        If it can't be one.
    """
    if is_typed_key(value):
        if not argument.is_key:
            raise TypeError(f"{argument.name} takes numbers of dtype {argument.dtype}, not a random key.")
        return jax.random.key_data(value)
    if isinstance(value, np.ma.MaskedArray):
        value = np.asarray(value)  # what is under the mask, as PyTensor takes it
    dtype = np.dtype(argument.dtype)
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        if value.dtype == dtype:
            return value
        if np.can_cast(value.dtype, dtype, "safe"):
            return value.astype(dtype)
        if argument.by_value and (array := fitting(value, dtype)) is not None:
            return array
        raise TypeError(
            f"{argument.name} has dtype {dtype}, and its value has {value.dtype}, which can't be cast to it without a loss:"
            f" give {argument.name}.astype({dtype.name!r}) if that is what you mean."
        )
    array = rounded(value, dtype)
    if array is None:
        raise TypeError(f"{argument.name} takes an array of dtype {dtype}, which can't hold {value!r:.80}.")
    return array


def fitting(value: Any, dtype: np.dtype) -> np.ndarray | None:
    """Return integers as an array of a dtype that has all of them; None if it has not, or they are not known, or no integers."""
    if value.dtype.kind not in "iu" or dtype.kind not in "iu" or isinstance(value, jax.core.Tracer):
        return None
    array = np.asarray(value).astype(dtype)
    return array if np.array_equal(array, value) else None


def rounded(value: Any, dtype: np.dtype) -> np.ndarray | None:
    """Return Python numbers as an array; None if they are none, or the dtype has not those numbers, up to the rounding of its floats."""
    try:
        given = np.asarray(value)
        with np.errstate(over="ignore", invalid="ignore"):
            array = given.astype(dtype) if given.dtype.kind in "biuf" or given.dtype.kind == dtype.kind == "c" else None
    except (TypeError, ValueError, OverflowError):
        return None
    if array is None or np.array_equal(given, array):
        return array
    rounds = given.dtype.kind in "fc" and dtype.kind in "fc"
    return array if rounds and np.array_equal(np.isfinite(given), np.isfinite(array)) else None


def check_sizes(arguments: Sequence[Argument], values: Sequence[Any], constraints: Sequence[str] = ()) -> None:
    """Check the rank and the lengths of arrays. Where `jax.export` traces with symbols for lengths, JAX checks the expressions.

    Raises
    ------
    TypeError
        If an array has another rank or length, or the lengths do not fit each other or the constraints.
    """
    found: Numbers = {}
    expressions = []
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
            else:
                expressions.append(Length(argument.name, axis, wanted, n))
    if not (expressions or constraints) or any(export.is_symbolic_dim(n) for value in values for n in np.shape(value)):
        return
    check_expressions(expressions, found)
    check_constraints(constraints, found)


def axes(rank: int) -> str:
    """Return a rank in words."""
    return f"{rank} ax{'i' if rank == 1 else 'e'}s"


def spelled(shape: Sequence[Dimension]) -> str:
    """Return a shape as a reader writes it: ``(n, 3)``."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
