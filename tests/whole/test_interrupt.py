"""Ctrl-C at each point of a call where Python handles it: updates are stored all or none, and the thread is left as it was."""

from __future__ import annotations

import gc
import inspect
import itertools
import opcode
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base.errors import CannotEmit
from pytensor_jaxpr_linker.base.interpreter import gc_paused
from pytensor_jaxpr_linker.base.options import current_stance, resolve
from pytensor_jaxpr_linker.jaxpr.lower import lower_region
from pytensor_jaxpr_linker.run.transfer_count import open_counts

pytestmark = pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.GraphBreakWarning")

TOOL = sys.monitoring.PROFILER_ID
EVENTS = sys.monitoring.events
JUMP_BACKWARD = opcode.opmap["JUMP_BACKWARD"]


@cache
def is_ours(filename: str) -> bool:
    """Return whether a file is none of JAX, which Ctrl-C may leave without a trace context; but its settings are what these tests are about."""
    return f"{os.sep}jax{os.sep}" not in filename or filename == inspect.getsourcefile(type(jax.enable_x64))


class Points:
    """Counts the points where Python handles a signal, and raises at one of them: after each call of C, and where a function begins or a loop goes on."""

    def __init__(self, in_loops: bool) -> None:
        self.passed, self.raises_at, self.in_loops = 0, -1, in_loops

    def point(self, code: CodeType, *_: object) -> None:
        if is_ours(code.co_filename) and threading.current_thread() is threading.main_thread():
            self.passed += 1
            if self.passed == self.raises_at:
                raise KeyboardInterrupt

    def call(self, code: CodeType, *_: object) -> object:
        return None if is_ours(code.co_filename) else sys.monitoring.DISABLE  # with what it returns

    def jump(self, code: CodeType, offset: int) -> object:
        if code.co_code[offset] != JUMP_BACKWARD or not is_ours(code.co_filename):
            return sys.monitoring.DISABLE
        return self.point(code)

    @contextmanager
    def watched(self, raises_at: int = -1) -> Iterator[None]:
        """Count the points inside, and raise at that of a number."""
        self.passed, self.raises_at = 0, raises_at
        sys.monitoring.use_tool_id(TOOL, "interrupts")
        try:
            for event in (EVENTS.PY_START, EVENTS.PY_RESUME, EVENTS.C_RETURN):
                sys.monitoring.register_callback(TOOL, event, self.point)
            sys.monitoring.register_callback(TOOL, EVENTS.CALL, self.call)
            sys.monitoring.register_callback(TOOL, EVENTS.INSTRUCTION, self.jump)
            events = EVENTS.PY_START | EVENTS.PY_RESUME | EVENTS.CALL
            sys.monitoring.set_events(TOOL, events | (EVENTS.INSTRUCTION if self.in_loops else 0))
            yield
        finally:
            self.passed, self.raises_at = -(2**60), -1
            sys.monitoring.set_events(TOOL, 0)
            sys.monitoring.free_tool_id(TOOL)


def interrupted_everywhere(run: Callable[[], object], in_loops: bool = False) -> Iterator[int]:
    """Run a function, interrupted at each of its points in turn; yield after each of these runs."""
    points = Points(in_loops)
    for number in itertools.count(1):
        try:
            with points.watched(number):
                run()
            return
        except KeyboardInterrupt:
            pass
        yield number


class Doubled(Op):
    """Doubles a vector in Python."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = 2 * inputs[0]


class State:
    """Two shared vectors and a generator, which each call of a function updates."""

    def __init__(self) -> None:
        self.s, self.t = pytensor.shared(np.zeros(3), "s"), pytensor.shared(np.zeros(3), "t")
        self.rng = pytensor.shared(np.random.default_rng(1), "rng")

    def seen(self) -> tuple[float, float, int]:
        state = self.rng.get_value().bit_generator.state["state"]["state"]
        return self.s.get_value()[0], self.t.get_value()[0], state


X = pt.dvector("x")


def function_of(state: State, mode: object, kind: str) -> Callable[[np.ndarray], object]:
    """Return a function that adds its argument to both vectors and draws."""
    following, drawn = pt.random.normal(size=(3,), rng=state.rng, return_next_rng=True)
    added = Doubled()(X) / 2 if kind == "host" else X
    updates = {state.s: state.s + added, state.t: state.t + X, state.rng: following}
    return pytensor.function([X], [X.sum() + drawn.sum()], updates=updates, mode=mode)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        (pjl.JaxprMode(), "plain"),
        (pjl.JaxprMode(), "host"),
        (pjl.JaxprMode(results="jax"), "plain"),
        (pjl.JaxprMode(synchronous=False), "set"),
        (pjl.JaxprMode(checks="defer"), "plain"),
        (Mode(pjl.JaxprLinker(), "fast_run"), "plain"),
    ],
    ids=["program", "host steps", "JAX arrays", "new values", "deferred checks", "PyTensor's function"],
)
def test_updates_are_stored_all_or_none(mode, kind):
    state, ones = State(), np.ones(3)
    f = function_of(state, mode, kind)
    f(ones), f(ones)
    before, stored = state.seen(), 0
    for number in interrupted_everywhere(lambda: f(ones), in_loops=True):
        s, t, drawn = state.seen()
        assert s == t, f"at point {number}"
        assert (s != before[0]) == (drawn != before[2]), f"at point {number}"
        assert not jax.config.jax_enable_x64, f"at point {number}"
        stored += s != before[0]
        if kind == "set":
            state.s.set_value(np.full(3, s)), state.t.set_value(np.full(3, s))
        before = state.seen()
    assert 0 < stored < number
    assert is_free(lambda: f(ones))
    s, t, _ = state.seen()
    assert s == t > before[0]


def is_free(run: Callable[[], object]) -> bool:
    """Return whether another thread can call a function: it waits for ever for a lock that nobody releases."""
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    return not thread.is_alive()


def test_interrupted_calls_leave_the_cells_of_a_function_free():
    state = State()
    f = function_of(state, "JAXPR", "plain")
    f(np.ones(3))
    for _ in interrupted_everywhere(lambda: f(np.ones(3))):
        assert not f._unused.locked()


def test_interrupted_calls_leave_the_precision_of_the_thread():
    """Calls without updates: the short way, the first call for a shape, JAX arrays, generators, and as a JAX function."""
    x, shared = pt.dvector("x"), pytensor.shared(np.ones(3))
    f = pytensor.function([x], (x * shared).sum(), mode="JAXPR")
    g = pjl.as_jax_function([X], X.sum() * 2)
    length = pt.iscalar("n")
    h = pytensor.function([length], pt.arange(length).sum(), mode="JAXPR")
    array = jax.numpy.ones(3)

    def fresh() -> object:
        shared.set_value(np.ones(3))
        return f(np.ones(3))

    for run in (lambda: f(np.ones(3)), lambda: f(array), fresh, lambda: g(np.ones(3)), lambda: h(3)):
        run(), run()
        for number in interrupted_everywhere(run):
            assert not jax.config.jax_enable_x64, f"at point {number}"
        run()


def test_interrupted_lowering_leaves_precision_and_collector():
    f = pytensor.function([X], pt.exp(X).sum(), mode="JAXPR")
    region = f.vm.runner.plan.regions[0]
    avals = [jax.ShapeDtypeStruct((3,), "float64")]
    for number in interrupted_everywhere(lambda: lower_region(region, avals)):
        assert not jax.config.jax_enable_x64, f"at point {number}"
        assert gc.isenabled(), f"at point {number}"


@pytest.mark.parametrize(
    "context",
    [
        gc_paused,
        lambda: pjl.stance("force_host"),
        lambda: pjl.options(results="jax"),
        pjl.count_transfers,
        pjl.in_place_of_jax,
    ],
    ids=["gc_paused", "stance", "options", "count_transfers", "in_place_of_jax"],
)
def test_contexts_that_an_interrupt_ends_while_they_are_entered(context):
    """What a context sets is as before, wherever in `__enter__` the interrupt comes."""

    def settings() -> tuple:
        mode = pytensor.compile.mode.predefined_modes["JAX"]
        return gc.isenabled(), resolve(), current_stance.get(), mode, len(open_counts)

    with context():
        pass  # what it imports is imported
    before, entered = settings(), []

    def enter() -> None:
        made = context()
        made.__enter__()
        entered.append(made)

    for _ in interrupted_everywhere(enter):
        if not entered:
            assert settings() == before
        while entered:
            entered.pop().__exit__(None, None, None)
    while entered:
        entered.pop().__exit__(None, None, None)
    assert settings() == before


def test_a_function_that_was_interrupted_while_it_was_planned_again(monkeypatch):
    """A rule refuses a node when the first call lowers it; the next call plans again what Ctrl-C broke off."""

    class Refused(Doubled):
        pass

    @pjl.emits(Refused)
    def emit_Refused(op, node, b, x):
        raise CannotEmit("it does not take this length")

    f = pytensor.function([X], Refused()(X) + 1, mode="JAXPR")
    runner = f.vm.runner
    with monkeypatch.context() as patched:

        def interrupted() -> None:
            raise KeyboardInterrupt

        patched.setattr(runner, "prepare", interrupted)
        with pytest.raises(KeyboardInterrupt):
            f(np.ones(3))
    np.testing.assert_array_equal(f(np.ones(3)), [3, 3, 3])


def test_a_break_that_is_an_error_is_one_in_each_call():
    class AlsoRefused(Doubled):
        pass

    @pjl.emits(AlsoRefused)
    def emit_AlsoRefused(op, node, b, x):
        raise CannotEmit("it does not take this length")

    f = pytensor.function([X], AlsoRefused()(X) + 1, mode=pjl.JaxprMode(on_break="raise"))
    for _ in range(2):
        with pytest.raises(pjl.GraphBreakError, match="this length"):
            f(np.ones(3))
