"""The values of symbolic lengths such as ``2*n + 1``, as `jax.export` spells them."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

#: The number of each symbol, and the name of an array that has an axis of this length.
type Numbers = dict[str, tuple[int, str]]

_FUNCTIONS: dict[str, Callable] = {"floordiv": operator.floordiv, "mod": operator.mod, "max": max, "min": min}
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow}
_COMPARISONS = {"==": operator.eq, ">=": operator.ge, "<=": operator.le}


@cache
def parsed(text: str) -> ast.expr:
    """Return the syntax tree of an expression, with an underscore before each name: it may be a keyword of Python."""
    return ast.parse(re.sub(r"\b(?=[A-Za-z_])", "_", text.strip()).replace("^", "**"), mode="eval").body


def is_expression(text: str) -> bool:
    """Return whether a text can be parsed. JAX reads more, such as ``02 * n``."""
    try:
        parsed(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


@cache
def symbols_in(text: str) -> frozenset[str]:
    """Return the symbols of an expression."""
    names = {node.id[1:] for node in ast.walk(parsed(text)) if isinstance(node, ast.Name)}
    return frozenset(names - _FUNCTIONS.keys())


def number_of(text: str, numbers: Mapping[str, int]) -> int:
    """Return an expression's value for numbers of its symbols, or raise a TypeError if no length has this value."""
    try:
        return value_of(parsed(text), numbers)
    except (OverflowError, ZeroDivisionError) as error:
        given = ", ".join(f"{name} = {numbers[name]}" for name in sorted(symbols_in(text)))
        raise TypeError(f"{text} is no length for {given}: {error}.") from None


def value_of(node: Any, numbers: Mapping[str, int]) -> int:
    """Return the value of a node of a syntax tree."""
    match node:
        case ast.Constant(value=int(found)):
            pass
        case ast.Name(id=name):
            found = numbers[name[1:]]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            found = -value_of(operand, numbers)
        case ast.BinOp(left=left, op=op, right=right):
            found = _OPERATORS[type(op)](value_of(left, numbers), value_of(right, numbers))
        case ast.Call(func=ast.Name(id=name), args=args):
            found = _FUNCTIONS[name[1:]](*(value_of(x, numbers) for x in args))
        case _:
            raise ValueError(f"{ast.dump(node)} is no part of a length.")
    if abs(found) >= 2**63:
        raise OverflowError("it has more than 63 bits")
    return found


def solution(text: str, symbol: str, numbers: Mapping[str, int], value: int) -> int | None:
    """Return the number of 1 or more for which a linear expression has a value, or None."""
    first, second = (number_of(text, {**numbers, symbol: n}) for n in (0, 1))
    found, rest = divmod(value - first, second - first) if first != second else (0, 0)
    return found if rest == 0 and found >= 1 else None


class Length(NamedTuple):
    """The length of one axis of an array, and the expression that the file has for it."""

    argument: str
    axis: int
    text: str
    number: int


def check_expressions(lengths: Sequence[Length], found: Numbers) -> None:
    """Check lengths that are expressions, and add the symbols that follow from them to `found`.

    JAX checks expressions in which several symbols are unknown.
    """
    while ready := [x for x in lengths if can_be_checked(x.text, found)]:
        for length in ready:
            check_expression(length, found)
        lengths = [x for x in lengths if x not in ready]


def can_be_checked(text: str, known: Container[str]) -> bool:
    """Return whether all symbols of an expression are known, or the last one follows from its value.

    It does if the expression is linear in it. (JAX exports no function whose symbols follow from others only.)
    """
    unknown = sum(symbol not in known for symbol in symbols_in(text))
    return unknown == 0 or (unknown == 1 and not {"(", "^"} & set(text))


def check_expression(length: Length, found: Numbers) -> None:
    """Check a length whose expression has at most one unknown symbol, and add that to `found`."""
    name, axis, text, n = length
    numbers = {symbol: number for symbol, (number, _) in found.items()}
    unknown = next((symbol for symbol in symbols_in(text) if symbol not in found), None)
    if unknown is None:
        if (wanted := number_of(text, numbers)) != n:
            why = symbol_values(symbols_in(text), found)
            raise TypeError(f"{text} is {wanted}, because {why}, and axis {axis} of {name} has length {n}.")
    elif (number := solution(text, unknown, numbers, n)) is None:
        raise TypeError(f"Axis {axis} of {name} has length {n}, which is {text} for no {unknown} of 1 or more.")
    else:
        found[unknown] = number, name


def symbol_values(symbols: Iterable[str], found: Numbers) -> str:
    """Return the numbers of symbols in words, with the arguments that have them."""
    return " and ".join(f"{symbol} is {found[symbol][0]} for {found[symbol][1]}" for symbol in sorted(symbols))


def check_constraints(constraints: Iterable[str], found: Numbers) -> None:
    """Raise a TypeError if a constraint on known symbols does not hold."""
    numbers = {symbol: number for symbol, (number, _) in found.items()}
    for constraint in constraints:
        left, comparison, right = re.split(r"\s*(==|>=|<=)\s*", constraint.strip(), maxsplit=1)
        symbols = symbols_in(left) | symbols_in(right)
        if not symbols <= numbers.keys():
            continue
        if not _COMPARISONS[comparison](number_of(left, numbers), number_of(right, numbers)):
            raise TypeError(f"{symbol_values(symbols, found)}, and the function is for {constraint}.")
