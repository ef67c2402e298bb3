"""Ops of `pymc.distributions.dist_math`, by class name: PyMC is neither imported nor required."""

from __future__ import annotations

from math import factorial
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.extra_ops import search
from pytensor_jaxpr_linker.emit.indexing import take_rows
from pytensor_jaxpr_linker.emit.scalar import emits_scalar, numpy_astype
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.formula import Value, horner, where

MODULE = "pymc.distributions.dist_math"

#: Bessel functions of `pymc.VonMises` and `pymc.Rice`, and of their gradients.
for name, primitive in (("I0e", prims.bessel_i0e), ("I1e", prims.bessel_i1e)):
    emits_scalar(f"{MODULE}.{name}")(primitive)

#: The values of a spline beyond its knots, by the attribute `ext` of SciPy's splines.
ZEROS, ERROR, NEAREST = 1, 2, 3


def refuse_spline(node: Apply) -> str | None:
    """Return why a spline can't be emitted: it may be any function that has a derivative."""
    from scipy.interpolate import UnivariateSpline  # a node with a spline implies this slow import

    spline = node.op.spline
    if not isinstance(spline, UnivariateSpline):
        return f"its spline is a {type(spline).__name__}, whose polynomials are not known, and no UnivariateSpline"
    return "splines of complex numbers are not defined" if node.inputs[0].type.dtype.startswith("complex") else None


@emits(f"{MODULE}.SplineWrapper", refuse=refuse_spline)
def emit_SplineWrapper(op, node, b, x):
    """Search for the piece of the spline, and evaluate its Taylor polynomial about the knot where it begins."""
    knots, beyond = op.spline.get_knots(), op.spline.ext
    first, last = float(knots[0]), float(knots[-1])
    value = Value(b, numpy_astype(b, x, "float64"))
    is_beyond = (value < first) | (value > last)
    if beyond == ERROR:
        ok = prims.reduce_and(b, (~is_beyond).atom, range(len(x.aval.shape)))
        b.check(ok, lambda: ValueError("Found x value not in the domain"), node)
    if beyond == NEAREST:
        value = where(value < first, first, where(value > last, last, value))
    piece = search(b, b.constant(knots[1:-1]), value.atom, "right")
    table = np.vstack([knots[:-1], taylor_coefficients(op.spline, knots)])
    begin, *coefficients = (Value(b, take_rows(b, b.constant(row), piece, 0)) for row in table)
    result = horner(value - begin, coefficients)
    result = where(is_beyond, 0.0, result) if beyond == ZEROS else result
    return numpy_astype(b, result.atom, node.outputs[0].type.dtype)


def taylor_coefficients(spline: Any, knots: np.ndarray) -> np.ndarray:
    """Return the coefficients of each power (a row) and each piece of a spline (a column), about its first knot."""
    derivatives = np.transpose([spline.derivatives(knot) for knot in knots[:-1]])
    return np.array([row / factorial(power) for power, row in enumerate(derivatives)])
