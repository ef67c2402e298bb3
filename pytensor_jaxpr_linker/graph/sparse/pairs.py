"""The sparse product of two sparse matrices whose entries are at constant places.

Which entries meet, and at which places their products are, is found once, with NumPy. Otherwise the host multiplies: SciPy finds
the places while it multiplies, in less time than it would take to count, to sort and to merge them on the device.
"""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt

from pytensor_jaxpr_linker.graph.sparse.matrix import Format, Matrix, constant_length, sum_at
from pytensor_jaxpr_linker.graph.sparse.products import ConstantRows, constant_rows, reordered

#: With more pairs of entries the host multiplies: their places would fill the program's memory.
MANY_PAIRS = 2**24


def constant_product(x: Matrix, y: Matrix, dtype: str, format: Format) -> Matrix | None:
    """Return the product, or None if places are not constants. As in SciPy, sums that are zero are no entries."""
    left, right = constant_rows(x), constant_rows(y)
    if left is None or right is None or left.columns != len(right.indptr) - 1:
        return None
    counts = np.diff(right.indptr)[left.cols]
    if counts.sum() > MANY_PAIRS:
        return None
    first, second = pairs(left, right, counts)
    n, m = len(left.indptr) - 1, right.columns
    axes = left.rows[first].astype("int64"), right.cols[second].astype("int64")
    along, across, lengths = (*axes, (n, m)) if format == "csr" else (*axes[::-1], (m, n))
    places, inverse = np.unique(along * lengths[1] + across, return_inverse=True)
    factors = (reordered(v.cast(dtype).data, order) for v, order in ((x, left.order[first]), (y, right.order[second])))
    data = sum_at(pt.mul(*factors), (pt.constant(inverse.astype("int32")),), (constant_length(len(places)),))
    along, across = (part.astype("int32") for part in np.divmod(places, max(lengths[1], 1)))
    indptr = np.searchsorted(along, np.arange(lengths[0] + 1)).astype("int32")
    pattern = pt.constant(across), pt.constant(indptr)
    rows, cols = map(pt.constant, (along, across) if format == "csr" else (across, along))
    return Matrix(format, data, rows, cols, (constant_length(n), constant_length(m)), pattern, drops_zeros=True)


def pairs(left: ConstantRows, right: ConstantRows, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the entries that meet: each entry of the left meets `counts` entries, a row of the right."""
    first = np.repeat(np.arange(len(counts)), counts)
    starts = right.indptr[left.cols] - np.cumsum(counts) + counts
    return first, np.arange(len(first)) + np.repeat(starts, counts)
