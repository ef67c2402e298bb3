"""Generators, threads and bad input of functions of mode JAXPR."""

from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import run_python
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pytensor_jaxpr_linker as pjl
from tests.frontend.test_linker import compiled, mode_with


class Unknown(Op):
    """An Op that nobody has a rule for."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0]


# Random generators


def shared_draws(seed=3):
    """Return a shared generator, its successor and draws."""
    rng = pytensor.shared(np.random.default_rng(seed), name="rng")
    return rng, *pt.random.normal(size=3, rng=rng, return_next_rng=True)


def test_update_advances_generator_in_container():
    rng, following, draw = shared_draws()
    before = rng.get_value(borrow=True)
    state = before.bit_generator.state
    f = compiled([], draw, updates={rng: following})
    first, second = f(), f()
    assert not np.allclose(first, second)
    after = rng.get_value(borrow=True)
    assert isinstance(after, np.random.Generator) and after.bit_generator.state != state
    rng.set_value(np.random.default_rng(3))
    np.testing.assert_array_equal([f(), f()], [first, second])


def test_no_update_repeats_draws():
    _, _, draw = shared_draws()
    f = compiled([], draw)
    np.testing.assert_array_equal(f(), f())


def test_functions_that_share_a_generator_draw_differently():
    rng, following, draw = shared_draws()
    f, g = (compiled([], draw, updates={rng: following}) for _ in range(2))
    draws = np.concatenate([f(), g(), f(), g()])
    assert len(set(draws)) == 12


def test_generator_shared_with_another_mode():
    rng, following, draw = shared_draws()
    f = compiled([], draw, updates={rng: following})
    g = pytensor.function([], draw, updates={rng: following}, mode="FAST_COMPILE")
    draws = np.concatenate([f(), g(), f(), g()])
    assert len(set(draws)) == 12


def test_explicit_generator_input_and_output():
    rng = pt.random.type.random_generator_type("rng")
    following, draw = pt.random.normal(size=3, rng=rng, return_next_rng=True)
    f = compiled([rng], [following, draw])
    start = np.random.default_rng(5)
    state = start.bit_generator.state
    advanced, first = f(start)
    assert start.bit_generator.state == state
    assert isinstance(advanced, np.random.Generator)
    np.testing.assert_array_equal(f(np.random.default_rng(5))[1], first)
    assert not np.allclose(f(advanced)[1], first)


def test_two_generators_draw_differently():
    (first, next_first, a), (second, next_second, b) = shared_draws(1), shared_draws(2)
    f = compiled([], [a, b], updates={first: next_first, second: next_second})
    draws = np.concatenate([*f(), *f()])
    assert len(set(draws)) == 12


def test_chain_on_one_generator_continues():
    rng = pytensor.shared(np.random.default_rng(2))
    middle, a = pt.random.normal(rng=rng, return_next_rng=True)
    last, b = pt.random.uniform(rng=middle, return_next_rng=True)
    f = compiled([], [a, b], updates={rng: last})
    draws = [*f(), *f(), *f()]
    assert len({float(d) for d in draws}) == 6


# JAX's settings


def test_x64_setting_never_flips():
    out = run_python("""
        import warnings; warnings.simplefilter("error")
        import jax, numpy as np
        assert not jax.config.jax_enable_x64
        import pytensor, pytensor.tensor as pt
        import pytensor_jaxpr_linker as pjl
        x = pt.vector("x", dtype="float64")
        s = pytensor.shared(np.ones(2))
        f = pytensor.function([x], x + s, updates={s: s + 1}, mode="JAXPR")
        assert f([1.0, 2.0]).dtype == "float64"
        assert pjl.as_jax_function([x], [x * 2])(np.ones(2))[0].dtype == "float64"
        pjl.make_jaxpr(f, [1.0, 2.0])
        try:
            f("a")
        except Exception:
            pass
        assert not jax.config.jax_enable_x64
        assert jax.numpy.ones(2).dtype == "float32"
        assert jax.jit(lambda x: x * 2)(np.ones(2)).dtype == "float32"
        print("ok")
    """)
    assert out.strip().endswith("ok")


def test_threads_call_one_function():
    x, n = pt.vector("x", dtype="float64"), pt.lscalar("n")
    # A Function's containers are its own: threads use copies, which share the program's caches.
    f = compiled([x, n], pt.arange(n).sum() + x)
    copies = [f.copy() for _ in range(2)]

    def work(i):
        g = copies[i]
        return [g(np.full(2, float(i)), n) for n in range(1, 9)]

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(work, range(2)))
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result, [[n * (n - 1) / 2 + i] * 2 for n in range(1, 9)])


def test_threads_call_same_function():
    x = pt.vector("x", dtype="float64")
    f = compiled([x], pt.exp(x))
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: f(np.ones(3)), range(50)))
    np.testing.assert_allclose(results, np.e)


# Errors


@pytest.mark.parametrize(
    ("variable", "value", "error"),
    [
        pytest.param(pt.lvector("myvar"), [1.5], TypeError, id="dtype"),
        pytest.param(pt.vector("myvar", dtype="float64"), np.ones((2, 2)), TypeError, id="rank"),
        pytest.param(pt.tensor("myvar", dtype="float64", shape=(3,)), np.ones(2), TypeError, id="static-shape"),
        pytest.param(pt.vector("myvar", dtype="float64"), None, TypeError, id="none"),
        pytest.param(pt.vector("myvar", dtype="float64"), np.array([object()]), TypeError, id="object"),
        pytest.param(pt.vector("myvar", dtype="float64"), "text", (TypeError, ValueError), id="text"),
    ],
)
def test_bad_input_names_variable(variable, value, error):
    f = compiled([variable], variable + 1)
    with pytest.raises(error) as raised:
        f(value)
    text = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    assert "myvar" in text


@pytest.mark.parametrize("value", [np.ones((2, 2)), np.ones(2)], ids=["rank", "static-shape"])
def test_bad_device_input_names_variable(value):
    f = compiled([x := pt.tensor("myvar", dtype="float64", shape=(3,))], x + 1)
    with jax.enable_x64(True):
        value = jax.numpy.asarray(value)
    with pytest.raises(TypeError) as raised:
        f(value)
    assert "myvar" in "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])


def test_run_time_mismatch_names_variables():
    x, y = (pt.vector(n, dtype="float64") for n in ("left", "right"))
    with pytest.raises(ValueError, match=r"shape|dimension|size") as raised:
        compiled([x, y], x + y)(np.ones(2), np.ones(3))
    text = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    assert "left" in text and "right" in text


def test_graph_break_lists_all():
    x, y = (pt.vector(n, dtype="float64") for n in ("left", "right"))
    first, second = Unknown()(x), Unknown()(y)
    first.name, second.name = "first", "second"
    with pytest.raises(NotImplementedError, match="JX001") as raised:
        compiled([x, y], [first, second], mode=mode_with(on_break="raise"))
    assert isinstance(raised.value, pjl.GraphBreakError) and len(raised.value.breaks) == 2
    for word in ("Unknown", "left", "right", "first", "second"):
        assert word in str(raised.value)


def test_run_time_shape_is_refused():
    x = pt.vector("x", dtype="float64")
    with pytest.raises(pjl.GraphBreakError, match="JX002"):
        compiled([x], pt.arange(x.sum().astype("int64")), mode=mode_with(on_break="raise"))


# Static values


def test_cache_of_static_values_is_bounded():
    n = pt.lscalar("n")
    f = compiled([n], pt.arange(n), mode=mode_with(specializations=2))
    for k in (1, 2, 3, 1, 5):
        np.testing.assert_array_equal(f(k), np.arange(k))
    assert len(f.vm.runner.program._specializations) == 2


def test_checks_off():
    x, i = pt.vector("x", dtype="float64"), pt.lscalar("i")
    f = compiled([x, i], x[i], mode=mode_with(checks="skip"))
    assert f([1.0, 2.0], 1) == 2
    assert np.isnan(f([1.0, 2.0], 5))
