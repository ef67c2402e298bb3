"""Vectors and matrices of random variables. Batch axes come first; parameters may have fewer, or some of length 1."""

from __future__ import annotations

import math

import numpy as np

from pytensor_jaxpr_linker.emit.random.sampler import open_uniform, split_key, standard_normal
from pytensor_jaxpr_linker.emit.random.samplers_counts import FLOAT, binomial
from pytensor_jaxpr_linker.emit.random.samplers_gamma import log_gamma
from pytensor_jaxpr_linker.emit.scalar import number
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.jaxpr.formula import Value, exp, log, maximum, minimum, where


def batched(b: JaxprBuilder, x: Atom, batch: Shape, core_ndim: int) -> Atom:
    """Emit the broadcast of all but the last `core_ndim` axes to `batch`."""
    return prims.broadcast_to(b, x, (*batch, *x.aval.shape[len(x.aval.shape) - core_ndim :]))


def with_core(b: JaxprBuilder, x: Atom, core: Shape) -> Atom:
    """Emit a value for each element of a batch, repeated over core axes."""
    return prims.broadcast_in_dim(b, x, (*x.aval.shape, *core), range(len(x.aval.shape)))


def lower_triangle(b: JaxprBuilder, x: Atom) -> Atom:
    """Emit matrices with zeros above the diagonal."""
    shape = x.aval.shape
    row, column = (prims.iota(b, "int32", shape, len(shape) - i) for i in (2, 1))
    return prims.select(b, prims.ge(b, row, column), x, number(b, x, 0))


def products(b: JaxprBuilder, matrices: Atom, vectors: Atom) -> Atom:
    """Emit ``matrices @ vectors``, the batch axes of the vectors being all there are."""
    batch, shape = vectors.aval.shape[:-1], matrices.aval.shape
    if math.prod(shape[:-2]) == 1:  # one product with all vectors as a matrix
        matrix = prims.reshape(b, matrices, shape[-2:])
        return prims.dot_general(b, vectors, matrix, ([len(batch)], [1]))
    axes = range(len(batch))
    matrices = batched(b, matrices, batch, 2)
    return prims.dot_general(b, matrices, vectors, ([len(batch) + 1], [len(batch)]), (axes, axes))


def multivariate_normal(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, mean: Atom, factor: Atom) -> Atom:
    """Emit normal vectors about `mean` of covariance ``factor @ factor.T``."""
    z = standard_normal(b, key, (*shape, factor.aval.shape[-1]), dtype)
    draws = products(b, factor, z) if 0 not in factor.aval.shape else z
    return prims.add(b, draws, batched(b, mean, shape, 1))


def matrix_normal(
    b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, mean: Atom, row_factor: Atom, column_factor: Atom
) -> Atom:
    """Emit ``mean + row_factor @ z @ column_factor.T``, z of normal variables."""
    size = row_factor.aval.shape[-2], column_factor.aval.shape[-2]
    axes, n = range(len(shape)), len(shape)
    z = standard_normal(b, key, (*shape, *size), dtype)
    rows, columns = (batched(b, x, shape, 2) for x in (row_factor, column_factor))
    draws = prims.dot_general(b, rows, z, ([n + 1], [n]), (axes, axes))
    draws = prims.dot_general(b, draws, columns, ([n + 1], [n + 1]), (axes, axes))
    return prims.add(b, draws, batched(b, mean, shape, 2))


def dirichlet(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, alpha: Atom) -> Atom:
    """Emit gamma variables over their sum, by logarithms: small parameters leave no 0 / 0, and a parameter of 0 gives 0 as in NumPy."""
    alpha = batched(b, alpha, shape, 1)
    logs = Value(b, log_gamma(b, key, alpha.aval.shape, dtype, alpha))
    logs = where(Value(b, alpha) == 0.0, -np.inf, logs)
    largest = maximum(Value(b, prims.reduce_max(b, logs.atom, (len(shape),))), np.finfo(dtype).min)
    parts = exp(logs - Value(b, with_core(b, largest.atom, alpha.aval.shape[-1:])))
    total = Value(b, prims.reduce_sum(b, parts.atom, (len(shape),)))
    total = where(total == 0.0, 1.0, total)
    return (parts / Value(b, with_core(b, total.atom, alpha.aval.shape[-1:]))).atom


def multinomial(b: JaxprBuilder, key: Atom, shape: Shape, n: Atom, p: Atom) -> Atom:
    """Emit counts of categories, float64 like the parameters: each is binomial, given the previous ones.

    As with NumPy, the last category gets the rest, whatever its probability.
    """
    axis, k = len(shape), p.aval.shape[-1]
    sums = prims.cumsum(b, p, len(p.aval.shape) - 1)
    left_over = Value(b, b.constant(np.float64(1))) - (Value(b, sums) - Value(b, p))
    shares = minimum(Value(b, p) / maximum(left_over, np.finfo(FLOAT).tiny), 1.0).atom
    shares = prims.transpose(b, batched(b, shares, shape, 1), (axis, *range(axis)))
    shares = prims.slice_(b, shares, [0] * (axis + 1), [k - 1, *shape], [1] * (axis + 1))
    carry = [key, prims.broadcast_to(b, n, shape)]
    body, (key, left, share) = b.sub_jaxpr([*(x.aval for x in carry), b.aval(shape, FLOAT)])
    key, now = split_key(body, key)
    drawn = binomial(body, now, shape, left, share)
    closed = body.build([key, prims.sub(body, left, drawn), drawn])
    _, left, rows = prims.scan(b, closed, [], carry, [shares], k - 1)
    rows = prims.concatenate(b, [rows, prims.reshape(b, left, (1, *shape))], 0)
    return prims.transpose(b, rows, (*range(1, axis + 1), 0))


def stick_breaking(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype, alpha: Atom, k: int) -> Atom:
    """Emit the lengths of `k` pieces and of the rest; each piece is a Beta(1, `alpha`) share of the remaining stick.

    The logarithm of the remaining share is that of a uniform number over `alpha`.
    """
    axis = len(shape)
    u = Value(b, open_uniform(b, key, (*shape, k), dtype))
    alpha = with_core(b, prims.broadcast_to(b, alpha, shape), (k,))
    logs = prims.cumsum(b, (log(u) / Value(b, alpha)).atom, axis) if k else u.atom
    left = exp(Value(b, logs)).atom
    whole = prims.broadcast_to(b, b.constant(np.ones((), dtype)), (*shape, 1))
    none = prims.broadcast_to(b, b.constant(np.zeros((), dtype)), (*shape, 1))
    before, after = (prims.concatenate(b, pair, axis) for pair in ([whole, left], [left, none]))
    return prims.sub(b, before, after)
