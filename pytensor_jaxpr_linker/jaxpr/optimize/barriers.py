"""Optimization barriers behind results that XLA should compute once, or outside of its library.

XLA's fusion computes a small result again in every kernel that reads it. In a model of many scalar variables all
gradients read the same sums: without barriers, compile time grows with the square of their number.

XLA's library of CPU kernels takes a reduction of 4,096 numbers or more, and the operations that compute its operand,
into one kernel. In jaxlib 0.12.0 such a kernel loses NaN from a maximum or minimum, leaves out a conversion to a
narrower dtype before another one, rounds to 8 bits where XLA cuts off, takes one term of a product with a broadcast
number for its sum, and has infinite exponentials from 1.27e308 (2.4e38 of float32) on. No option reaches a program that
a user's `jax.jit` compiles, so the Jaxpr avoids these forms. docs/notes/xla-library.md has a program of each, and
compares other forms with NumPy.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container
from typing import Any

import jax.extend.core as jex
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base.jax_compat import optimization_barrier_p
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape, is_variable
from pytensor_jaxpr_linker.jaxpr.optimize.xla_options import is_extremum, is_reduction
from pytensor_jaxpr_linker.jaxpr.passes import count_readers
from pytensor_jaxpr_linker.jaxpr.signs import is_never_positive
from pytensor_jaxpr_linker.jaxpr.traits import Trait, having

#: Results of at most this many elements that at least this many operands read get a barrier.
SMALL_RESULT, MANY_READERS = 16, 8

#: The library may compute a larger reduction: a quarter of the 4,096 elements from which XLA uses it.
MOST_REDUCED = 1023

MOVING = having(Trait.LAYOUT)


def add_barriers(eqns: list[Any], b: JaxprBuilder) -> list[Any]:
    """Put a barrier behind each small result with many readers."""
    crowded = {var for var, count in count_readers(eqns).items() if count >= MANY_READERS and is_small(var.aval.shape)}
    return with_barriers(eqns, b, crowded)


def with_barriers(eqns: list[Any], b: JaxprBuilder, results: Container[Atom]) -> list[Any]:
    """Put barriers behind some results, also where the Jaxpr returns them; the same list if none computes one."""
    if not any(var in results for eqn in eqns for var in eqn.outvars):
        return eqns
    found: list[Any] = []
    for eqn in eqns:
        shielded = {var: jex.Var(var.aval) for var in eqn.outvars if var in results}
        found.append(eqn.replace(outvars=[shielded.get(var, var) for var in eqn.outvars]) if shielded else eqn)
        if shielded:
            b.restart(eqn)
            prims.barrier(b, list(shielded.values()))
            found += b.ending_in(list(shielded))
    return found


def is_small(shape: Shape, most: int = SMALL_RESULT) -> bool:
    """Return whether a shape has at most `most` elements; one with a symbolic dimension may have any number."""
    return all(isinstance(n, int) for n in shape) and math.prod(shape) <= most


def may_use_library(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether the library may compute a reduction, whose operand may be larger after JAX's transformations."""
    return is_reduction(eqn) and (b.for_jax or not is_small(eqn.invars[0].aval.shape, MOST_REDUCED))


def loses_nan(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether an equation is a maximum or minimum of floats that the library may compute."""
    return is_extremum(eqn) and eqn.outvars[0].aval.dtype.kind == "f" and may_use_library(eqn, b)


def nan_or_extremum(b: JaxprBuilder, eqn: Any) -> Atom:
    """Emit an extremum that is NaN if an element is, which a second reduction finds out."""
    (x,), axes = eqn.invars, eqn.params["axes"]
    (extremum,) = b.bind_many(eqn.primitive, [x], [eqn.outvars[0].aval], eqn.params)
    has_nan = prims.reduce_or(b, prims.ne(b, x, x), axes)
    return prims.select(b, has_nan, b.constant(float("nan"), x.aval.dtype), extremum)


def is_misread(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether the library may compute an equation wrongly along with a reduction."""
    return is_matrix_product(eqn) or is_cut(eqn) or is_rounded(eqn) or may_overflow(eqn, b)


def keep_from_library(eqns: list[Any], b: JaxprBuilder) -> list[Any]:
    """Put barriers behind results that a kernel of the library has to read from memory, and must not compute itself."""
    if not (b.for_jax or any(may_use_library(eqn, b) for eqn in eqns)):  # JAX may put a reduction behind the Jaxpr
        return eqns
    read_by: dict[Atom, set[jex.Primitive]] = defaultdict(set)
    for eqn in eqns:
        for x in filter(is_variable, eqn.invars):
            read_by[x].add(eqn.primitive)
    misread = {
        eqn.outvars[0]
        for eqn in eqns
        if is_matrix_product(eqn)
        or is_cut(eqn)
        or (is_rounded(eqn) and is_laid_out(read_by[eqn.outvars[0]]))
        or may_overflow(eqn, b)
    }
    returned = set(filter(is_variable, b.outputs)) if b.for_jax else set()
    return with_barriers(eqns, b, {x for x in misread if x in returned or read_by[x] - {optimization_barrier_p}})


def is_laid_out(read_by: set[jex.Primitive]) -> bool:
    """Return whether the readers of a value may hand it to a reduction in another layout; readers outside may."""
    return not read_by or not read_by.isdisjoint(MOVING)


def is_matrix_product(eqn: Any) -> bool:
    """Return whether an equation is a product that sums over an axis and whose result has two axes or more."""
    return eqn.primitive is p.dot_general_p and len(eqn.outvars[0].aval.shape) > 1


def may_overflow(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether an equation is an exponential of what may be above zero.

    The library's are infinite above half of the largest power of two, so a factor of 1.41 too early.
    """
    return eqn.primitive in (p.exp_p, p.exp2_p, p.expm1_p) and not is_never_positive(b, eqn.invars[0])


def is_rounded(eqn: Any) -> bool:
    """Return whether floats get a narrower dtype; the library leaves that out before another conversion."""
    if eqn.primitive is not p.convert_element_type_p:
        return False
    old, new = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
    return old.kind == new.kind == "f" and new.itemsize < old.itemsize


def is_cut(eqn: Any) -> bool:
    """Return whether numbers become integers of 8 bits; the library rounds them, and keeps them in bounds."""
    if eqn.primitive is not p.convert_element_type_p:
        return False
    old, new = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
    return old.kind != "b" and new.kind in "iu" and new.itemsize == 1
