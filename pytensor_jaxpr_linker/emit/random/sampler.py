"""Random variables: Threefry keys in place of NumPy generators.

A generator is one atom, a key. Splitting a key and the bits under it are those of `jax.random` (Salmon et al., *Parallel
Random Numbers: As Easy as 1, 2, 3*, 2011, counting each element), so a draw is a function of its key, whatever the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from jax import lax
from pytensor.graph.basic import Apply
from pytensor.tensor.random.op import RandomVariable

from pytensor_jaxpr_linker import prims
from pytensor_jaxpr_linker.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.emit.elemwise import broadcast_operand
from pytensor_jaxpr_linker.emit.scalar import number
from pytensor_jaxpr_linker.emit.tensor_basic import checked_lengths
from pytensor_jaxpr_linker.registry import Refusal, StaticOperands, emits, registered

#: What a generator is in a program.
KEY_SHAPE = (2,)
KEY_DTYPE = np.dtype("uint32")

#: Emits draws: ``sample(b, key, shape, dtype, *params)``. Parameters come in their own dtypes, and 0-d or in `shape`.
type Sampler = Callable[..., Atom]
#: Emits the checks of the parameters: ``check(b, node, *params)``.
type ParameterCheck = Callable[..., None]


class Distribution(NamedTuple):
    """How the draws of one RandomVariable are made, what its parameters must fulfil, and which of its props a draw reads."""

    sample: Sampler
    check: ParameterCheck
    props: Sequence[str] = ()


DISTRIBUTIONS: dict[type | str, Distribution] = {}


def sampler(
    op_type: type[RandomVariable] | str,
    check: ParameterCheck = lambda b, node, *params: None,
    static: Iterable[int] | StaticOperands = (1,),
    refuse: Refusal = lambda node: None,
    props: Sequence[str] = (),
) -> Callable[[Sampler], Sampler]:
    """Register the decorated function as what draws from a RandomVariable.

    Parameters
    ----------
    op_type
        Its class, or the name of that.
    check
        Emits the checks of the parameters.
    static
        Positions of the node's inputs that shapes follow from: `size` is one. A sampler gets such a parameter as a constant.
    refuse
        A function from a node to the reason why the sampler can't take it, or None.
    props
        Names of the Op's attributes that the sampler takes as keywords.
    """

    def register(sample: Sampler) -> Sampler:
        DISTRIBUTIONS[op_type] = distribution = Distribution(sample, check, props)
        rule = partial(emit_RandomVariable, distribution)
        emits(op_type, static=static, refuse=lambda node: refuse_random(node) or refuse(node))(rule)
        return sample

    return register


def refuse_random(node: Apply) -> str | None:
    """Return why a RandomVariable can't be emitted, or None."""
    if registered(DISTRIBUTIONS, type(node.op)) is None:
        return f"{type(node.op).__name__} may draw differently than the class it is derived from"
    return None


def emit_RandomVariable(distribution, op, node, b, rng, size, *params):
    """Split the key: one half is the next generator, the draw comes from the other."""
    params = tuple(b.constant(x) if isinstance(x, np.ndarray | np.generic) else x for x in params)
    shape = batch_shape(op, size, params)
    distribution.check(b, node, *params)
    dtype = np.dtype(node.outputs[1].type.dtype)
    working = np.dtype("float32") if dtype == np.float16 else dtype
    next_rng, key = split(b, rng)
    operands = [broadcast_operand(b, x, shape) if n == 0 else x for x, n in zip(params, op.ndims_params, strict=True)]
    options = {name: getattr(op, name) for name in distribution.props}
    return next_rng, prims.convert(b, distribution.sample(b, key, shape, working, *operands, **options), dtype)


def batch_shape(op: RandomVariable, size: Sequence[int] | None, params: Sequence[Atom]) -> Shape:
    """Return the shape of independent draws: `size`, or what the parameters broadcast to.

    Raises
    ------
    ValueError
        If the parameters do not broadcast, or not to `size`.
    """
    shapes = [x.aval.shape[: len(x.aval.shape) - n] for x, n in zip(params, op.ndims_params, strict=True)]
    shape = lax.broadcast_shapes((), *shapes)
    if size is None:
        return shape
    lengths = checked_lengths(size)
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
    size = math.prod(shape)
    if not isinstance(size, int) or size < 2**32:  # a symbolic dimension is not that long
        high, low = prims.broadcast_to(b, b.constant(0, KEY_DTYPE), (size,)), prims.iota(b, KEY_DTYPE, (size,), 0)
    else:
        count = prims.iota(b, "uint64", (size,), 0)
        high = prims.convert(b, prims.shift_right_logical(b, count, number(b, count, 32)), KEY_DTYPE)
        low = prims.convert(b, count, KEY_DTYPE)
    first, second = prims.threefry2x32(b, key_words(b, key), (high, low))
    return prims.reshape(b, first, shape), prims.reshape(b, second, shape)


def split(b: JaxprBuilder, key: Atom, count: int = 2) -> list[Atom]:
    """Return new keys, as `jax.random.split` does."""
    words = [prims.broadcast_in_dim(b, x, (count, 1), (0,)) for x in random_bits(b, key, (count,))]
    keys = prims.concatenate(b, words, 1)
    return [prims.reshape(b, prims.slice_(b, keys, [i, 0], [i + 1, 2], [1, 1]), KEY_SHAPE) for i in range(count)]


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


def open_uniform(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype) -> Atom:
    """Emit numbers uniform in (0, 1), symmetric about 1/2: the middles of the intervals that `uniform` begins."""
    return prims.add(b, uniform(b, key, shape, dtype), b.constant(np.asarray(np.finfo(dtype).eps / 2, dtype)))


def standard_normal(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype) -> Atom:
    """Emit standard normal numbers by the inverse of the distribution function."""
    # The smallest number above -1, so that neither end is reached and the result is finite.
    low = np.nextafter(np.asarray(-1, dtype), np.asarray(0, dtype), dtype=dtype)
    unit = prims.mul(b, uniform(b, key, shape, dtype), b.constant(np.asarray(1 - low, dtype)))
    unit = prims.max_(b, prims.broadcast_to(b, b.constant(low), shape), prims.add(b, unit, b.constant(low)))
    return prims.mul(b, prims.erf_inv(b, unit), b.constant(np.sqrt(np.asarray(2, dtype))))
