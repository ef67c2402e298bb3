"""The parameter checks of NumPy's and SciPy's distributions, with their errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax
from pytensor.graph.basic import Apply

from pytensor_jaxpr_linker.emit.elemwise import broadcast_operand
from pytensor_jaxpr_linker.emit.random.sampler import ParameterCheck
from pytensor_jaxpr_linker.emit.scalar import all_true, number, numpy_astype
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.formula import Value

#: A formula: which elements are allowed.
type ParameterCondition = Callable[[Value], Value]


def check_all(b: JaxprBuilder, ok: Atom, error: Exception, node: Apply) -> None:
    """Emit a run-time check that all elements of `ok` are true; a call raises `error` otherwise."""
    b.check(all_true(b, ok), lambda: error, node)


def check_not_negative(b: JaxprBuilder, x: Atom, name: str, node: Apply) -> None:
    """Emit a run-time check that no element of `x` is negative or -0.0; NaN passes, as in NumPy."""
    value = b.known(x)
    if value is not None and not (np.signbit(value) & ~np.isnan(value)).any():
        return
    x = numpy_astype(b, x, "float64")
    has_no_sign = prims.ge(b, prims.bitcast(b, x, "int64"), b.constant(0, "int64"))
    check_all(b, prims.or_(b, has_no_sign, prims.ne(b, x, x)), ValueError(f"{name} < 0"), node)


def check_positive(b: JaxprBuilder, x: Atom, name: str, node: Apply) -> None:
    """Emit a run-time check that all elements of `x` are positive; NaN passes, as in NumPy."""
    value = b.known(x)
    if value is not None and not (value <= 0).any():
        return
    check_all(b, prims.not_(b, prims.le(b, x, number(b, x, 0))), ValueError(f"{name} <= 0"), node)


def check_ordered(b: JaxprBuilder, low: Atom, high: Atom, strict: bool, message: str, node: Apply) -> None:
    """Emit a run-time check that no element of `low` exceeds `high`, or equals it if `strict`."""
    fails = prims.ge if strict else prims.gt
    check_all(b, prims.not_(b, fails(b, *in_common_shape(b, low, high))), ValueError(message), node)


def demand(b: JaxprBuilder, node: Apply, message: str, condition: Callable[..., Any], *params: Atom) -> None:
    """Emit a run-time check that all elements of the parameters, as float64, meet a condition.

    `condition` is a formula of `Value`, or of arrays where the parameters are known, which then need no check at run
    time.
    """
    known = [b.known(x) for x in params]
    if all(x is not None for x in known) and np.all(condition(*(x.astype("float64") for x in known))):
        return
    ok = condition(*(Value(b, x) for x in in_common_shape(b, *params)))
    check_all(b, ok.atom, ValueError(message), node)


def of_named(check_one: Callable[[JaxprBuilder, Atom, str, Apply], None]) -> Callable[..., ParameterCheck]:
    """Return the function from names of parameters to their check; a parameter whose name is None may be anything."""

    def check_of(*names: str | None) -> ParameterCheck:
        def check(b: JaxprBuilder, node: Apply, *params: Atom) -> None:
            for name, x in zip(names, params, strict=True):
                if name is not None:
                    check_one(b, x, name, node)

        return check

    return check_of


not_negative, positive = of_named(check_not_negative), of_named(check_positive)


def scipy_domain(name: str, *conditions: ParameterCondition | None) -> ParameterCheck:
    """Return SciPy's check of its distribution `name`: each parameter fulfils its condition, so NaN does not."""
    error = ValueError(
        "Domain error in arguments. The `scale` parameter must be positive for all distributions, and many"
        " distributions have restrictions on shape parameters. Please see the"
        f" `scipy.stats.{name}` documentation for details."
    )

    def check(b: JaxprBuilder, node: Apply, *params: Atom) -> None:
        for condition, x in zip(conditions, params, strict=True):
            if condition is not None:
                check_all(b, condition(Value(b, numpy_astype(b, x, "float64"))).atom, error, node)

    return check


def above_zero(x: Value) -> Value:
    return x > 0


def from_zero(x: Value) -> Value:
    return x >= 0


def in_common_shape(b: JaxprBuilder, *params: Atom) -> Sequence[Atom]:
    """Return parameters as float64 that one elementwise primitive takes."""
    shape = lax.broadcast_shapes(*(x.aval.shape for x in params))
    return [broadcast_operand(b, numpy_astype(b, x, "float64"), shape) for x in params]
