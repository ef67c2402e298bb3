"""The scalars that leave a sum: factors and terms of what is added."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, is_variable
from pytensor_jaxpr_linker.jaxpr.optimize.barriers import count_readers
from pytensor_jaxpr_linker.jaxpr.traits import Trait, having

#: The deepest product in which factors are sought.
DEEPEST_PRODUCT = 8

#: What XLA fuses with its reader, what of this may be part of the sums of blocks, and how many such equations.
MOVING = having(Trait.LAYOUT)
FUSED = having(Trait.ELEMENTWISE) | MOVING | {p.custom_jvp_call_p, p.closed_call_p}
CHEAP_ROWS, MOST_IN_ROWS = having(Trait.CHEAP) | {p.div_p}, 8

#: The assembler functions of the primitives that multiply or divide, and of those that add or subtract.
PRODUCTS = {p.mul_p: prims.mul, p.square_p: prims.mul, p.div_p: prims.div}
TERMS = {p.add_p: prims.add, p.sub_p: prims.sub}

#: Primitives of whose results no element is negative.
NOT_NEGATIVE = {p.square_p, p.abs_p, p.exp_p}


class Scaled(NamedTuple):
    """An array without the scalars that multiply or divide it, and the functions that multiply or divide by them, in order."""

    array: Atom
    factors: tuple[tuple[Callable[..., Atom], Atom], ...] = ()

    def scale(self, b: JaxprBuilder, x: Atom) -> Atom:
        """Multiply or divide `x` by the scalars."""
        for operation, factor in self.factors:
            x = operation(b, x, factor)
        return x


class Factors:
    """Finds scalars in what is summed.

    ``sum(x / s)`` becomes ``sum(x) / s``, as PyTensor writes it. Here the quotient may have other readers. Then `x` must have several,
    too, or be an input: else the sum would compute `x` a second time. In float64, ``sum(x / s * y)`` becomes ``sum(x * y) / s``: PyTensor's
    default mode lets LLVM reorder products in the same way. In float32 a product of two arrays leaves the range of the dtype too easily.
    """

    def __init__(self, eqns: Sequence[Any], b: JaxprBuilder):
        self.b, self._readers = b, count_readers(eqns)
        self._readers.update(filter(is_variable, b.outputs))
        self._definitions = {var: eqn for eqn in eqns for var in eqn.outvars}

    def split(self, x: Atom, depth: int = DEEPEST_PRODUCT) -> Scaled:
        """Return a real or complex array and its scalars; emit products of arrays again, without theirs."""
        eqn = self._definitions.get(x) if depth else None
        if eqn is None or eqn.primitive not in PRODUCTS or x.aval.dtype.kind not in "fc":
            return Scaled(x)
        left, right = eqn.invars * 2 if eqn.primitive is p.square_p else eqn.invars
        if eqn.primitive is p.mul_p and not left.aval.shape:
            left, right = right, left
        if not left.aval.shape:
            return Scaled(x)
        is_single = self._readers[x] == 1
        if not right.aval.shape:
            if not (is_single or self._is_there(left)):
                return Scaled(x)
            array, factors = self.split(left, depth - 1)
            return Scaled(array, (*factors, (PRODUCTS[eqn.primitive], right)))
        if eqn.primitive is p.div_p or not is_single or x.aval.dtype != np.float64:
            return Scaled(x)
        one, other = self.split(left, depth - 1), self.split(right, depth - 1)
        factors = one.factors + other.factors
        return Scaled(prims.mul(self.b, one.array, other.array), factors) if factors else Scaled(x)

    def _is_there(self, x: Atom) -> bool:
        """Return whether an array is an input or a constant, or is cheap and has several readers."""
        return x not in self._definitions or (self._readers[x] > 1 and are_cheap_rows(self.b, x))

    def split_terms(self, x: Atom) -> tuple[Atom, list[Any]]:
        """Return a real array and the equations that add scalars to it or subtract them, the last first."""
        terms: list[Any] = []
        while True:
            eqn = self._definitions.get(x)
            if eqn is None or eqn.primitive not in TERMS or self._readers[x] != 1 or x.aval.dtype.kind != "f":
                return x, terms
            arrays = [y for y in eqn.invars if y.aval.shape]
            if len(arrays) != 1:
                return x, terms
            terms.append(eqn)
            (x,) = arrays

    def is_not_negative(self, x: Atom) -> bool:
        """Return whether no element of an array is negative, whatever it is computed from."""
        eqn = self._definitions.get(x) or self.b.definition(x)
        if eqn is None:
            return False
        return eqn.primitive in NOT_NEGATIVE or (eqn.primitive is p.mul_p and eqn.invars[0] is eqn.invars[1])


def are_cheap_rows(b: JaxprBuilder, x: Atom) -> bool:
    """Return whether few cheap equations compute an array.

    XLA fuses what is added with the sums of blocks, where it does not vectorize: `digamma` of each row took twice as long.
    """
    stack, left = [x], MOST_IN_ROWS
    while stack:
        eqn = b.definition(stack.pop())
        if eqn is not None and eqn.primitive in FUSED:
            left -= eqn.primitive not in MOVING
            if left < 0 or eqn.primitive not in CHEAP_ROWS:
                return False
            stack += [y for y in eqn.invars if y.aval.shape]
    return True
