"""Functions cut at their long scans: pieces give what the whole gives."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import jax
import numpy as np
import pymc as pm
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytensor_jaxpr_linker.pymc import sample
from pytensor_jaxpr_linker.pymc.chains import runners
from pytensor_jaxpr_linker.pymc.chains.kernel import LEAST_STEPS, CutFunction, is_key
from pytensor_jaxpr_linker.pymc.kernels import chees, mclmc

numpy = jax.numpy


@pytest.fixture(autouse=True)
def in_double_precision():
    with jax.enable_x64(True):
        yield


def run(function, stride, given, *args):
    """Return the results of a function that is cut, a number of steps at a time, each time from a new trace."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args)
    cut = CutFunction(function, given, *args)
    begin = jax.jit(lambda given, *args: CutFunction(function, given, *args).begin())
    go_on = jax.jit(lambda given, i, j, state: CutFunction(function, given, *shapes).go_on(i, j, state))
    state = begin(given, *args)
    assert [(x.shape, x.dtype) for x in state] == [(x.shape, x.dtype) for x in cut.state_avals]
    for i in range(0, cut.steps, stride):
        state = go_on(given, i, min(cut.steps, i + stride), state)
    return jax.tree.unflatten(cut.tree, state[: cut.results])


def assert_same(found, expected, **tolerance):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert is_key(x) == is_key(y)
        x, y = (jax.random.key_data(z) if is_key(z) else numpy.asarray(z) for z in (x, y))
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, **tolerance)


@jax.jit
def walk(x, keys):
    """Return the last and all positions of a random walk: a call with a long scan, called twice below."""
    return jax.lax.scan(lambda x, key: (x + jax.random.normal(key, x.shape), x), x, keys)


def with_scans(data, key, x):
    """Return results of all kinds: of scans and between them, literals, and arguments."""
    first, second = jax.random.split(key)
    x, path = walk(x * data["scale"], jax.random.split(first, 40))
    backwards, sums = jax.lax.scan(lambda s, y: (s + y.sum(), s), 0.0, path[::-1], reverse=True)
    short, _ = jax.lax.scan(lambda s, y: (s * 0.5 + y, None), backwards, numpy.arange(LEAST_STEPS - 1.0))
    y, _ = walk(path.mean(0) + short, jax.random.split(second, 25))
    counted, unread = jax.lax.scan(lambda n, _: (n + 1, n * data["scale"]), 0, length=30)
    del unread
    return {"x": x, "y": y, "sums": sums[:3], "n": counted, "three": 3, "data": data["scale"], "keys": (key, second)}


@pytest.mark.parametrize("stride", [1, 7, 40, 1000])
def test_pieces_give_what_the_whole_gives(stride):
    args = {"scale": numpy.asarray(2.0)}, jax.random.key(1), numpy.arange(3.0)
    assert CutFunction(with_scans, *args).steps == 40 + 40 + 25 + 30
    assert_same(run(with_scans, stride, *args), jax.jit(with_scans)(*args), rtol=1e-14)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 135), max_size=6))
def test_any_cuts(cuts):
    args = {"scale": numpy.asarray(2.0)}, jax.random.key(1), numpy.arange(3.0)
    cut = CutFunction(with_scans, *args)
    state, bounds = cut.begin(), sorted([0, *cuts, cut.steps])
    for i, j in pairwise(bounds):
        state = go_on_with_scans(i, j, state)
    assert_same(jax.tree.unflatten(cut.tree, state[: cut.results]), with_scans(*args), rtol=1e-14)


@jax.jit
def go_on_with_scans(i, j, state):
    args = {"scale": numpy.asarray(2.0)}, jax.random.key(1), numpy.arange(3.0)
    return CutFunction(with_scans, *args).go_on(i, j, state)


def test_under_vmap():
    """Chains share the steps, which must not become a choice for each chain."""
    data, keys, x = {"scale": numpy.asarray(2.0)}, jax.random.split(jax.random.key(1), 2), numpy.ones((2, 3))
    one = jax.ShapeDtypeStruct(keys.shape[1:], keys.dtype), jax.ShapeDtypeStruct((3,), x.dtype)
    states = jax.vmap(lambda key, x: CutFunction(with_scans, data, key, x).begin())(keys, x)
    go_on = jax.vmap(lambda i, j, state: CutFunction(with_scans, data, *one).go_on(i, j, state), (None, None, 0))
    cut = CutFunction(with_scans, data, *one)
    assert sum(eqn.primitive.name == "cond" for eqn in jax.make_jaxpr(go_on)(0, 9, states).eqns) == 4
    for i in range(0, cut.steps, 9):
        states = go_on(i, i + 9, states)
    found = jax.tree.unflatten(cut.tree, states[: cut.results])
    expected = jax.vmap(lambda key, x: with_scans(data, key, x))(keys, x)
    assert_same(found, expected, rtol=1e-14)


def test_without_long_scans():
    def function(given, x):
        return jax.lax.scan(lambda x, _: (given * x, x), x, length=LEAST_STEPS - 1)

    cut = CutFunction(function, 2.0, 1.0)
    assert cut.steps == 0
    assert_same(jax.tree.unflatten(cut.tree, cut.begin()[: cut.results]), function(2.0, 1.0))


class Density:
    """A normal density of five variables."""

    size = 5

    def __call__(self, q, data):
        return -0.5 * numpy.sum((q * data) ** 2)


@pytest.mark.parametrize("make", [mclmc.make_kernel, chees.make_kernel], ids=["mclmc", "chees"])
@pytest.mark.parametrize("options", [{}, {"adjusted": True}], ids=str)
def test_tuning_of_samplers(make, options):
    if make is chees.make_kernel and options:
        pytest.skip("an option of MCLMC's")
    kernel, data, key, q = make(Density(), 30, 10, **options), numpy.arange(1.0, 6), jax.random.key(2), numpy.ones(5)
    args = (jax.random.split(key, 4), numpy.ones((4, 5))) if kernel.is_ensemble else (key, q)
    assert CutFunction(kernel.start, data, *args).steps >= 30
    cut = run(kernel.start, 11, data, *args)
    assert_same(cut, run(kernel.start, 1000, data, *args), rtol=0)
    # XLA rounds the whole otherwise. An adjusted chain that rounds otherwise makes another number of steps sooner or
    # later, and is another chain then: not in its first 30 steps.
    if options:
        kernel = make(Density(), 5, 10, **options)
        assert CutFunction(kernel.start, data, *args).steps == 30
        cut = run(kernel.start, 11, data, *args)
    assert_same(cut, jax.jit(kernel.start)(data, *args), rtol=1e-7)


@pytest.mark.parametrize("method", ["parallel", "vectorized"])
def test_an_interrupt_ends_the_tuning(monkeypatch, method):
    """A key that is pressed while chains tune ends them after some steps, not after all of them."""
    with pm.Model() as model:
        pm.Normal("x", shape=2)
    seen = []

    def tuned(self, programs, states, lengths, watch):
        def interrupt(chains, steps):
            seen.append(steps)
            raise KeyboardInterrupt

        return before[type(self)](self, programs, states, lengths, SimpleNamespace(add_tuning=interrupt))

    placed = runners.InThreads if method == "parallel" else runners.OneProgram
    before = {placed: placed.tuned}
    monkeypatch.setattr(placed, "tuned", tuned)
    with pytest.raises(KeyboardInterrupt):
        sample(50, tune=100, chains=2, model=model, sampler="mclmc", chain_method=method, progressbar=False)
    assert seen == [1]
