"""Forms that XLA's library of CPU kernels computes wrongly, and what the Jaxpr has instead.

The library takes a reduction of 4,096 numbers or more, with the operations that compute what it reads, into one kernel. In jaxlib 0.12.0 such a
kernel loses NaN from a maximum or minimum, leaves out a conversion to a narrower dtype before another one, rounds to 8 bits where XLA cuts off, and
takes one term of a product with a broadcast number for its sum. No option reaches a program that a user's `jax.jit` compiles, so the Jaxpr avoids
these forms. docs/notes/xla-library.md has a program of each, and what else was compared with NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.jaxpr.optimize.xla_options import is_extremum, is_reduction
from pytensor_jaxpr_linker.jaxpr.traits import TRAITS, Trait

#: A quarter of the least number of elements for which XLA uses the library.
LEAST_REDUCED = 1024


def may_use_library(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether the library may compute a reduction. Where JAX transforms the Jaxpr, its operand may become larger."""
    return is_reduction(eqn) and (b.for_jax or not has_fewer(eqn.invars[0].aval.shape, LEAST_REDUCED))


def has_fewer(shape: Shape, count: int) -> bool:
    """Return whether a shape has fewer elements than `count`; one with a symbolic dimension may have any number."""
    return all(isinstance(n, int) for n in shape) and math.prod(shape) < count


def keep_nan(eqns: list[Any], b: JaxprBuilder, outputs: Sequence[Atom]) -> list[Any]:
    """Make each maximum and minimum NaN by a second reduction, which finds out whether an element is."""
    found = [is_extremum(eqn) and is_float(eqn) and may_use_library(eqn, b) for eqn in eqns]
    if not any(found) or "cpu" not in jax_compat.target_platforms():
        return eqns
    return [
        new for eqn, is_changed in zip(eqns, found, strict=True) for new in (nan_or(b, eqn) if is_changed else [eqn])
    ]


def is_float(eqn: Any) -> bool:
    """Return whether the result of an equation consists of floats."""
    return eqn.outvars[0].aval.dtype.kind == "f"


def nan_or(b: JaxprBuilder, eqn: Any) -> list[Any]:
    """Return the equations of an extremum that is NaN if an element is."""
    b.restart()
    b.at_names_of(eqn)
    (x,), axes = eqn.invars, eqn.params["axes"]
    (extremum,) = b.bind_many(eqn.primitive, [x], [eqn.outvars[0].aval], eqn.params)
    has_nan = prims.reduce_or(b, prims.ne(b, x, x), axes)
    prims.select(b, has_nan, b.constant(float("nan"), x.aval.dtype), extremum)
    return b.ending_in(eqn.outvars)


def misread_results(eqns: Sequence[Any], b: JaxprBuilder) -> set[Atom]:
    """Return the results that a kernel of the library has to read from memory: it must not compute them itself."""
    is_read = b.for_jax or any(may_use_library(eqn, b) for eqn in eqns)  # JAX may put a reduction behind the Jaxpr
    if not is_read or "cpu" not in jax_compat.target_platforms():
        return set()
    is_laid_out = {x: False for eqn in eqns for x in eqn.invars if type(x) is jex.Var}
    for eqn in eqns:
        if Trait.LAYOUT in TRAITS.get(eqn.primitive, Trait(0)):
            is_laid_out |= {x: True for x in eqn.invars if type(x) is jex.Var}
    return {
        eqn.outvars[0]
        for eqn in eqns
        if is_matrix_product(eqn) or is_cut(eqn) or (is_rounded(eqn) and is_laid_out.get(eqn.outvars[0], True))
    }


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
