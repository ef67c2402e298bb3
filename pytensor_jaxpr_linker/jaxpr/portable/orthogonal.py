"""QR factors by reflections; eigenvalues and singular values by rotations."""

from __future__ import annotations

import numpy as np

from pytensor_jaxpr_linker.jaxpr.builder import INT32
from pytensor_jaxpr_linker.jaxpr.formula import sqrt, where
from pytensor_jaxpr_linker.jaxpr.portable.arrays import Array, for_each, full, joined_arrays, repeat_while
from pytensor_jaxpr_linker.jaxpr.portable.elimination import exchanged, first_largest


def reflections(a: Array, free: Array | None = None) -> tuple[Array, Array, Array]:
    """Return R above the vectors of the reflections, their factors, and the positions of the columns.

    Each step reflects a column onto its first element (Golub and Van Loan, Matrix Computations, 4th ed., algorithm
    5.2.1), with the signs of LAPACK's ``geqr2``. The norm of a column is computed of numbers divided by the largest, so
    nothing overflows. With `free`, of shape (..., 1, n) and true where a column may move, each step takes the column of
    the largest norm; norms are computed anew, not downdated.
    """
    b, (*batch, m, n) = a.b, a.shape
    k, (rows, columns) = min(m, n), a.positions()
    taus = full(b, 0, (*batch, 1, k), a.dtype)
    order = columns.broadcast((*batch, 1, n))
    is_free = full(b, False, (1, n), np.dtype(bool)) if free is None else free
    is_free = is_free.broadcast((*batch, 1, n))

    def step(i: Array, a: Array, taus: Array, order: Array, is_free: Array, rows: Array, columns: Array) -> list[Array]:
        if free is not None:
            a, order, is_free = with_next_column(a, order, is_free, i, rows, columns)
        column = a.at(i, -1)
        head, tail = column.at(i, -2), where(rows > i, column, 0)
        v, tau, beta = reflector(head, tail)
        whole = where(rows > i, v, where(rows == i, a.like(1), 0))
        reflected = a - whole * (tau.conj * (whole.mT.conj @ where(columns > i, a, 0)))
        kept = where(rows > i, v, where(rows == i, beta, column))
        return [reflected.put(i, -1, kept), taus.put(i, -1, tau), order, is_free]

    a, taus, order, _ = for_each(k, step, [a, taus, order, is_free], [rows, columns])
    return a, taus.reshape(*batch, k), order.reshape(*batch, n)


def reflector(head: Array, tail: Array) -> tuple[Array, Array, Array]:
    """Return the vector of a reflection below its first element, its factor, and the reflected first element."""
    size, largest = head.larger_size(), tail.larger_size().max(-2)
    scale = where(size > largest, size, largest)
    scale = where(scale > 0, scale, 1)
    scaled = [(x / scale.astype(x.dtype)).squares() for x in (head, tail)]
    norm = scale * sqrt(scaled[0] + scaled[1].sum(-2))
    is_null = largest == 0
    if head.dtype.kind == "c":
        is_null = is_null & (head.imag == 0)
    beta = where(is_null, head.real, where(head.real >= 0, -norm, norm)).astype(head.dtype)
    tau = where(is_null, 0, (beta - head) / where(is_null, 1, beta))
    return where(is_null, 0, tail / where(is_null, 1, head - beta)), tau, beta


def with_next_column(
    a: Array, order: Array, is_free: Array, i: Array, rows: Array, columns: Array
) -> tuple[Array, Array, Array]:
    """Return matrices with the next column at position `i`: a fixed column, or the column of the largest norm."""
    *batch, n = a.shape[:-2] + a.shape[-1:]
    below = where(rows >= i, a, 0)
    largest = below.larger_size().max(-2).max(-1)
    norms = (below / where(largest > 0, largest, 1).astype(a.dtype)).squares().sum(-2)
    fixed_first = where(is_free, norms, np.inf)
    ranked = where(columns >= i, fixed_first, -1.0).reshape(*batch, n)
    moved = [exchanged(x, i, first_largest(ranked), columns, -1) for x in (a, order, is_free.astype(INT32))]
    return moved[0], moved[1], moved[2] != 0


def product_of_reflections(a: Array, taus: Array, columns: int | None = None) -> Array:
    """Return the first columns, by default as many as of `a`, of the product of the reflections below its diagonal."""
    *batch, m, n = a.shape
    k = taus.shape[-1]
    start = a.identity(m, n if columns is None else columns)

    def step(i: Array, q: Array, a: Array, taus: Array, rows: Array) -> list[Array]:
        i = i.like(k - 1) - i
        v = where(rows > i, a.at(i, -1), where(rows == i, a.like(1), 0))
        return [q - v * (taus.at(i, -1) * (v.mT.conj @ q))]

    (q,) = for_each(k, step, [start], [a, taus.reshape(*batch, 1, k), a.positions()[0]])
    return q


def qr_factors(a: Array, full_matrices: bool, pivoting: bool = False) -> list[Array]:
    """Return Q and R, and with `pivoting` the positions of the columns."""
    b, (*batch, m, n) = a.b, a.shape
    k = m if full_matrices else min(m, n)
    free = full(b, True, (*batch, 1, n), np.dtype(bool)) if pivoting else None
    packed, taus, order = reflections(a, free)
    rows, columns = packed.positions()
    upper = where(rows <= columns, packed, 0)
    return [product_of_reflections(packed, taus, k), upper[..., :k, :], *([order] if pivoting else [])]


#: Convergence is quadratic: 6 to 10 sweeps are usual.
MOST_SWEEPS = 40


def eigh_factors(a: Array, lower: bool) -> tuple[Array, Array]:
    """Return eigenvectors and ascending eigenvalues of Hermitian matrices; one triangle is read.

    Two-sided rotations (Golub and Van Loan, Matrix Computations, 4th ed., section 8.5), until all elements off the
    diagonal are less than eps times the norm. Eigenvalues are off by some n eps times the largest; eigenvectors are
    orthonormal to as much.
    """
    n = a.shape[-1]
    a = from_triangle(a, lower)
    if n == 0:
        return a, a.diagonal().real.reshape(*a.shape[:-1])
    scale = a.larger_size().max(-1).max(-2)
    scale = where(scale > 0, scale, 1)
    failed = (a / scale.astype(a.dtype)).has_nan()
    rows = joined_arrays([even(a / scale.astype(a.dtype)), even(a.identity(n, n))], -1)
    size = rows.shape[-2]

    def sweep(_: Array, rows: Array) -> list[Array]:
        (rows,) = for_each(size - 1, two_sided_round, [rows])
        return [is_off_diagonal(rows[..., :size]), rows]

    (rows,) = repeat_while(is_off_diagonal(rows[..., :size]), MOST_SWEEPS, sweep, [rows])
    values = rows[..., :n, :n].diagonal().real
    values, vectors = sorted_rows(values * scale, rows[..., :n, size : size + n], descending=False)
    nan = np.nan
    return where(failed, nan, vectors.mT.conj), where(failed, nan, values).reshape(*a.shape[:-1])


def from_triangle(a: Array, lower: bool) -> Array:
    """Return Hermitian matrices by one of their triangles."""
    rows, columns = a.positions()
    strict = where(rows > columns if lower else rows < columns, a, 0)
    return strict + strict.mT.conj + where(rows == columns, a.real.astype(a.dtype), 0)


def even(x: Array) -> Array:
    """Return matrices with a row and a column of zeros more if their number is odd: no rotation touches these."""
    *batch, n, m = x.shape
    if n % 2 == 0:
        return x
    x = joined_arrays([x, full(x.b, 0, (*batch, 1, m), x.dtype)], -2)
    return joined_arrays([x, full(x.b, 0, (*batch, n + 1, 1), x.dtype)], -1)


def is_off_diagonal(a: Array) -> Array:
    """Return whether any matrix has more than rounding errors off its diagonal."""
    off = where(a.is_diagonal(), 0, a.squares()).sum(-1).sum(-2)
    total = a.squares().sum(-1).sum(-2)
    return (off > total * a.eps**2).any()


def rotation(p: Array, q: Array, between: Array, enough: Array) -> tuple[Array, Array, Array, Array]:
    """Return cosines, sines, tangents and phases of rotations.

    They make ``[[p, between], [conj(between), q]]`` diagonal, where `enough`.
    """
    size = abs(between)
    safe = where(enough, size, 1)
    phase = where(enough, between.conj / safe.astype(between.dtype), 1)
    tau = (q - p) / (2.0 * safe)
    tangent = where(tau >= 0, 1.0, tau.like(-1.0)) / (abs(tau) + sqrt(1.0 + tau * tau))
    tangent = where(enough, tangent, 0)
    cosine = 1.0 / sqrt(1.0 + tangent * tangent)
    return cosine, tangent * cosine, tangent, phase


def two_sided_round(_: Array, x: Array) -> list[Array]:
    """Make the elements between row i and row ``i + n / 2`` zero, for all i, and pair the rows anew.

    The rows go on beyond the matrix.
    """
    n, h = x.shape[-2], x.shape[-2] // 2
    p, q = (x[..., k : k + h, k : k + h].diagonal().real for k in (0, h))
    between = x[..., :h, h:n].diagonal()
    cosine, sine, tangent, phase = rotation(p, q, between, abs(between) > x.tiny)
    size, dtype = abs(between), x.dtype
    x = rotated_rows(x, cosine.astype(dtype), sine.astype(dtype), phase.conj)
    columns = rotated_rows(x[..., :n].mT, cosine.astype(dtype), sine.astype(dtype), phase).mT
    top, bottom = (p - tangent * size).astype(dtype), (q + tangent * size).astype(dtype)
    columns = with_diagonals(columns, top, bottom)
    paired = paired_anew(paired_anew(columns).mT).mT
    return [joined_arrays([paired, paired_anew(x[..., n:])], -1)]


def rotated_rows(x: Array, cosine: Array, sine: Array, phase: Array) -> Array:
    """Return rows i and ``i + n / 2`` rotated, after the phases of the latter."""
    h = x.shape[-2] // 2
    top, bottom = x[..., :h, :], x[..., h:, :] * phase
    return joined_arrays([top * cosine - bottom * sine, top * sine + bottom * cosine], -2)


def with_diagonals(x: Array, top: Array, bottom: Array) -> Array:
    """Return matrices with new diagonals of both halves, and with zeros between row i and row ``i + n / 2``."""
    h, (rows, columns) = x.shape[-1] // 2, x.positions()
    is_between = (rows - columns == h) | (columns - rows == h)
    return where(rows == columns, joined_arrays([top, bottom], -2), where(is_between, 0, x))


def paired_anew(x: Array) -> Array:
    """Return rows in the next round's order: the first stays, the others move on by one place around both halves."""
    h = x.shape[-2] // 2
    parts = [(0, 1), (h, h + 1), (1, h - 1), (h + 1, 2 * h), (h - 1, h)] if h > 1 else [(0, 2)]
    return joined_arrays([x[..., i:j, :] for i, j in parts if i < j], -2)


def sorted_rows(values: Array, rows: Array, descending: bool) -> tuple[Array, Array]:
    """Return numbers, one for each row, in order, and the rows in the same order."""
    keys = -values if descending else values
    others, places = keys.mT, keys.positions()[0]
    rank = ((keys > others) | ((keys == others) & (places > places.mT))).astype(np.int32).sum(-1)
    order = (rank.mT == places).astype(rows.dtype)
    return (order.real @ values), order @ rows


def svd_factors(a: Array, full_matrices: bool, compute_uv: bool) -> list[Array]:
    """Return the singular values, and with `compute_uv` the matrices on their left and right.

    One-sided rotations (Golub and Van Loan, section 8.6.3) make the rows of R, of a QR factorization, orthogonal. Where
    a singular value is less than n eps times the largest, QR factors complete the left vectors, so they are orthonormal
    whatever the rank is. Singular values are off by some n eps times the largest.
    """
    m, n = a.shape[-2:]
    if m < n:
        found = svd_factors(a.mT.conj, full_matrices, compute_uv)
        return [found[0], found[2].mT.conj, found[1].mT.conj] if compute_uv else found
    if n == 0:
        left = a.identity(m, m if full_matrices else 0)
        values = full(a.b, 0, (*a.shape[:-2], 0), a.real.dtype)
        return [values, left, a.identity(0, 0)] if compute_uv else [values]
    scale = a.larger_size().max(-1).max(-2)
    scale = where(scale > 0, scale, 1)
    a = a / scale.astype(a.dtype)
    failed = a.has_nan()
    q, r = qr_factors(a, full_matrices and compute_uv)
    values, x, w = orthogonal_rows(r[..., :n, :].mT, compute_uv)
    found = [where(failed, np.nan, values * scale).reshape(*a.shape[:-2], n)]
    if not compute_uv:
        return found
    left = completed(x, values)
    q = joined_arrays([q[..., :n] @ left, q[..., n:]], -1)
    return [*found, where(failed, np.nan, q), where(failed, np.nan, w.conj)]


def orthogonal_rows(x: Array, compute_vectors: bool) -> tuple[Array, Array, Array]:
    """Return the descending norms of the orthogonal rows of ``w @ x``, these rows, and w, which is unitary."""
    n = x.shape[-1]
    parts = [even(x), even(x.identity(n, n))] if compute_vectors else [even(x)]
    rows = joined_arrays(parts, -1)
    size, rounds = parts[0].shape[-1], rows.shape[-2] - 1

    def one_round(_: Array, going: Array, x: Array) -> list[Array]:
        h = x.shape[-2] // 2
        top, bottom = x[..., :h, :size], x[..., h:, :size]
        p, q = top.squares().sum(-1), bottom.squares().sum(-1)
        between = (top.conj * bottom).sum(-1)
        least = sqrt(p) * sqrt(q) * (n * x.eps)
        enough = (abs(between) > least) & (abs(between) > x.tiny)
        cosine, sine, _, phase = rotation(p, q, between, enough)
        x = rotated_rows(x, cosine.astype(x.dtype), sine.astype(x.dtype), phase)
        return [going | enough.any(), paired_anew(x)]

    def sweep(_: Array, rows: Array) -> list[Array]:
        return for_each(rounds, one_round, [full(rows.b, False, (), np.dtype(bool)), rows])

    true = full(x.b, True, (), np.dtype(bool))
    (rows,) = repeat_while(true, MOST_SWEEPS, sweep, [rows])
    rows = rows[..., :n, :]
    values, rows = sorted_rows(sqrt(rows[..., :size].squares().sum(-1)), rows, descending=True)
    return values, rows[..., :n], rows[..., size : size + n] if compute_vectors else rows


def completed(x: Array, values: Array) -> Array:
    """Return unitary matrices whose columns are normalized rows of `x`, unless these are rounding errors."""
    n = x.shape[-1]
    matters = values > values.max(-2) * (n * x.eps)
    safe = where(matters, values, 1).astype(x.dtype)
    columns = where(matters, x / safe, 0).mT
    q, r = qr_factors(columns, full_matrices=False)
    signs = where(matters, r.diagonal(), 1).mT
    return q * signs
