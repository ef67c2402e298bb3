"""Sums that share the function by which XLA adds two numbers.

A reduction of XLA's has a computation of its own that combines two elements. In each call of a program XLA's CPU client allocates memory for all values
of such computations, by `posix_memalign`, although they live in registers: 0.25 µs for each reduction, more than a short one takes. A product of
vectors becomes a reduction as well, but for all of them XLA makes one computation. So sums are written as products with ones.

XLA copies that computation for each reduction if its pass "flatten-call-graph" runs, which `xla_options` therefore leaves out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base.jax_compat import xla_metadata_call_p
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.optimize.equations import replace_equations
from pytensor_jaxpr_linker.jaxpr.optimize.xla_options import CallProgram

#: Beside a longer sum the time to begin it does not matter.
MOST_ADDED = 4096


def share_sums(program: CallProgram, _: Any) -> CallProgram:
    """Make products of vectors of short sums, and of whether all or any elements are true, also in small calls."""
    jaxpr = with_shared_sums(program.jaxpr)
    return program if jaxpr is program.jaxpr else program._replace(jaxpr=jaxpr)


def with_shared_sums(closed: Any) -> Any:
    """Return a closed Jaxpr with such products, or the same one."""
    b = JaxprBuilder()
    b.outputs = closed.jaxpr.outvars
    eqns = [in_small_call(eqn) if eqn.primitive is xla_metadata_call_p else eqn for eqn in closed.eqns]
    eqns = replace_equations(eqns, b, is_short_reduction, product_of_vectors)
    return closed if eqns == closed.eqns else closed.replace(jaxpr=closed.jaxpr.replace(eqns=eqns))


def in_small_call(eqn: Any) -> Any:
    """Return a call with such products inside, or the same one."""
    jaxpr = with_shared_sums(eqn.params["jaxpr"])
    return eqn if jaxpr is eqn.params["jaxpr"] else eqn.replace(params=eqn.params | {"jaxpr": jaxpr})


def is_short_reduction(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether an equation reduces a short array to a number, by a sum of real numbers or of conditions."""
    if eqn.primitive not in (p.reduce_sum_p, p.reduce_and_p, p.reduce_or_p):
        return False
    aval = eqn.invars[0].aval
    is_whole = len(eqn.params["axes"]) == len(aval.shape)
    kind = "f" if eqn.primitive is p.reduce_sum_p else "b"
    return is_whole and aval.dtype.kind == kind and 0 < math.prod(aval.shape) <= MOST_ADDED


def product_of_vectors(b: JaxprBuilder, eqn: Any) -> Atom:
    """Emit a reduction as the product of a vector with ones: of the numbers, or how many conditions hold, or do not."""
    (x,) = eqn.invars
    if eqn.primitive is p.reduce_sum_p:
        return total_of_vector(b, x)
    counted = prims.not_(b, x) if eqn.primitive is p.reduce_and_p else x
    count = total_of_vector(b, prims.convert(b, counted, np.dtype("float64")))
    compare = prims.eq if eqn.primitive is p.reduce_and_p else prims.ne
    return compare(b, count, b.constant(np.float64(0)))


def total_of_vector(b: JaxprBuilder, x: Atom) -> Atom:
    """Emit the product of the elements of an array, as a vector, with ones."""
    count = math.prod(x.aval.shape)
    return times_ones(b, prims.reshape(b, x, (count,)), 0)


def times_ones(b: JaxprBuilder, x: Atom, axis: int) -> Atom:
    """Emit the product of an array with ones along an axis."""
    ones = prims.broadcast_to(b, b.constant(np.ones((), x.aval.dtype)), (x.aval.shape[axis],))
    return prims.dot_general(b, x, ones, ((axis,), (0,)))
