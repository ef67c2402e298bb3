"""The shapes that an exported function takes: numbers, and symbols that the user names."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import export
from pytensor.graph.basic import Variable
from pytensor.tensor.random.type import RandomType

from pytensor_jaxpr_linker.base.words import counted
from pytensor_jaxpr_linker.emit.random.sampler import KEY_DTYPE, KEY_SHAPE

#: A shape as a user gives it: ``"n, 3"``, or ``("n", 3)``.
type Spec = str | Sequence[int | str | None]


class Input(NamedTuple):
    """An input of an exported function."""

    name: str
    aval: jax.ShapeDtypeStruct
    is_key: bool


def unique_names(wanted: Iterable[str | None], default: str) -> list[str]:
    """Return names that are identifiers of Python, each once."""
    found: list[str] = []
    for i, name in enumerate(wanted):
        text = re.sub(r"\W", "_", name or f"{default}{i}", flags=re.ASCII)
        if keyword.iskeyword(text) or not text[:1].isidentifier():
            text = f"_{text}"
        while text in found:
            text += "_"
        found.append(text)
    return found


def inputs_of(
    variables: Sequence[Variable],
    names: Sequence[str],
    dims: Mapping[str, Spec],
    examples: Mapping[str, Any],
    constraints: Sequence[str],
) -> list[Input]:
    """Return the inputs with their shapes.

    What `dims` says of an input comes first, then the shape of its example, then what its type declares. A length that none of them
    says is a symbol of its own: the name of the dimension, if the type has names, or ``x_0`` for axis 0 of ``x``.

    Raises
    ------
    TypeError, ValueError
        If `dims` or `examples` do not fit the inputs.
    """
    if unknown := sorted(set(dims) - set(names)):
        raise TypeError(f"dims names {unknown[0]!r}, and the function takes {', '.join(names) or 'nothing'}.")
    scope = export.SymbolicScope(list(constraints))
    return [
        input_of(v, name, dims.get(name), examples.get(name), scope) for v, name in zip(variables, names, strict=True)
    ]


def input_of(variable: Variable, name: str, spec: Spec | None, example: Any, scope: export.SymbolicScope) -> Input:
    """Return one input with its shape."""
    if isinstance(variable.type, RandomType):
        return Input(name, jax.ShapeDtypeStruct(KEY_SHAPE, KEY_DTYPE), True)
    dtype = getattr(variable.type, "dtype", None)
    if dtype is None:
        raise TypeError(
            f"The input {name} is no array, but {variable.type}, so it can't be an argument of an artifact."
        )
    declared = getattr(variable.type, "shape", ())
    parts = spec_parts(name, spec, len(declared)) if spec is not None else [None] * len(declared)
    given = np.shape(example) if example is not None else [None] * len(declared)
    if len(given) != len(declared):
        raise TypeError(f"The input {name} has {counted(len(declared), 'axis')}, and its example has shape {given}.")
    own = getattr(variable.type, "dims", None) or [f"{name}_{axis}" for axis in range(len(declared))]
    shape = [
        str(next(n for n in (part, static, length, symbol) if n is not None))
        for part, static, length, symbol in zip(parts, declared, given, own, strict=True)
    ]
    try:
        found = export.symbolic_shape(", ".join(shape), scope=scope) if shape else ()
    except Exception as error:  # JAX's parser raises several types
        raise ValueError(f"The shape ({', '.join(shape)}) of {name} is none: {error}") from None
    if any(static is not None and n != static for n, static in zip(found, declared, strict=True)):
        raise ValueError(f"The input {name} has the static shape {declared}, which ({', '.join(shape)}) is not.")
    return Input(name, jax.ShapeDtypeStruct(found, np.dtype(dtype)), False)


def spec_parts(name: str, spec: Spec, rank: int) -> Sequence[Any]:
    """Return the dimensions that a user gives."""
    parts = [part.strip() for part in spec.split(",") if part.strip()] if isinstance(spec, str) else list(spec)
    if len(parts) != rank:
        raise ValueError(f"The input {name} has {counted(rank, 'axis')}, and dims gives it {len(parts)}: {spec!r}.")
    return [None if part in ("_", None) else part for part in parts]


def has_symbols(inputs: Iterable[Input]) -> bool:
    """Tell whether some length is a symbol."""
    return any(export.is_symbolic_dim(n) for x in inputs for n in x.aval.shape)


@contextmanager
def advising(inputs: Sequence[Input]) -> Iterator[None]:
    """Add to an error what a user can do about a program that needs to know more of its lengths."""
    try:
        yield
    except Exception as error:
        if has_symbols(inputs):
            shapes = "; ".join(f"{x.name}: ({', '.join(map(str, x.aval.shape))})" for x in inputs)
            error.add_note(
                f"It was exported for the shapes {shapes}. Symbols are different lengths unless they have one name: say which"
                " are equal by dims={'x': 'n', 'y': 'n'}, what is known of them by constraints=['n >= 2'], and fix the others by"
                " numbers in dims or by examples."
            )
        raise
