"""Threads that call one function at the same time, and processes that inherit one."""

from __future__ import annotations

import itertools
import pickle
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import run_python
from pytensor.compile.executor import Function
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.raise_op import Assert

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base.pytensor_compat import set_function_class

pytestmark = pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.GraphBreakWarning")

THREADS, CALLS = 8, 200


@pytest.fixture(autouse=True)
def switch_often():
    """Make threads take turns after few instructions, so that what can race does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class OnHost(Op):
    """Calls a function on its operand; nobody has a rule for it."""

    __props__ = ("function",)

    def __init__(self, function=np.copy):
        self.function = function

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = self.function(inputs[0])


def in_threads(work, threads=THREADS):
    """Return what `work` returns for the number of each thread, all of which begin at the same time."""
    barrier = threading.Barrier(threads)

    def begin(number):
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(begin, range(threads)))


def values_of(thread):
    """Return the arguments that one thread calls with."""
    return [np.full(3, 1000.0 * thread + k) for k in range(CALLS)]


def one_program(x):
    return 2 * x + 1


def with_host_step(x):
    return OnHost()(2 * x) + 1


graphs = pytest.mark.parametrize("graph", [one_program, with_host_step])


@pytest.mark.parametrize("trust_input", [False, True], ids=["checked", "trusted"])
@graphs
def test_each_call_gets_its_own_results(graph, trust_input):
    x, y = pt.vector("x", dtype="float64"), pt.vector("y", dtype="float64")
    f = pytensor.function([x, y], [graph(x), graph(y)], mode="JAXPR", trust_input=trust_input)

    def work(thread):
        for value in values_of(thread):
            first, second = f(value, y=-value)
            np.testing.assert_array_equal(first, 2 * value + 1)
            np.testing.assert_array_equal(second, -2 * value + 1)

    in_threads(work)


@graphs
def test_no_update_is_lost_or_seen_in_part(graph):
    x = pt.vector("x", dtype="float64")
    a, b = (pytensor.shared(np.zeros(3), name=name) for name in "ab")
    both = {a: graph(a) - a, b: b + 1}
    f = pytensor.function([x], [graph(x), a, b], updates=both, mode="JAXPR")
    g = pytensor.function([], [], updates={b: b + 1, a: a + 1}, mode="JAXPR")
    look = pytensor.function([], [a, b], mode="JAXPR")

    def work(thread):
        for value in values_of(thread)[: CALLS // 4]:
            result, *state = f(value)
            np.testing.assert_array_equal(result, 2 * value + 1)
            np.testing.assert_array_equal(*state)
            g()
            np.testing.assert_array_equal(*look())

    in_threads(work)
    for shared in (a, b):
        np.testing.assert_array_equal(shared.get_value(), 2 * THREADS * (CALLS // 4))


@graphs
def test_generators_give_each_number_once(graph):
    x = pt.vector("x", dtype="float64")
    rng = pytensor.shared(np.random.default_rng(3), name="rng")
    following, draw = pt.random.normal(rng=rng, return_next_rng=True)
    f = pytensor.function([x], [draw, graph(x)], updates={rng: following}, mode="JAXPR")

    def work(thread):
        found = []
        for value in values_of(thread)[: CALLS // 2]:
            number, result = f(value)
            np.testing.assert_array_equal(result, 2 * value + 1)
            found.append(float(number))
        return found

    drawn = sorted(itertools.chain.from_iterable(in_threads(work)))
    rng.set_value(np.random.default_rng(3))
    assert drawn == sorted(float(f(np.zeros(3))[0]) for _ in drawn)


@graphs
def test_calls_that_fail_change_nothing(graph):
    x = pt.vector("x", dtype="float64")
    s = pytensor.shared(np.zeros(3), name="s")
    checked = Assert("negative")(graph(s), pt.all(x >= 0))
    f = pytensor.function([x], x * 2, updates={s: checked - s}, mode="JAXPR")

    def work(thread):
        for k, value in enumerate(values_of(thread)[: CALLS // 4]):
            if k % 2:
                with pytest.raises(AssertionError, match="negative"):
                    f(-value - 1)
            else:
                np.testing.assert_array_equal(f(value), value * 2)
            if k % 10 == 3:
                with pytest.raises(ValueError, match="could not convert"):
                    f("text")

    in_threads(work)
    np.testing.assert_array_equal(s.get_value(), THREADS * CALLS // 8)


def test_first_calls_compile_once():
    x = pt.vector("x", dtype="float64")
    with pjl.options(recompile_limit=1, on_recompile_limit="raise"):
        f = pytensor.function([x], pt.exp(x), mode="JAXPR")
    for result in in_threads(lambda _: f(np.ones(3))):
        np.testing.assert_allclose(result, np.e)
    assert f.vm.runner.program.recompiles.count == 1


def test_plan_is_made_anew_once():
    """Each thread finds that a rule can't emit its node; the first one plans anew."""

    class Late(OnHost):
        pass

    @pjl.emits(Late)
    def emit_Late(op, node, b, x):
        from pytensor_jaxpr_linker.base.errors import CannotEmit

        time.sleep(0.01)
        raise CannotEmit("it does not take this length")

    x = pt.vector("x", dtype="float64")
    f = pytensor.function([x], Late()(pt.exp(x)) + 1, mode="JAXPR")
    for result in in_threads(lambda _: f(np.zeros(3))):
        np.testing.assert_array_equal(result, 2)
    assert len(f.vm.runner.fallbacks) == 1


def test_which_functions():
    x = pt.vector("x", dtype="float64")
    linker = pjl.JaxprLinker(pjl.Options(results="jax"))
    modes = ["JAXPR", pjl.JAXPR, pjl.JAXPR.excluding("canonicalize"), pjl.JaxprMode(linker, "fast_run")]
    modes.append(Mode(linker, "fast_run"))  # as `pymc.compile` makes it
    for mode in modes:
        f = pytensor.function([x], x + 1, mode=mode)
        for g in (f, f.copy(), pickle.loads(pickle.dumps(f))):
            assert type(g) is pjl.JaxprFunction
            np.testing.assert_array_equal(g([1.0]), 2)
    for mode in ("FAST_COMPILE", Mode("py", "fast_run"), "NUMBA"):
        assert type(pytensor.function([x], x + 1, mode=mode)) is Function


def test_the_class_of_functions_is_chosen_once():
    """A package that is reloaded registers its new classes, and wraps PyTensor's property only once."""
    before = Mode.function_maker
    set_function_class(pjl.JaxprLinker, pjl.JaxprFunction)
    assert Mode.function_maker is before


def test_settings_of_a_function_hold_for_calls_beside():
    x = pt.vector("x", dtype="float64")
    g = pytensor.function([x], x * 2, mode="JAXPR")
    with g._unused:  # as while another thread calls it
        g.trust_input = True
        with pytest.raises(Exception):  # noqa: B017 - whatever XLA says of a value that nobody has checked
            g("text")
        g.trust_input = False
        with pytest.raises(TypeError, match="Missing input: x"):
            g()
        np.testing.assert_array_equal(g(x=[1.0]), 2)
    assert len(g._spare) == 1


PROCESSES = """
    import multiprocessing, os, pickle, sys, warnings
    import numpy as np, pytensor, pytensor.tensor as pt
    import pytensor_jaxpr_linker as pjl

    x, s = pt.vector("x", dtype="float64"), pytensor.shared(np.ones(3), name="s")
    with pjl.options(results="jax", recompile_limit=5):
        f = pytensor.function([x], (x * s).sum(), updates={s: s + 1}, mode="JAXPR")

    def call():
        assert f.vm.runner._policy.options.recompile_limit == 5
        assert not isinstance(f(np.ones(3)), np.ndarray) and f(np.ones(3)) == 6

    child = multiprocessing.get_context("fork").Process(target=call)
    child.start(), child.join(60)
    assert child.exitcode == 0, child.exitcode
    assert f(np.ones(3)) == 3  # what the child did is not seen here
    # ``spawn`` starts an interpreter that unpickles what it is to call.
    child = multiprocessing.get_context("spawn").Process(target=f, args=(np.ones(3),))
    child.start(), child.join(100)
    assert child.exitcode == 0, child.exitcode
    print("ok")
"""


def test_processes():
    """A function goes to a process that is forked before JAX has run anything, and by pickle to any other."""
    assert run_python(PROCESSES).strip() == "ok"
