"""Multivariate random variables of PyMC, by class name: PyMC is neither imported nor required."""

from __future__ import annotations

import math

import numpy as np
from jax.extend.core import primitives
from pytensor.graph.basic import Apply

from pytensor_jaxpr_linker.emit.lengths import check_length
from pytensor_jaxpr_linker.emit.linalg.factors import triangular_solution
from pytensor_jaxpr_linker.emit.random import samplers_multivariate as vectors
from pytensor_jaxpr_linker.emit.random.discrete import demand
from pytensor_jaxpr_linker.emit.random.multivariate import cholesky_factor
from pytensor_jaxpr_linker.emit.random.parameter_checks import check_all, check_positive
from pytensor_jaxpr_linker.emit.random.sampler import emits_draws, general, lengths_of, standard_normal
from pytensor_jaxpr_linker.emit.scalar import numpy_astype
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder

MODULE = "pymc.distributions.multivariate"


@emits_draws(f"{MODULE}.MatrixNormalRV", form=general)
def sample_matrix_normal(b, key, shape, dtype, mean, row_factor, column_factor):
    """A mean and factors of the covariances of rows and columns."""
    return vectors.matrix_normal(
        b, key, shape, dtype, *(numpy_astype(b, x, dtype) for x in (mean, row_factor, column_factor))
    )


def check_stick_breaking(b: JaxprBuilder, node: Apply, alpha: Atom, k: Atom) -> None:
    """Check the parameters as PyMC and `numpy.random.Generator.beta` do."""
    check_length(b, node, lengths_of(b, k).item(), 0, ValueError("K needs to be positive."))
    check_positive(b, alpha, "b", node)


@emits_draws(f"{MODULE}.StickBreakingWeightsRV", check_stick_breaking, static=(1, 3), form=general)
def sample_stick_breaking(b, key, shape, dtype, alpha, k):
    """Weights of ``k + 1`` pieces."""
    return vectors.stick_breaking(b, key, shape, dtype, numpy_astype(b, alpha, dtype), lengths_of(b, k).item())


def single(b: JaxprBuilder, x: Atom) -> Atom:
    """Return the one number that a parameter is, from before it was broadcast."""
    eqn = b.definition(x, primitives.broadcast_in_dim_p)
    return prims.reshape(b, x if eqn is None else eqn.invars[0], ())


def precision_factor(b: JaxprBuilder, w: Atom, alpha: Atom, tau: Atom) -> Atom:
    """Emit the Cholesky factor of the precision ``tau * (diag(w.sum(0)) - alpha * w)``."""
    w = numpy_astype(b, prims.reshape(b, w, w.aval.shape[-2:]), np.float64)
    alpha, tau = (numpy_astype(b, single(b, x), np.float64) for x in (alpha, tau))
    row, column = (prims.iota(b, "int32", w.aval.shape, i) for i in (0, 1))
    degrees = prims.broadcast_in_dim(b, prims.reduce_sum(b, w, (0,)), w.aval.shape, (1,))
    diagonal = prims.select(b, prims.eq(b, row, column), degrees, b.constant(np.float64(0)))
    return cholesky_factor(b, prims.mul(b, tau, prims.sub(b, diagonal, prims.mul(b, alpha, w))))


def check_car(b: JaxprBuilder, node: Apply, mean: Atom, w: Atom, alpha: Atom, tau: Atom, is_valid: Atom) -> None:
    """Check the parameters as PyMC does. The factor is one equation with that of the draws."""
    check_all(b, is_valid, ValueError("W must be a valid adjacency matrix"), node)
    demand(b, node, "the domain of alpha is: -1 < alpha < 1", lambda a: ~((a >= 1.0) | (a <= -1.0)), alpha)
    factor = precision_factor(b, w, alpha, tau)
    error = np.linalg.LinAlgError("the precision matrix is not positive definite")
    check_all(b, prims.eq(b, factor, factor), error, node)


@emits_draws(f"{MODULE}.CARRV", check_car, form=general)
def sample_car(b, key, shape, dtype, mean, w, alpha, tau, is_valid):
    """Normal variables solved by the dense factor of the precision: Rue, *Fast Sampling of Gaussian Markov Random Fields*, 2001."""
    factor = numpy_astype(b, precision_factor(b, w, alpha, tau), dtype)
    n = factor.aval.shape[-1]
    z = standard_normal(b, key, (math.prod(shape), n), dtype)
    draws = triangular_solution(b, factor, z, lower=True, left_side=False)
    return prims.add(
        b, prims.reshape(b, draws, (*shape, n)), vectors.batched(b, numpy_astype(b, mean, dtype), shape, 1)
    )
