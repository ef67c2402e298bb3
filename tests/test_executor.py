"""Plans of several batches: programs on the device, host steps between them."""

from __future__ import annotations

import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.io import In, Out
from pytensor.conditional import ifelse
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.type_other import NoneConst
from pytensor.typed_list import append, make_list

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.plan.model import Region
from pytensor_jaxpr_linker.run import call

pytestmark = pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.GraphBreakWarning")


class OnHost(Op):
    """Calls a function on its operand; nobody has a rule for it."""

    __props__ = ("name",)

    def __init__(self, function=lambda x: x * 2, name="double", output=None):
        self.function, self.name, self.output = function, name, output

    def make_node(self, x):
        return Apply(self, [x], [self.output() if self.output is not None else x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = self.function(inputs[0])


class Advance(Op):
    """Draws a number on the host and returns the generator, too."""

    __props__ = ()

    def make_node(self, rng):
        return Apply(self, [rng], [rng.type(), pt.dscalar()])

    def perform(self, node, inputs, outputs):
        rng = pickle.loads(pickle.dumps(inputs[0]))
        outputs[1][0] = np.asarray(rng.normal())
        outputs[0][0] = rng


def compiled(inputs, outputs, mode="JAXPR", **kwargs):
    """Compile with mode JAXPR."""
    return pytensor.function(inputs, outputs, mode=mode, **kwargs)


def kinds(f):
    """Return the kinds of a function's batches, in order."""
    return "".join("R" if isinstance(batch, Region) else "H" for batch in f.vm.runner.plan.batches)


def big(x):
    """Return an expression that is worth a program."""
    return pt.exp(x) + pt.log1p(x**2)


X = np.linspace(0.1, 1.0, 5)


def fail(x):
    raise ArithmeticError("on the host")


# Batches


def test_regions_and_host_steps_alternate():
    x = pt.vector("x", dtype="float64")
    y = big(OnHost()(big(OnHost(np.sort, "sort")(big(x)))))
    f = compiled([x], [y, big(x).sum()])
    assert kinds(f) == "RHRHR"
    wanted = pytensor.function([x], [y, big(x).sum()], mode="FAST_COMPILE")(X)
    for got, want in zip(f(X), wanted, strict=True):
        assert type(got) is np.ndarray and got.dtype == want.dtype and got.flags.writeable
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_node_that_fails_is_named():
    x = pt.vector("x", dtype="float64")
    y = OnHost(fail, "fail")(big(x))
    y.name = "broken"
    with pytest.raises(ArithmeticError, match="on the host") as raised:
        compiled([x], big(y))(X)
    assert "broken" in "\n".join(raised.value.__notes__)


def test_check_in_a_later_region():
    x, i = pt.vector("x", dtype="float64"), pt.lscalar("i")
    f = compiled([x, i], big(OnHost()(big(x)))[i])
    assert np.ndim(f(X, 2)) == 0
    with pytest.raises(IndexError):
        f(X, 7)


@pytest.mark.parametrize("condition", [True, False])
def test_host_runs_only_the_branch_that_is_chosen(condition):
    x, c = pt.vector("x", dtype="float64"), pt.scalar("c", dtype="bool")
    broken, fine = OnHost(fail, "fail")(x), OnHost(np.sort, "sort")(x)
    y = ifelse(c, fine, broken) if condition else ifelse(c, broken, fine)
    f = compiled([x, c], y)
    np.testing.assert_array_equal(f(X[::-1], condition), X)
    with pytest.raises(ArithmeticError):
        f(X, not condition)


# What crosses


def test_generator_crosses_from_device_to_host():
    rng = pytensor.shared(np.random.default_rng(5), name="rng")
    following, draw = pt.random.normal(rng=rng, return_next_rng=True)
    last, number = Advance()(following)
    f = compiled([], [draw, number], updates={rng: last})
    first, second = f(), f()
    assert len({float(v) for v in (*first, *second)}) == 4
    assert isinstance(rng.get_value(borrow=True), np.random.Generator)
    rng.set_value(np.random.default_rng(5))
    np.testing.assert_array_equal(f(), first)


def test_generator_crosses_from_host_to_device():
    rng = pytensor.shared(np.random.default_rng(5), name="rng")
    following, number = Advance()(rng)
    last, draw = pt.random.normal(size=3, rng=following, return_next_rng=True)
    f = compiled([], [number, draw], updates={rng: last})
    reference = np.random.default_rng(5)
    first = f()
    assert first[0] == reference.normal()
    assert not np.array_equal(f()[1], first[1])
    assert isinstance(rng.get_value(borrow=True), np.random.Generator)


def test_types_that_only_the_host_has():
    x = pt.vector("x", dtype="float64")
    items = append(make_list([big(x)]), OnHost(np.sort, "sort")(big(x)))
    f = compiled([x], [items, big(items[1])])
    got, number = f(X)
    wanted = pytensor.function([x], [items, big(items[1])], mode="FAST_COMPILE")(X)
    assert type(got) is list and len(got) == 2
    for a, b in zip([*got, number], [*wanted[0], wanted[1]], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_none_and_python_numbers():
    x = pt.vector("x", dtype="float64")
    number = OnHost(lambda x: float(x.sum()), "number", pt.dscalar)(big(x))
    nothing = OnHost(lambda x: None, "nothing", NoneConst.type)(x)
    f = compiled([x], [number, nothing, big(x) * number])
    got = f(X)
    assert type(got[0]) is np.ndarray and got[0].shape == () and got[1] is None
    np.testing.assert_allclose(got[2], (np.exp(X) + np.log1p(X**2)) * got[0])


def test_constants_as_outputs():
    x = pt.vector("x", dtype="float64")
    f = compiled([x], [OnHost()(x), pt.constant(np.arange(3)), pt.constant(2.5)])
    _, vector, number = f(X)
    vector += 1
    np.testing.assert_array_equal(f(X)[1], [0, 1, 2])
    assert type(number) is np.ndarray and number == 2.5


def test_input_that_is_an_output():
    x = pt.vector("x", dtype="float64")
    f = compiled([x], [OnHost()(x), x])
    given = X.copy()
    doubled, same = f(given)
    same += 1
    np.testing.assert_array_equal(given, X)
    np.testing.assert_array_equal(doubled, 2 * X)


def test_results_jax_with_outputs_of_the_host():
    x = pt.vector("x", dtype="float64")
    with pjl.options(results="jax"):
        f = compiled([x], [OnHost()(x), big(x), OnHost(lambda x: None, "nothing", NoneConst.type)(x)])
    doubled, other, nothing = f(X)
    assert isinstance(doubled, jax.Array) and isinstance(other, jax.Array) and nothing is None
    assert doubled.dtype == np.float64
    np.testing.assert_array_equal(doubled, 2 * X)
    np.testing.assert_array_equal(compiled([x], OnHost()(x))(doubled), 4 * X)


# Storage


def test_updates_from_the_host():
    s = pytensor.shared(np.zeros(5), name="s")
    x = pt.vector("x", dtype="float64")
    f = compiled([x], big(s).sum(), updates={s: OnHost()(x) + s})
    for n in (1, 2, 3):
        f(X)
        np.testing.assert_allclose(s.get_value(), 2 * n * X)
    s.get_value(borrow=True)[:] = 1.0
    f(X)
    np.testing.assert_allclose(s.get_value(), 1 + 2 * X)


def identity(x):
    return x


@pytest.mark.parametrize("borrow", [False, True])
@pytest.mark.parametrize("size", [5, 100_000])
def test_result_is_never_the_users_array(borrow, size):
    """A host Op that returns its operand, against its contract, gives nobody the caller's memory to write to."""
    x = pt.vector("x", dtype="float64")
    f = compiled([In(x, borrow=borrow)], Out(OnHost(identity, "identity")(x), borrow=borrow))
    given = np.ones(size)
    result = f(given)
    if result.flags.writeable:
        assert not np.shares_memory(result, given)
        result += 1
    np.testing.assert_array_equal(given, 1)


@pytest.mark.parametrize("borrow", [False, True])
@pytest.mark.parametrize("size", [5, 100_000])
def test_result_is_never_shared_memory(borrow, size):
    s = pytensor.shared(np.ones(size), name="s")
    f = compiled([], Out(OnHost(identity, "identity")(s), borrow=borrow))
    result = f()
    if result.flags.writeable:
        result += 1
    np.testing.assert_array_equal(s.get_value(), 1)


@pytest.mark.parametrize("size", [5, 100_000])
def test_update_by_an_op_that_returns_its_operand(size):
    a, b = (pytensor.shared(np.full(size, value), name=name) for name, value in (("a", 1.0), ("b", 2.0)))
    f = compiled([], [], updates={a: OnHost(identity, "identity")(b), b: b + 1})
    f()
    np.testing.assert_array_equal(a.get_value(), 2)
    np.testing.assert_array_equal(b.get_value(), 3)
    b.get_value(borrow=True)[:] = 7
    np.testing.assert_array_equal(a.get_value(), 2)


def test_update_does_not_take_the_users_array():
    s = pytensor.shared(np.zeros(100_000), name="s")
    x = pt.vector("x", dtype="float64")
    f = compiled([x], [], updates={s: OnHost(identity, "identity")(x)})
    given = np.ones(100_000)
    f(given)
    given[:] = 5
    np.testing.assert_array_equal(s.get_value(), 1)


# Memory


def test_intermediate_arrays_are_freed():
    alive = []

    def watch(x):
        gc.collect()
        alive.append([ref() is not None for ref in refs])
        result = np.array(x)
        refs.append(weakref.ref(result))
        return result

    refs: list[weakref.ref] = []
    x = pt.vector("x", dtype="float64")
    y = x
    for i in range(4):
        y = big(OnHost(watch, f"watch{i}")(y))
    f = compiled([x], y)
    assert kinds(f) == "HRHRHRHR"
    f(np.ones(1000))
    gc.collect()
    assert all(ref() is None for ref in refs)
    assert alive[3][:2] == [False, False]


def test_arrays_of_the_device_are_freed():
    x = pt.vector("x", dtype="float64")
    seen = []

    def count(x):
        gc.collect()
        seen.append(sum(a.nbytes for a in jax.live_arrays() if a.shape == (12_345,)))
        return np.array(x)

    y = x
    for i in range(3):
        y = big(OnHost(count, f"count{i}")(big(y)))
    f = compiled([x], y)
    f(np.ones(12_345))
    assert seen[0] == seen[1] == seen[2] <= 2 * 8 * 12_345
    gc.collect()
    assert not [a for a in jax.live_arrays() if a.shape == (12_345,)]


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
