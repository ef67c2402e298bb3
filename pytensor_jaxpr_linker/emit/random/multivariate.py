"""Multivariate random variables of PyTensor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.tensor.random import basic as rv

from pytensor_jaxpr_linker.emit.linalg.factors import cholesky_factors
from pytensor_jaxpr_linker.emit.random import samplers_multivariate as vectors
from pytensor_jaxpr_linker.emit.random.discrete import demand, is_chance, refuse_fractions
from pytensor_jaxpr_linker.emit.random.parameter_checks import check_all
from pytensor_jaxpr_linker.emit.random.sampler import emits_draws, general
from pytensor_jaxpr_linker.emit.random.samplers_counts import FLOAT
from pytensor_jaxpr_linker.emit.scalar import numpy_astype
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder


def cholesky_factor(b: JaxprBuilder, x: Atom) -> Atom:
    """Emit lower Cholesky factors, NaN where a matrix is not positive definite."""
    return vectors.lower_triangle(b, cholesky_factors(b, x))


def svd_factor(b: JaxprBuilder, x: Atom) -> Atom:
    """Emit left singular vectors times the roots of the singular values."""
    values, left, _ = prims.svd(b, x, True, True)
    return columns_times_roots(b, left, values)


def eigh_factor(b: JaxprBuilder, x: Atom) -> Atom:
    """Emit eigenvectors times the roots of the eigenvalues."""
    return columns_times_roots(b, *prims.eigh(b, x, True))


def columns_times_roots(b: JaxprBuilder, columns: Atom, values: Atom) -> Atom:
    """Emit the columns of matrices times the roots of `values`."""
    shape = columns.aval.shape
    axes = (*range(len(shape) - 2), len(shape) - 1)
    return prims.mul(b, columns, prims.broadcast_in_dim(b, prims.sqrt(b, values), shape, axes))


#: The factors of covariances, by the name of the method.
FACTORS: dict[str, Callable[[JaxprBuilder, Atom], Atom]] = {
    "cholesky": cholesky_factor,
    "svd": svd_factor,
    "eigh": eigh_factor,
}
#: The errors of NumPy where there is no factor. A negative eigenvalue makes it NaN.
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
    """Check the shapes of the parameters, and that there is a factor. It is one equation with that of the draws."""
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
    return vectors.multivariate_normal(b, key, shape, dtype, numpy_astype(b, mean, dtype), factor)


@emits_draws(
    rv.DirichletRV, lambda b, node, alpha: demand(b, node, "alpha < 0", lambda a: ~(a < 0.0), alpha), form=general
)
def sample_dirichlet(b, key, shape, dtype, alpha):
    """Shares of the whole."""
    return vectors.dirichlet(b, key, shape, dtype, numpy_astype(b, alpha, dtype))


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
    """Return the reason to refuse a node: NumPy takes no array of fractions, though PyTensor passes a batch's one by one."""
    n, p = node.inputs[2:]
    return refuse_fractions(0)(node) if n.type.ndim == 0 and p.type.ndim == 1 else None


@emits_draws(rv.MultinomialRV, check_multinomial, refuse=refuse_one_fraction, form=general)
def sample_multinomial(b, key, shape, dtype, n, p):
    """The counts as int64. A number of trials loses its fraction, as NumPy converts one number to an integer."""
    trials = numpy_astype(b, numpy_astype(b, n, "int64"), FLOAT)
    counts = vectors.multinomial(b, key, shape, trials, numpy_astype(b, p, FLOAT))
    return prims.convert(b, counts, "int64")
