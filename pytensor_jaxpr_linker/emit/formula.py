"""Formulas over atoms in Python's operators, for algorithms that are many lines of arithmetic.

An operand may be a number, which takes the dtype of the other one. Nothing is traced: each operator assembles its primitive
at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytensor_jaxpr_linker import prims
from pytensor_jaxpr_linker.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.emit.scalar import number


def operator(assemble: Callable[..., Atom]) -> Callable[[Expr, Any], Expr]:
    """Return the method of a binary operator."""
    return lambda self, other: Expr(self.b, assemble(self.b, self.atom, self.operand(other)))


def reflected(assemble: Callable[..., Atom]) -> Callable[[Expr, Any], Expr]:
    """Return the method of a binary operator whose first operand is a number."""
    return lambda self, other: Expr(self.b, assemble(self.b, self.operand(other), self.atom))


class Expr:
    """An atom and the builder at whose insertion point formulas of it are emitted."""

    __slots__ = ("atom", "b")

    def __init__(self, b: JaxprBuilder, atom: Atom):
        self.b = b
        self.atom = atom

    def operand(self, other: Any) -> Atom:
        """Return the atom of the other operand."""
        return other.atom if isinstance(other, Expr) else number(self.b, self.atom, other)

    def __neg__(self) -> Expr:
        """Emit the negation."""
        return Expr(self.b, prims.neg(self.b, self.atom))

    def __invert__(self) -> Expr:
        """Emit the logical negation."""
        return Expr(self.b, prims.not_(self.b, self.atom))

    __add__ = operator(prims.add)
    __radd__ = reflected(prims.add)
    __sub__ = operator(prims.sub)
    __rsub__ = reflected(prims.sub)
    __mul__ = operator(prims.mul)
    __rmul__ = reflected(prims.mul)
    __truediv__ = operator(prims.div)
    __rtruediv__ = reflected(prims.div)
    __mod__ = operator(prims.rem)
    __pow__ = operator(prims.pow_)
    __lt__ = operator(prims.lt)
    __le__ = operator(prims.le)
    __gt__ = operator(prims.gt)
    __ge__ = operator(prims.ge)
    __and__ = operator(prims.and_)
    __or__ = operator(prims.or_)
    equals = operator(prims.eq)


def function(assemble: Callable[..., Atom]) -> Callable[..., Expr]:
    """Return the function of expressions that a function of atoms is."""
    return lambda x, *others: Expr(x.b, assemble(x.b, x.atom, *(x.operand(y) for y in others)))


absolute = function(prims.abs_)
ceil = function(prims.ceil)
exp = function(prims.exp)
floor = function(prims.floor)
is_finite = function(prims.is_finite)
log = function(prims.log)
log1p = function(prims.log1p)
maximum = function(prims.max_)
minimum = function(prims.min_)
sqrt = function(prims.sqrt)


def where(condition: Expr, on_true: Any, on_false: Any) -> Expr:
    """Emit a choice between two operands, one of which is an expression."""
    like = on_true if isinstance(on_true, Expr) else on_false
    return Expr(like.b, prims.select(like.b, condition.atom, like.operand(on_true), like.operand(on_false)))
