"""Generators: what PyTensor says of them holds here, and a draw depends on its place in the stream alone."""

import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import FULLGRAPH
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.random.type import random_generator_type

import pytensor_jaxpr_linker as pjl


def generator(seed=123):
    return pytensor.shared(np.random.default_rng(seed), name="rng")


def normal(rng):
    return pt.random.normal(size=(3,), rng=rng, return_next_rng=True)


def gamma(rng):
    return pt.random.gamma(2.0, scale=1.0, size=(3,), rng=rng, return_next_rng=True)


@pytest.mark.parametrize("name", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_any_bit_generator(name):
    make = getattr(np.random, name)
    rng = pytensor.shared(np.random.Generator(make(1)))
    next_rng, x = normal(rng)
    f = pytensor.function([], x, updates={rng: next_rng}, mode=FULLGRAPH)
    first, second = f(), f()
    assert len(np.unique([first, second])) == 6
    assert type(rng.get_value().bit_generator) is make
    rng.set_value(np.random.Generator(make(1)))
    np.testing.assert_array_equal(f(), first)


def test_a_generator_handed_on_goes_on_as_in_one_function():
    rng = random_generator_type("rng")
    middle, x = normal(rng)
    last, y = gamma(middle)
    f = pytensor.function([rng], [middle, last, x, y], mode=FULLGRAPH)
    first = pytensor.function([rng], [middle, x], mode=FULLGRAPH)
    second = pytensor.function([middle], [last, y], mode=FULLGRAPH)
    value = np.random.default_rng(1)
    state = value.bit_generator.state
    whole = f(value)
    assert value.bit_generator.state == state
    middle_value, x_value = first(value)
    last_value, y_value = second(middle_value)
    np.testing.assert_array_equal(x_value, whole[2])
    np.testing.assert_array_equal(y_value, whole[3])
    assert middle_value.bit_generator.state == whole[0].bit_generator.state
    assert last_value.bit_generator.state == whole[1].bit_generator.state


def test_two_functions_share_a_stream():
    rng, other = generator(), generator()
    next_rng, x = normal(rng)
    f, g = (pytensor.function([], x, updates={rng: next_rng}, mode=FULLGRAPH) for _ in range(2))
    next_other, y = normal(other)
    next_other, z = normal(next_other)
    both = pytensor.function([], [y, z], updates={other: next_other}, mode=FULLGRAPH)()
    np.testing.assert_array_equal([f(), g()], both)
    assert rng.get_value().bit_generator.state == other.get_value().bit_generator.state


def test_a_break_does_not_change_the_draws():
    class OnHost(Op):
        __props__ = ()

        def make_node(self, x):
            return Apply(self, [x], [x.type()])

        def perform(self, node, inputs, outputs):
            outputs[0][0] = inputs[0].copy()

    results = []
    for between in (OnHost(), lambda x: x):
        rng = generator()
        next_rng, x = normal(rng)
        shift = between(x)
        next_rng, y = pt.random.normal(shift, size=(3,), rng=next_rng, return_next_rng=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pjl.GraphBreakWarning)
            f = pytensor.function([], y, updates={rng: next_rng}, mode="JAXPR")
        results.append([f(), f()])
    np.testing.assert_allclose(*results)


def test_swapped_and_copied_generators():
    a, b, c = generator(1), generator(2), generator(3)
    (next_a, x), (next_b, y) = normal(a), normal(b)
    f = pytensor.function([], [x, y], updates={a: next_b, b: next_a, c: a}, mode=FULLGRAPH)
    f()
    assert c.get_value().bit_generator.state == np.random.default_rng(1).bit_generator.state
    swapped = f()
    a.set_value(np.random.default_rng(2))
    b.set_value(np.random.default_rng(1))
    f = pytensor.function([], [x, y], updates={a: next_a, b: next_b}, mode=FULLGRAPH)
    f()
    np.testing.assert_array_equal(f(), swapped)


def test_modes_take_turns():
    rng = generator()
    next_rng, x = gamma(rng)
    ours, theirs = (pytensor.function([], x, updates={rng: next_rng}, mode=m) for m in (FULLGRAPH, "FAST_COMPILE"))
    assert len(np.unique([ours(), theirs(), ours(), theirs()])) == 12


def test_draws_that_rewriting_removed():
    rng = generator()
    next_rng, x = normal(rng)
    states = []
    for mode in (Mode("py", "fast_run"), FULLGRAPH):
        rng.set_value(np.random.default_rng(5))
        f = pytensor.function([], [x.shape, x * 0], updates={rng: next_rng}, mode=mode)
        shape, _ = f()
        assert shape == [3]
        states.append(rng.get_value().bit_generator.state != np.random.default_rng(5).bit_generator.state)
    assert states[0] == states[1]


def test_a_loop_is_one_draw():
    def step(x, rng):
        rng, y = pt.random.gamma(2.0, scale=1.0, rng=rng, return_next_rng=True)
        return x + y, rng

    rng = random_generator_type("rng")
    xs, after = pytensor.scan(step, outputs_info=[pt.zeros(()), rng], n_steps=3, return_updates=False)
    _, y = normal(after)
    f = pytensor.function([rng], [after, xs, y], mode=FULLGRAPH)
    after_value, xs_value, y_value = f(np.random.default_rng(1))
    g = pytensor.function([after], y, mode=FULLGRAPH)
    np.testing.assert_array_equal(g(after_value), y_value)
    assert len(np.unique(np.diff(xs_value, prepend=0))) == 3


def test_a_jax_function_takes_generators_and_keys():
    rng = random_generator_type("rng")
    middle, x = normal(rng)
    _, y = normal(middle)
    f = pytensor.function([rng], [x, y], mode=FULLGRAPH)
    fn = pjl.as_jax_function(f)
    value = np.random.default_rng(1)
    np.testing.assert_array_equal(fn(value), f(value))
    key = np.array([1, 2], "uint32")
    assert len(np.unique(fn(key))) == 6


def test_a_generator_inside_the_graph():
    loc, rng = pt.dscalar("loc"), generator(1)
    middle, x = pt.random.normal(loc, rng=rng, return_next_rng=True)
    _, y = pt.random.normal(loc, rng=middle, return_next_rng=True)
    draws = pytensor.function([loc], [x, y], mode=FULLGRAPH)(2.0)
    np.testing.assert_array_equal(pjl.as_jax_function([loc], [x, y])(2.0), draws)
