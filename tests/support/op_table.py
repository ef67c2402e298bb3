"""Sample inputs for each Op that becomes equations: `tests/whole/test_op_table.py` runs them, `docs/ops.md` lists the Ops."""

from __future__ import annotations

import os
from itertools import product
from typing import Any

import numpy as np
import op_table_linalg as linalg
import pytensor
import pytensor.scalar as ps
import pytensor.scalar.math as psm
import pytensor.tensor as pt
from op_row import Row
from pytensor import gradient as pg
from pytensor.assumptions.specify import assume
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import DeepCopyOp, ViewOp
from pytensor.conditional import ifelse
from pytensor.conditional.op import LazyIfElse
from pytensor.raise_op import Assert, CheckAndRaise
from pytensor.scalar.basic import Composite
from pytensor.scalar.loop import ScalarLoop
from pytensor.tensor import basic, extra_ops, fft, fourier, special
from pytensor.tensor import math as ptm
from pytensor.tensor.blas.batched import _batched_dot
from pytensor.tensor.blas.blas_c import CGemv
from pytensor.tensor.blas.gemm import Dot22, Dot22Scalar, Gemm
from pytensor.tensor.blas.gemv import Gemv
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.reshape import join_dims, split_dims
from pytensor.tensor.signal.conv import convolve1d, convolve2d
from pytensor.xtensor.basic import rename, tensor_from_xtensor, xtensor_from_tensor

SIGNED = np.array([-2.5, -0.5, 0.75, 3.25])
POSITIVE = np.array([0.25, 0.5, 1.75, 3.0])
UNIT = np.array([-0.75, -0.2, 0.3, 0.9])
SHARE = np.array([0.1, 0.3, 0.6, 0.9])
INTEGERS = np.array([-7, 3, 0, 12])
COMPLEX = np.array([1.5 - 2j, -0.5 + 1j, 0.25 + 0.5j, -3.0 - 1j])
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan])
PAIRS = tuple(
    np.array(xs) for xs in zip(*product([0.0, -0.0, 1.0, -2.0, np.inf, -np.inf, np.nan], repeat=2), strict=True)
)
MATRIX = np.cos(np.arange(12.0) ** 1.5).reshape(3, 4)
CUBE = np.sin(np.arange(1.0, 25.0)).reshape(2, 3, 4)


def scalar_row(
    op: ps.ScalarOp, *values: np.ndarray, special: tuple[np.ndarray, ...] | None = None, **options: Any
) -> Row:
    """Return the row of a scalar Op: on vectors, with special values behind the others."""
    if special is None:
        special = {1: (SPECIAL,), 2: PAIRS}.get(len(values), ())
    more = tuple(np.concatenate(pair) for pair in zip(values, special, strict=True)) if special else values
    return Row(type(op).__name__, Elemwise(op), values, (more,), has_values=True, **options)


def sized_row(op: ps.ScalarOp, *values: np.ndarray, **options: Any) -> Row:
    """Return the row of a scalar Op that is applied to numbers and to nothing, too."""
    row = scalar_row(op, *values, **options)
    return row._replace(more=(*row.more, tuple(v[0] for v in values), tuple(v[:0] for v in values)))


ARITHMETIC = [
    *(sized_row(op, SIGNED) for op in (ps.abs, ps.ceil, ps.cos, ps.cosh, ps.exp, ps.exp2, ps.expm1, ps.floor)),
    *(sized_row(op, SIGNED) for op in (ps.identity, ps.neg, ps.reciprocal, ps.sign, ps.sin, ps.sinh, ps.sqr, ps.tan)),
    *(sized_row(op, SIGNED) for op in (ps.tanh, ps.trunc, ps.round_half_away_from_zero, ps.round_half_to_even)),
    *(sized_row(op, SIGNED) for op in (ps.arcsinh, ps.arctan, ps.isnan, ps.isinf)),
    *(sized_row(op, POSITIVE) for op in (ps.log, ps.log2, ps.log10, ps.log1p, ps.sqrt)),
    *(sized_row(op, UNIT) for op in (ps.arccos, ps.arcsin, ps.arctanh)),
    sized_row(ps.arccosh, 1 + POSITIVE),
    sized_row(ps.convert_to_int8, SIGNED, special=()),  # what infinity is as an integer, C leaves open
    *(sized_row(op, SIGNED, POSITIVE) for op in (ps.add, ps.sub, ps.mul, ps.true_div, ps.arctan2, ps.mod)),
    *(
        sized_row(op, SIGNED, SIGNED[::-1].copy())
        for op in (ps.int_div, ps.scalar_maximum, ps.scalar_minimum, ps.second)
    ),
    *(sized_row(op, SIGNED, np.round(SIGNED)) for op in (ps.eq, ps.neq, ps.lt, ps.le, ps.gt, ps.ge)),
    sized_row(ps.pow, POSITIVE, SIGNED),
    sized_row(ps.mul, SIGNED, UNIT, POSITIVE),
    sized_row(ps.clip, SIGNED, UNIT, 1 + POSITIVE),
    sized_row(ps.switch, INTEGERS > 0, SIGNED, POSITIVE),
    sized_row(ptm.mul_without_zeros, SIGNED, np.array([0.0, 2.0, 0.5, 0.0]), gradient=False),
    *(sized_row(op, COMPLEX, special=(), gradient=False) for op in (ps.real, ps.imag, ps.conj, ps.abs, ps.exp, ps.neg)),
    sized_row(ps.complex, SIGNED, UNIT, special=(), gradient=False),
    *(
        sized_row(op, INTEGERS, INTEGERS[::-1].copy(), special=())
        for op in (ps.and_, ps.or_, ps.xor, ps.int_div, ps.mod)
    ),
    *(sized_row(op, INTEGERS > 0, INTEGERS > 5, special=()) for op in (ps.and_, ps.or_, ps.xor, ps.add, ps.mul)),
    *(sized_row(ps.invert, v, special=()) for v in (INTEGERS, INTEGERS > 0)),
]

#: Derivatives by parameters are loops, which take long to compile: tests/emit/test_scalar_math.py compares them.
FUNCTIONS = [
    *(scalar_row(op, SIGNED) for op in (psm.erf, psm.erfc, psm.erfcx, psm.sigmoid, psm.softplus)),
    *(scalar_row(op, SIGNED) for op in (psm.i0, psm.i1, psm.j0, psm.j1)),
    *(scalar_row(op, POSITIVE) for op in (psm.gamma, psm.gammaln, psm.psi, psm.tri_gamma)),
    scalar_row(psm.erfinv, UNIT),
    scalar_row(psm.erfcinv, SHARE),
    scalar_row(psm.log1mexp, -POSITIVE),
    scalar_row(psm.ndtri_exp, -POSITIVE, gradient=False),
    *(
        scalar_row(op, POSITIVE, POSITIVE[::-1].copy(), special=(), gradient=False)
        for op in (psm.gammainc, psm.gammaincc)
    ),
    *(scalar_row(op, POSITIVE, SHARE, special=(), gradient=False) for op in (psm.gammaincinv, psm.gammainccinv)),
    # PyTensor has no derivatives by the order.
    Row("Ive, Jv, Kve", lambda x: [f(1.5, x) for f in (pt.ive, pt.jv, pt.kve)], (POSITIVE,), ((POSITIVE[:0],),)),
    scalar_row(psm.owens_t, SIGNED, POSITIVE, special=()),
    Row("PolyGamma", lambda x: pt.polygamma(2, x), (POSITIVE,), ((POSITIVE[:0],), (POSITIVE[0],))),
    scalar_row(psm.betainc, POSITIVE, 1 + POSITIVE, SHARE, gradient=False),
    scalar_row(psm.betaincinv, POSITIVE, 1 + POSITIVE, SHARE, gradient=False),
    scalar_row(psm.hyp2f1, POSITIVE, 1 + POSITIVE, 2 + POSITIVE, UNIT / 2, gradient=False),
    Row(
        "Grad2F1Loop",
        lambda a, z: pt.grad(pt.hyp2f1(a, 1.5, 2.5, z).sum(), a),
        (POSITIVE, UNIT / 2),
        gradient=False,
    ),
]


def composite(x: Any, y: Any) -> Any:
    """Return a fused scalar Op of two results."""
    a, b = ps.get_scalar_type(x.type.dtype)("a"), ps.get_scalar_type(y.type.dtype)("b")
    return Elemwise(Composite([a, b], [ps.exp(a) + b, a * b]))(x, y)


def scalar_loop(x: Any) -> Any:
    """Return the state of a loop for each element."""
    state = ps.get_scalar_type(x.type.dtype)("state")
    return Elemwise(ScalarLoop(init=[state], update=[ps.sqr(state)]))(pt.constant(3), x)


def scan(x: Any) -> Any:
    """Return the running products of a vector."""
    return pytensor.scan(lambda row, state: row * state, sequences=[x], outputs_info=[x[0]], return_updates=False)


def lazy_ifelse(c: Any, x: Any) -> Any:
    """Return one of two expressions, of which one is computed."""
    branches = [OpFromGraph([v := x.type("v")], [f(v)]) for f in (pt.exp, pt.sin)]
    return LazyIfElse(*branches, [x.type])(c, x)


LOOPS = [
    Row("Composite", composite, (SIGNED, POSITIVE), ((SIGNED[:0], SIGNED[:0]), (SIGNED[0], SIGNED[1])), gradient=False),
    Row("ScalarLoop", scalar_loop, (UNIT,), ((UNIT[:0],), (UNIT[0],)), gradient=False),
    Row("Scan", scan, (POSITIVE,), ((POSITIVE[:1],),)),
    Row(
        "IfElse",
        lambda c, x, y: ifelse(c, x, y),
        (np.array(True), SIGNED, POSITIVE),
        ((np.array(False), SIGNED[:0], SIGNED),),
    ),
    Row("LazyIfElse", lazy_ifelse, (np.array(False), SIGNED), ((np.array(True), SIGNED[:0]),), gradient=False),
    Row("OpFromGraph", lambda x: OpFromGraph([v := x.type("v")], [pt.exp(v)])(x), (SIGNED,), ((SIGNED[:0],),)),
]

PASSED_ON = [
    *(
        Row(name, build, (SIGNED,), ((SIGNED[:0],),), gradient=gradient)
        for name, build, gradient in (
            ("DeepCopyOp", DeepCopyOp(), False),
            ("ViewOp", ViewOp(), True),
            ("ZeroGrad", pg.zero_grad, False),
            ("DisconnectedGrad", pg.disconnected_grad, False),
            ("UndefinedGrad", pg.undefined_grad, False),
            ("GradClip", lambda x: pg.grad_clip(x, -1, 1), False),
            ("GradScale", lambda x: pg.grad_scale(x, 2), False),
            ("SpecifyAssumptions", lambda x: assume(x, unique_indices=True), True),
            ("CpuContiguous", extra_ops.cpu_contiguous, True),
            ("Assert", lambda x: Assert("is finite")(x, pt.all(pt.isfinite(x))), True),
            ("CheckAndRaise", lambda x: CheckAndRaise(ValueError, "is finite")(x, pt.all(pt.isfinite(x))), True),
        )
    ),
    Row(
        "Rename",
        lambda x: tensor_from_xtensor(rename(xtensor_from_tensor(x, dims=("a",)), a="b")),
        (SIGNED,),
        gradient=False,
    ),
]


def reductions(x: Any) -> list[Any]:
    """Return the reductions that take any number of elements."""
    ones = [pt.sum(x, axis=0), pt.sum(x), pt.prod(x, axis=1), pt.all(x > 0, axis=0), pt.any(x > 0)]
    return [*ones, ptm.ProdWithoutZeros(axis=0)(x), CAReduce(ps.add, axis=(0, 1))(x)]


REDUCTIONS = [
    Row("Sum and others", reductions, (MATRIX,), ((MATRIX[:0],),), gradient=False),
    Row("Sum", lambda x: [pt.sum(x, axis=0), pt.prod(x, axis=1)], (MATRIX,)),
    Row("Sum of complex", lambda x: [pt.sum(x), pt.prod(x)], (COMPLEX,), ((COMPLEX[:0],),)),
    Row("CAReduce of integers", lambda x: [CAReduce(op)(x) for op in (ps.and_, ps.or_, ps.xor)], (INTEGERS,)),
    Row(
        "Max and Min",
        lambda x: [pt.max(x, axis=0), ptm.Min(axis=(0, 1))(x), ptm.Min(axis=(1,))(x)],
        (MATRIX,),
        ((np.array([[1.0, np.nan]]),),),
    ),
    Row("Argmax", lambda x: [pt.argmax(x), pt.argmax(x, axis=1)], (MATRIX,)),
    Row("CumOp", lambda x: [pt.cumsum(x, axis=0), pt.cumprod(x)], (MATRIX,), ((MATRIX[:0],),)),
    Row(
        "SortOp, ArgSortOp",
        lambda x: [pt.sort(x, axis=0), pt.argsort(x, axis=1, kind="stable")],
        (MATRIX,),
        ((MATRIX[:0],),),
    ),
    Row(
        "SearchsortedOp", lambda x, v: pt.searchsorted(x, v), (POSITIVE, SIGNED), ((POSITIVE, SIGNED[:0]),), flip=False
    ),
    Row(
        "Softmax, LogSoftmax",
        lambda x: [special.softmax(x, axis=0), special.log_softmax(x, axis=0)],
        (MATRIX,),
        ((MATRIX[:, :0],),),
    ),
    Row(
        "XLogY, XLog1PY",
        lambda x, y: [special.xlogy(x, y), special.xlog1py(x, y)],
        (SIGNED, POSITIVE),
        ((POSITIVE * 0, POSITIVE),),
    ),
    Row("LogSumExp", lambda x: special.logsumexp(x, axis=0), (MATRIX,)),
    Row("LogAddExp", special.logaddexp, (SIGNED, POSITIVE), ((SIGNED[:0], SIGNED[:0]),)),
]

ROWS = np.array([2, 0, 2])
SHAPES = [
    Row("Shape", lambda x: x.shape, (MATRIX,), ((MATRIX[:0],),)),
    Row("Shape_i", lambda x: extra_ops.Shape_i(1)(x) if hasattr(extra_ops, "Shape_i") else pt.shape_i(x, 1), (MATRIX,)),
    Row("SpecifyShape", lambda x: pt.specify_shape(x, (3, None)), (MATRIX,), lengths="3,n"),
    Row("Reshape", lambda x: pt.reshape(x, (2, -1)), (MATRIX,), ((MATRIX[:, :0],), (MATRIX[:, :2],)), lengths="m,2*n"),
    Row("JoinDims", join_dims, (CUBE,), ((CUBE[:0],),)),
    Row("SplitDims", lambda x: split_dims(x, (2, 2), axis=1), (MATRIX,), ((MATRIX[:0],),), lengths="m,4"),
    Row("DimShuffle", lambda x: [x.T, x.dimshuffle("x", 1, 0)], (MATRIX,), ((MATRIX[:0],),)),
    Row("ARange", lambda x: pt.arange(1, x.shape[0], 2) + x[0], (POSITIVE,)),
    Row("Alloc", lambda x: pt.alloc(x, 2, x.shape[0]), (SIGNED,), ((SIGNED[:0],),)),
    Row("AllocEmpty", lambda x: pt.second(pt.empty((x.shape[0], 2), dtype=x.dtype), x[0]), (SIGNED,)),
    Row("Eye", lambda x: pt.eye(x.shape[0], 3, 1) * x[0], (SIGNED,)),
    Row("Bartlett", lambda x: extra_ops.bartlett(x.shape[0]) * x, (SIGNED,)),
    Row("MakeVector", lambda x: basic.MakeVector(x.dtype)(x[0], x[1] * 2), (SIGNED,)),
    Row("ScalarFromTensor", lambda x: basic.tensor_from_scalar(basic.scalar_from_tensor(x)), (SIGNED[0],)),
    Row("Join", lambda x, y: pt.join(0, x, y), (SIGNED, POSITIVE), ((SIGNED[:0], POSITIVE),)),
    Row("Split", lambda x: pt.split(x, [1, 3], n_splits=2), (SIGNED,), lengths="4"),
    Row("ExtractDiag", lambda x: pt.diagonal(x, 1), (MATRIX,), ((MATRIX[:0],),)),
    Row("AllocDiag", pt.diag, (SIGNED,), ((SIGNED[:0],),)),
    Row("Repeat", lambda x: extra_ops.Repeat(0)(x, np.array([2, 0, 1])), (MATRIX,), lengths="3,n"),
    Row("FillDiagonal", extra_ops.fill_diagonal, (MATRIX, SIGNED[0]), ((MATRIX[:0], SIGNED[0]),)),
    Row("FillDiagonalOffset", lambda x, v: extra_ops.fill_diagonal_offset(x, v, 1), (MATRIX, SIGNED[0])),
    Row(
        "RavelMultiIndex",
        lambda i, j: extra_ops.ravel_multi_index((i, j), (3, 4)),
        (ROWS, ROWS),
        ((ROWS[:0], ROWS[:0]),),
    ),
    Row("UnravelIndex", lambda i: extra_ops.unravel_index(i, (3, 4)), (ROWS,), ((ROWS[:0],),)),
    Row(
        "Choose",
        lambda i, x: basic.choose(i, x),
        (np.array([2, 0, 1, 1]), MATRIX),
        ((np.array([1, 0]), MATRIX[:2, :2]),),
        gradient=False,
        lengths="n;k,n",
    ),
    Row(
        "PermuteRowElements",
        lambda x, p: basic.permute_row_elements(x, p),
        (MATRIX, np.array([2, 0, 3, 1])),
        ((MATRIX[:2, :2], np.array([1, 0])),),
        lengths="m,n;n",
    ),
    Row("Pad", lambda x: pt.pad(x, (1, 2)), (SIGNED,), ((SIGNED[:0],),)),
]

VECTOR = SIGNED[:3]
MASK = np.array([True, False, True])
INDEXING = [
    Row("Subtensor", lambda x: [x[1], x[::-1, 1:3], x[-1, ::2]], (MATRIX,)),
    Row("Subtensor of no rows", lambda x: x[1:], (MATRIX,), ((MATRIX[:0],),)),
    Row(
        "IncSubtensor",
        lambda x, y: [pt.set_subtensor(x[1], y), pt.inc_subtensor(x[:, 0], y[0])],
        (MATRIX, SIGNED),
        lengths="m,n;n",
    ),
    Row(
        "AdvancedSubtensor",
        lambda x, i: [x[i], x[i, i], x[:, i]],
        (MATRIX, ROWS),
        ((MATRIX, ROWS[:0]), (MATRIX.T.copy(), ROWS[:2])),
    ),
    Row(
        "AdvancedIncSubtensor",
        lambda x, i, y: [pt.set_subtensor(x[i[:2]], y), pt.inc_subtensor(x[i], y)],
        (MATRIX, ROWS, SIGNED),
        ((MATRIX, ROWS[:0], SIGNED), (MATRIX.T.copy(), ROWS[:2], VECTOR)),
        lengths="m,n;k;n",
    ),
    Row("Nonzero in one program", lambda x: pt.nonzero(x)[0].sum(), (MASK,)),
    Row("Unique in one program", lambda x: pt.unique(x).sum(), (np.array([3.0, 1.0, 3.0, 2.0]),), gradient=False),
    Row("Nonzero", lambda x: pt.nonzero(x)[0], (MASK,), one_program=False),
    Row("Unique", lambda x: pt.unique(x), (np.array([3.0, 1.0, 3.0, 2.0]),), ((SIGNED[:0],),), one_program=False),
]

BLOCK = np.cos(np.arange(12.0, 21.0)).reshape(3, 3)
PRODUCTS = [
    Row(
        "Dot",
        pt.dot,
        (BLOCK, MATRIX),
        ((BLOCK[:0], MATRIX), (BLOCK[:, :0], MATRIX[:0]), (VECTOR, VECTOR)),
        lengths="m,n;n,k",
    ),
    Row("BatchedDot", _batched_dot, (CUBE, CUBE.mT.copy()), ((CUBE[:0], CUBE.mT[:0]),), lengths="b,m,n;b,n,k"),
    Row("Dot22", Dot22(), (BLOCK, MATRIX), gradient=False, lengths="m,n;n,k"),
    Row("Dot22Scalar", Dot22Scalar(), (BLOCK, MATRIX, SIGNED[1]), gradient=False, lengths="m,n;n,k;"),
    Row(
        "Gemm",
        Gemm(inplace=False),
        (MATRIX, SIGNED[1], BLOCK, MATRIX, SIGNED[2]),
        gradient=False,
        lengths="m,n;;m,k;k,n;",
    ),
    Row(
        "Gemm without z",
        lambda z, x, y: Gemm(inplace=False)(z * np.nan, np.array(1.0), x, y, np.array(0.0)),
        (BLOCK, BLOCK, BLOCK),
        gradient=False,
        single=False,
        lengths="m,n;m,k;k,n",
    ),
    Row(
        "Gemv", Gemv(inplace=False), (VECTOR, SIGNED[1], BLOCK, VECTOR, SIGNED[2]), gradient=False, lengths="m;;m,n;n;"
    ),
    Row(
        "CGemv",
        CGemv(inplace=False),
        (VECTOR, SIGNED[1], BLOCK, VECTOR, SIGNED[2]),
        gradient=False,
        lengths="m;;m,n;n;",
    ),
    Row("Einsum", lambda x, y: pt.einsum("ij,jk->ki", x, y), (BLOCK, MATRIX), lengths="m,n;n,k"),
    Row(
        "Convolve1d",
        lambda x, y: [convolve1d(x, y), convolve1d(x, y, mode="valid")],
        (SIGNED, VECTOR),
        lengths="m;3",
        refused="m;n",
    ),
    Row(
        "Convolve2d",
        lambda x, y: [convolve2d(x, y), convolve2d(x, y, mode="same")],
        (MATRIX, BLOCK),
        lengths="m,n;3,3",
        refused="m,n;j,k",
    ),
    Row("RFFTOp", lambda x: fft.rfft(x), (MATRIX,), lengths="m,4", refused="m,n"),
    Row("IRFFTOp", lambda x: fft.irfft(x), (CUBE[..., :2].copy(),), lengths="m,3,2", refused="m,n,2"),
    Row("Fourier", lambda x: fourier.fft(x, 4, 1), (MATRIX,), gradient=False, single=False),
    Row(
        "Fourier of all",
        lambda x: fourier.fft(x, x.shape[1], 1),
        (MATRIX,),
        gradient=False,
        single=False,
        lengths="m,4",
        refused="m,n",
    ),
]

#: The rows, by family: those of one family are compiled as one function.
FAMILIES: dict[str, list[Row]] = {
    "arithmetic": ARITHMETIC,
    "functions": [row._replace(single=False) for row in FUNCTIONS],  # which are computed in float64 in any case
    "loops": LOOPS,
    "passed on": PASSED_ON,
    "reductions": REDUCTIONS,
    "shapes": SHAPES,
    "indexing": INDEXING,
    "products": PRODUCTS,
    "linear algebra": linalg.ROWS,
}
#: ``OP=choose pytest tests/whole/test_op_table.py`` runs the rows alone whose names begin like this.
OP = os.environ.get("OP", "").lower()
if OP:
    chosen = {family: [row for row in rows if row.name.lower().startswith(OP)] for family, rows in FAMILIES.items()}
    FAMILIES = {family: rows for family, rows in chosen.items() if rows}
    assert FAMILIES, f"no row of the Op table begins with {OP!r}"
