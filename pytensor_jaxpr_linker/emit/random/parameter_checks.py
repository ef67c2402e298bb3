"""The parameter checks of NumPy's and SciPy's distributions, with their errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jax import lax
from pytensor.graph.basic import Apply

from pytensor_jaxpr_linker.emit.elemwise import broadcast_operand
from pytensor_jaxpr_linker.emit.random.sampler import ParameterCheck
from pytensor_jaxpr_linker.emit.scalar import number, numpy_astype
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder

#: Emits which elements are allowed.
type ParameterCondition = Callable[..., Atom]


def check_all(b: JaxprBuilder, ok: Atom, error: Exception, node: Apply) -> None:
    """Check that all elements of `ok` are true; the caller raises `error`."""
    axes = range(len(ok.aval.shape))
    b.check(prims.reduce_and(b, ok, axes) if axes else ok, lambda: error, node)


def check_not_negative(b: JaxprBuilder, x: Atom, name: str, node: Apply) -> None:
    """Have the caller raise a ValueError if an element of `x` has a minus sign, be it -0.0; NaN passes, as in NumPy."""
    value = b.known(x)
    if value is not None and not (np.signbit(value) & ~np.isnan(value)).any():
        return
    x = numpy_astype(b, x, "float64")
    has_no_sign = prims.ge(b, prims.bitcast(b, x, "int64"), b.constant(0, "int64"))
    check_all(b, prims.or_(b, has_no_sign, prims.ne(b, x, x)), ValueError(f"{name} < 0"), node)


def check_positive(b: JaxprBuilder, x: Atom, name: str, node: Apply) -> None:
    """Have the caller raise a ValueError if an element of `x` is not positive; NaN passes, as in NumPy."""
    value = b.known(x)
    if value is not None and not (value <= 0).any():
        return
    check_all(b, prims.not_(b, prims.le(b, x, number(b, x, 0))), ValueError(f"{name} <= 0"), node)


def check_ordered(b: JaxprBuilder, low: Atom, high: Atom, strict: bool, message: str, node: Apply) -> None:
    """Have the caller raise a ValueError if an element of `low` is above that of `high`, or equal to it if `strict`."""
    fails = prims.ge if strict else prims.gt
    check_all(b, prims.not_(b, fails(b, *in_common_shape(b, low, high))), ValueError(message), node)


def not_negative(*names: str | None) -> ParameterCheck:
    """Return NumPy's check of parameters that are not negative; one whose name is None may be anything."""

    def check(b: JaxprBuilder, node: Apply, *params: Atom) -> None:
        for name, x in zip(names, params, strict=True):
            if name is not None:
                check_not_negative(b, x, name, node)

    return check


def positive(*names: str | None) -> ParameterCheck:
    """Return NumPy's check of parameters that are positive; one whose name is None may be anything."""

    def check(b: JaxprBuilder, node: Apply, *params: Atom) -> None:
        for name, x in zip(names, params, strict=True):
            if name is not None:
                check_positive(b, x, name, node)

    return check


def scipy_domain(name: str, *conditions: ParameterCondition | None) -> ParameterCheck:
    """Return SciPy's check of the parameters of its distribution `name`: each fulfils its condition, so NaN does not."""
    error = ValueError(
        "Domain error in arguments. The `scale` parameter must be positive for all distributions, and many distributions"
        f" have restrictions on shape parameters. Please see the `scipy.stats.{name}` documentation for details."
    )

    def check(b: JaxprBuilder, node: Apply, *params: Atom) -> None:
        for condition, x in zip(conditions, params, strict=True):
            if condition is not None:
                check_all(b, condition(b, numpy_astype(b, x, "float64")), error, node)

    return check


def above_zero(b: JaxprBuilder, x: Atom) -> Atom:
    """Emit ``x > 0``."""
    return prims.gt(b, x, number(b, x, 0))


def from_zero(b: JaxprBuilder, x: Atom) -> Atom:
    """Emit ``x >= 0``."""
    return prims.ge(b, x, number(b, x, 0))


def in_common_shape(b: JaxprBuilder, *params: Atom) -> Sequence[Atom]:
    """Return parameters as float64 that one elementwise primitive takes."""
    shape = lax.broadcast_shapes(*(x.aval.shape for x in params))
    return [broadcast_operand(b, numpy_astype(b, x, "float64"), shape) for x in params]
