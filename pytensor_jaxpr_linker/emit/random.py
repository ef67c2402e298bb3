"""Random variables: Threefry keys in place of NumPy generators.

A generator is one atom, a key. Splitting a key and the bits under it are those of `jax.random` (Salmon et al., *Parallel
Random Numbers: As Easy as 1, 2, 3*, 2011, counting each element), so a draw is a function of its key, whatever the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.tensor.random.basic import NormalRV, UniformRV
from pytensor.tensor.random.op import RandomVariable

from pytensor_jaxpr_linker import prims
from pytensor_jaxpr_linker.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.emit.elemwise import broadcast_operand
from pytensor_jaxpr_linker.emit.scalar import convert, number
from pytensor_jaxpr_linker.registry import emits

#: What a generator is in a program.
KEY_SHAPE = (2,)
KEY_DTYPE = np.dtype("uint32")

#: Emits draws: ``sample(b, key, shape, dtype, *params)``. Parameters come in their own dtypes, and 0-d or in `shape`.
type Sampler = Callable[..., Atom]
#: Emits the checks of the parameters: ``check(b, node, *params)``.
type ParameterCheck = Callable[..., None]


class Distribution(NamedTuple):
    """How the draws of one RandomVariable are made, and what its parameters must fulfil."""

    sample: Sampler
    check: ParameterCheck


DISTRIBUTIONS: dict[type, Distribution] = {}


def sampler(
    op_type: type[RandomVariable], check: ParameterCheck = lambda b, node, *params: None
) -> Callable[[Sampler], Sampler]:
    """Register the decorated function as what draws from a RandomVariable."""

    def register(sample: Sampler) -> Sampler:
        DISTRIBUTIONS[op_type] = Distribution(sample, check)
        emits(op_type, static=(1,), refuse=refuse_random)(emit_RandomVariable)
        return sample

    return register


def refuse_random(node: Apply) -> str | None:
    """Return why a RandomVariable can't be emitted, or None."""
    if type(node.op) not in DISTRIBUTIONS:
        return f"{type(node.op).__name__} may draw differently than the class it is derived from"
    return None


def emit_RandomVariable(op, node, b, rng, size, *params):
    """Split the key: one half is the next generator, the draw comes from the other."""
    distribution = DISTRIBUTIONS[type(op)]
    shape = batch_shape(op, size, params)
    distribution.check(b, node, *params)
    dtype = np.dtype(node.outputs[1].type.dtype)
    working = np.dtype("float32") if dtype == np.float16 else dtype
    next_rng, key = split(b, rng)
    operands = [broadcast_operand(b, x, shape) if n == 0 else x for x, n in zip(params, op.ndims_params, strict=True)]
    return next_rng, prims.convert(b, distribution.sample(b, key, shape, working, *operands), dtype)


def batch_shape(op: RandomVariable, size: Sequence[int] | None, params: Sequence[Atom]) -> Shape:
    """Return the shape of independent draws: `size`, or what the parameters broadcast to.

    Raises
    ------
    ValueError
        If the parameters do not broadcast, or not to `size`.
    """
    shapes = [x.aval.shape[: len(x.aval.shape) - n] for x, n in zip(params, op.ndims_params, strict=True)]
    shape = np.broadcast_shapes(*shapes)
    if size is None:
        return shape
    lengths = tuple(int(n) for n in size)
    if any(n < 0 for n in lengths):
        raise ValueError("negative dimensions are not allowed")
    aligned = zip(shape[::-1], lengths[::-1], strict=False)
    if len(shape) > len(lengths) or any(n not in (1, m) for n, m in aligned):
        raise ValueError(f"Output size {lengths} is not compatible with broadcast dimensions of inputs {shape}.")
    return lengths


# -- bits --------------------------------------------------------------------------------------------------------------


def key_words(b: JaxprBuilder, key: Atom) -> tuple[Atom, Atom]:
    """Return the two words of a key."""
    first, second = (prims.reshape(b, prims.slice_(b, key, [i], [i + 1], [1]), ()) for i in range(2))
    return first, second


def random_bits(b: JaxprBuilder, key: Atom, shape: Shape) -> tuple[Atom, Atom]:
    """Return two independent random uint32 words for each element of `shape`: the hash of its position."""
    size = int(np.prod(shape, dtype=object))
    if size < 2**32:
        high, low = prims.broadcast_to(b, b.constant(0, KEY_DTYPE), (size,)), prims.iota(b, KEY_DTYPE, (size,), 0)
    else:
        count = prims.iota(b, "uint64", (size,), 0)
        high = prims.convert(b, prims.shift_right_logical(b, count, number(b, count, 32)), KEY_DTYPE)
        low = prims.convert(b, count, KEY_DTYPE)
    first, second = prims.threefry2x32(b, key_words(b, key), (high, low))
    return prims.reshape(b, first, shape), prims.reshape(b, second, shape)


def split(b: JaxprBuilder, key: Atom) -> tuple[Atom, Atom]:
    """Return two new keys, as `jax.random.split` does."""
    words = [prims.broadcast_in_dim(b, x, (2, 1), (0,)) for x in random_bits(b, key, (2,))]
    keys = prims.concatenate(b, words, 1)
    first, second = (prims.reshape(b, prims.slice_(b, keys, [i, 0], [i + 1, 2], [1, 1]), KEY_SHAPE) for i in range(2))
    return first, second


def uniform(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype) -> Atom:
    """Emit numbers uniform in [0, 1): random bits as the mantissa of a number in [1, 2), minus 1."""
    first, second = random_bits(b, key, shape)
    mantissa = np.finfo(dtype).nmant
    if dtype == np.float64:
        high = prims.convert(b, first, "uint64")
        bits = prims.or_(b, prims.shift_left(b, high, number(b, high, 32)), prims.convert(b, second, "uint64"))
    else:
        bits = prims.xor(b, first, second)
    width = bits.aval.dtype.itemsize * 8
    bits = prims.shift_right_logical(b, bits, number(b, bits, width - mantissa))
    one = np.ones((), dtype)
    bits = prims.or_(b, bits, b.constant(one.view(bits.aval.dtype)))
    return prims.sub(b, prims.bitcast(b, bits, dtype), b.constant(one))


def standard_normal(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype) -> Atom:
    """Emit standard normal numbers by the inverse of the distribution function."""
    # The smallest number above -1, so that neither end is reached and the result is finite.
    low = np.nextafter(np.asarray(-1, dtype), np.asarray(0, dtype), dtype=dtype)
    unit = prims.mul(b, uniform(b, key, shape, dtype), b.constant(np.asarray(1 - low, dtype)))
    unit = prims.max_(b, prims.broadcast_to(b, b.constant(low), shape), prims.add(b, unit, b.constant(low)))
    return prims.mul(b, prims.erf_inv(b, unit), b.constant(np.sqrt(np.asarray(2, dtype))))


# -- distributions -----------------------------------------------------------------------------------------------------


def check_all(b: JaxprBuilder, ok: Atom, error: Exception, node: Apply) -> None:
    """Have the caller raise `error` if an element of `ok` is false."""
    axes = range(len(ok.aval.shape))
    b.check(prims.reduce_and(b, ok, axes) if axes else ok, lambda: error, node)


def check_not_negative(b: JaxprBuilder, x: Atom, name: str, node: Apply) -> None:
    """Have the caller raise a ValueError if an element of `x` is negative; NaN passes, as in NumPy."""
    value = b.known(x)
    if value is not None and not (value < 0).any():
        return
    ok = prims.not_(b, prims.lt(b, x, number(b, x, 0)))
    check_all(b, ok, ValueError(f"{name} < 0"), node)


def check_normal(b: JaxprBuilder, node: Apply, loc: Atom, scale: Atom) -> None:
    """Check the parameters of a normal distribution."""
    check_not_negative(b, scale, "scale", node)


@sampler(NormalRV, check_normal)
def sample_normal(b, key, shape, dtype, loc, scale):
    """``loc + scale * z``, z standard normal."""
    draw = standard_normal(b, key, shape, dtype)
    return shifted(b, draw, convert(b, loc, dtype), convert(b, scale, dtype))


def check_uniform(b: JaxprBuilder, node: Apply, low: Atom, high: Atom) -> None:
    """Check the parameters of a uniform distribution as `numpy.random.Generator.uniform` does."""
    known = b.known(low), b.known(high)
    if all(value is not None for value in known):
        with np.errstate(all="ignore"):
            width = np.subtract(known[1], known[0], dtype="float64")
        if (width >= 0).all() and np.isfinite(width).all():
            return
    shape = np.broadcast_shapes(low.aval.shape, high.aval.shape)
    low, high = (broadcast_operand(b, convert(b, x, "float64"), shape) for x in (low, high))
    width = prims.sub(b, high, low)
    scope = "R" if shape else "high - low r"
    check_all(b, prims.is_finite(b, width), OverflowError(f"{scope}ange exceeds valid bounds"), node)
    check_not_negative(b, width, "high - low", node)


@sampler(UniformRV, check_uniform)
def sample_uniform(b, key, shape, dtype, low, high):
    """``low + (high - low) * u``, u uniform in [0, 1)."""
    low, high = convert(b, low, dtype), convert(b, high, dtype)
    return shifted(b, uniform(b, key, shape, dtype), low, prims.sub(b, high, low))


def shifted(b: JaxprBuilder, draw: Atom, loc: Atom, scale: Any) -> Atom:
    """Emit ``loc + scale * draw``."""
    return prims.add(b, prims.mul(b, draw, scale), loc)
