"""Sums as products with ones, and products of large matrices, block by block."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base.jax_compat import xla_metadata_call_p
from pytensor_jaxpr_linker.graph.data_layout import LONG_COLUMNS
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.optimize.small_calls import MOST_BYTES
from pytensor_jaxpr_linker.jaxpr.optimize.xla_options import LIBRARY_PRODUCT, CallProgram
from pytensor_jaxpr_linker.jaxpr.passes import replace_equations

#: Smaller matrices, and matrices of fewer columns, stay as they are: matrices of 4 MB, or of 10 columns, gain
#: nothing.
LEAST_BYTES, LEAST_COLUMNS = 2**23, 16

#: The bytes of a block. On one core blocks from 100 kB to 4 MB took the same time, larger ones 1.5 times as long.
LEAST_BLOCK, MOST_BLOCK = 2**17, 2**22

#: XLA spreads the products of blocks over the cores if a block has more than 32,000 numbers: 1,000,000 x 50 numbers
#: take 10 ms on two cores, 14.5 in smaller blocks.
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


#: Vectors of processors have up to eight numbers.
LEAST_LENGTH = 8


def is_matrix_sum(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether a real matrix is summed that is too large for a small call and too small for XLA's library."""
    if eqn.primitive is not p.reduce_sum_p:
        return False
    aval = eqn.invars[0].aval
    is_matrix = len(aval.shape) == 2 and aval.dtype.kind == "f" and all(type(n) is int for n in aval.shape)
    return (
        is_matrix
        and min(aval.shape) >= LEAST_LENGTH
        and aval.size <= LIBRARY_PRODUCT
        and aval.size * aval.dtype.itemsize > MOST_BYTES
    )


def product_with_ones(b: JaxprBuilder, eqn: Any) -> Atom:
    """Emit a sum over one axis of a matrix as its product with ones, and a sum over both as two products."""
    (x,) = eqn.invars
    for axis in sorted(eqn.params["axes"], reverse=True):
        x = times_ones(b, x, axis)
    return x


#: For a longer sum the time to begin does not matter.
MOST_ADDED = 4096


def share_sums(program: CallProgram, _: Any) -> CallProgram:
    """Make products of vectors of short sums, and of whether all or any elements are true, also in small calls."""
    jaxpr = with_shared_sums(program.jaxpr)
    return program if jaxpr is program.jaxpr else program._replace(jaxpr=jaxpr)


def with_shared_sums(closed: Any) -> Any:
    """Return a closed Jaxpr with such products, or the same one."""
    b = JaxprBuilder()
    b.outputs = closed.jaxpr.outvars
    eqns = [in_small_call(eqn) if eqn.primitive is xla_metadata_call_p else eqn for eqn in closed.eqns]
    eqns = replace_equations(eqns, b, is_short_reduction, product_of_vectors)
    return closed if eqns == closed.eqns else closed.replace(jaxpr=closed.jaxpr.replace(eqns=eqns))


def in_small_call(eqn: Any) -> Any:
    """Return a call with such products inside, or the same one."""
    jaxpr = with_shared_sums(eqn.params["jaxpr"])
    return eqn if jaxpr is eqn.params["jaxpr"] else eqn.replace(params=eqn.params | {"jaxpr": jaxpr})


def is_short_reduction(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether an equation reduces a short array to a number, by a sum of real numbers or of conditions."""
    if eqn.primitive not in (p.reduce_sum_p, p.reduce_and_p, p.reduce_or_p):
        return False
    aval = eqn.invars[0].aval
    is_whole = len(eqn.params["axes"]) == len(aval.shape)
    kind = "f" if eqn.primitive is p.reduce_sum_p else "b"
    return is_whole and aval.dtype.kind == kind and 0 < math.prod(aval.shape) <= MOST_ADDED


def product_of_vectors(b: JaxprBuilder, eqn: Any) -> Atom:
    """Emit a reduction as the product of a vector with ones: of the numbers, or how many conditions hold, or do not."""
    (x,) = eqn.invars
    if eqn.primitive is p.reduce_sum_p:
        return total_of_vector(b, x)
    counted = prims.not_(b, x) if eqn.primitive is p.reduce_and_p else x
    count = total_of_vector(b, prims.convert(b, counted, np.dtype("float64")))
    compare = prims.eq if eqn.primitive is p.reduce_and_p else prims.ne
    return compare(b, count, b.constant(np.float64(0)))


def total_of_vector(b: JaxprBuilder, x: Atom) -> Atom:
    """Emit the product of the elements of an array, as a vector, with ones."""
    count = math.prod(x.aval.shape)
    return times_ones(b, prims.reshape(b, x, (count,)), 0)


def times_ones(b: JaxprBuilder, x: Atom, axis: int) -> Atom:
    """Emit the product of an array with ones along an axis."""
    ones = prims.broadcast_to(b, b.constant(np.ones((), x.aval.dtype)), (x.aval.shape[axis],))
    return prims.dot_general(b, x, ones, ((axis,), (0,)))
