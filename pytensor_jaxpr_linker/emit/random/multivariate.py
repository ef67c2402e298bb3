"""Multivariate random variables of PyTensor, and of PyMC by class name: PyMC is neither imported nor required.

Batch axes come first; parameters may have fewer, or some of length 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from jax.extend.core import primitives
from pytensor.graph.basic import Apply
from pytensor.tensor.random import basic as rv

from pytensor_jaxpr_linker.emit.linalg.matrices import cholesky_factors, triangular_solution, tril
from pytensor_jaxpr_linker.emit.linalg.solvers import scaled_columns
from pytensor_jaxpr_linker.emit.random.discrete import is_chance, refuse_fractions
from pytensor_jaxpr_linker.emit.random.parameter_checks import check_all, check_positive, demand
from pytensor_jaxpr_linker.emit.random.sampler import (
    emits_draws,
    general,
    lengths_of,
    open_uniform,
    split_key,
    standard_normal,
)
from pytensor_jaxpr_linker.emit.random.samplers_continuous import log_gamma
from pytensor_jaxpr_linker.emit.random.samplers_discrete import FLOAT, binomial
from pytensor_jaxpr_linker.emit.scalar import numpy_astype
from pytensor_jaxpr_linker.emit.shape import check_length
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.jaxpr.formula import Value, exp, log, maximum, minimum, where
from pytensor_jaxpr_linker.jaxpr.nested import as_rows, join, row_range

# -- vectors and matrices of random variables --------------------------------------------------------------------------


def batched(b: JaxprBuilder, x: Atom, batch: Shape, core_ndim: int) -> Atom:
    """Emit the broadcast of all but the last `core_ndim` axes to `batch`."""
    return prims.broadcast_to(b, x, (*batch, *x.aval.shape[len(x.aval.shape) - core_ndim :]))


def with_core(b: JaxprBuilder, x: Atom, core: Shape) -> Atom:
    """Emit a value for each element of a batch, repeated over core axes."""
    return prims.broadcast_in_dim(b, x, (*x.aval.shape, *core), range(len(x.aval.shape)))


def products(b: JaxprBuilder, matrices: Atom, vectors: Atom) -> Atom:
    """Emit ``matrices @ vectors``, the batch axes of the vectors being all there are."""
    batch, shape = vectors.aval.shape[:-1], matrices.aval.shape
    if math.prod(shape[:-2]) == 1:  # one product with all vectors as a matrix
        matrix = prims.reshape(b, matrices, shape[-2:])
        return prims.dot_general(b, vectors, matrix, ([len(batch)], [1]))
    axes = range(len(batch))
    matrices = batched(b, matrices, batch, 2)
    return prims.dot_general(b, matrices, vectors, ([len(batch) + 1], [len(batch)]), (axes, axes))


# -- PyTensor's --------------------------------------------------------------------------------------------------------


def cholesky_factor(b: JaxprBuilder, x: Atom) -> Atom:
    """Emit lower Cholesky factors, NaN where a matrix is not positive definite."""
    return tril(b, cholesky_factors(b, x))


def columns_times_roots(b: JaxprBuilder, columns: Atom, values: Atom) -> Atom:
    """Emit singular vectors, or eigenvectors, times the roots of their values."""
    return scaled_columns(b, columns, prims.sqrt(b, values))


#: The factors of covariances, by the name of the method.
FACTORS: dict[str, Callable[[JaxprBuilder, Atom], Atom]] = {
    "cholesky": cholesky_factor,
    "svd": lambda b, x: columns_times_roots(b, *prims.svd(b, x, True, True)[1::-1]),
    "eigh": lambda b, x: columns_times_roots(b, *prims.eigh(b, x, True)),
}
#: NumPy's errors if a factor does not exist. A negative eigenvalue makes it NaN.
NO_FACTOR = {"cholesky": "Matrix is not positive definite", "svd": "SVD did not converge"}


def covariance_factor(b: JaxprBuilder, cov: Atom, method: str) -> Atom:
    """Emit factors whose products with their transposes are covariances."""
    cov = cov if cov.aval.dtype.kind == "f" else numpy_astype(b, cov, FLOAT)
    return cov if 0 in cov.aval.shape else FACTORS[method](b, cov)


def has_no_nan(b: JaxprBuilder, x: Atom) -> Atom:
    """Emit which matrices have no NaN."""
    n = len(x.aval.shape)
    return prims.reduce_and(b, prims.eq(b, x, x), (n - 2, n - 1))


def check_multivariate_normal(b: JaxprBuilder, node: Apply, mean: Atom, cov: Atom) -> None:
    """Check the parameters' shapes, and that the covariance has a factor, which the draws share."""
    n, (rows, columns) = mean.aval.shape[-1], cov.aval.shape[-2:]
    if rows != columns:
        raise np.linalg.LinAlgError("Last 2 dimensions of the array must be square")
    if rows != n:
        raise ValueError(f"operands could not be broadcast together: a mean of length {n}, a covariance of {rows} rows")
    if message := NO_FACTOR.get(node.op.method):
        ok = has_no_nan(b, covariance_factor(b, cov, node.op.method))
        if node.op.method == "cholesky":  # NumPy's factor of a matrix with a NaN is NaN, and no error
            ok = prims.or_(b, ok, prims.not_(b, has_no_nan(b, cov)))
        check_all(b, ok, np.linalg.LinAlgError(message), node)


@emits_draws(rv.MvNormalRV, check_multivariate_normal, props=("method",), form=general)
def sample_multivariate_normal(b, key, shape, dtype, mean, cov, method):
    """A factor of the covariance times normal variables."""
    factor = numpy_astype(b, covariance_factor(b, cov, method), dtype)
    z = standard_normal(b, key, (*shape, factor.aval.shape[-1]), dtype)
    draws = products(b, factor, z) if 0 not in factor.aval.shape else z
    return prims.add(b, draws, batched(b, numpy_astype(b, mean, dtype), shape, 1))


@emits_draws(rv.DirichletRV, lambda b, node, alpha: demand(b, node, "alpha < 0", lambda a: ~(a < 0.0), alpha))
def sample_dirichlet(b, key, shape, dtype, alpha):
    """Gamma variables over their sum, by logarithms: small parameters leave no 0 / 0, and 0 gives 0 as in NumPy."""
    alpha = batched(b, alpha, shape, 1)
    logs = Value(b, log_gamma(b, key, alpha.aval.shape, dtype, alpha))
    logs = where(Value(b, alpha) == 0.0, -np.inf, logs)
    largest = maximum(Value(b, prims.reduce_max(b, logs.atom, (len(shape),))), np.finfo(dtype).min)
    parts = exp(logs - Value(b, with_core(b, largest.atom, alpha.aval.shape[-1:])))
    total = Value(b, prims.reduce_sum(b, parts.atom, (len(shape),)))
    total = where(total == 0.0, 1.0, total)
    return (parts / Value(b, with_core(b, total.atom, alpha.aval.shape[-1:]))).atom


def check_multinomial(b: JaxprBuilder, node: Apply, n: Atom, p: Atom) -> None:
    """Check the parameters as `numpy.random.Generator.multinomial` does."""
    axis = len(p.aval.shape) - 1
    k = p.aval.shape[axis]
    if k == 0:
        raise ValueError("pvals must have at least 1 dimension and the last dimension of pvals must be greater than 0.")
    demand(b, node, "pvals < 0, pvals > 1 or pvals contains NaNs", is_chance, p)
    most = prims.slice_(b, numpy_astype(b, p, FLOAT), [0] * (axis + 1), [*p.aval.shape[:-1], k - 1], [1] * (axis + 1))
    demand(b, node, "sum(pvals[:-1]) > 1.0", lambda s: s <= 1.0 + 1e-12, prims.reduce_sum(b, most, (axis,)))
    demand(b, node, "n < 0", lambda n: n >= 0.0, numpy_astype(b, n, "int64"))


def refuse_one_fraction(node: Apply) -> str | None:
    """Return why a node is refused: NumPy takes no array of fractions, and PyTensor passes a batch one by one."""
    n, p = node.inputs[2:]
    return refuse_fractions(0)(node) if n.type.ndim == 0 and p.type.ndim == 1 else None


@emits_draws(rv.MultinomialRV, check_multinomial, refuse=refuse_one_fraction, form=general)
def sample_multinomial(b, key, shape, dtype, n, p):
    """Counts of categories, each binomial given the previous ones; as in NumPy, the last category gets the rest.

    A number of trials loses its fraction, as NumPy converts one number to an integer.
    """
    n, p = numpy_astype(b, numpy_astype(b, n, "int64"), FLOAT), numpy_astype(b, p, FLOAT)
    axis, k = len(shape), p.aval.shape[-1]
    sums = prims.cumsum(b, p, len(p.aval.shape) - 1)
    left_over = Value(b, b.constant(np.float64(1))) - (Value(b, sums) - Value(b, p))
    shares = minimum(Value(b, p) / maximum(left_over, np.finfo(FLOAT).tiny), 1.0).atom
    shares = row_range(b, prims.transpose(b, batched(b, shares, shape, 1), (axis, *range(axis))), 0, k - 1)
    carry = [key, prims.broadcast_to(b, n, shape)]
    body, (key, left, share) = b.sub_jaxpr([*(x.aval for x in carry), b.aval(shape, FLOAT)])
    key, now = split_key(body, key)
    drawn = binomial(body, now, shape, left, share)
    closed = body.build([key, prims.sub(body, left, drawn), drawn])
    _, left, rows = prims.scan(b, closed, [], carry, [shares], k - 1)
    counts = prims.transpose(b, join(b, [rows, as_rows(b, left)]), (*range(1, axis + 1), 0))
    return prims.convert(b, counts, "int64")


# -- PyMC's ------------------------------------------------------------------------------------------------------------


MODULE = "pymc.distributions.multivariate"


@emits_draws(f"{MODULE}.MatrixNormalRV")
def sample_matrix_normal(b, key, shape, dtype, mean, row_factor, column_factor):
    """``mean + row_factor @ z @ column_factor.T``, z of normal variables."""
    size = row_factor.aval.shape[-2], column_factor.aval.shape[-2]
    axes, n = range(len(shape)), len(shape)
    z = standard_normal(b, key, (*shape, *size), dtype)
    rows, columns = (batched(b, x, shape, 2) for x in (row_factor, column_factor))
    draws = prims.dot_general(b, rows, z, ([n + 1], [n]), (axes, axes))
    draws = prims.dot_general(b, draws, columns, ([n + 1], [n + 1]), (axes, axes))
    return prims.add(b, draws, batched(b, mean, shape, 2))


def check_stick_breaking(b: JaxprBuilder, node: Apply, alpha: Atom, k: Atom) -> None:
    """Check the parameters as PyMC and `numpy.random.Generator.beta` do."""
    check_length(b, node, lengths_of(b, k).item(), 0, ValueError("K needs to be positive."))
    check_positive(b, alpha, "b", node)


@emits_draws(f"{MODULE}.StickBreakingWeightsRV", check_stick_breaking, static=(1, 3), form=general)
def sample_stick_breaking(b, key, shape, dtype, alpha, k):
    """The lengths of `k` pieces and of the rest; each piece is a Beta(1, `alpha`) share of the remaining stick.

    The logarithm of the remaining share is the logarithm of a uniform number over `alpha`.
    """
    axis, k = len(shape), lengths_of(b, k).item()
    u = Value(b, open_uniform(b, key, (*shape, k), dtype))
    alpha = with_core(b, prims.broadcast_to(b, numpy_astype(b, alpha, dtype), shape), (k,))
    logs = prims.cumsum(b, (log(u) / Value(b, alpha)).atom, axis) if k else u.atom
    left = exp(Value(b, logs)).atom
    whole, none = (prims.broadcast_to(b, b.constant(x, dtype), (*shape, 1)) for x in (1, 0))
    return prims.sub(b, prims.concatenate(b, [whole, left], axis), prims.concatenate(b, [left, none], axis))


def single(b: JaxprBuilder, x: Atom) -> Atom:
    """Return a parameter's one number, as it was before the broadcast."""
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
    """Check the parameters as PyMC does; the draws share the factor."""
    check_all(b, is_valid, ValueError("W must be a valid adjacency matrix"), node)
    demand(b, node, "the domain of alpha is: -1 < alpha < 1", lambda a: ~((a >= 1.0) | (a <= -1.0)), alpha)
    factor = precision_factor(b, w, alpha, tau)
    error = np.linalg.LinAlgError("the precision matrix is not positive definite")
    check_all(b, prims.eq(b, factor, factor), error, node)


@emits_draws(f"{MODULE}.CARRV", check_car, form=general)
def sample_car(b, key, shape, dtype, mean, w, alpha, tau, is_valid):
    """Normal variables, solved by the factor: Rue, *Fast Sampling of Gaussian Markov Random Fields*, 2001."""
    factor = numpy_astype(b, precision_factor(b, w, alpha, tau), dtype)
    n = factor.aval.shape[-1]
    z = standard_normal(b, key, (math.prod(shape), n), dtype)
    draws = triangular_solution(b, factor, z, lower=True, left_side=False)
    return prims.add(b, prims.reshape(b, draws, (*shape, n)), batched(b, numpy_astype(b, mean, dtype), shape, 1))
