"""The product of a sparse matrix, by rows, with a dense one: reads at the columns of the entries, and sums over their rows."""

from __future__ import annotations

from jax import lax

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import INT32
from pytensor_jaxpr_linker.jaxpr.portable.arrays import Array, full


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
