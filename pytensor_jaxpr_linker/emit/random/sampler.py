"""Random variables: Threefry keys in place of NumPy generators.

A generator is one atom, a key. Keys split, and give bits, as in `jax.random` (Salmon et al., *Parallel Random Numbers:
As Easy as 1, 2, 3*, 2011, counting each element), so a draw is a function of its key on every device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
from jax import lax
from pytensor.graph.basic import Apply
from pytensor.tensor.random.op import RandomVariable

from pytensor_jaxpr_linker.base.rules import RULES, Refusal, StaticOperands, emits
from pytensor_jaxpr_linker.emit.elemwise import broadcast_operand
from pytensor_jaxpr_linker.emit.scalar import number, numpy_astype
from pytensor_jaxpr_linker.emit.shape import position_dtype
from pytensor_jaxpr_linker.emit.tensor_basic import checked_lengths
from pytensor_jaxpr_linker.graph.static_values import is_symbolic
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.jaxpr.nested import row_of

#: The aval of a generator in a program.
KEY_SHAPE = (2,)
KEY_DTYPE = np.dtype("uint32")

#: Emits draws: ``sample(b, key, shape, dtype, *params)``. Parameters come in their own dtypes. `shape` is the batch
#: shape: a number comes 0-d or in it, a vector or a matrix with batch axes of its own.
type Sampler = Callable[..., Atom]
type Draw = Callable[..., Atom]
#: Emits the checks of the parameters: ``check(b, node, *params)``.
type ParameterCheck = Callable[..., None]


def emits_draws(
    op_type: type[RandomVariable] | str,
    check: ParameterCheck = lambda b, node, *params: None,
    form: Callable[[Any], Sampler] | None = None,
    static: Iterable[int] | StaticOperands = (1,),
    refuse: Refusal = lambda node: None,
    props: Sequence[str] = (),
) -> Callable[[Draw], Draw]:
    """Register the decorated function as the sampler of a `RandomVariable`, but not of its subclasses.

    Parameters
    ----------
    op_type
        Its class, or its name as `class_name` gives it, for a library that need not be installed.
    check
        Emits the checks of the parameters, called as ``check(b, node, *params)``: see `parameter_checks`.
    form
        How the function is written: `continuous` if not given, else `counts` or `general`.
    static
        Positions of the node's inputs that shapes follow from: `size` is one. The function gets such a parameter as a
        constant, or under `jax.export` as an array of symbolic dimensions: `lengths_of` returns the value of both.
    refuse
        A function from a node to the reason why it can't be drawn, or None.
    props
        Names of the Op's attributes that the function takes as keywords.

    Examples
    --------
    A distribution of your own:

    >>> import pytensor, pytensor.tensor as pt
    >>> from pytensor.tensor.random.op import RandomVariable
    >>> from pytensor_jaxpr_linker import emits_draws, prims
    >>> from pytensor_jaxpr_linker.emit.random.sampler import uniform
    >>> class SquaredRV(RandomVariable):
    ...     name, signature, dtype = "squared", "()->()", "floatX"
    >>> @emits_draws(SquaredRV)
    ... def sample_squared(b, key, shape, dtype, scale):
    ...     return prims.mul(b, prims.square(b, uniform(b, key, shape, dtype)), scale)
    >>> rng = pytensor.shared(np.random.default_rng(1))
    >>> _, draws = SquaredRV()(2.0, size=(5,), rng=rng, return_next_rng=True)
    >>> (pytensor.function([], draws, mode="JAXPR")() < 2.0).all()
    np.True_
    """

    def register(function: Draw) -> Draw:
        sample = (form or continuous)(function)

        @wraps(function)
        def rule(op, node, b, rng, size, *params):
            """Split the key: one half is the next generator, the draws come from the other."""
            params = tuple(constant_or_lengths(b, x) for x in params)
            shape = draws_shape(op, size, params)
            check(b, node, *params)
            dtype = np.dtype(node.outputs[1].type.dtype)
            working = np.dtype("float32") if dtype == np.float16 else dtype
            next_rng, key = split_key(b, rng)
            pairs = zip(params, op.ndims_params, strict=True)
            operands = [broadcast_operand(b, x, shape) if n == 0 and not is_static_operand(x) else x for x, n in pairs]
            options = {name: getattr(op, name) for name in props}
            return next_rng, prims.convert(b, sample(b, key, shape, working, *operands, **options), dtype)

        emits(op_type, static=static, refuse=lambda node: refuse_subclass(node) or refuse(node))(rule)
        return function

    return register


def is_static_operand(x: Any) -> bool:
    """Return whether an operand is static, and not an atom."""
    return isinstance(x, np.ndarray | np.generic)


def constant_or_lengths(b: JaxprBuilder, x: Any) -> Any:
    """Return a static parameter as a constant, or as it is if it has symbolic dimensions."""
    return b.constant(x) if is_static_operand(x) and not is_symbolic(x) else x


def lengths_of(b: JaxprBuilder, x: Any) -> Any:
    """Return the value of a static parameter."""
    return x if is_static_operand(x) else b.known(x)


def refuse_subclass(node: Apply) -> str | None:
    """Return why a `RandomVariable` can't be emitted if its class has no rule of its own, or None."""
    if RULES.exact(type(node.op)) is None:
        return f"{type(node.op).__name__} may draw differently than the class it is derived from"
    return None


# -- forms -------------------------------------------------------------------------------------------------------------


def continuous(function: Sampler) -> Sampler:
    """Take a function ``(b, key, shape, dtype, *params)`` that gets its parameters in the draws' `dtype`."""
    return lambda b, key, shape, dtype, *params, **props: function(
        b, key, shape, dtype, *(numpy_astype(b, x, dtype) for x in params), **props
    )


def counts(function: Draw) -> Sampler:
    """Take a function ``(b, key, shape, *params)`` that gets its parameters in float64, and draws whole numbers."""
    return lambda b, key, shape, dtype, *params, **props: prims.convert(
        b, function(b, key, shape, *(numpy_astype(b, x, "float64") for x in params), **props), "int64"
    )  # as perform draws, before the cast to the Op's dtype


def general(function: Sampler) -> Sampler:
    """Take a function ``(b, key, shape, dtype, *params)`` that gets its parameters in their own dtypes."""
    return function


# -- shapes ------------------------------------------------------------------------------------------------------------


def draws_shape(op: RandomVariable, size: Sequence[int] | None, params: Sequence[Atom]) -> Shape:
    """Return the shape of independent draws: `size`, which the parameters must fit, or their broadcast shape."""
    pairs = zip((np.shape(x) if is_static_operand(x) else x.aval.shape for x in params), op.ndims_params, strict=True)
    shapes = [shape[: len(shape) - n] for shape, n in pairs]
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
    return row_of(b, key, 0), row_of(b, key, 1)


def random_bits(b: JaxprBuilder, key: Atom, shape: Shape) -> list[Atom]:
    """Return two independent random uint32 words for each element of `shape`: the hash of its position."""
    return hashed(b, key_words(b, key), position_words(b, flat_positions(b, shape)))


def flat_positions(b: JaxprBuilder, shape: Shape) -> Atom:
    """Emit each element's position in memory order, in the shortest signed integer type for their number."""
    size = math.prod(shape)
    return prims.reshape(b, prims.iota(b, position_dtype(size), (size,), 0), shape)


def position_words(b: JaxprBuilder, at: Atom) -> tuple[Atom, Atom]:
    """Return the high and the low uint32 word of positions."""
    low = prims.convert(b, at, KEY_DTYPE)
    if at.aval.dtype == np.int32:
        return prims.broadcast_to(b, b.constant(0, KEY_DTYPE), at.aval.shape), low
    return prims.convert(b, prims.shift_right_logical(b, at, number(b, at, 32)), KEY_DTYPE), low


def hashed(b: JaxprBuilder, words: Sequence[Atom], counts: Sequence[Atom]) -> list[Atom]:
    """Return two independent random uint32 words for each pair of counters, under the two words of a key."""
    return prims.threefry2x32(b, (words[0], words[1]), (counts[0], counts[1]))


def split_key(b: JaxprBuilder, key: Atom, count: int = 2) -> list[Atom]:
    """Return new keys, as `jax.random.split` does."""
    words = [prims.broadcast_in_dim(b, x, (count, 1), (0,)) for x in random_bits(b, key, (count,))]
    keys = prims.concatenate(b, words, 1)
    return [row_of(b, keys, i) for i in range(count)]


def uniform(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype) -> Atom:
    """Emit numbers uniform in [0, 1)."""
    return uniform_of(b, random_bits(b, key, shape), dtype)


def open_uniform(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype) -> Atom:
    """Emit numbers uniform in (0, 1), symmetric about 1/2."""
    return open_uniform_of(b, random_bits(b, key, shape), dtype)


def standard_normal(b: JaxprBuilder, key: Atom, shape: Shape, dtype: np.dtype) -> Atom:
    """Emit standard normal numbers."""
    return normal_of(b, random_bits(b, key, shape), dtype)


class Attempt(NamedTuple):
    """Random numbers for one attempt at some elements of an array: `rejection.reject` gives them to a proposal.

    The numbers are hashes of the attempt (a 0-d uint32) and of the positions `at` of the elements, under the two
    `words` of the key. So they do not depend on which other elements are present.
    """

    b: JaxprBuilder
    words: Sequence[Atom]
    attempt: Atom
    at: Atom

    def numbers(self, dtype: np.dtype, *functions: Callable[..., Atom]) -> list[Atom]:
        """Return numbers by functions of two random words, such as `normal_of`; call it once.

        One hash makes all words. Its high counter is the attempt times the number of functions plus the function's
        index, above the sixteen bits that positions of more than 32 bits may need.
        """
        b, shape, count = self.b, self.at.aval.shape, len(functions)
        which = prims.iota(b, KEY_DTYPE, (count,), 0)
        which = prims.add(b, which, prims.mul(b, self.attempt, number(b, which, count)))
        which = prims.shift_left(b, which, number(b, which, 16))
        rows = prims.broadcast_in_dim(b, which, (count, *shape), (0,))
        high, low = (prims.broadcast_to(b, x, (count, *shape)) for x in position_words(b, self.at))
        words = hashed(b, self.words, (prims.or_(b, rows, high), low))
        return [f(b, [row_of(b, x, i) for x in words], dtype) for i, f in enumerate(functions)]


# -- numbers of two random words ---------------------------------------------------------------------------------------


def bits64_of(b: JaxprBuilder, words: Sequence[Atom], dtype: Any = np.uint64) -> Atom:
    """Emit the unsigned integers of 64 bits that two words are."""
    high, low = (prims.convert(b, x, dtype) for x in words)
    return prims.or_(b, prims.shift_left(b, high, number(b, high, 32)), low)


def uniform_of(b: JaxprBuilder, words: Sequence[Atom], dtype: np.dtype) -> Atom:
    """Emit numbers uniform in [0, 1): random bits as the mantissa of a number in [1, 2), minus 1."""
    mantissa = np.finfo(dtype).nmant
    bits = bits64_of(b, words) if dtype == np.float64 else prims.xor(b, *words)
    width = bits.aval.dtype.itemsize * 8
    bits = prims.shift_right_logical(b, bits, number(b, bits, width - mantissa))
    one = np.ones((), dtype)
    bits = prims.or_(b, bits, b.constant(one.view(bits.aval.dtype)))
    return prims.sub(b, prims.bitcast(b, bits, dtype), b.constant(one))


def open_uniform_of(b: JaxprBuilder, words: Sequence[Atom], dtype: np.dtype) -> Atom:
    """Emit numbers uniform in (0, 1), symmetric about 1/2: the middles of the intervals that `uniform_of` begins."""
    return prims.add(b, uniform_of(b, words, dtype), b.constant(np.asarray(np.finfo(dtype).eps / 2, dtype)))


def normal_of(b: JaxprBuilder, words: Sequence[Atom], dtype: np.dtype) -> Atom:
    """Emit standard normal numbers by the inverse of the distribution function."""
    # The smallest number above -1, so that neither end is reached and the result is finite.
    low = np.nextafter(np.asarray(-1, dtype), np.asarray(0, dtype), dtype=dtype)
    unit = prims.mul(b, uniform_of(b, words, dtype), b.constant(np.asarray(1 - low, dtype)))
    unit = prims.add(b, unit, b.constant(low))
    unit = prims.max_(b, prims.broadcast_to(b, b.constant(low), unit.aval.shape), unit)
    return prims.mul(b, prims.erf_inv(b, unit), b.constant(np.sqrt(np.asarray(2, dtype))))
