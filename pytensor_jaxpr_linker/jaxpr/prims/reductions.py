"""Reductions, cumulative reductions and sorting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder


def reduction(primitive: Any, **params: Any) -> Callable[[JaxprBuilder, Atom, Sequence[int]], Atom]:
    """Return the assembler function of a reduction over axes that keeps the dtype."""

    def assemble(b: JaxprBuilder, x: Atom, axes: Sequence[int]) -> Atom:
        shape = tuple(n for i, n in enumerate(x.aval.shape) if i not in axes)
        return b.bind(primitive, (x,), shape, x.aval.dtype, {"axes": tuple(axes), **params})

    assemble.__name__ = assemble.__qualname__ = primitive.name
    assemble.__doc__ = f"Assemble the reduction ``{primitive.name}`` over `axes`."
    return assemble


reduce_sum = reduction(p.reduce_sum_p, out_sharding=None)
reduce_prod = reduction(p.reduce_prod_p)
reduce_max = reduction(p.reduce_max_p, out_sharding=None)
reduce_min = reduction(p.reduce_min_p, out_sharding=None)
reduce_and = reduction(p.reduce_and_p)
reduce_or = reduction(p.reduce_or_p)
reduce_xor = reduction(p.reduce_xor_p)


def arg_reduction(primitive: Any) -> Callable[[JaxprBuilder, Atom, int, Any], Atom]:
    """Return the assembler function of an argmax or argmin."""

    def assemble(b: JaxprBuilder, x: Atom, axis: int, dtype: Any) -> Atom:
        shape, dtype = tuple(n for i, n in enumerate(x.aval.shape) if i != axis), np.dtype(dtype)
        return b.bind(primitive, (x,), shape, dtype, {"axes": (axis,), "index_dtype": dtype})

    assemble.__name__ = assemble.__qualname__ = primitive.name
    assemble.__doc__ = f"Assemble ``{primitive.name}`` along `axis`: the first position, NaN before all numbers."
    return assemble


argmax = arg_reduction(p.argmax_p)
argmin = arg_reduction(p.argmin_p)


def cumulative(primitive: Any) -> Callable[[JaxprBuilder, Atom, int], Atom]:
    """Return the assembler function of a cumulative reduction."""

    def assemble(b: JaxprBuilder, x: Atom, axis: int) -> Atom:
        return b.bind(primitive, (x,), x.aval.shape, x.aval.dtype, {"axis": axis, "reverse": False})

    assemble.__name__ = assemble.__qualname__ = primitive.name
    assemble.__doc__ = f"Assemble ``{primitive.name}`` along `axis`."
    return assemble


cumsum = cumulative(p.cumsum_p)
cumprod = cumulative(p.cumprod_p)
cummax = cumulative(p.cummax_p)


def sort(b: JaxprBuilder, xs: Sequence[Atom], axis: int, num_keys: int = 1, is_stable: bool = True) -> list[Atom]:
    """Assemble the joint sort of arrays of one shape along `axis`, by the first `num_keys` of them."""
    params = {"dimension": axis, "is_stable": is_stable, "num_keys": num_keys}
    return list(b.bind_many(p.sort_p, xs, [x.aval for x in xs], params))
