"""Every scalar Op of PyTensor on edge values of all dtypes, against its own Python implementation.

The tests compare values, dtypes, signs of zeros, and types of errors.

By default each Op meets its dtypes in turn, so that all pairs occur.
``SCALAR_DTYPES=all pytest tests/emit/test_scalar_values.py`` tries every Op with all of them.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.scalar.basic as ps
import pytensor.scalar.math as psm
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.tensor.elemwise import Elemwise
from scalar_ops import OPS

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base.rules import SCALAR_RULES

EVERY_DTYPE = os.environ.get("SCALAR_DTYPES") == "all"
INTS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = ["float16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
DTYPES = ["bool", *INTS, *FLOATS, *COMPLEX]
#: Those that each Op meets in any case.
CORE = {"bool", "int64", "uint64", "float32", "float64", "complex128"}
#: The same for formulas of many equations, which take long to compile.
FORMULA_CORE = {"float32", "float64", "complex128"}
#: Without PyTensor's rewrites: the tests compare rules.
UNREWRITTEN = Mode(pjl.JaxprLinker(pjl.Options(on_break="ignore")), None)

#: Ops whose results, if real, have no rounding error, or that of IEEE 754.
EXACT = {
    *(
        ps.Abs,
        ps.Add,
        ps.AND,
        ps.Cast,
        ps.Ceil,
        ps.Clip,
        ps.Complex,
        ps.Conj,
        ps.EQ,
        ps.Floor,
        ps.GE,
        ps.GT,
        ps.Identity,
    ),
    *(ps.Imag, ps.IntDiv, ps.Invert, ps.IsInf, ps.IsNan, ps.LE, ps.LT, ps.Maximum, ps.Minimum, ps.Mod, ps.Mul, ps.Neg),
    *(ps.NEQ, ps.OR, ps.Real, ps.Reciprocal, ps.RoundHalfAwayFromZero, ps.RoundHalfToEven, ps.Second, ps.Sign, ps.Sqr),
    *(ps.Sqrt, ps.Sub, ps.Switch, ps.TrueDiv, ps.Trunc, ps.XOR),
}
#: Functions of several arguments: series and continued fractions, which emit/test_scalar_math.py has.
ELSEWHERE = {
    *(psm.BetaInc, psm.BetaIncInv, psm.GammaInc, psm.GammaIncC, psm.GammaIncCInv, psm.GammaIncInv, psm.Hyp2F1, psm.Ive),
    *(psm.Jv, psm.Kve, psm.Owens_t, psm.PolyGamma),
}


def test_every_rule_is_of_an_op_that_is_tried():
    of_pytensor = {
        cls
        for cls, rule in SCALAR_RULES.items()
        if isinstance(cls, type) and cls.__module__.startswith("pytensor.") and rule.several is None
    }
    assert of_pytensor == {type(op) for op in OPS.values()}
    assert of_pytensor > EXACT | ELSEWHERE


# -- what differs ------------------------------------------------------------------------------------------------------

type Columns = Sequence[np.ndarray]


def not_finite(*xs: np.ndarray) -> np.ndarray:
    return ~np.logical_and.reduce([np.isfinite(x) for x in xs])


def beyond_uint32(x: np.ndarray) -> np.ndarray:
    return ~((x.real > -(2.0**31)) & (x.real < 2.0**32)) if x.dtype.kind in "fc" else np.zeros(x.shape, bool)


#: Where the reference is not compared, and why: for each Op a function of the operands.
DIFFERENT = {
    # NumPy's vectorized and its scalar code differ from each other in what they make of numbers that are out of range.
    "convert_to_uint32": beyond_uint32,
    # SciPy's result is the square root of the largest number; the logarithm of the probability is below that number.
    "NdtriExp": lambda x: x < -1e30,
    # The argument has no digits after the point: SciPy returns an amplitude without a phase.
    "J0": lambda x: abs(x) > 1e18,
    "J1": lambda x: abs(x) > 1e18,
    # PyTensor's implementation adds 0.5, and the sum is rounded.
    "RoundHalfAwayFromZero": lambda x: abs(x) >= 1 / np.finfo(x.dtype).eps,
    # C leaves infinite exponents and bases of complex numbers to the library.
    "Pow": lambda x, y: not_finite(x, y) & (x.dtype.kind + y.dtype.kind != "ff") & (np.result_type(x, y).kind == "c"),
    # The direction of an infinite result is that of the zeros in between, whose sign XLA does not keep.
    "Log1mexp": lambda x: (x.dtype.kind == "c") & ((x == 0) | np.isinf(x.real)),
    # The C library makes a NaN of the imaginary part, which is 0.
    "Expm1": lambda x: np.isinf(x.real) & (x.dtype.kind == "c"),
}
#: Ops of which a zero may have the other sign, and why.
UNSIGNED_ZERO = {
    "Maximum": "of 0.0 and -0.0 NumPy takes the one that the processor's vector instruction takes",
    "Minimum": "as Maximum",
    "RoundHalfAwayFromZero": "PyTensor's implementation returns -0.0 for 0.0",
    "Erfinv": "SciPy's of -0.0 is 0.0",
    "Erfcinv": "SciPy's of 1.0 is -0.0",
    "I1": "SciPy's of -0.0 is 0.0",
    "J1": "ours of -0.0 is 0.0",
}
#: Where PyTensor's own implementation is less precise than its result's dtype: NumPy computes it in float16.
IN_FLOAT16 = {"ArcTan2", "Softplus"}
#: Ops for which PyTensor's Python multiplies Python's integers, which neither wrap nor are rounded.
OVERFLOWS = {"MulWithoutZeros"}


# -- values ------------------------------------------------------------------------------------------------------------


def values_of(dtype: str) -> np.ndarray:
    """Return the edge values of a dtype, and some ordinary ones."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return np.array([False, True])
    if kind.kind in "iu":
        info = np.iinfo(kind)
        powers = [2**53, 2**63]
        numbers = {0, 1, -1, 2, -2, 3, 7, 100, info.min, info.max, info.max - 1, info.max // 2, 2**32 - 1, 2**64 - 1}
        numbers.update(p + step for p in powers for step in (-1, 0, 1))
        return np.array(sorted(n for n in numbers if info.min <= n <= info.max), kind)
    if kind.kind == "f":
        info = np.finfo(kind)
        wide = 2.0**info.nmant + 1  # numbers of this size have a spacing of 1
        numbers = [0.0, -0.0, np.nan, np.inf, -np.inf, info.max, info.min, info.tiny, wide, 2 * wide - 3, 2 * wide]
        numbers += [
            0.5,
            -0.5,
            1,
            -1,
            1.5,
            -2.5,
            3,
            20,
            -40.5,
            300.5,
            2.0**31,
            -(2.0**31) - 1,
            2.0**53,
            2.0**63,
            2.0**64,
        ]
        with np.errstate(over="ignore"):
            return np.array(numbers).astype(kind)
    numbers = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, np.inf, -np.inf, np.nan]
    pairs = np.array(list(itertools.product(numbers, numbers)), part_of(kind))
    return pairs.view(kind).ravel()


def part_of(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"float{4 * dtype.itemsize}")


def some(dtype: str, count: int) -> np.ndarray:
    """Return `count` values of a dtype: a complex one meets all of its own in steps."""
    values = values_of(dtype)
    return values[np.arange(count) * 7 % len(values)] if np.dtype(dtype).kind == "c" else np.resize(values, count)


def columns(arity: int) -> list[dict[str, np.ndarray]]:
    """Return for each operand its values in each dtype, all of the same length, so that each value meets each."""
    count = {1: 81, 2: 30, 3: 8}[arity]
    shape = (count,) * arity
    index = np.indices(shape).reshape(arity, -1)
    return [{dtype: some(dtype, count)[i] for dtype in DTYPES} for i in index]


# -- comparison --------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    name: str
    dtypes: tuple[str, ...]
    arrays: list[np.ndarray]
    output: Variable
    expected: Any


def arity_of(op: ps.ScalarOp) -> int:
    return {ps.Switch: 3}.get(type(op), op.nin if op.nin > 0 else 2)


def dtypes_of(name: str) -> Iterator[tuple[str, ...]]:
    """Return the dtypes that an Op meets."""
    turn, arity = NAMES.index(name), arity_of(OPS[name])
    core = FORMULA_CORE if type(OPS[name]).__module__ == psm.__name__ else CORE
    every = {1: 5, 2: 9, 3: 99}[arity]
    for i, dtypes in enumerate(itertools.product(DTYPES, repeat=arity)):
        always = len(set(dtypes)) == 1 and dtypes[0] in core
        if EVERY_DTYPE or always or set(dtypes) == {"int64", "uint64"} or i % every == turn % every:
            yield dtypes


def reference(op: ps.ScalarOp, inputs: Sequence[Variable], arrays: Columns) -> tuple[Variable | None, Any]:
    """Return the Op's result and its value, or the error; no result where PyTensor makes no node."""
    try:
        output = Elemwise(op)(*inputs)
    except TypeError:
        return None, None
    node, storage = output.owner, [[None]]
    node.op.prepare_node(node, None, None, "py")
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
            node.op.perform(node, list(arrays), storage)
    except Exception as error:
        return output, error
    return output, storage[0][0]


def cases(name: str) -> Iterator[Case]:
    op = OPS[name]
    arity = arity_of(op)
    values = columns(arity)
    for dtypes in dtypes_of(name):
        inputs = [VECTORS[i, dtype] for i, dtype in enumerate(dtypes)]
        arrays = [values[i][dtype] for i, dtype in enumerate(dtypes)]
        if name == "Pow" and np.result_type(*dtypes).kind == "i":
            inputs[1] = VECTORS[2, dtypes[1]]
            arrays[1] = np.where(
                arrays[1] > 0, arrays[1], arrays[1].dtype.type(0)
            )  # what negative exponents raise is tested below
        output, expected = reference(op, inputs, arrays)
        if output is not None:
            yield Case(name, dtypes, arrays, output, expected)


VECTORS = {(i, dtype): pt.vector(f"{'xyz'[i]}_{dtype}", dtype=dtype) for i in range(3) for dtype in DTYPES}


def evaluate(group: Sequence[Case]) -> list[np.ndarray]:
    """Return the values of mode JAXPR, of all cases by one function."""
    operands = {v: a for case in group for v, a in zip(case.output.owner.inputs, case.arrays, strict=True)}
    f = pytensor.function(list(operands), [case.output for case in group], mode=UNREWRITTEN)
    return f(*operands.values())


def tolerance(case: Case) -> float:
    dtype = np.dtype(case.output.type.dtype)
    exact = type(OPS[case.name]) in EXACT and not np.iscomplexobj(case.arrays[0])
    if dtype.kind not in "fc" or (dtype.kind == "f" and exact):
        return 0.0
    part = part_of(dtype) if dtype.kind == "c" else dtype
    if case.name in IN_FLOAT16 and np.result_type(*case.dtypes).itemsize <= 2:
        part = np.dtype("float16")
    return {2: 2e-3, 4: 1e-5, 8: 1e-12}[part.itemsize]


def agrees(got: np.ndarray, want: np.ndarray, rtol: float, sign_of_zero: bool) -> np.ndarray:
    """Tell which real numbers agree. XLA flushes subnormal numbers to zero."""
    if want.dtype.kind not in "fc":
        return got == want
    tiny = np.finfo(want.dtype).tiny
    with np.errstate(all="ignore"):
        close = (got == want) | (abs(got - want) <= rtol * abs(want)) | ((got == 0) & (abs(want) < tiny))
    close |= np.isnan(got) & np.isnan(want)
    return close & ((want != 0) | (np.signbit(got) == np.signbit(want))) if sign_of_zero else close


def agrees_complex(got: np.ndarray, want: np.ndarray, rtol: float) -> np.ndarray:
    """Tell which complex numbers agree: one with a NaN is NaN, whatever C99 says of its other part."""
    with np.errstate(all="ignore"):
        near = abs(got - want) <= rtol * abs(want)
    parts = [agrees(g, w, rtol, False) for g, w in ((got.real, want.real), (got.imag, want.imag))]
    return near | (parts[0] & parts[1]) | (np.isnan(got) & np.isnan(want))


def differences(case: Case, got: np.ndarray) -> list[str]:
    """Return where a result differs, in words."""
    want = case.expected
    assert got.dtype == want.dtype == case.output.type.dtype, (case.name, case.dtypes, got.dtype)
    if want.dtype.kind == "c":
        ok = agrees_complex(got, want, tolerance(case))
    else:
        ok = agrees(got, want, tolerance(case), case.name not in UNSIGNED_ZERO)
    if case.name in DIFFERENT:
        with np.errstate(over="ignore"):
            ok |= DIFFERENT[case.name](*case.arrays)
    return [
        f"{case.name}{tuple(a[i].item() for a in case.arrays)} of {case.dtypes} is {want[i]}, and not {got[i]}"
        for i in np.flatnonzero(~ok)[:3]
    ]


NAMES = sorted(name for name, op in OPS.items() if type(op) not in ELSEWHERE)
BY_ARITY = {n: [name for name in NAMES if arity_of(OPS[name]) == n] for n in (1, 2, 3)}
GROUPS = [*(BY_ARITY[1][i::4] for i in range(4)), *([name] for n in (2, 3) for name in BY_ARITY[n])]


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0] if len(names) == 1 else f"unary_{names[0]}")
def test_values_are_numpys(names):
    found = [case for name in names for case in cases(name)]
    valid = [case for case in found if not isinstance(case.expected, Exception)]
    results = evaluate(valid)
    wrong = [line for case, got in zip(valid, results, strict=True) for line in differences(case, got)]
    assert not wrong, "\n".join(wrong)
    raising = [case for case in found if isinstance(case.expected, Exception) and case.name not in OVERFLOWS]
    for case in raising if EVERY_DTYPE else raising[:2]:
        with pytest.raises(type(case.expected)):
            evaluate([case])
