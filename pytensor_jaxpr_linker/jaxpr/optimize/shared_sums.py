"""Sums that share the function by which XLA adds two numbers.

A reduction of XLA's has a computation of its own that combines two elements. In each call of a program XLA's CPU client allocates memory for all values
of such computations, by `posix_memalign`, although they live in registers: 0.25 µs for each reduction, more than a short one takes. A product of
vectors becomes a reduction as well, but for all of them XLA makes one computation. So sums are written as products with ones.

XLA copies that computation for each reduction if its pass "flatten-call-graph" runs, which `xla_options` therefore leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import JaxprBuilder

#: Beside a longer sum the time to begin it does not matter.
MOST_ADDED = 4096


def with_shared_sums(eqns: Sequence[Any]) -> list[Any]:
    """Return equations in which sums of all elements of short arrays are products of vectors."""
    return [new for eqn in eqns for new in (sum_as_product(eqn) if is_short_sum(eqn) else [eqn])]


def is_short_sum(eqn: Any) -> bool:
    """Tell whether an equation adds all elements of a short array of real numbers."""
    if eqn.primitive is not p.reduce_sum_p:
        return False
    aval = eqn.invars[0].aval
    is_whole = len(eqn.params["axes"]) == len(aval.shape)
    return is_whole and aval.dtype.kind == "f" and 0 < math.prod(aval.shape) <= MOST_ADDED


def sum_as_product(eqn: Any) -> list[Any]:
    """Return a sum as the product of a vector with ones."""
    b, (x,) = JaxprBuilder("sum"), eqn.invars
    b.at_names_of(eqn)
    count = math.prod(x.aval.shape)
    ones = prims.broadcast_to(b, b.constant(np.ones((), x.aval.dtype)), (count,))
    prims.dot_general(b, prims.reshape(b, x, (count,)), ones, ((0,), (0,)))
    *before, product = b.eqns
    return [*before, product.replace(outvars=eqn.outvars)]
