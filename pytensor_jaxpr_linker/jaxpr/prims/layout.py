"""Primitives that move elements, and primitives without operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.core import max_dim
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape


def length_or_zero(n: Any) -> Any:
    """Return a length, or 0 if it is less: symbolic if JAX can't decide, as in the shapes of its own primitives."""
    return max(n, 0) if type(n) is int else max_dim(n, 0)


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
    shape = tuple(
        lo + hi + (n if k == 0 else length_or_zero(1 + (k + 1) * (n - 1)))
        for n, (lo, hi, k) in zip(x.aval.shape, config, strict=True)
    )
    return b.bind(p.pad_p, (x, value), shape, x.aval.dtype, {"padding_config": tuple(config)})


def rev(b: JaxprBuilder, x: Atom, axes: Sequence[int]) -> Atom:
    """Assemble the reversal of `axes`."""
    axes = [axis for axis in axes if x.aval.shape[axis] != 1]
    return b.bind(p.rev_p, (x,), x.aval.shape, x.aval.dtype, {"dimensions": tuple(axes)}) if axes else x


def slice_(b: JaxprBuilder, x: Atom, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]) -> Atom:
    """Assemble a static slice with positive strides."""
    shape = tuple(
        [hi - lo if k == 1 else (hi - lo - 1) // k + 1 for lo, hi, k in zip(starts, limits, strides, strict=True)]
    )
    if [n for n in shape if type(n) is not int or n < 0]:
        shape = tuple(map(length_or_zero, shape))
    if shape == x.aval.shape:
        return x
    steps = None if all(k == 1 for k in strides) else tuple(strides)
    params = {"start_indices": tuple(starts), "limit_indices": tuple(limits), "strides": steps}
    return b.bind(p.slice_p, (x,), shape, x.aval.dtype, params)


def iota(b: JaxprBuilder, dtype: Any, shape: Shape, axis: int) -> Atom:
    """Assemble an array that counts along `axis`."""
    dtype, shape = np.dtype(dtype), tuple(shape)
    return b.bind(p.iota_p, (), shape, dtype, {"dtype": dtype, "shape": shape, "dimension": axis, "sharding": None})


def dimensions(b: JaxprBuilder, shape: Any, dtype: Any = "int64") -> Atom:
    """Assemble an array of lengths, or one length: a constant unless some are symbolic dimensions of `jax.export`."""
    array = np.asarray(shape)
    if array.dtype != object:
        return b.constant(array, dtype)
    numbers = [b.constant(n, dtype) for n in array.flat]
    if not array.shape:
        return numbers[0]
    return reshape(b, concatenate(b, [broadcast_to(b, x, (1,)) for x in numbers], 0), array.shape)
