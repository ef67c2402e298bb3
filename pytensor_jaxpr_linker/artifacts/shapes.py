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

#: A shape as a user gives it: ``"n, 3"``, or ``("n", 3)``; for one axis also ``5``.
type Spec = str | int | Sequence[int | str | None]


class Input(NamedTuple):
    """An input of an exported function."""

    name: str
    aval: jax.ShapeDtypeStruct
    is_key: bool
    by_value: bool = False
    """Whether callers may give integers of other dtypes, if its dtype has their values."""


def unique_names(wanted: Iterable[str | None], default: str) -> list[str]:
    """Return distinct names that are identifiers of Python."""
    found: list[str] = []
    for i, name in enumerate(wanted):
        text = re.sub(r"\W", "_", name or f"{default}{i}", flags=re.ASCII)
        if keyword.iskeyword(text) or not text[:1].isidentifier():
            text = f"_{text}"
        while text in found:
            text += "_"
        found.append(text)
    return found


def as_texts(texts: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return texts. A user may give one by itself, or None."""
    return (texts,) if isinstance(texts, str) else tuple(texts or ())


def by_name(
    option: str, given: Mapping[Any, Any], names: Sequence[str], variables: Sequence[Variable]
) -> dict[str, Any]:
    """Return the values of an option by the names of arguments, or raise a TypeError.

    A user may give variables, or the names of variables, in place of the names of arguments.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"{option} is a dict from the names of inputs, not {given!r:.80}.")
    own = [v.name for v in variables]
    known: dict[Any, str] = {v.name: name for v, name in zip(variables, names, strict=True) if own.count(v.name) == 1}
    known |= dict(zip(variables, names, strict=True)) | {name: name for name in names}
    for key in given:
        if key not in known:
            asked = getattr(key, "name", None) or key
            raise TypeError(f"{option} names {asked!r}, and the function takes {', '.join(names) or 'nothing'}.")
    return {known[key]: value for key, value in given.items()}


def inputs_of(
    variables: Sequence[Variable],
    names: Sequence[str],
    dims: Mapping[str, Spec],
    examples: Mapping[str, Any],
    constraints: Sequence[str],
) -> list[Input]:
    """Return the inputs with their shapes.

    `dims` comes first, then the shape that the type declares, then the shape of the example. If none of them gives a
    length, it is a symbol of its own: the name of the dimension, if the type has names, or ``x_0`` for axis 0 of ``x``.
    Raise a TypeError or ValueError if `dims` or `examples` do not fit the inputs.
    """
    if unknown := [name for name in dims if name not in names]:
        raise TypeError(f"dims names {unknown[0]!r}, and the function takes {', '.join(names) or 'nothing'}.")
    try:
        scope = export.SymbolicScope(list(constraints))
    except Exception as error:  # JAX's parser raises several types
        raise ValueError(f"constraints={list(constraints)} are none: {error}") from None
    pairs = zip(variables, names, strict=True)
    return [input_of(v, name, dims.get(name), examples.get(name), scope) for v, name in pairs]


def input_of(variable: Variable, name: str, spec: Spec | None, example: Any, scope: export.SymbolicScope) -> Input:
    """Return one input with its shape."""
    if isinstance(variable.type, RandomType):
        return Input(name, jax.ShapeDtypeStruct(KEY_SHAPE, KEY_DTYPE), True)
    dtype = getattr(variable.type, "dtype", None)
    if dtype is None:
        what = f"The input {name} is no array, but {variable.type}"
        raise TypeError(f"{what}, so it can't be an argument of an artifact.")
    declared = getattr(variable.type, "shape", ())
    parts = spec_parts(name, spec, len(declared)) if spec is not None else [None] * len(declared)
    given = np.shape(example) if example is not None else [None] * len(declared)
    if len(given) != len(declared):
        raise TypeError(f"The input {name} has {counted(len(declared), 'axis')}, and its example has shape {given}.")
    own = getattr(variable.type, "dims", None) or [f"{name}_{axis}" for axis in range(len(declared))]
    shape = [
        str(next(n for n in (part, static, length, symbol) if n is not None)).replace("**", "^")
        for part, static, length, symbol in zip(parts, declared, given, own, strict=True)
    ]
    if odd := next((n for n in shape if not n.isascii()), None):
        remedy = "symbols consist of ASCII letters, digits and underscores"
        raise ValueError(f"dims gives {name} the length {odd!r}: {remedy}.")
    text = f"({', '.join(shape)})"
    try:
        found = export.symbolic_shape(text[1:-1], scope=scope) if shape else ()
    except Exception as error:  # JAX's parser raises several types
        raise ValueError(f"The shape {text} of {name} is none: {error}") from None
    if any(not export.is_symbolic_dim(n) and n < 0 for n in found):
        raise ValueError(f"The shape {text} of {name} is none: a length is 0 or more.")
    if any(static is not None and n != static for n, static in zip(found, declared, strict=True)):
        raise ValueError(f"The input {name} has the static shape {declared}, which {text} is not.")
    return Input(name, jax.ShapeDtypeStruct(found, np.dtype(dtype)), False)


def spec_parts(name: str, spec: Spec, rank: int) -> Sequence[Any]:
    """Return the dimensions that a user gives."""
    parts: list[Any] = [spec]  # one length stands for the shape of a vector
    if isinstance(spec, str | list | tuple):
        parts = split_spec(spec) if isinstance(spec, str) else list(spec)
    for part in parts:
        if isinstance(part, bool) or not (
            isinstance(part, str | int | np.integer) or part is None or export.is_symbolic_dim(part)
        ):
            lengths = "a length is a number, a text such as 'n' or '2*n', or None"
            raise TypeError(f"dims gives {name} the shape {spec!r}: {lengths}.")
    if len(parts) != rank:
        found = f"dims gives it {counted(len(parts), 'axis')}: {spec!r}"
        raise ValueError(f"The input {name} has {counted(rank, 'axis')}, and {found}.")
    return [None if part is None or part == "_" else part for part in parts]


def split_spec(text: str) -> list[str]:
    """Return the dimensions in a text. A comma inside parentheses, as in ``max(n, 2)``, is part of a dimension."""
    parts, depth = [""], 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def has_symbols(inputs: Iterable[Input]) -> bool:
    """Return whether a length is a symbol."""
    return any(export.is_symbolic_dim(n) for x in inputs for n in x.aval.shape)


@contextmanager
def advising(inputs: Sequence[Input]) -> Iterator[None]:
    """Add advice to an error: the user can say more about the lengths."""
    try:
        yield
    except Exception as error:
        if has_symbols(inputs):
            shapes = "; ".join(f"{x.name}: ({', '.join(map(str, x.aval.shape))})" for x in inputs)
            error.add_note(
                f"It was exported for the shapes {shapes}. Symbols are different lengths unless they have one name: say"
                " which are equal by dims={'x': 'n', 'y': 'n'}, give facts about them by constraints=['n >= 2'], and"
                " fix the others by numbers in dims or by examples."
            )
        raise
