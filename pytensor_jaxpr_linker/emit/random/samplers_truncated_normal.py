"""Truncated normal variables by rejection, however far out in a tail."""

from __future__ import annotations

import numpy as np

from pytensor_jaxpr_linker.emit.random.rejection import Proposed, reject
from pytensor_jaxpr_linker.emit.random.sampler import Attempt, normal_of, open_uniform_of
from pytensor_jaxpr_linker.emit.random.samplers_inversion import truncated_exponential_of
from pytensor_jaxpr_linker.emit.scalar import number
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape

#: The width from which on an interval about 0 is proposed to from the normal distribution itself.
WIDE_INTERVAL = np.sqrt(2 * np.pi)


def truncated_normal(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, low: Atom, high: Atom) -> Atom:
    """Emit standard normal variables between `low` and `high`; NaN where these are not in order.

    Robert, *Simulation of Truncated Normal Variables*, 1995. The interval is mirrored so that its upper end is the farther
    from 0. If it contains 0 and is wide, normal variables are proposed; else exponential ones from its lower end, truncated at
    its upper end, with the rate ``(low + sqrt(low ** 2 + 4)) / 2``, Robert's optimum for an interval without end. Both are
    accepted with a probability of at least 0.49.
    """
    is_mirrored = prims.lt(b, prims.add(b, low, high), number(b, low, 0))
    near = prims.select(b, is_mirrored, prims.neg(b, high), low)
    far = prims.select(b, is_mirrored, prims.neg(b, low), high)
    width = prims.sub(b, far, near)
    contains_zero = prims.le(b, near, number(b, near, 0))
    is_wide = prims.and_(b, contains_zero, prims.gt(b, width, number(b, width, WIDE_INTERVAL)))
    # From here on positions are relative to the lower end; the density's ratio is largest at `peak`, unless cut off.
    root = prims.sqrt(b, prims.add(b, prims.square(b, near), number(b, near, 4)))
    peak = prims.div(b, number(b, near, 2), prims.add(b, near, root))
    rate = prims.add(b, near, peak)
    cut = prims.square(b, prims.max_(b, prims.sub(b, peak, width), number(b, near, 0)))

    def propose(b: JaxprBuilder, lanes: Attempt, *params: Atom) -> Proposed:
        near, far, width, is_wide, peak, rate, cut = params
        z, u, v = lanes.numbers(dtype, normal_of, open_uniform_of, open_uniform_of)
        in_bounds = prims.and_(b, prims.ge(b, z, near), prims.le(b, z, far))
        offset = truncated_exponential_of(b, u, prims.mul(b, rate, width))
        offset = prims.div(b, offset, rate)
        excess = prims.sub(b, prims.square(b, prims.sub(b, offset, peak)), cut)
        bound = prims.mul(b, excess, number(b, excess, -0.5))
        is_below = prims.lt(b, prims.log(b, v), bound)
        accepted = prims.select(b, is_wide, in_bounds, is_below)
        return Proposed(prims.select(b, is_wide, z, prims.add(b, near, offset)), accepted)

    nowhere = prims.broadcast_to(b, b.constant(np.nan, dtype), shape)
    params = [near, far, width, is_wide, peak, rate, cut]
    draw = reject(b, key, propose, params, nowhere, prims.lt(b, low, high))
    return prims.select(b, is_mirrored, prims.neg(b, draw), draw)
