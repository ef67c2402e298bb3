"""What stands for each primitive that a compiler may lack: a table of functions that emit it in basic operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.extend.core as jex
import numpy as np
from jax import lax
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base.jax_compat import geqp3_p, geqrf_p
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import INT32, Atom, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.formula import apply, where
from pytensor_jaxpr_linker.jaxpr.portable.arrays import Array, full
from pytensor_jaxpr_linker.jaxpr.portable.elimination import (
    factors_with_exchanges,
    lower_cholesky,
    permutation_of,
    solve_tridiagonal,
    substituted,
)
from pytensor_jaxpr_linker.jaxpr.portable.fourier import fourier
from pytensor_jaxpr_linker.jaxpr.portable.orthogonal import (
    eigh_factors,
    product_of_reflections,
    qr_factors,
    reflections,
    svd_factors,
)
from pytensor_jaxpr_linker.jaxpr.portable.schur import schur_factors


def product_by_entries(data: Array, columns: Array, starts: Array, y: Array) -> Array:
    """Return the product; `starts` says where the entries of each row begin, and then how many entries there are."""
    b, count, rows, n = data.b, data.shape[0], starts.shape[0] - 1, y.shape[1]
    if not count or not rows:
        return full(b, 0, (rows, n), y.dtype)
    # Every row but the first begins a step up in the numbers of the rows.
    steps = full(b, 0, (count + 1,), INT32)
    begins = starts.astype(INT32)[..., 1:-1]
    ups = added(steps, begins, full(b, 1, begins.shape, INT32)) if rows > 1 else steps
    numbers = Array(b, prims.cumsum(b, ups.atom, 0))[..., :count]
    terms = data.reshape(count, 1) * taken_rows(y, columns.astype(INT32))
    return added(full(b, 0, (rows, n), terms.dtype), numbers, terms)


def taken_rows(x: Array, places: Array) -> Array:
    """Return rows of a matrix, at places in bounds."""
    dims = lax.GatherDimensionNumbers((1,), (0,), (0,))
    indices = places.reshape(*places.shape, 1)
    shape = (places.shape[0], x.shape[1])
    return Array(x.b, prims.gather(x.b, x.atom, indices.atom, dims, (1, x.shape[1]), shape))


def added(x: Array, places: Array, terms: Array) -> Array:
    """Return an array with terms added to its rows at places in bounds, which may repeat."""
    windows = tuple(range(1, len(terms.shape)))
    dims = lax.ScatterDimensionNumbers(windows, (0,), (0,))
    indices = places.reshape(*places.shape, 1)
    return Array(x.b, prims.scatter_add(x.b, x.atom, indices.atom, terms.astype(x.dtype).atom, dims))


#: Takes the params of an equation and its operands; returns its results, or None if the equation may stay.
type Emission = Callable[..., Sequence[Array] | Array | None]

REPLACEMENTS: dict[jex.Primitive, Emission] = {}


def replaces(primitive: jex.Primitive) -> Callable[[Emission], Emission]:
    """Register what stands for a primitive."""

    def register(function: Emission) -> Emission:
        REPLACEMENTS[primitive] = function
        return function

    return register


def replacement_of(
    eqn: Any,
    params: Mapping[str, Any],
    b: JaxprBuilder,
    operands: Sequence[Atom],
    table: Mapping[jex.Primitive, Emission],
) -> list[Atom] | None:
    """Emit what stands for an equation with these params, and return the atoms of its results; None if the equation may stay."""
    emit = table.get(eqn.primitive)
    if emit is None or not operands:
        return None
    found = emit(params, *[Array(b, x) for x in operands])
    if found is None:
        return None
    results = [found] if isinstance(found, Array) else found
    pairs = [(x.atom, var.aval.dtype) for x, var in zip(results, eqn.outvars, strict=True)]
    return [x if x.aval.dtype == dtype else prims.convert(b, x, dtype) for x, dtype in pairs]


@replaces(p.cholesky_p)
def cholesky_columns(params: Mapping[str, Any], a: Array) -> Array:
    """Columns one after the other."""
    return lower_cholesky(a)


@replaces(p.triangular_solve_p)
def substitution(params: Mapping[str, Any], a: Array, x: Array) -> Array:
    """Rows one after the other."""
    return substituted(a, x, **params)


@replaces(p.lu_p)
def elimination(params: Mapping[str, Any], a: Array) -> Sequence[Array]:
    """Columns one after the other, with row exchanges."""
    return factors_with_exchanges(a)


@replaces(lax.linalg.lu_pivots_to_permutation_p)
def exchanges(params: Mapping[str, Any], pivots: Array) -> Array:
    """Row exchanges one after the other."""
    return permutation_of(pivots, params["permutation_size"])


@replaces(p.qr_p)
def householder(params: Mapping[str, Any], a: Array) -> Sequence[Array]:
    """Reflections one after the other."""
    return qr_factors(a, params["full_matrices"], params["pivoting"])


@replaces(geqrf_p)
def packed_reflections(params: Mapping[str, Any], a: Array) -> Sequence[Array]:
    """Reflections one after the other."""
    return reflections(a)[:2]


@replaces(geqp3_p)
def pivoted_reflections(params: Mapping[str, Any], a: Array, columns: Array) -> Sequence[Array]:
    """Reflections one after the other, of the largest column each."""
    *batch, n = columns.shape
    packed, taus, order = reflections(a, (columns == 0).reshape(*batch, 1, n))
    return packed, order + 1, taus


@replaces(p.householder_product_p)
def product_of_householder(params: Mapping[str, Any], a: Array, taus: Array) -> Array:
    """Reflections one after the other."""
    return product_of_reflections(a, taus)


@replaces(p.eigh_p)
def jacobi_eigenvalues(params: Mapping[str, Any], a: Array) -> Sequence[Array] | None:
    """Rotations of Jacobi's method."""
    return None if params["subset_by_index"] is not None else eigh_factors(a, params["lower"])


@replaces(p.svd_p)
def jacobi_singular_values(params: Mapping[str, Any], a: Array) -> Sequence[Array] | None:
    """Rotations of Jacobi's one-sided method."""
    if params["subset_by_index"] is not None:
        return None
    return svd_factors(a, params["full_matrices"], params["compute_uv"])


@replaces(p.schur_p)
def shifted_qr(params: Mapping[str, Any], a: Array) -> Sequence[Array] | None:
    """Sweeps of reflections."""
    if params["sort_eig_vals"]:
        return None
    return schur_factors(a)[: 1 + params["compute_schur_vectors"]]


@replaces(p.tridiagonal_solve_p)
def elimination_of_diagonals(params: Mapping[str, Any], low: Array, main: Array, high: Array, x: Array) -> Array:
    """Rows one after the other, with exchanges."""
    return solve_tridiagonal(low, main, high, x)


@replaces(p.fft_p)
def fourier_products(params: Mapping[str, Any], x: Array) -> Array:
    """Products with roots of unity."""
    return fourier(x, params["fft_type"], params["fft_lengths"])


@replaces(p.cbrt_p)
def cube_root(params: Mapping[str, Any], x: Array) -> Array:
    """A power, and a step of Newton's method: to 1 ulp or so."""
    size = abs(x)
    is_ordinary = (size > 0) & (size < np.inf)
    safe = where(is_ordinary, size, 1)
    third = Array(x.b, prims.pow_(x.b, safe.atom, x.b.constant(np.asarray(1 / 3, x.dtype))))
    third = third - (third - safe / (third * third)) / 3.0
    root = where(is_ordinary, third, size)
    return where(x == 0, x, where(x < 0, -root, root))


def by_signed(primitive: jex.Primitive, flips: bool) -> Emission:
    """Return a running function of unsigned integers by that of signed ones.

    Sums and products have the same bits. For a maximum or minimum the first bit is flipped: then the order is the same.
    """

    def emit(params: Mapping[str, Any], x: Array) -> Array | None:
        if x.dtype.kind != "u":
            return None
        b, signed, bits = x.b, np.dtype(f"i{x.dtype.itemsize}"), 8 * x.dtype.itemsize
        first = full(b, 1 << (bits - 1), x.shape, x.dtype) if flips else None
        given = x if first is None else apply(prims.xor, x, first)
        found = b.bind(primitive, (prims.bitcast(b, given.atom, signed),), x.shape, signed, dict(params))
        result = Array(b, prims.bitcast(b, found, x.dtype))
        return result if first is None else apply(prims.xor, result, first)

    return emit


REPLACEMENTS |= {
    p.cumsum_p: by_signed(p.cumsum_p, flips=False),
    p.cumprod_p: by_signed(p.cumprod_p, flips=False),
    p.cummax_p: by_signed(p.cummax_p, flips=True),
    p.cummin_p: by_signed(p.cummin_p, flips=True),
}
