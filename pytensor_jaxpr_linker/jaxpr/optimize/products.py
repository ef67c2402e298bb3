"""Products of a large matrix's columns with a vector, block by block.

XLA's CPU compiler computes ``X.T @ r`` for a matrix of many rows by passing over each part of `X` more than once: 1,000,000 x 50 numbers take 34
ms, where a copy of them takes 17. Blocks of rows that stay in a core's cache take 16, and each is a task for a core.
"""

from __future__ import annotations

from typing import Any

from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.graph.column_major import LONG_COLUMNS
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder

#: Smaller matrices, and matrices of fewer columns, stay as they are: those of 4 MB, and those of 10 columns, gain nothing.
LEAST_BYTES, LEAST_COLUMNS = 2**23, 16

#: The bytes of a block. On one core blocks from 100 kB to 4 MB took the same time, larger ones 1.5 times as long.
LEAST_BLOCK, MOST_BLOCK = 2**17, 2**22

#: XLA spreads the products of blocks over the cores if a block has more than 32,000 numbers: 1,000,000 x 50 numbers take 10 ms on two cores, 14.5 in smaller blocks.
LEAST_PARALLEL = 2**16


def is_tall_product(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether an equation is the product of a large matrix's columns with a vector."""
    found = find_matrix(eqn)
    return found is not None and block_rows(found[0].aval) is not None


def find_matrix(eqn: Any) -> tuple[Atom, Atom] | None:
    """Return the matrix and the vector of a product that adds over the rows of the matrix, or None."""
    if eqn.primitive is not p.dot_general_p:
        return None
    (axes, batch), (x, y) = eqn.params["dimension_numbers"], eqn.invars
    if any(batch):
        return None
    for matrix, vector, over in ((x, y, axes[0]), (y, x, axes[1])):
        shape = matrix.aval.shape
        if over == (0,) and len(shape) == 2 and type(shape[0]) is int and vector.aval.size == shape[0]:
            return matrix, vector
    return None


def block_rows(matrix: Any) -> int | None:
    """Return how many rows a block of a matrix has; None for a small matrix, and for one of few, long rows."""
    n, columns = matrix.shape
    if type(columns) is not int or columns < LEAST_COLUMNS or matrix.dtype.itemsize * n * columns < LEAST_BYTES:
        return None
    if columns >= LONG_COLUMNS * n:
        return None
    row = columns * matrix.dtype.itemsize
    least, most = -(-LEAST_BLOCK // row), MOST_BLOCK // row
    parallel = min(max(least, -(-LEAST_PARALLEL // columns)), most)
    sizes = (*range(parallel, most + 1), *range(parallel - 1, least - 1, -1))
    return next((rows for rows in sizes if n % rows == 0), None)


def blockwise_product(b: JaxprBuilder, eqn: Any) -> Atom | None:
    """Emit a product as the sum of the products of blocks of rows."""
    if (found := find_matrix(eqn)) is None or (rows := block_rows(found[0].aval)) is None:
        return None
    matrix, vector = found
    n, columns = matrix.aval.shape
    x = prims.reshape(b, matrix, (n // rows, rows, columns))
    y = prims.reshape(b, vector, (n // rows, rows))
    total = prims.reduce_sum(b, prims.dot_general(b, x, y, ((1,), (1,)), ((0,), (0,))), (0,))
    return prims.reshape(b, total, eqn.outvars[0].aval.shape)
