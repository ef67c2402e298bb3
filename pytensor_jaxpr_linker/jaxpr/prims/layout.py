"""Primitives that move elements, and those without operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base.jax_compat import dim_as_value_p, dim_value_aval
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape


def broadcast_in_dim(b: JaxprBuilder, x: Atom, shape: Shape, dims: Sequence[int]) -> Atom:
    """Assemble the broadcast of `x` to `shape`, axis i of `x` becoming axis ``dims[i]``."""
    shape, dims = tuple(shape), tuple(dims)
    if x.aval.shape == shape:
        return x
    params = {"shape": shape, "broadcast_dimensions": dims, "sharding": None}
    result = b.bind(p.broadcast_in_dim_p, (x,), shape, x.aval.dtype, params)
    if not x.aval.shape:
        b.repeated[result] = x
    return result


def broadcast_to(b: JaxprBuilder, x: Atom, shape: Shape) -> Atom:
    """Assemble NumPy's broadcast of `x` to `shape`."""
    if x.aval.shape == shape:
        return x
    lead = len(shape) - len(x.aval.shape)
    return broadcast_in_dim(b, x, shape, range(lead, len(shape)))


def reshape(b: JaxprBuilder, x: Atom, shape: Shape) -> Atom:
    """Assemble the reshape of `x` to `shape`, all of whose dimensions are given."""
    shape = tuple(shape)
    if x.aval.shape == shape:
        return x
    return b.bind(p.reshape_p, (x,), shape, x.aval.dtype, {"new_sizes": shape, "dimensions": None, "sharding": None})


def squeeze(b: JaxprBuilder, x: Atom, axes: Sequence[int]) -> Atom:
    """Assemble `x` without `axes`, which have length 1."""
    shape = tuple(n for i, n in enumerate(x.aval.shape) if i not in axes)
    return b.bind(p.squeeze_p, (x,), shape, x.aval.dtype, {"dimensions": tuple(sorted(axes))}) if axes else x


def transpose(b: JaxprBuilder, x: Atom, permutation: Sequence[int]) -> Atom:
    """Assemble the transpose whose axis i is axis ``permutation[i]`` of `x`."""
    permutation = tuple(permutation)
    if permutation == tuple(range(len(permutation))):
        return x
    shape = tuple(x.aval.shape[i] for i in permutation)
    return b.bind(p.transpose_p, (x,), shape, x.aval.dtype, {"permutation": permutation})


def concatenate(b: JaxprBuilder, xs: Sequence[Atom], axis: int) -> Atom:
    """Assemble the concatenation of arrays that agree in dtype and in every axis but `axis`."""
    if len(xs) == 1:
        return xs[0]
    shape = list(xs[0].aval.shape)
    shape[axis] = sum(x.aval.shape[axis] for x in xs)
    return b.bind(p.concatenate_p, xs, tuple(shape), xs[0].aval.dtype, {"dimension": axis})


def pad(b: JaxprBuilder, x: Atom, value: Atom, config: Sequence[tuple[int, int, int]]) -> Atom:
    """Assemble a padding with `value`: (low, high, interior) an axis; negative numbers cut."""
    shape = tuple(lo + hi + n + max(n - 1, 0) * k for n, (lo, hi, k) in zip(x.aval.shape, config, strict=True))
    return b.bind(p.pad_p, (x, value), shape, x.aval.dtype, {"padding_config": tuple(config)})


def rev(b: JaxprBuilder, x: Atom, axes: Sequence[int]) -> Atom:
    """Assemble the reversal of `axes`."""
    axes = [axis for axis in axes if x.aval.shape[axis] != 1]
    return b.bind(p.rev_p, (x,), x.aval.shape, x.aval.dtype, {"dimensions": tuple(axes)}) if axes else x


def slice_(b: JaxprBuilder, x: Atom, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]) -> Atom:
    """Assemble a static slice with positive strides."""
    shape = tuple(max(0, -(-(hi - lo) // k)) for lo, hi, k in zip(starts, limits, strides, strict=True))
    if shape == x.aval.shape:
        return x
    steps = None if all(k == 1 for k in strides) else tuple(strides)
    params = {"start_indices": tuple(starts), "limit_indices": tuple(limits), "strides": steps}
    return b.bind(p.slice_p, (x,), shape, x.aval.dtype, params)


def iota(b: JaxprBuilder, dtype: Any, shape: Shape, axis: int) -> Atom:
    """Assemble an array that counts along `axis`."""
    dtype, shape = np.dtype(dtype), tuple(shape)
    return b.bind(p.iota_p, (), shape, dtype, {"dtype": dtype, "shape": shape, "dimension": axis, "sharding": None})


def dim_as_value(b: JaxprBuilder, dim: Any) -> Atom:
    """Assemble the value that a symbolic dimension of `jax.export` has at run time: an integer of JAX's default dtype."""
    return b.bind_many(dim_as_value_p, (), (dim_value_aval(),), {"dim": dim})[0]
