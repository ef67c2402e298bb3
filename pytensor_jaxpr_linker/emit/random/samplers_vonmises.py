"""Von Mises variables by rejection from a wrapped Cauchy distribution."""

from __future__ import annotations

import numpy as np

from pytensor_jaxpr_linker.emit.random.rejection import Proposed, reject
from pytensor_jaxpr_linker.emit.random.sampler import Attempt, open_uniform_of
from pytensor_jaxpr_linker.emit.random.samplers_inversion import cauchy_of
from pytensor_jaxpr_linker.emit.scalar import number, one
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.jaxpr.formula import Value, log


def von_mises(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, kappa: Atom) -> Atom:
    """Emit angles in (-pi, pi) about 0 of concentration `kappa`.

    Best and Fisher, *Efficient Simulation of the von Mises Distribution*, 1979. A wrapped Cauchy angle is
    ``2 atan(q c)``, c a standard Cauchy variable; it is accepted with probability ``y exp(1 - y)``, where
    ``y = kappa (s - cos(angle))``. With ``s = (1 + r) / (2 kappa)``, ``r = sqrt(1 + 4 kappa ** 2)``, the authors' optimum,
    ``kappa (s - 1)`` is ``(1 + 1 / (r + 2 kappa)) / 2`` and ``q ** 2 = (s - 1) / (s + 1)``: written so, nothing cancels, and
    neither `kappa` = 0 nor a large one is special.
    """
    twice = prims.add(b, kappa, kappa)
    r = prims.sqrt(b, prims.add(b, one(b, kappa), prims.square(b, twice)))
    inverse = prims.div(b, one(b, r), prims.add(b, r, twice))
    least = prims.mul(b, number(b, inverse, 0.5), prims.add(b, one(b, inverse), inverse))
    q = prims.sqrt(b, prims.div(b, least, prims.add(b, least, twice)))

    def propose(b: JaxprBuilder, lanes: Attempt, *params: Atom) -> Proposed:
        twice, least, q = (Value(b, x) for x in params)
        u, v = (Value(b, draw) for draw in lanes.numbers(dtype, open_uniform_of, open_uniform_of))
        tangent = q * Value(b, cauchy_of(b, v.atom))
        square = tangent * tangent
        y = least + twice * (square / (square + 1.0))  # the square of the half angle's sine
        half_angle = Value(b, prims.atan(b, tangent.atom))
        # The squeeze is y (2 - y) <= y exp(1 - y).
        return Proposed((half_angle + half_angle).atom, (log(u) < log(y) - y + 1.0).atom, (u < y * (2.0 - y)).atom)

    infinite = prims.eq(b, kappa, number(b, kappa, np.inf))
    otherwise = prims.select(b, infinite, number(b, kappa, 0), number(b, kappa, np.nan))
    possible = prims.and_(b, prims.ge(b, kappa, number(b, kappa, 0)), prims.is_finite(b, kappa))
    return reject(b, key, propose, [twice, least, q], prims.broadcast_to(b, otherwise, shape), possible)


def wrapped(b: JaxprBuilder, angle: Atom) -> Atom:
    """Emit the equivalent of an angle in [-pi, pi]; one that is there already stays as it is."""
    turn = number(b, angle, 2 * np.pi)
    return prims.sub(b, angle, prims.mul(b, turn, prims.round_even(b, prims.div(b, angle, turn))))
