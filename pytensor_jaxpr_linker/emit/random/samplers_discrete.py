"""Counts, exact for all parameters, as float64 whole numbers; integers in a range, and random orders.

Logarithms of probabilities are sums of small terms without cancellation (Loader, *Fast and Accurate Computation of
Binomial Probabilities*, 2000), so the samplers are as good for a mean of 1e15 as for one of 20.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from jax.lax import GatherDimensionNumbers

from pytensor_jaxpr_linker.emit.random.rejection import Proposed, reject
from pytensor_jaxpr_linker.emit.random.sampler import Attempt, bits64_of, open_uniform, open_uniform_of, random_bits
from pytensor_jaxpr_linker.emit.scalar import UINT64
from pytensor_jaxpr_linker.emit.shape import position_dtype
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.jaxpr.formula import Value, exp, floor, is_finite, log, log1p, maximum, minimum, sqrt, where
from pytensor_jaxpr_linker.jaxpr.nested import any_of, nested

FLOAT = np.dtype("float64")
#: The mean from which a count is proposed and rejected instead of searched for.
LARGE_MEAN = 10.0
#: The largest mean of a Poisson variable that NumPy takes: its draws fit an int64.
POISSON_MAX = np.iinfo("int64").max - np.sqrt(np.iinfo("int64").max) * 10
#: The count for a parameter out of range, where nothing checks it: the smallest number of any integer type.
INVALID = -np.inf


def stirling_rest(k: Value) -> Value:
    """Emit ``log(k!) - (k log(k) - k)``: from a table; from 16 on by Stirling's series, within 2e-14."""
    large = maximum(k, 16.0)
    r = 1.0 / large
    r2 = r * r
    series = r * (1 / 12 - r2 * (1 / 360 - r2 * (1 / 1260 - r2 * (1 / 1680))))
    return where(k < 16.0, lookup(STIRLING_RESTS, k), 0.5 * log(large * (2 * np.pi)) + series)


#: `stirling_rest` of 0 to 15.
STIRLING_RESTS = np.array([math.lgamma(k + 1) - k * math.log(k or 1) + k for k in range(16)])


def lookup(table: np.ndarray, k: Value) -> Value:
    """Emit the elements of a table at whole numbers; beyond its end, the last one."""
    shape = k.atom.aval.shape
    index = prims.convert(k.b, minimum(k, len(table) - 1).atom, "int32")
    index = prims.broadcast_in_dim(k.b, index, (*shape, 1), range(len(shape)))
    dims = GatherDimensionNumbers((), (0,), (0,))
    return Value(k.b, prims.gather(k.b, k.b.constant(table), index, dims, (1,), shape))


def deviance(k: Value, mean: Value) -> Value:
    """Emit ``k log(k / mean) + mean - k``, half of the deviance of a Poisson count."""
    tiny = np.finfo(FLOAT).tiny
    change = (k - mean) / maximum(mean, tiny)
    # Where k is 0 the logarithm counts nothing, as long as it is finite.
    return mean * ((1.0 + change) * log1p(maximum(change, np.nextafter(-1.0, 0.0))) - change)


def log_poisson(k: Value, mean: Value) -> Value:
    """Emit the logarithm of the probability of `k` events."""
    return -(deviance(k, mean) + stirling_rest(k))


def log_binomial(k: Value, n: Value, p: Value) -> Value:
    """Emit the logarithm of the probability of `k` of `n`, without the terms that do not depend on `k`."""
    return log_poisson(k, n * p) + log_poisson(n - k, n * (1.0 - p))


def log_hypergeometric(k: Value, rare: Value, total: Value, drawn: Value) -> Value:
    """Emit the log-probability of `k` rare ones of `total` among `drawn`, without terms that do not depend on `k`."""
    chance = drawn / maximum(total, 1.0)
    return log_binomial(k, rare, chance) + log_binomial(drawn - k, total - rare, chance)


def hypergeometric_rest(rare: Value, total: Value, drawn: Value) -> Value:
    """Emit the terms that `log_hypergeometric` leaves out."""
    rests = stirling_rest(rare) + stirling_rest(total - rare) - stirling_rest(total)
    return rests - log_binomial(drawn, total, drawn / maximum(total, 1.0))


def sequential_search(
    u: Value, possible: Value, first: Value, last: Value, ratio: Callable[..., Value], parameters: Sequence[Value]
) -> Value:
    """Emit the inverse of a distribution function by a search from 0.

    Devroye, *Non-Uniform Random Variate Generation*, 1986, III.2.2.

    The search ends at `last`, beyond which probabilities are below the spacing of the uniform `u`. Elements that are
    not `possible` get 0. `first` is the probability of 0; ``ratio(k, *parameters)`` emits the probability of `k` over
    the probability of ``k - 1``.
    """
    b, shape = u.b, u.atom.aval.shape
    fixed = [last.atom, *(x.atom for x in parameters)]
    zero = prims.broadcast_to(b, b.constant(np.float64(0)), shape)
    active = possible & (u > first) & (last > 0.0)
    carry = [prims.broadcast_to(b, x, shape) for x in (active.atom, zero, (u - first).atom, first.atom)]
    body, read, given, passed = nested(b, fixed, carry)
    last, *parameters = [Value(body, x) for x in read]
    active, k, rest, probability = (Value(body, x) for x in given)
    k = where(active, k + 1.0, k)
    probability = probability * ratio(maximum(k, 1.0), *parameters)
    still = active & (rest > probability) & (k < last)
    new = [x.atom for x in (still, k, rest - probability, probability)]
    condition, atoms = b.sub_jaxpr([x.aval for x in carry])
    goes_on = condition.build([any_of(condition, atoms[0])])
    return Value(b, prims.while_loop(b, goes_on, [], body.build(new), passed, carry)[1])


def transformed_rejection(
    b: JaxprBuilder,
    key: Atom,
    start: Value,
    possible: Value,
    hat: Callable[..., Sequence[Value]],
    log_probability: Callable[..., Value],
    parameters: Sequence[Value],
) -> Value:
    """Emit counts by rejection from a table-mountain hat; elements that are not `possible` get `start`.

    Hörmann, *The Generation of Binomial Random Variates*, 1993, and *The Transformed Rejection Method for Generating
    Poisson Random Variables*, 1993. From the parameters, `hat` emits Hörmann's a, b and c, the logarithm of his alpha
    in the scale of `log_probability`, and the v_r of his squeeze. ``log_probability(k, *parameters)`` is minus infinity
    for an impossible count.
    """

    def prepare(body: JaxprBuilder, *atoms: Atom) -> list[Atom]:
        return [*(x.atom for x in hat(*(Value(body, x) for x in atoms))), *atoms]

    def propose(body: JaxprBuilder, lanes: Attempt, *atoms: Atom) -> Proposed:
        a, slope, center, log_alpha, sure_below, *inner = (Value(body, x) for x in atoms)
        u, v = (Value(body, draw) for draw in lanes.numbers(FLOAT, open_uniform_of, open_uniform_of))
        u = u - 0.5
        us = 0.5 - abs(u)
        k = floor((2.0 * a / us + slope) * u + center)
        accepted = log(v / (a / (us * us) + slope)) + log_alpha <= log_probability(k, *inner)
        surely = (us >= 0.07) & (v <= sure_below)
        return Proposed(k.atom, accepted.atom, surely.atom)

    read = [x.atom for x in parameters]
    return Value(b, reject(b, key, propose, read, start.atom, possible.atom, prepare))


# -- distributions: one key serves both methods, since an element takes one of them ------------------------------------


def poisson(b: JaxprBuilder, key: Atom, shape: Shape, mean: Atom) -> Atom:
    """Emit Poisson variables: by search if `mean` is small, else by transformed rejection (PTRS)."""
    m = Value(b, mean)
    valid = (m >= 0.0) & (m <= POISSON_MAX)
    small, large = minimum(m, LARGE_MEAN), maximum(m, LARGE_MEAN)
    u = Value(b, open_uniform(b, key, shape, FLOAT))
    last = 10.0 + floor(small + 10.0 * sqrt(small))
    searched = sequential_search(u, valid & (m < LARGE_MEAN), exp(-small), last, lambda k, m: m / k, [small])
    start = where(valid, searched, INVALID)

    def hat(mean: Value) -> tuple[Value, ...]:
        slope = 0.931 + 2.53 * sqrt(mean)
        log_alpha = log(1.1239 + 1.1328 / (slope - 3.4))
        return -0.059 + 0.02483 * slope, slope, mean + 0.43, log_alpha, 0.9277 - 3.6224 / (slope - 2.0)

    def log_probability(k: Value, mean: Value) -> Value:
        return where(k >= 0.0, log_poisson(maximum(k, 0.0), mean), -np.inf)

    return transformed_rejection(b, key, start, valid & (m >= LARGE_MEAN), hat, log_probability, [large]).atom


def binomial(b: JaxprBuilder, key: Atom, shape: Shape, n: Atom, p: Atom) -> Atom:
    """Emit binomial variables: by search if the mean is small, else by transformed rejection (BTRS)."""
    size, chance = Value(b, n), Value(b, p)
    valid = (size >= 0.0) & is_finite(size) & (chance >= 0.0) & (chance <= 1.0)
    size = where(valid, size, 0.0)
    chance = where(valid, chance, 0.0)
    rarer = minimum(chance, 1.0 - chance)
    mean = size * rarer
    u = Value(b, open_uniform(b, key, shape, FLOAT))
    is_large = mean >= LARGE_MEAN
    none = exp(size * log1p(-rarer))
    last = minimum(10.0 + floor(mean + 10.0 * sqrt(mean)), size)
    odds = rarer / (1.0 - rarer)
    searched = sequential_search(u, ~is_large, none, last, lambda k, n, odds: (n - k + 1.0) / k * odds, [size, odds])
    # Values that the hat is a hat for, where there is nothing to reject.
    n_large, p_large = where(is_large, size, 40.0), where(is_large, rarer, 0.5)

    def hat(n: Value, p: Value) -> tuple[Value, ...]:
        mean = n * p
        deviation = sqrt(mean * (1.0 - p))
        slope = 1.15 + 2.53 * deviation
        log_alpha = log((2.83 + 5.1 / slope) * deviation) + log_binomial(floor((n + 1.0) * p), n, p)
        return -0.0873 + 0.0248 * slope + 0.01 * p, slope, mean + 0.5, log_alpha, 0.92 - 4.2 / slope

    def log_probability(k: Value, n: Value, p: Value) -> Value:
        inside = (k >= 0.0) & (k <= n)
        return where(inside, log_binomial(minimum(maximum(k, 0.0), n), n, p), -np.inf)

    count = transformed_rejection(b, key, searched, is_large, hat, log_probability, [n_large, p_large])
    return where(valid, where(chance > 0.5, size - count, count), INVALID).atom


def hypergeometric(b: JaxprBuilder, key: Atom, shape: Shape, good: Atom, bad: Atom, sample: Atom) -> Atom:
    """Emit hypergeometric variables: by search if the mean is small, else by the ratio of uniforms.

    Stadlober, *The Ratio of Uniforms Approach for Generating Discrete Random Variates*, 1990. Both methods hold for all
    parameters if the rarer kind is counted, in the smaller part of the total: the sample or the rest.
    """
    g, h, s = (Value(b, x) for x in (good, bad, sample))
    total = g + h
    valid = (g >= 0.0) & (h >= 0.0) & (s >= 0.0) & (s <= total) & is_finite(total)
    rare, drawn = minimum(g, h), minimum(s, total - s)
    rare, total, drawn = (where(valid, x, 0.0) for x in (rare, total, drawn))
    mean = drawn * rare / maximum(total, 1.0)
    is_large = mean >= LARGE_MEAN
    u = Value(b, open_uniform(b, key, shape, FLOAT))
    none = exp(log_hypergeometric(drawn * 0.0, rare, total, drawn) + hypergeometric_rest(rare, total, drawn))
    last = minimum(minimum(rare, drawn), 10.0 + floor(mean + 10.0 * sqrt(mean)))

    def ratio(k: Value, rare: Value, drawn: Value, left: Value) -> Value:
        return (rare - k + 1.0) * (drawn - k + 1.0) / (k * (left + k))

    searched = sequential_search(u, valid & ~is_large, none, last, ratio, [rare, drawn, total - rare - drawn])

    def prepare(body: JaxprBuilder, *atoms: Atom) -> list[Atom]:
        rare, total, drawn = parameters = [Value(body, x) for x in atoms]
        share = rare / maximum(total, 1.0)
        mean = drawn * share
        variance = mean * (1.0 - share) * (total - drawn) / maximum(total - 1.0, 1.0)
        width = 2 * np.sqrt(2 / np.e) * sqrt(variance + 0.5) + (3 - 2 * np.sqrt(3 / np.e))
        mode = floor((drawn + 1.0) * (rare + 1.0) / (total + 2.0))
        return [mean.atom, width.atom, log_hypergeometric(mode, *parameters).atom, *atoms]

    def propose(body: JaxprBuilder, lanes: Attempt, *atoms: Atom) -> Proposed:
        mean, width, at_mode, *inner = (Value(body, x) for x in atoms)
        x, y = (Value(body, draw) for draw in lanes.numbers(FLOAT, open_uniform_of, open_uniform_of))
        k = floor(mean + 0.5 + width * (y - 0.5) / x)
        rare, _, drawn = inner
        inside = (k >= 0.0) & (k <= minimum(rare, drawn))
        ratio = log_hypergeometric(minimum(maximum(k, 0.0), minimum(rare, drawn)), *inner) - at_mode
        return Proposed(k.atom, (inside & (2.0 * log(x) <= ratio)).atom)

    read = [x.atom for x in (rare, total, drawn)]
    count = Value(b, reject(b, key, propose, read, searched.atom, (valid & is_large).atom, prepare))
    # The number of good ones in the sample, from the number of the rarer kind in the smaller part.
    count = where(g > h, drawn - count, count)
    count = where(s > total - s, g - count, count)
    return where(valid, count, INVALID).atom


# -- integers in a range, and random orders ----------------------------------------------------------------------------


def integers_from(b: JaxprBuilder, key: Atom, shape: Shape, low: Atom, high: Atom) -> Atom:
    """Emit integers uniform in [`low`, `high`), int64 like these, without bias.

    The lowest ``2**64 % n`` of the random words are rejected, n the length of the range: the remainders of the others
    are equally frequent (Lemire, *Fast Random Integer Generation in an Interval*, 2019, section 3, OpenBSD's
    algorithm). A length of 2**64 counts as 0 in the arithmetic modulo that number, and all words are taken.
    """
    first = Value(b, prims.convert(b, low, UINT64))
    length = Value(b, prims.convert(b, high, UINT64)) - first
    divisor = maximum(length, 1)
    rejected = (Value(b, b.constant(0, UINT64)) - divisor) % divisor

    def propose(body: JaxprBuilder, lanes: Attempt, rejected: Atom) -> Proposed:
        (word,) = lanes.numbers(UINT64, bits64_of)
        return Proposed(word, prims.ge(body, word, rejected))

    start = prims.broadcast_to(b, b.constant(0, UINT64), shape)
    word = Value(b, reject(b, key, propose, [rejected.atom], start, b.constant(True)))
    return prims.convert(b, (first + where(length == 0, word, word % divisor)).atom, "int64")


def random_order(b: JaxprBuilder, key: Atom, shape: Shape, n: int) -> Atom:
    """Emit the numbers below `n` in a random order for each element of `shape`, along a last axis.

    The sort keys are random words of 64 bits; two are equal with a probability below ``n**2 / 2**65``.
    """
    shape = (*shape, n)
    return prims.sort(b, [*random_bits(b, key, shape), last_axis_positions(b, shape)], len(shape) - 1, num_keys=2)[2]


def last_axis_positions(b: JaxprBuilder, shape: Shape) -> Atom:
    """Emit the positions along the last axis."""
    return prims.iota(b, position_dtype(shape[-1]), shape, len(shape) - 1)
