"""Reads and writes at positions that are known at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.jaxpr.prims.arithmetic import add, max_, mul, named_after


def dynamic_slice(b: JaxprBuilder, x: Atom, starts: Sequence[Atom], sizes: Shape) -> Atom:
    """Assemble a slice of static `sizes` at run-time `starts`, 0-d and of one dtype; XLA clamps them."""
    return b.bind(p.dynamic_slice_p, (x, *starts), tuple(sizes), x.aval.dtype, {"slice_sizes": tuple(sizes)})


def dynamic_update_slice(b: JaxprBuilder, x: Atom, update: Atom, starts: Sequence[Atom]) -> Atom:
    """Assemble `x` with `update` written at run-time `starts`, 0-d and of one dtype; XLA clamps them."""
    return b.bind(p.dynamic_update_slice_p, (x, update, *starts), x.aval.shape, x.aval.dtype, {})


def fill_value(dtype: np.dtype) -> Any:
    """Return the value that `jax.lax.gather` fills in out of bounds."""
    if dtype.kind in "fc":
        return np.nan
    if dtype.kind == "b":
        return True
    return int(np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max)


def gather(
    b: JaxprBuilder,
    x: Atom,
    indices: Atom,
    dims: lax.GatherDimensionNumbers,
    sizes: Shape,
    shape: Shape,
    mode: lax.GatherScatterMode = lax.GatherScatterMode.PROMISE_IN_BOUNDS,
) -> Atom:
    """Assemble a gather; `shape` is the result's."""
    fill = fill_value(x.aval.dtype) if mode == lax.GatherScatterMode.FILL_OR_DROP else None
    params = {"dimension_numbers": dims, "slice_sizes": tuple(sizes), "unique_indices": False}
    params |= {"indices_are_sorted": False, "mode": mode, "fill_value": fill}
    return b.bind(p.gather_p, (x, indices), tuple(shape), x.aval.dtype, params)


def scatter_body(b: JaxprBuilder, combine: Callable[..., Atom] | None, dtype: np.dtype) -> Any:
    """Return the Jaxpr that combines the old and the new element of a scatter."""
    body, (old, new) = b.sub_jaxpr([b.aval((), dtype)] * 2)
    return body.build([combine(body, old, new) if combine else new])


def scatter_family(primitive: Any, combine: Callable[..., Atom] | None) -> Callable[..., Atom]:
    """Return the assembler function of one of the scatter primitives."""

    def assemble(
        b: JaxprBuilder,
        x: Atom,
        indices: Atom,
        updates: Atom,
        dims: lax.ScatterDimensionNumbers,
        unique_indices: bool = False,
        mode: lax.GatherScatterMode = lax.GatherScatterMode.FILL_OR_DROP,
    ) -> Atom:
        body = scatter_body(b, combine, x.aval.dtype) if combine else None
        params = {"update_jaxpr": body, "update_consts": (), "dimension_numbers": dims}
        params |= {"indices_are_sorted": False, "unique_indices": unique_indices, "mode": mode}
        return b.bind(primitive, (x, indices, updates), x.aval.shape, x.aval.dtype, params)

    return named_after(assemble, primitive)


scatter = scatter_family(p.scatter_p, None)
scatter_add = scatter_family(p.scatter_add_p, add)
scatter_mul = scatter_family(p.scatter_mul_p, mul)
scatter_max = scatter_family(p.scatter_max_p, max_)
