"""Python functions without loops, made from their text.

Beside a program that takes a few µs, a loop over one or two values takes as long as what is done with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any


def make_function(text: str, what: str, names: Mapping[str, Any] = MappingProxyType({})) -> Callable[..., Any]:
    """Return the function ``call`` that `text` defines.

    Parameters
    ----------
    text
        Python code.
    what
        What stands for the name of its file in tracebacks.
    names
        The global variables that it reads.
    """
    found = dict(names)
    exec(compile(text, f"<{what}>", "exec"), found)
    return found["call"]


def each(
    expression: str, constants: Sequence[Sequence[Any]], what: str, names: Mapping[str, Any] = MappingProxyType({})
) -> Callable[[Sequence[Any]], list]:
    """Return the function from a sequence to the list of what an expression is for each element.

    Parameters
    ----------
    expression
        Python code, with the fields ``{x}`` for the element and ``{0}``, ``{1}`` and so on for the constants that belong to its place.
    constants
        Those of each place.
    what, names
        See `make_function`.

    Raises
    ------
    ValueError
        By that function, if the sequence has another length.

    Examples
    --------
    >>> from pytensor_jaxpr_linker.run.codegen import each
    >>> each("{0}({x})", [(float,), (str,)], "numbers and texts")([1, 2])
    [1.0, '2']
    """
    found, results = dict(names), []
    for i, row in enumerate(constants):
        fields = [f"c{i}_{k}" for k in range(len(row))]
        found |= dict(zip(fields, row, strict=True))
        results.append(expression.format(*fields, x=f"x{i}"))
    elements = ", ".join(f"x{i}" for i in range(len(constants)))
    return make_function(f"def call(xs):\n [{elements}] = xs\n return [{', '.join(results)}]", what, found)
