"""Random variables: distribution, shape, dtype, state and errors."""

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.stats as st
from helpers import FULLGRAPH, compare_error
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import random_generator_type

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.emit.random import sampler
from pytensor_jaxpr_linker.jaxpr.builder import JaxprBuilder


def generator(seed=123):
    return pytensor.shared(np.random.default_rng(seed), name="rng")


def draw(dist, *params, size=None, dtype="float64", seed=123):
    _, x = dist(*params, size=size, rng=generator(seed), dtype=dtype, return_next_rng=True)
    return pytensor.function([], x, mode="JAXPR")()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("first, second", [(np.array([[-1.0], [4.0]]), np.array([5.0, 7.0, 6.5])), (0.0, 1.0)])
def test_normal_distribution(first, second, dtype):
    x = draw(pt.random.normal, first, second, size=(4000, 2, 3), dtype=dtype)
    assert x.dtype == dtype
    z = (x - first) / second
    for i, j in np.ndindex(2, 3):
        assert st.kstest(z[:, i, j], "norm").pvalue > 1e-3
    assert abs(np.corrcoef(z.reshape(4000, 6).T) - np.eye(6)).max() < 0.08


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("first, second", [(np.array([[-1.0], [4.0]]), np.array([5.0, 7.0, 6.5])), (0.0, 1.0)])
def test_uniform_distribution(first, second, dtype):
    x = draw(pt.random.uniform, first, second, size=(4000, 2, 3), dtype=dtype)
    assert x.dtype == dtype
    u = (x - first) / (second - first)
    assert u.min() >= 0
    assert u.max() <= 1
    for i, j in np.ndindex(2, 3):
        assert st.kstest(u[:, i, j], "uniform").pvalue > 1e-3


def test_float16():
    x = draw(pt.random.normal, np.float16(1), np.float16(2), size=(3000,), dtype="float16")
    assert x.dtype == "float16"
    assert st.kstest((x.astype("float64") - 1) / 2, "norm").pvalue > 1e-3


def test_parameters_broadcast_without_size():
    loc, scale = pt.tensor("loc", shape=(None, 1), dtype="float64"), pt.vector("scale", dtype="float64")
    _, x = pt.random.normal(loc, scale, rng=generator(), return_next_rng=True)
    f = pytensor.function([loc, scale], x, mode="JAXPR")
    loc_value, scale_value = np.arange(3.0)[:, None] * 1e6, np.arange(4.0)
    value = f(loc_value, scale_value)
    assert value.shape == (3, 4)
    assert (value[:, 0] == loc_value[:, 0]).all()
    assert np.abs((value - loc_value) / np.maximum(scale_value, 1)).max() < 9


def test_symbolic_size():
    n = pt.lscalar("n")
    _, x = pt.random.uniform(size=(n, n + 1), rng=generator(), return_next_rng=True)
    f = pytensor.function([n], x, mode="JAXPR")
    assert f(3).shape == (3, 4)
    assert f(5).shape == (5, 6)


@pytest.mark.parametrize("size", [None, (), (0,), (3, 0, 2), (1,), (2, 3)])
@pytest.mark.parametrize("dist", [pt.random.normal, pt.random.uniform])
def test_shapes(dist, size):
    x = draw(dist, 0.0, 1.0, size=size)
    assert x.shape == (size or ())
    assert np.isfinite(x).all()


def test_consecutive_draws_differ_and_state_advances():
    rng = generator()
    next_rng, x = pt.random.normal(size=(5,), rng=rng, return_next_rng=True)
    next_rng, y = pt.random.normal(size=(5,), rng=next_rng, return_next_rng=True)
    next_rng, u = pt.random.uniform(size=(5,), rng=next_rng, return_next_rng=True)
    f = pytensor.function([], [x, y, u], updates={rng: next_rng}, mode="JAXPR")
    first, second = np.array(f()), np.array(f())
    assert len(np.unique(np.concatenate([first, second]))) == 30
    rng.set_value(np.random.default_rng(123))
    np.testing.assert_array_equal(f(), first)


def test_one_generator_read_twice_gives_equal_draws():
    rng = generator()
    _, x = pt.random.normal(size=(5,), rng=rng, return_next_rng=True)
    _, y = pt.random.normal(2.0, size=(5,), rng=rng, return_next_rng=True)
    x, y = pytensor.function([], [x, y], mode="JAXPR")()
    np.testing.assert_allclose(x + 2, y)


def test_no_update_repeats():
    _, x = pt.random.normal(size=(5,), rng=generator(), return_next_rng=True)
    f = pytensor.function([], x, mode="JAXPR")
    np.testing.assert_array_equal(f(), f())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bits_are_those_of_jax(dtype):
    with jax.enable_x64(True):
        b = JaxprBuilder()
        key = b.input(sampler.KEY_SHAPE, sampler.KEY_DTYPE)
        emitted = [f(b, key, (3, 5), np.dtype(dtype)) for f in (sampler.uniform, sampler.standard_normal)]
        jaxpr = b.build([*sampler.split_key(b, key), *emitted])
        jax.extend.core.check_jaxpr(jaxpr)
        k = jax.random.key_data(jax.random.key(3, impl="threefry2x32"))
        first, second, u, z = jax.extend.core.jaxpr_as_fun(jaxpr)(k)
        wrapped = jax.random.wrap_key_data(k, impl="threefry2x32")
        with jax.threefry_partitionable(True):
            np.testing.assert_array_equal([first, second], jax.random.key_data(jax.random.split(wrapped)))
            np.testing.assert_array_equal(u, jax.random.uniform(wrapped, (3, 5), dtype))
            np.testing.assert_allclose(z, jax.random.normal(wrapped, (3, 5), dtype), rtol=1e-5)


def test_gradient_through_a_draw():
    loc, scale = pt.vector("loc", dtype="float64"), pt.dscalar("scale")
    rng = pt.random.type.random_generator_type("rng")
    _, x = pt.random.normal(loc, scale, rng=rng, return_next_rng=True)
    fn = pjl.as_jax_function([rng, loc, scale], [x])
    with jax.enable_x64(True):
        key = jax.random.key(0)
        z = fn(key, np.zeros(3), 1.0)[0]
        d_loc, d_scale = jax.grad(lambda m, s: fn(key, m, s)[0].sum(), argnums=(0, 1))(np.ones(3), np.float64(2.0))
        np.testing.assert_allclose(d_loc, 1.0)
        np.testing.assert_allclose(d_scale, z.sum())
        keys = jax.random.split(key, 4)
        batch = jax.vmap(lambda k: fn(jax.random.key_data(k), np.zeros(3), 1.0)[0])(keys)
    assert len(np.unique(batch)) == 12


@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_shared_generator_of_a_graph_enters_with_its_value(shape):
    loc = pt.tensor("loc", dtype="float64", shape=(None,) * len(shape))
    _, x = pt.random.normal(loc, rng=generator(), return_next_rng=True)
    value = np.asarray(pjl.as_jax_function([loc], [x])(np.ones(shape))[0])
    np.testing.assert_array_equal(value, pytensor.function([loc], x, mode="JAXPR")(np.ones(shape)))


def test_a_constant_generator_is_returned_as_a_generator():
    constant = random_generator_type.make_constant(np.random.default_rng(3))
    next_rng, x = pt.random.normal(size=(2,), rng=constant, return_next_rng=True)
    f = pytensor.function([], [constant, next_rng, x], mode="JAXPR")
    same, advanced, first = f()
    assert random_generator_type.values_eq(same, constant.data)
    again = pytensor.shared(advanced)
    _, y = pt.random.normal(size=(2,), rng=again, return_next_rng=True)
    second = pytensor.function([], y, mode="JAXPR")()
    assert not np.isin(second, first).any()
    advanced.random()  # its owner may draw from it
    assert random_generator_type.values_eq(f()[1], again.get_value())


@pytest.mark.parametrize("scale", [-1.0, [1.0, -2.0], -np.inf])
def test_negative_scale(scale):
    scale = np.asarray(scale)
    s = pt.tensor("s", dtype="float64", shape=(None,) * scale.ndim)
    _, x = pt.random.normal(0.0, s, rng=generator(), return_next_rng=True)
    compare_error([s], x, [scale], match="scale < 0")


def test_constant_negative_scale():
    _, x = pt.random.normal(0.0, -1.0, size=(2,), rng=generator(), return_next_rng=True)
    compare_error([], x, [], match="scale < 0")


def test_an_error_leaves_the_state():
    rng, s = generator(), pt.dscalar("s")
    next_rng, x = pt.random.normal(0.0, s, rng=rng, return_next_rng=True)
    f = pytensor.function([s], x, updates={rng: next_rng}, mode="JAXPR")
    state = rng.get_value().bit_generator.state
    with pytest.raises(ValueError, match="scale < 0"):
        f(-1.0)
    assert rng.get_value().bit_generator.state == state


@pytest.mark.parametrize(
    "high, match",
    [(-1.0, "high - low < 0"), (np.inf, "range exceeds"), ([1.0, -1.0], "high - low < 0"), ([np.nan], "Range exceeds")],
)
def test_bad_range(high, match):
    high = np.asarray(high)
    h = pt.tensor("h", dtype="float64", shape=(None,) * high.ndim)
    _, x = pt.random.uniform(0.0, h, rng=generator(), return_next_rng=True)
    compare_error([h], x, [high], match=match)


@pytest.mark.parametrize("size", [(2,), (1,), (3, 2), (-1,)])
def test_size_mismatch(size):
    loc, n = pt.vector("loc", dtype="float64"), pt.lvector("n")
    _, x = pt.random.normal(loc, 1.0, size=[n[i] for i in range(len(size))], rng=generator(), return_next_rng=True)
    compare_error([loc, n], x, [np.zeros(3), np.array(size)])


def test_parameters_that_do_not_broadcast():
    loc, scale = pt.dvectors("loc", "scale")
    _, x = pt.random.normal(loc, scale, rng=generator(), return_next_rng=True)
    compare_error([loc, scale], x, [np.zeros(3), np.ones(2)])


def test_other_random_variables_are_refused():
    class Unknown(RandomVariable):
        name, signature, dtype = "unknown", "()->()", "float64"

    _, x = Unknown()(1.0, size=(2,), rng=generator(), return_next_rng=True)
    with pytest.raises(pjl.GraphBreakError, match="JX001"):
        pytensor.function([], x, mode=FULLGRAPH)


def test_a_derived_class_is_refused():
    class OtherNormal(type(pt.random.normal)):
        pass

    _, x = OtherNormal()(0.0, 1.0, size=(2,), rng=generator(), return_next_rng=True)
    with pytest.raises(pjl.GraphBreakError, match="OtherNormal may draw differently"):
        pytensor.function([], x, mode=FULLGRAPH)
