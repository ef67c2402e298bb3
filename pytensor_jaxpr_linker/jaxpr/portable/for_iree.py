"""Replacements for IREE: equations that its compiler refuses, or computes wrongly or with few digits.

Loops and branches avoid two faults of IREE 3.13. The compiler crashes, or complains about "region branch points", on a
loop that carries a value which the body does not read. So here the condition is part of the body, the loop carries its
outcome, and each step may keep an old value that it does not read: it never does, but the compiler can't know. And the
compiler can't order equations between several loops ("circular dependency") unless a barrier is before each loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.extend.core as jex
import numpy as np
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base.jax_compat import scan_counts
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, is_variable
from pytensor_jaxpr_linker.jaxpr.formula import exp, floor, log, sqrt, where
from pytensor_jaxpr_linker.jaxpr.nested import nested
from pytensor_jaxpr_linker.jaxpr.portable.arrays import Array, full, joined_arrays, next_step
from pytensor_jaxpr_linker.jaxpr.portable.rewrite import Emission


def while_with_outcome(params: Mapping[str, Any], *operands: Array) -> list[Array]:
    """Emit a loop that carries whether it goes on."""
    b, atoms = operands[0].b, behind_barrier(operands)
    tests, count = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    of_test, of_body, carry = atoms[:tests], atoms[tests:count], atoms[count:]
    (going,) = b.inline(params["cond_jaxpr"], [*of_test, *carry])
    initial = [going, b.constant(np.int32(0)), *carry]
    body, read, (still, i, *old), passed = nested(b, [*of_test, *of_body], initial)
    new = body.inline(params["body_jaxpr"], [*read[tests:], *old])
    new = kept_before_zero(body, i, old, new)
    (more,) = body.inline(params["cond_jaxpr"], [*read[:tests], *new])
    step = body.build([prims.and_(body, still, more), next_step(body, i), *new])
    condition, (goes_on, *_) = b.sub_jaxpr([x.aval for x in initial])
    results = prims.while_loop(b, condition.build([goes_on]), [], step, passed, initial)[2:]
    return [Array(b, x) for x in results]


def counted_scan(params: Mapping[str, Any], *operands: Array) -> list[Array]:
    """Emit a loop of known length that counts its steps."""
    b, atoms = operands[0].b, behind_barrier(operands)
    count, carried = scan_counts(params)
    consts, carry, xs = atoms[:count], atoms[count : count + carried], atoms[count + carried :]
    initial = [b.constant(np.int32(0)), *carry]
    rows = [b.aval(x.aval.shape[1:], x.aval.dtype) for x in xs]
    body, inputs = b.sub_jaxpr([x.aval for x in (*consts, *initial)] + rows)
    i, old = inputs[count], inputs[count + 1 : count + 1 + carried]
    found = body.inline(params["jaxpr"], [*inputs[:count], *old, *inputs[count + 1 + carried :]])
    new = kept_before_zero(body, i, old, found[:carried])
    done = body.build([next_step(body, i), *new, *found[carried:]])
    how = params["length"], params["unroll"], params["reverse"]
    return [Array(b, x) for x in prims.scan(b, done, consts, initial, xs, *how)[1:]]


def branches_behind_barrier(params: Mapping[str, Any], *operands: Array) -> list[Array]:
    """Emit branches on operands behind a barrier."""
    b, (index, *atoms) = operands[0].b, behind_barrier(operands)
    avals = params["branches"][0].out_avals
    return [Array(b, x) for x in prims.cond(b, index, params["branches"], atoms, avals)]


def behind_barrier(operands: Sequence[Array]) -> list[Atom]:
    """Return operands that pass a barrier; literals need none."""
    b = operands[0].b
    passed = list(dict.fromkeys(x.atom for x in operands if is_variable(x.atom)))
    after = dict(zip(passed, prims.barrier(b, passed), strict=True))
    return [after[x.atom] if is_variable(x.atom) else x.atom for x in operands]


def kept_before_zero(b: JaxprBuilder, i: Atom, old: Sequence[Atom], new: Sequence[Atom]) -> list[Atom]:
    """Return the next carry. Values that no equation reads would stay old in steps of a negative number."""
    read = {x for eqn in b.eqns for x in eqn.invars if is_variable(x)}
    is_early = prims.lt(b, i, b.constant(np.int32(0)))
    return [y if x in read or x is y else prims.select(b, is_early, x, y) for x, y in zip(old, new, strict=True)]


def for_dtypes(chars: str, emit: Callable[..., Array]) -> Emission:
    """Return an emission without params that leaves alone equations on other dtypes; `chars` are NumPy's characters."""
    return lambda params, *xs: emit(*xs) if xs[0].dtype.char in chars else None


def real_power(x: Array, y: Array) -> Array:
    """Return powers with NumPy's signs and special values; IREE's are off by ``y log x`` eps, and NaN below 0."""
    y = y.astype(x.dtype)
    is_whole = floor(y) == y
    half = y * 0.5
    is_odd = is_whole & (floor(half) != half)
    size = abs(x)
    safe = where((size == 0) | (size == np.inf) | (size == 1), 1, size)
    found = safe ** where(abs(y) == np.inf, 1, y)
    found = where((size == 0) | (size == np.inf), where((size == 0) == (y > 0), 0.0, found.like(np.inf)), found)
    endless = where((size > 1) == (y > 0), found.like(np.inf), 0.0)
    found = where(abs(y) == np.inf, where(size == 1, 1.0, endless), found)
    is_negative = (x < 0) | ((x == 0) & (1.0 / x < 0))
    found = where(is_negative & is_odd, -found, found)
    found = where((x < 0) & ~is_whole & (size != np.inf) & (abs(y) != np.inf), np.nan, found)
    found = where((x != x) | (y != y), np.nan, found)
    return where((y == 0) | (x == 1), 1.0, found)


def log_of_one_and(x: Array) -> Array:
    """Return ``log(1 + x)`` with the part that rounding lost (Kahan); IREE's ``log1p`` has no digits near 0."""
    sum_ = 1.0 + x
    rest = sum_ - 1.0
    is_exact = (rest == 0) | (sum_ == np.inf)
    return where(is_exact, where(sum_ == np.inf, sum_, x), log(sum_) * (x / where(is_exact, 1.0, rest)))


def exp_minus_one(x: Array) -> Array:
    """Return ``exp(x) - 1`` with the part that rounding lost (Kahan); IREE's ``expm1`` of float64 is 0 near 0."""
    whole = exp(x)
    rest = whole - 1.0
    is_ordinary = (rest != 0) & (rest != -1) & (abs(x) < 1)
    found = rest * (x / where(is_ordinary, log(whole), 1.0))
    return where(rest == 0, x, where(is_ordinary, found, rest))


def hyperbolic_sine(x: Array) -> Array:
    """Return the hyperbolic sine: by ``expm1`` near 0, and by exponentials elsewhere."""
    size = abs(x)
    near = exp_minus_one(where(size < 1, size, 0.0))
    half = exp(size * 0.5)
    far = half * (half * 0.5) - 0.5 / (half * half)
    return signed(where(size < 1, (near + near / (near + 1.0)) * 0.5, far), x)


def inverse_hyperbolic_sine(x: Array) -> Array:
    """Return the inverse hyperbolic sine, by ``log1p``."""
    size = abs(x)
    is_large = size > 1e8
    safe = where(is_large, 1.0, size)
    near = log_of_one_and(safe + safe * safe / (1.0 + sqrt(safe * safe + 1.0)))
    return signed(where(is_large, log(size) + np.log(2.0), near), x)


def inverse_hyperbolic_tangent(x: Array) -> Array:
    """Return the inverse hyperbolic tangent, by ``log1p``."""
    size = abs(x)
    return signed(log_of_one_and(2.0 * size / (1.0 - size)) * 0.5, x)


def signed(size: Array, x: Array) -> Array:
    """Return sizes with the signs of other numbers, and zero where such a number is zero."""
    return where(x < 0, -size, where(x == 0, x, size))


def in_float64(primitive: jex.Primitive) -> Emission:
    """Return an emission of a float32 function in float64: IREE's has few digits, or none for large arguments."""

    def emit(params: Mapping[str, Any], *xs: Array) -> Array | None:
        if xs[0].dtype != np.float32:
            return None
        b, double = xs[0].b, np.dtype("float64")
        atoms = [x.astype(double).atom for x in xs]
        shape = max((x.shape for x in xs), key=len)
        return Array(b, b.bind(primitive, atoms, shape, double, dict(params))).astype(np.float32)

    return emit


def sum_of_parts(params: Mapping[str, Any], x: Array) -> Array | None:
    """Sums of complex numbers part by part: IREE's compiler has no zero of 128 bits."""
    if x.dtype.kind != "c":
        return None
    re, im = (prims.reduce_sum(x.b, part.atom, params["axes"]) for part in (x.real, x.imag))
    return Array(x.b, prims.complex_(x.b, re, im))


def filled_by_parts(params: Mapping[str, Any], x: Array) -> Array | None:
    """Arrays of one complex number, by parts behind barriers: IREE can't fill memory with a constant of 128 bits."""
    if x.dtype != np.complex128 or not isinstance(x.atom, jex.Literal):
        return None
    b, value = x.b, np.asarray(x.atom.val)
    parts = prims.barrier(b, [prims.broadcast_to(b, b.constant(part), (1,)) for part in (value.real, value.imag)])
    re, im = (Array(b, part).reshape().broadcast(params["shape"]).atom for part in parts)
    return Array(b, prims.complex_(b, re, im))


def complex_behind_barriers(params: Mapping[str, Any], x: Array) -> Array | None:
    """Real numbers made complex, between barriers: a computation that returns both gets some numbers wrong."""
    dtype = np.dtype(params["new_dtype"])
    if dtype.kind != "c" or x.dtype.kind == "c" or isinstance(x.atom, jex.Literal):
        return None
    (real,) = prims.barrier(x.b, [x.atom])
    return Array(x.b, prims.barrier(x.b, [prims.convert(x.b, real, dtype)])[0])


def product_by_halves(params: Mapping[str, Any], x: Array) -> Array | None:
    """Products of complex numbers, the first half times the second."""
    if x.dtype.kind != "c":
        return None
    axes = params["axes"]
    kept = [i for i in range(len(x.shape)) if i not in axes]
    shape = [x.shape[i] for i in kept]
    rest = x.transpose([*kept, *axes]).reshape(*shape, math.prod(x.shape[i] for i in axes))
    if not rest.shape[-1]:
        return full(x.b, 1, tuple(shape), x.dtype)
    while (n := rest.shape[-1]) > 1:
        h = n // 2
        rest = joined_arrays([rest[..., :h] * rest[..., h : 2 * h], rest[..., 2 * h :]], -1)
    return rest.reshape(*shape)


def dot_product(params: Mapping[str, Any], x: Array, y: Array) -> Array | None:
    """Products of vectors as sums, and products of empty arrays as zeros: IREE's compiler crashes on some of these."""
    (contract, batch), dtype = params["dimension_numbers"], params["preferred_element_type"]
    free = [
        [i for i in range(len(z.shape)) if i not in (*c, *k)] for z, c, k in zip((x, y), contract, batch, strict=True)
    ]
    shape = [x.shape[i] for i in (*batch[0], *free[0])] + [y.shape[i] for i in free[1]]
    if 0 in x.shape or 0 in y.shape:
        return full(x.b, 0, tuple(shape), np.dtype(dtype or x.dtype))
    if any(z.shape[i] != 1 for z, axes in zip((x, y), free, strict=True) for i in axes) or x.dtype != y.dtype:
        return None
    vectors = [
        z.transpose([*k, *c, *f]).reshape(*[z.shape[i] for i in (*k, *c)])
        for z, c, k, f in zip((x, y), contract, batch, free, strict=True)
    ]
    axes = list(range(len(batch[0]), len(vectors[0].shape)))
    product = vectors[0] * vectors[1]
    found = sum_of_parts({"axes": axes}, product)
    if found is None:
        found = Array(x.b, prims.reduce_sum(x.b, product.atom, axes))
    return found.reshape(*shape)


#: The table of a second run of `portable`, after the replacements of primitives that IREE lacks.
FOR_IREE: dict[jex.Primitive, Emission] = {
    p.cond_p: branches_behind_barrier,
    p.broadcast_in_dim_p: filled_by_parts,
    p.scan_p: counted_scan,
    p.while_p: while_with_outcome,
    p.asinh_p: for_dtypes("d", inverse_hyperbolic_sine),
    p.atanh_p: for_dtypes("d", inverse_hyperbolic_tangent),
    p.convert_element_type_p: complex_behind_barriers,
    p.dot_general_p: dot_product,
    p.expm1_p: for_dtypes("d", exp_minus_one),
    p.log1p_p: for_dtypes("efd", log_of_one_and),
    p.pow_p: for_dtypes("efd", real_power),
    p.reduce_prod_p: product_by_halves,
    p.reduce_sum_p: sum_of_parts,
    p.sinh_p: for_dtypes("d", hyperbolic_sine),
    **{
        primitive: in_float64(primitive)
        for primitive in (p.acos_p, p.asin_p, p.atan_p, p.atan2_p, p.cos_p, p.digamma_p, p.sin_p, p.tan_p)
    },
}
