"""Special functions: their precision, and PyTensor's derivatives.

The derivative of an algorithm is not the algorithm of the derivative: a loop has no reverse mode, and a branch that is
not taken may have an infinite slope. So each function is one ``custom_jvp_call``. Its rule is the scalar graph of the
Op's `pullback`, emitted by our scalar rules when JAX first asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, wraps
from itertools import compress

import numpy as np
import pytensor.scalar as ps
import pytensor.scalar.math as psm
from pytensor.gradient import NullTypeGradError
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.null_type import NullType

from pytensor_jaxpr_linker.base.rules import ScalarRule
from pytensor_jaxpr_linker.emit.scalar import Emit, emit_inner, numpy_astype, refuse_complex
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, ElementwiseFunction, JaxprBuilder, Shape, is_variable
from pytensor_jaxpr_linker.jaxpr.formula import Value
from pytensor_jaxpr_linker.jaxpr.passes import CPU
from pytensor_jaxpr_linker.jaxpr.signs import note_signs

#: Rows of at most this many elements are short.
SHORT_ROW = 16

#: A function of values, in float64 or float32.
type Formula = Callable[..., Value]


def values(of_complex: Emit | None = None, single: bool = False) -> Callable[[Formula], ScalarRule]:
    """Return the form of a rule that is a formula, called with float64 values.

    float32 and float16 results are computed in float64, too, from one table of coefficients, with an error of half a
    unit in the last place; with `single` in float32, for formulas that lose at most a few units there.

    Parameters
    ----------
    of_complex
        A rule ``(b, *xs)`` for complex results, if the Op has any.
    single
        Whether results of at most 32 bits are computed in float32: an accelerator has many times as many units for it.
    """

    def form(formula: Formula) -> ScalarRule:
        of_real = with_pullback(evaluated(formula, single))
        if of_complex is None:
            return ScalarRule(of_real, refuse_complex)

        @wraps(formula)
        def rule(op: ps.ScalarOp, b: JaxprBuilder, dtype: np.dtype, *xs: Atom) -> Atom:
            if dtype.kind == "c":
                return of_complex(b, *(numpy_astype(b, x, dtype) for x in xs))
            return of_real(op, b, dtype, *xs)

        return ScalarRule(rule)

    return form


def evaluated(formula: Formula, single: bool) -> Emit:
    """Return a scalar rule that evaluates a formula in float64, or short results in float32 if `single`."""

    @wraps(formula)
    def rule(op: ps.ScalarOp, b: JaxprBuilder, dtype: np.dtype, *xs: Atom) -> Atom:
        precision = "float32" if single and dtype.itemsize <= 4 else "float64"
        shape = prims.elementwise_shape(xs)
        is_flat = has_short_rows(shape) and CPU(b)
        operands = [prims.reshape(b, x, (math.prod(shape),)) if is_flat and x.aval.shape else x for x in xs]
        result = formula(*(Value(b, numpy_astype(b, x, precision)) for x in operands)).atom
        if is_flat and is_variable(result):
            (result,) = prims.barrier(b, [result])  # else XLA computes the elements where they are read
            result = prims.reshape(b, result, shape if result.aval.shape else ())
        return prims.broadcast_to(b, numpy_astype(b, result, dtype), shape)

    return rule


def has_short_rows(shape: Shape) -> bool:
    """Return whether rows are too short for XLA's vectors: `gammaln` takes 20 ns a number in 40 x 5, 14 in 200."""
    is_known = all(type(n) is int for n in shape)
    return is_known and len(shape) > 1 and shape[-1] <= SHORT_ROW < math.prod(shape)


def with_pullback(rule: Emit) -> Emit:
    """Make a scalar rule differentiate by the Op's own `pullback`; all but discrete operands take the Op's dtype."""

    @wraps(rule)
    def wrapped(op: ps.ScalarOp, b: JaxprBuilder, dtype: np.dtype, *xs: Atom) -> Atom:
        xs = tuple(x if is_discrete_operand(op, i) else numpy_astype(b, x, dtype) for i, x in enumerate(xs))
        if b.differentiable:  # so that guards can be put before the operands, see `branch_guards`
            xs = tuple(prims.broadcast_to(b, x, prims.elementwise_shape(xs)) if is_variable(x) else x for x in xs)
        operands = [x for x in xs if is_variable(x)]
        inner, atoms = b.sub_jaxpr([x.aval for x in operands], has_derivative=True)
        note_signs(b, operands, inner, atoms)
        known = [atom in inner.never_negative for atom in atoms]
        result = rule(op, inner, dtype, *insert(xs, atoms))

        def differentiate(
            child: JaxprBuilder, primals: Sequence[Atom], tangents: Sequence[Atom | None]
        ) -> tuple[list[Atom], list[Atom]]:
            child.never_negative.update(compress(primals, known))
            slopes = iter(tangents)
            pairs = [next(slopes) if is_variable(x) else None for x in xs]
            values = insert(xs, primals)
            primal = wrapped(op, child, dtype, *values)
            return [primal], [pushforward(op, child, values, primal, pairs)]

        if not operands:
            return rule(op, b, dtype, *xs)
        jaxpr = inner.build([result])
        if len(operands) == len(xs):
            function = ElementwiseFunction(jaxpr, (op, dtype), lambda b, *xs: wrapped(op, b, dtype, *xs))
            b.functions[id(jaxpr)] = function
        return prims.custom_jvp_call(b, jaxpr, differentiate, operands)[0]

    return wrapped


def is_discrete_operand(op: ps.ScalarOp, position: int) -> bool:
    """Return whether an operand is an integer by the Op's definition."""
    return isinstance(op, psm.PolyGamma) and position == 0


def insert(xs: Sequence[Atom], atoms: Sequence[Atom]) -> list[Atom]:
    """Return `xs` with each variable replaced by the next of `atoms`."""
    following = iter(atoms)
    return [next(following) if is_variable(x) else x for x in xs]


def pushforward(
    op: ps.ScalarOp, b: JaxprBuilder, xs: Sequence[Atom], result: Atom, tangents: Sequence[Atom | None]
) -> Atom:
    """Emit the sum of the tangents times PyTensor's partial derivatives; a tangent of None is zero.

    Raises
    ------
    NullTypeGradError
        If PyTensor has no derivative with respect to an operand with a tangent, as `pytensor.grad` would.
    """
    dtype = result.aval.dtype
    wrt = tuple(i for i, t in enumerate(tangents) if t is not None)
    graph = partial_derivatives(op, tuple(x.aval.dtype.name for x in xs), dtype.name, wrt)
    partials = emit_inner(graph, b, [*xs, result])
    total = None
    for i, partial in zip(wrt, partials, strict=True):
        term = prims.mul(b, numpy_astype(b, partial, dtype), tangents[i])
        total = term if total is None else prims.add(b, total, term)
    return prims.broadcast_to(b, total, result.aval.shape)


@cache
def partial_derivatives(op: ps.ScalarOp, dtypes: tuple[str, ...], dtype: str, wrt: tuple[int, ...]) -> FunctionGraph:
    """Return the graph from an Op's inputs and its output to the partial derivatives, from its `pullback`."""
    inputs = [ps.get_scalar_type(t)() for t in dtypes]
    output = ps.get_scalar_type(dtype)()
    partials = op.pullback(inputs, [output], [ps.constant(np.asarray(1, dtype))])
    for i in wrt:
        if isinstance(partials[i].type, NullType):
            raise NullTypeGradError(f"No derivative of {op} by its input {i}: {partials[i].type.why_null}")
    return FunctionGraph([*inputs, output], [partials[i] for i in wrt], clone=False)
