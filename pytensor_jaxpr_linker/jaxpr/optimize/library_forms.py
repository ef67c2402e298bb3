"""Forms that XLA's library of CPU kernels computes wrongly, and what the Jaxpr has instead.

The library takes a reduction of 4,096 numbers or more, with the operations that compute what it reads, into one kernel. In jaxlib 0.12.0 such a
kernel loses NaN from a maximum or minimum, leaves out a conversion to a narrower dtype before another one, rounds to 8 bits where XLA cuts off, and
takes one term of a product with a broadcast number for its sum. No option reaches a program that a user's `jax.jit` compiles, so the Jaxpr avoids
these forms. docs/notes/xla-library.md has a program of each, and what else was compared with NumPy.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import jax.extend.core as jex
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base.jax_compat import optimization_barrier_p
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape, is_variable
from pytensor_jaxpr_linker.jaxpr.optimize.barriers import with_barriers
from pytensor_jaxpr_linker.jaxpr.optimize.factors import MOVING
from pytensor_jaxpr_linker.jaxpr.optimize.xla_options import is_extremum, is_reduction

#: A quarter of the least number of elements for which XLA uses the library.
LEAST_REDUCED = 1024


def may_use_library(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether the library may compute a reduction. Where JAX transforms the Jaxpr, its operand may become larger."""
    return is_reduction(eqn) and (b.for_jax or not has_fewer(eqn.invars[0].aval.shape, LEAST_REDUCED))


def has_fewer(shape: Shape, count: int) -> bool:
    """Return whether a shape has fewer elements than `count`; one with a symbolic dimension may have any number."""
    return all(isinstance(n, int) for n in shape) and math.prod(shape) < count


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
    """Return whether the library may get an equation wrong if it computes that along with a reduction."""
    return is_matrix_product(eqn) or is_cut(eqn) or is_rounded(eqn)


def keep_from_library(eqns: list[Any], b: JaxprBuilder) -> list[Any]:
    """Put barriers behind what a kernel of the library has to read from memory: it must not compute that itself."""
    if not (b.for_jax or any(may_use_library(eqn, b) for eqn in eqns)):  # JAX may put a reduction behind the Jaxpr
        return eqns
    read_by: dict[Atom, set[jex.Primitive]] = defaultdict(set)
    for eqn in eqns:
        for x in filter(is_variable, eqn.invars):
            read_by[x].add(eqn.primitive)
    misread = {
        eqn.outvars[0]
        for eqn in eqns
        if is_matrix_product(eqn) or is_cut(eqn) or (is_rounded(eqn) and is_laid_out(read_by[eqn.outvars[0]]))
    }
    return with_barriers(eqns, b, {x for x in misread if read_by[x] != {optimization_barrier_p}})


def is_laid_out(read_by: set[jex.Primitive]) -> bool:
    """Return whether the readers of a value may hand it to a reduction in another layout; readers outside may."""
    return not read_by or not read_by.isdisjoint(MOVING)


def is_matrix_product(eqn: Any) -> bool:
    """Return whether an equation is a product of two arrays that adds over an axis, and whose result has two axes or more."""
    return eqn.primitive is p.dot_general_p and len(eqn.outvars[0].aval.shape) > 1


def is_rounded(eqn: Any) -> bool:
    """Return whether an equation converts floats to a narrower dtype. The library leaves out such a conversion before another one."""
    if eqn.primitive is not p.convert_element_type_p:
        return False
    old, new = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
    return old.kind == new.kind == "f" and new.itemsize < old.itemsize


def is_cut(eqn: Any) -> bool:
    """Return whether an equation converts numbers to integers of 8 bits. The library rounds them to the nearest, and keeps them in bounds."""
    if eqn.primitive is not p.convert_element_type_p:
        return False
    old, new = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
    return old.kind != "b" and new.kind in "iu" and new.itemsize == 1
