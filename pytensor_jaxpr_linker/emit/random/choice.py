"""Random orders of arrays: permutations, and choices without replacement."""

from __future__ import annotations

import math

import numpy as np
from jax.lax import GatherDimensionNumbers
from pytensor.graph.basic import Apply
from pytensor.tensor.random import basic as rv

from pytensor_jaxpr_linker.emit.random.multivariate import batched
from pytensor_jaxpr_linker.emit.random.parameter_checks import check_all, demand
from pytensor_jaxpr_linker.emit.random.sampler import emits_draws, general, is_static_operand, lengths_of
from pytensor_jaxpr_linker.emit.random.samplers_continuous import standard_exponential
from pytensor_jaxpr_linker.emit.random.samplers_discrete import FLOAT, last_axis_positions, random_order
from pytensor_jaxpr_linker.emit.scalar import numpy_astype
from pytensor_jaxpr_linker.emit.shape import check_length
from pytensor_jaxpr_linker.graph.static_values import larger, smaller
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape


def weighted_order(b: JaxprBuilder, key: Atom, shape: Shape, p: Atom) -> Atom:
    """Emit an order along the last axis, as if positions were drawn one by one by the remaining weights.

    Zero weights come last.

    The keys are exponential variables over the weights: Efraimidis and Spirakis, *Weighted Random Sampling with a
    Reservoir*, 2006.
    """
    p = batched(b, numpy_astype(b, p, FLOAT), shape, 1)
    times = prims.log(b, standard_exponential(b, key, p.aval.shape, FLOAT))
    return prims.sort(b, [prims.sub(b, times, prims.log(b, p)), last_axis_positions(b, p.aval.shape)], len(shape))[1]


def first_rows(b: JaxprBuilder, shape: Shape, a: Atom, order: Atom, count: int) -> Atom:
    """Emit the first `count` rows of an array (of a number: positions) in an order, for each batch element."""
    starts, ends = [0] * (len(shape) + 1), [*shape, count]
    order = prims.slice_(b, order, starts, ends, [1] * len(starts))
    if is_static_operand(a) or not (core := a.aval.shape[len(shape) :]):
        return order
    batch, width = math.prod(shape), math.prod(core[1:])
    a = prims.reshape(b, batched(b, a, shape, len(core)), (batch, core[0], width))
    order = prims.reshape(b, order, (batch, count, 1))
    index = prims.concatenate(b, [prims.iota(b, order.aval.dtype, (batch, count, 1), 0), order], 2)
    dims = GatherDimensionNumbers((2,), (0, 1), (0, 1))
    rows = prims.gather(b, a, index, dims, (1, 1, width), (batch, count, width))
    return prims.reshape(b, rows, (*shape, count, *core[1:]))


def chooses_below_a_number(node: Apply) -> bool:
    """Return whether the array of a node is a number, which stands for the numbers below it."""
    return node.op.ndims_params[0] == 0


def refuse_batch_of_numbers(node: Apply) -> str | None:
    """Return why a permutation or choice can't be emitted: NumPy has none of several numbers at once."""
    return "it takes several numbers" if chooses_below_a_number(node) and node.inputs[2].type.ndim else None


def population(a: Atom, shape: Shape, b: JaxprBuilder) -> int:
    """Return how many elements there are to draw from."""
    if is_static_operand(a) or not (core := a.aval.shape[len(shape) :]):
        return larger(lengths_of(b, a).item(), 0)
    return core[0]


def static_of_permutation(node: Apply) -> tuple[int, ...]:
    """Return the positions of the inputs that shapes follow from: the size, and a number that stands for an array."""
    return (1, 2) if chooses_below_a_number(node) else (1,)


@emits_draws(rv.PermutationRV, form=general, static=static_of_permutation, refuse=refuse_batch_of_numbers)
def sample_permutation(b, key, shape, dtype, x):
    """The rows of an array in a random order."""
    n = population(x, shape, b)
    return first_rows(b, shape, x, random_order(b, key, shape, n), n)


def choice_count(b: JaxprBuilder, core_shape: Atom) -> Shape:
    """Return the shape of one choice; batch axes of it repeat one shape."""
    lengths = lengths_of(b, core_shape)
    return tuple(lengths[(0,) * (lengths.ndim - 1)].tolist())


def check_drawn_rows(b: JaxprBuilder, node: Apply, a: Atom, *params: Atom) -> None:
    """Check the parameters as `numpy.random.Generator.choice` does."""
    *weights, core_shape = params
    batch = () if is_static_operand(a) else a.aval.shape[: len(a.aval.shape) - node.op.ndims_params[0]]
    n, count = population(a, batch, b), math.prod(choice_count(b, core_shape))
    if n == 0 and count:
        reason = "must be a positive integer" if chooses_below_a_number(node) else "cannot be empty"
        raise ValueError(f"a {reason} unless no samples are taken")
    for p in weights:
        check_weights(b, node, p, n, count)
    error = ValueError("Cannot take a larger sample than population when replace is False")
    check_length(b, node, n, count, error)


def check_weights(b: JaxprBuilder, node: Apply, p: Atom, n: int, count: int) -> None:
    """Check the probabilities of `n` elements for `count` draws."""
    axis = len(p.aval.shape) - 1
    if p.aval.shape[axis] != n:
        raise ValueError("a and p must have same size")
    tolerance = np.sqrt(np.finfo(p.aval.dtype if p.aval.dtype.kind == "f" else FLOAT).eps)
    p = numpy_astype(b, p, FLOAT)
    demand(b, node, "Probabilities contain NaN", lambda p: (p >= 0.0) | (p < 0.0), p)
    demand(b, node, "Probabilities are not non-negative", lambda p: p >= 0.0, p)
    message = "Probabilities do not sum to 1. See Notes section of docstring for more information."
    total = prims.reduce_sum(b, p, (axis,))
    demand(b, node, message, lambda s: (s >= 1.0 - tolerance) & (s <= 1.0 + tolerance), total)
    some = prims.convert(b, prims.gt(b, p, b.constant(0, FLOAT)), "int32")
    enough = prims.ge(b, prims.reduce_sum(b, some, (axis,)), b.constant(smaller(count, n), "int32"))
    check_all(b, enough, ValueError("Fewer non-zero entries in p than size"), node)


def static_of_choice(node: Apply) -> tuple[int, ...]:
    """Return the positions of the inputs that shapes follow from: the shape of one choice comes last."""
    return (*static_of_permutation(node), len(node.inputs) - 1)


@emits_draws(
    rv.ChoiceWithoutReplacement, check_drawn_rows, static=static_of_choice, refuse=refuse_batch_of_numbers, form=general
)
def sample_choice(b, key, shape, dtype, a, *params):
    """The first rows of an array in a random order."""
    *weights, core_shape = params
    lengths, n = choice_count(b, core_shape), population(a, shape, b)
    order = weighted_order(b, key, shape, weights[0]) if weights else random_order(b, key, shape, n)
    rows = first_rows(b, shape, a, order, math.prod(lengths))
    return prims.reshape(b, rows, (*shape, *lengths, *rows.aval.shape[len(shape) + 1 :]))
