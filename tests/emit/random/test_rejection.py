"""Rejection: an element's draw is the same whether the loop takes all elements or blocks of open ones."""

from unittest import mock

import jax
import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.tensor.random.type import random_generator_type

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.emit.random import rejection

N = 3 * rejection.BLOCK + 5


def make():
    """Return a function of a key and of parameters: a squeeze, a boost, and elements without a possible draw."""
    rng, alpha, mean = random_generator_type("rng"), pt.dvector("alpha"), pt.dvector("mean")
    next_rng, x = pt.random.gamma(alpha, scale=1.0, rng=rng, return_next_rng=True, dtype="float64")
    _, y = pt.random.poisson(mean, rng=next_rng, return_next_rng=True)
    return jax.jit(pjl.as_jax_function([rng, alpha, mean], [x, y]))


@pytest.fixture(scope="module")
def draw():
    return make()


@pytest.fixture(scope="module")
def values():
    alpha, mean = np.linspace(0.2, 5.0, N), np.linspace(0.5, 100.0, N)
    alpha[7], mean[7] = np.nan, -1.0
    return alpha, mean


def key_data(seed):
    return jax.random.key_data(jax.random.key(seed))


def test_blocks_draw_what_one_loop_draws(draw, values):
    with jax.enable_x64(True):
        in_blocks = draw(key_data(1), *values)
        with mock.patch.object(rejection, "BLOCK", N):
            together = make()(key_data(1), *values)
    for x, y in zip(in_blocks, together, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12)
    assert np.isnan(in_blocks[0][7])


def test_draws_of_an_element_do_not_depend_on_the_others(draw, values):
    kept = np.arange(N) < 10
    others = [np.where(kept, x, constant) for x, constant in zip(values, (2.0, 50.0), strict=True)]
    with jax.enable_x64(True):
        pairs = zip(draw(key_data(1), *values), draw(key_data(1), *others), strict=True)
    for x, y in pairs:
        np.testing.assert_array_equal(x[kept], y[kept])


def test_vmap_of_blocks():
    rng, alpha = random_generator_type("rng"), pt.dvector("alpha")
    draws = pt.random.gamma(alpha, scale=1.0, rng=rng, return_next_rng=True, dtype="float64")[1]
    draw = pjl.as_jax_function([rng, alpha], [draws])
    alpha = np.linspace(0.2, 5.0, N)
    with jax.enable_x64(True):
        keys = jax.numpy.stack([key_data(0), key_data(1)])
        (many,) = jax.jit(jax.vmap(draw, in_axes=(0, None)))(keys, alpha)
        (one,) = jax.jit(draw)(keys[1], alpha)
    np.testing.assert_allclose(many[1], one, rtol=1e-12)
    assert not np.array_equal(many[0], many[1])
