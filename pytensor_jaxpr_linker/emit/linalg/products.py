"""The matrix exponential, Kronecker products, and block-diagonal matrices.

The exponential squares the Padé approximant of degree 13 of ``x / 2**s`` `s` times: Higham, *The scaling and squaring
method for the matrix exponential revisited*, SIAM J. Matrix Anal. Appl. 26 (2005). SciPy takes lower degrees for small
norms; the accuracy is the same.
"""

from __future__ import annotations

from functools import partial, reduce
from math import factorial

import numpy as np
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.linalg.constructors import BlockDiagonal
from pytensor.tensor.linalg.products import Expm, KroneckerProduct

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.linalg.matrices import check_square, identity_matrices, matmul
from pytensor_jaxpr_linker.emit.linalg.solvers import factor_general, solve_factored
from pytensor_jaxpr_linker.emit.scalar import number, numpy_astype
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.nested import any_of

#: The degree of the approximant, and the 1-norm up to which its error is below the rounding of float64.
DEGREE, LARGEST_NORM = 13, 5.371920351148152

#: The coefficients of the numerator's powers; the denominator has the same with alternating signs.
COEFFICIENTS = [
    factorial(2 * DEGREE - k) * factorial(DEGREE) / (factorial(2 * DEGREE) * factorial(k) * factorial(DEGREE - k))
    for k in range(DEGREE + 1)
]

#: How often a result is squared at most. A norm that takes more, of 2e10, leaves no digit of a result in float32, and
#: few in float64; the result is NaN then. The number is fixed because only a loop of known length can be differentiated
#: backwards.
SQUARINGS = 32


@emits(Expm, batched=True)
def emit_Expm(op, node, b, x):
    """``exp(x)``, NaN if the norm of `x` is too large."""
    check_square(*x.aval.shape)
    x = numpy_astype(b, x, node.outputs[0].type.dtype)
    if 0 in x.aval.shape:
        return x
    scaled, count, too_large = scaled_down(b, x)
    squared = square_repeatedly(b, pade(b, scaled), count)
    return prims.select(b, too_large, number(b, x, np.nan), squared)


def scaled_down(b: JaxprBuilder, x: Atom) -> tuple[Atom, Atom, Atom]:
    """Emit ``x / 2**s`` with a norm in the approximant's range, `s`, and where that is impossible.

    `s` counts the limits that the norm exceeds, which is exact, unlike a logarithm and a power of two by an
    exponential.
    """
    *batch, _, _ = x.aval.shape
    lead, table = len(batch), (*batch, SQUARINGS)
    size = prims.stop_gradient(b, prims.abs_(b, x))
    norm = prims.reduce_max(b, prims.reduce_sum(b, size, (lead,)), (lead,))
    limits = b.constant(LARGEST_NORM * 2.0 ** np.arange(SQUARINGS), norm.aval.dtype)
    powers = b.constant(0.5 ** np.arange(1, SQUARINGS + 1), norm.aval.dtype)
    norms = prims.broadcast_in_dim(b, norm, table, range(lead))
    exceeded = prims.gt(b, norms, prims.broadcast_to(b, limits, table))
    factors = prims.select(b, exceeded, prims.broadcast_to(b, powers, table), number(b, norm, 1))
    count = prims.reduce_sum(b, prims.convert(b, exceeded, "int32"), (lead,))
    factor = numpy_astype(b, prims.reduce_min(b, factors, (lead,)), x.aval.dtype)
    fits = prims.le(b, norm, number(b, norm, LARGEST_NORM * 2.0**SQUARINGS))
    factor, too_large = (prims.broadcast_in_dim(b, v, x.aval.shape, range(lead)) for v in (factor, prims.not_(b, fits)))
    return prims.mul(b, x, factor), count, too_large


def pade(b: JaxprBuilder, x: Atom) -> Atom:
    """Emit the Padé approximant of ``exp(x)`` from even and odd powers of `x`; only three powers are computed."""
    x2 = matmul(b, x, x)
    x4 = matmul(b, x2, x2)
    powers = [identity_matrices(b, x.aval.shape, x.aval.dtype), x2, x4, matmul(b, x4, x2)]

    def combined(coefficients: list[float]) -> Atom:
        pairs = zip(powers[-len(coefficients) :], coefficients, strict=True)
        return reduce(partial(prims.add, b), [prims.mul(b, v, number(b, v, c)) for v, c in pairs])

    def half(first: int) -> Atom:
        low, high = COEFFICIENTS[first:8:2], COEFFICIENTS[first + 8 :: 2]
        return prims.add(b, matmul(b, powers[3], combined(high)), combined(low))

    odd, even = matmul(b, x, half(1)), half(0)
    below, above = prims.sub(b, even, odd), prims.add(b, even, odd)
    return solve_factored(b, below, above, factor_general(b, below, above.aval.shape))


def square_repeatedly(b: JaxprBuilder, x: Atom, count: Atom) -> Atom:
    """Emit `x` squared `count` times, each matrix of a batch its own number of times."""
    steps = prims.iota(b, "int32", (SQUARINGS,), 0)
    avals = [count.aval, x.aval, b.aval((), np.dtype("int32"))]
    body, operands = b.sub_jaxpr(avals)
    kept, (_, y, _) = body.sub_jaxpr(avals)
    branches = [kept.build([y]), squared_where_left(body, avals)]
    count_, _, step_ = operands
    is_left = any_of(body, prims.gt(body, count_, prims.broadcast_to(body, step_, count.aval.shape)))
    carry = prims.cond(body, prims.convert(body, is_left, "int32"), branches, operands, [x.aval])
    return prims.scan(b, body.build(carry), [count], [x], [steps], SQUARINGS)[0]


def squared_where_left(b: JaxprBuilder, avals: list) -> object:
    """Return the Jaxpr that squares the matrices with more squarings than the step's number."""
    body, (count, x, step) = b.sub_jaxpr(avals)
    is_left = prims.gt(body, count, prims.broadcast_to(body, step, count.aval.shape))
    is_left = prims.broadcast_in_dim(body, is_left, x.aval.shape, range(len(count.aval.shape)))
    return body.build([prims.select(body, is_left, matmul(body, x, x), x)])


@emits(KroneckerProduct, batched=True)
def emit_KroneckerProduct(op, node, b, *xs):
    """The products of all pairs of elements: the axes of the factors take turns, then each pair becomes one."""
    lead = node.op.batch_ndim(node) if isinstance(node.op, Blockwise) else 0
    batch, ndim = xs[0].aval.shape[:lead], max(len(x.aval.shape) for x in xs) - lead
    lengths = [(*[1] * (ndim + lead - len(x.aval.shape)), *x.aval.shape[lead:]) for x in xs]
    paired = list(zip(*lengths, strict=True))
    shape = (*batch, *(n for pair in paired for n in pair))
    factors = []
    for i, x in enumerate(xs):
        x, first = numpy_astype(b, x, node.outputs[0].type.dtype), ndim + lead - len(x.aval.shape)
        dims = [*range(lead), *(lead + 2 * axis + i for axis in range(first, ndim))]
        factors.append(prims.broadcast_in_dim(b, x, shape, dims))
    return prims.reshape(b, prims.mul(b, *factors), (*batch, *(m * n for m, n in paired)))


@emits(BlockDiagonal, batched=True)
def emit_BlockDiagonal(op, node, b, *xs):
    """Pad the blocks with zeros to the full number of columns, and join them."""
    lead, width, left, rows = len(xs[0].aval.shape) - 2, sum(x.aval.shape[-1] for x in xs), 0, []
    for x in xs:
        x = numpy_astype(b, x, node.outputs[0].type.dtype)
        right = width - left - x.aval.shape[-1]
        rows.append(prims.pad(b, x, number(b, x, 0), [(0, 0, 0)] * (lead + 1) + [(left, right, 0)]))
        left += x.aval.shape[-1]
    return prims.concatenate(b, rows, lead)
