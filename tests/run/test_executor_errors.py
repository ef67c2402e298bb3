"""Plans of several batches: donated arrays, errors, copies, threads."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.run import call
from tests.run.test_executor import OnHost, X, big, compiled, kinds

pytestmark = pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.GraphBreakWarning")


def two_regions(x):
    """Return an expression of two regions: the second reads what the first made, at a length that its numbers give."""
    y = pt.exp(x)
    count = pt.cast((y > 0).sum(), "int64")
    return pt.log1p(y) + pt.exp(pt.arange(count)).sum()


@pytest.mark.parametrize("donate", [True, False])
def test_donation(donate, monkeypatch):
    monkeypatch.setattr(call, "DONATED_BYTES", 1)
    x = pt.vector("x", dtype="float64")
    with pjl.options(donate=donate):
        f = compiled([x], two_regions(x))
    first, second = f.vm.runner.executor.stages
    results = first.call([X])
    (made,) = (a for a in results if isinstance(a, jax.Array) and a.shape == X.shape)
    values = dict(zip([*first.inputs, *first.outputs], [X, *results], strict=True))
    second.call([values[slot] for slot in second.inputs])
    assert made.is_deleted() == donate and not first.donated
    wanted = pytensor.function([x], two_regions(x), mode="FAST_COMPILE")
    for values in (X, X + 1, np.ones(9), X):
        given = values.copy()
        np.testing.assert_allclose(f(given), wanted(values), rtol=1e-12)
        np.testing.assert_array_equal(given, values)


def test_what_the_host_has_seen_is_not_donated(monkeypatch):
    monkeypatch.setattr(call, "DONATED_BYTES", 1)
    x, views = pt.vector("x", dtype="float64"), []

    def keep(x):
        views.append(x)
        return x

    y = pt.exp(x)
    kept = OnHost(keep, "keep")(y)
    f = compiled([x], pt.log1p(y) + pt.exp(kept))
    result = f(X)
    np.testing.assert_allclose(views[0], np.exp(X))
    np.testing.assert_allclose(result, np.log1p(np.exp(X)) + np.exp(np.exp(X)))
    first, host, second = f.vm.runner.executor.stages
    donated = {second.inputs[i] for i in second.donated}
    assert len(donated) == 1 and donated.isdisjoint(host.inputs) and not first.donated


# Errors


class Interrupting:
    """Raises in the call of a given number."""

    def __init__(self):
        self.error = None

    def __call__(self, x):
        if self.error is not None:
            raise self.error
        return x * 2


@pytest.mark.parametrize("error", [ArithmeticError, KeyboardInterrupt, SystemExit, MemoryError])
def test_error_on_the_host_leaves_storage_alone(error):
    """Two shared variables and a generator have their next values when a host step fails after the first region."""
    s, t = (pytensor.shared(np.full(5, value), name=name) for name, value in (("s", 1.0), ("t", 2.0)))
    rng = pytensor.shared(np.random.default_rng(1), name="rng")
    following, draw = pt.random.normal(rng=rng, return_next_rng=True)
    host = Interrupting()
    x = pt.vector("x", dtype="float64")
    f = compiled([x], draw, updates={s: big(s), rng: following, t: big(OnHost(host, "interrupting")(big(t + x)))})
    assert kinds(f) == "RHR"
    first = f(X)
    before = s.get_value(), t.get_value(), rng.get_value().bit_generator.state
    host.error = error("in the middle")
    for _ in range(2):
        with pytest.raises(error):
            f(X)
        np.testing.assert_array_equal(s.get_value(), before[0])
        np.testing.assert_array_equal(t.get_value(), before[1])
        assert rng.get_value().bit_generator.state == before[2]
    host.error = None
    assert f(X) != first
    np.testing.assert_allclose(s.get_value(), np.exp(before[0]) + np.log1p(before[0] ** 2))


def test_error_in_a_late_region_leaves_storage_alone():
    s = pytensor.shared(np.ones(5), name="s")
    rng = pytensor.shared(np.random.default_rng(1), name="rng")
    following, draw = pt.random.normal(rng=rng, return_next_rng=True)
    x, i = pt.vector("x", dtype="float64"), pt.lscalar("i")
    f = compiled([x, i], [draw, big(OnHost()(big(s + x)))[i]], updates={s: big(s), rng: following})
    is_wide = jax.config.jax_enable_x64
    for args, error in [((X, 9), IndexError), ((np.ones(3), 0), ValueError)]:
        state = rng.get_value().bit_generator.state
        with pytest.raises(error):
            f(*args)
        np.testing.assert_array_equal(s.get_value(), 1)
        assert rng.get_value().bit_generator.state == state
        assert jax.config.jax_enable_x64 == is_wide
    f(X, 0)
    assert s.get_value()[0] != 1


# Copies, pickles, threads


def test_copy_and_pickle():
    s = pytensor.shared(np.zeros(5), name="s")
    x = pt.vector("x", dtype="float64")
    f = compiled([x], big(OnHost(np.sort, "sort")(big(x + s))), updates={s: s + x})
    wanted = f(X)
    g = f.copy(share_memory=False)
    s.set_value(np.zeros(5))
    np.testing.assert_array_equal(g(X), wanted)
    assert kinds(g) == kinds(f) == "RHR"
    np.testing.assert_array_equal(s.get_value(), X)
    s.set_value(np.zeros(5))
    h = pickle.loads(pickle.dumps(f))
    np.testing.assert_array_equal(h(X), wanted)
    np.testing.assert_array_equal(s.get_value(), 0)


def test_threads_run_one_plan():
    """The plan of a function keeps no call's values, whatever storage PyTensor gives a function."""
    x = pt.vector("x", dtype="float64")
    f = compiled([x], big(OnHost(np.sort, "sort")(big(x))))
    run = f.vm.runner.executor.call
    values = [X * k for k in range(20)]
    wanted = [f(v) for v in values]
    with ThreadPoolExecutor(4) as pool:
        for (got,), want in zip(pool.map(lambda v: run([v]), values), wanted, strict=True):
            np.testing.assert_array_equal(got, want)


def test_functions_that_share_variables_run_in_threads():
    s = pytensor.shared(np.ones(5), name="s")
    x = pt.vector("x", dtype="float64")
    functions = [compiled([x], big(OnHost(np.sort, f"sort{i}")(big(x * s)))) for i in range(2)]
    wanted = [functions[0](X * k) for k in range(20)]
    writer = compiled([], [], updates={s: pt.ones_like(s) * 1.0})

    def work(f):
        for k in range(20):
            np.testing.assert_array_equal(f(X * k), wanted[k])

    with ThreadPoolExecutor(3) as pool:
        done = [pool.submit(work, f) for f in functions]
        for _ in range(20):
            writer()
        for future in done:
            future.result()


def test_an_op_may_call_its_own_function():
    """Its step on the host goes on with the values that it had."""

    def times_rest(negative):
        n = -negative
        return n * f(n - 1) if n[0] > 1 else n

    x = pt.vector("x", dtype="float64")
    negative = OnHost(np.negative, "negative")(x)
    f = compiled([x], OnHost(times_rest, "times_rest")(negative) + OnHost(np.copy, "copy")(negative) * 0)
    np.testing.assert_array_equal(f(np.array([5.0])), [120.0])
