"""Formulas over atoms, for the rules whose algorithm is a page of mathematics rather than a few primitives.

A `Value` is an atom with its builder: ``1 / (1 + x * x)`` emits three equations. `where`, `exp` and the other functions
of this module are the primitives of `prims`; `iterate` is the loop that series and continued fractions share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce
from operator import le, lt
from typing import Any, Self

import numpy as np
from numpy.polynomial import chebyshev

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.jaxpr.nested import any_of, nested
from pytensor_jaxpr_linker.jaxpr.signs import is_never_negative

#: An operand of a formula: a value, or a number, which gets the dtype of a value.
type Term = Value | float | bool


def apply(primitive: Callable[..., Atom], *xs: Any) -> Any:
    """Emit a primitive on values and numbers. The result has the class of the first value."""
    first = xs[0] if isinstance(xs[0], Value) else next(x for x in xs if isinstance(x, Value))
    return first.made(primitive(first.b, *first.operands(xs)))


def function(primitive: Callable[..., Atom]) -> Callable[..., Any]:
    """Return a primitive as a function of values."""
    return lambda *xs: apply(primitive, *xs)


def reflected(primitive: Callable[..., Atom]) -> Callable[..., Any]:
    """Return a primitive of two operands as a function of the second and the first."""
    return lambda x, y: apply(primitive, y, x)


class Value:
    """An atom with arithmetic. Comparisons give boolean values, which have ``&``, ``|`` and ``~``."""

    __slots__ = ("atom", "b")

    def __init__(self, b: JaxprBuilder, atom: Atom):
        self.b, self.atom = b, atom

    @property
    def shape(self) -> Shape:
        """The atom's shape."""
        return self.atom.aval.shape

    @property
    def dtype(self) -> np.dtype:
        """The atom's dtype."""
        return self.atom.aval.dtype

    @property
    def truth(self) -> bool | None:
        """The known value of a condition, or None."""
        value = self.b.known(self.atom)
        return bool(value) if value is not None and value.ndim == 0 and value.dtype == bool else None

    def like(self, number: Any) -> Self:
        """Return a number, or a NumPy array, as a value of this one's dtype."""
        is_value = isinstance(number, type(self))
        return number if is_value else self.made(self.b.constant(np.asarray(number, self.dtype)))

    def made(self, atom: Atom) -> Self:
        """Return another atom of the same builder as a value of the same kind."""
        return type(self)(self.b, atom)

    def operands(self, xs: Sequence[Any]) -> list[Atom]:
        """Return the atoms of the values and numbers that one elementwise equation takes."""
        return [x.atom if isinstance(x, Value) else self.like(x).atom for x in xs]

    def never_reaches(self, number: Term, is_low: Callable[[Any, int], bool]) -> bool:
        """Return whether ``is_low(number, 0)`` holds, and no element is negative."""
        return not isinstance(number, Value) and is_low(number, 0) and is_never_negative(self.b, self.atom)

    __add__ = __radd__ = function(prims.add)
    __sub__, __rsub__ = function(prims.sub), reflected(prims.sub)
    __mul__ = __rmul__ = function(prims.mul)
    __truediv__, __rtruediv__ = function(prims.div), reflected(prims.div)
    __mod__, __pow__ = function(prims.rem), function(prims.pow_)
    __neg__, __abs__, __invert__ = function(prims.neg), function(prims.abs_), function(prims.not_)
    __le__, __gt__, __ge__ = function(prims.le), function(prims.gt), function(prims.ge)
    __ne__ = function(prims.ne)
    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, other: Term) -> Self:
        is_false = self.never_reaches(other, le)
        return self.made(self.b.constant(False)) if is_false else apply(prims.lt, self, other)

    def __eq__(self, other: Term) -> Self:  # type: ignore[override]
        is_false = self.never_reaches(other, lt)
        return self.made(self.b.constant(False)) if is_false else apply(prims.eq, self, other)

    def __and__(self, other: Self) -> Self:
        for known, rest in ((self, other), (other, self)):
            if (truth := known.truth) is not None:
                return rest if truth else known
        return apply(prims.and_, self, other)

    def __or__(self, other: Self) -> Self:
        for known, rest in ((self, other), (other, self)):
            if (truth := known.truth) is not None:
                return known if truth else rest
        return apply(prims.or_, self, other)


ceil = function(prims.ceil)
cos = function(prims.cos)
erf = function(prims.erf)
erfc = function(prims.erfc)
exp = function(prims.exp)
expm1 = function(prims.expm1)
floor = function(prims.floor)
log = function(prims.log)
log1p = function(prims.log1p)
maximum = function(prims.max_)
minimum = function(prims.min_)
round_even = function(prims.round_even)
sin = function(prims.sin)
sqrt = function(prims.sqrt)
is_finite = function(prims.is_finite)


def where[V: Value](condition: V, on_true: Any, on_false: Any) -> V:
    """Return a choice, of two numbers in float64."""
    double = condition.made(condition.b.constant(np.float64(0)))
    x: Any = next((x for x in (on_true, on_false) if isinstance(x, Value)), double)
    if (truth := condition.truth) is not None:
        return x.like(on_true if truth else on_false)
    return apply(prims.select, condition, x.like(on_true), x.like(on_false))


def broadcast(*xs: Value) -> list[Value]:
    """Return values in their common shape, for primitives whose operands all have one shape."""
    shape = prims.elementwise_shape([x.atom for x in xs])
    return [Value(x.b, prims.broadcast_to(x.b, x.atom, shape)) for x in xs]


def together(function: Callable[[Value], Value], *xs: Value) -> list[Value]:
    """Return a function of each value. It is emitted once, for all values along a new axis: programs get shorter."""
    values = broadcast(*xs)
    b, shape = values[0].b, values[0].atom.aval.shape
    result = function(Value(b, prims.concatenate(b, [prims.reshape(b, x.atom, (1, *shape)) for x in values], 0))).atom
    zeros, strides = [0] * len(shape), [1] * (len(shape) + 1)
    rows = (prims.slice_(b, result, [i, *zeros], (i + 1, *shape), strides) for i in range(len(values)))
    return [Value(b, prims.reshape(b, row, shape)) for row in rows]


def zeta(s: Value, q: Value) -> Value:
    """Return Hurwitz' zeta function."""
    return apply(prims.zeta, *broadcast(s, q))


def first_of(*cases: tuple[Value, Term], otherwise: Term) -> Value:
    """Return the value of the first case whose condition holds."""
    result: Any = otherwise
    for condition, value in reversed(cases):
        result = where(condition, value, result)
    return result


def split(number: Fraction, dtype: np.dtype) -> tuple[float, float]:
    """Return a number rounded to a dtype, and the rest: subtracting both in turn keeps the digits of a difference."""
    rounded = float(dtype.type(float(number)))
    return rounded, float(number - Fraction(rounded))


def economized(coefficients: Sequence[float], radius: float) -> list[float]:
    """Return a shorter polynomial that is equal for |x| <= radius.

    It is Chebyshev's series without its tail (Lanczos 1956, ch. 7).
    """
    powers = radius ** np.arange(len(coefficients))
    series = chebyshev.poly2cheb(coefficients * powers)
    tails = np.cumsum(np.abs(series[::-1]))[::-1]
    shortened = chebyshev.cheb2poly(series[tails > 2.0**-56 * abs(series[0])])
    return list(map(float, shortened / powers[: len(shortened)]))


def horner(x: Value, coefficients: Sequence[Term]) -> Value:
    """Return the polynomial with these coefficients, the constant term first."""
    *rest, last = coefficients
    return reduce(lambda total, c: total * x + c, reversed(rest), x.like(last))


def iterate(
    step: Callable[[Value, Sequence[Value], Sequence[Value]], tuple[Sequence[Value], Value]],
    states: Sequence[Value],
    fixed: Sequence[Value] = (),
    *,
    active: Value,
    limit: int,
) -> list[Value]:
    """Return the states after each element took steps while it was active, at most `limit` of them.

    Parameters
    ----------
    step
        Called as ``step(n, states, fixed)`` with n = 1, 2, ... (0-d); returns the next states, and which elements go
        on.
    states, fixed
        Values that change from step to step, and values that do not.
    active
        Which elements take the first step.
    limit
        The largest number of steps. It bounds the time for arguments where the algorithm does not converge.
    """
    b = active.b
    shape = prims.elementwise_shape([x.atom for x in (*states, *fixed, active)])
    zero = b.constant(np.float64(0))
    carry = [zero, *(prims.broadcast_to(b, x.atom, shape) for x in (active, *states))]
    body, read, loop, passed = nested(b, [x.atom for x in fixed], carry)
    constants, (n, going, *old) = ([Value(body, atom) for atom in atoms] for atoms in (read, loop))
    n = n + 1
    new, more = step(n, old, constants)
    new = [where(going, x, y) for x, y in zip(new, old, strict=True)]
    going = going & more
    done = body.build([n.atom, going.atom, *(x.atom for x in new)])

    condition, atoms = b.sub_jaxpr([x.aval for x in carry])
    below = prims.lt(condition, atoms[0], condition.constant(np.float64(limit)))
    goes_on = condition.build([prims.and_(condition, any_of(condition, atoms[1]), below)])
    return [Value(b, atom) for atom in prims.while_loop(b, goes_on, [], done, passed, carry)[2:]]
