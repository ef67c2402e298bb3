"""Marks, stances and the progress line: what a user says of recompilation, and is told."""

from __future__ import annotations

import io
import logging
import pickle
import sys
import threading
import time
import warnings

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import Doubled
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.conditional import IfElse, ifelse

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker import JaxprLinker, Options
from pytensor_jaxpr_linker.base import logs
from tests.run.test_recompiles import X, big, compiled, programs

# Marks


def test_mark_static_scalar():
    x, power = pt.vector("x", dtype="float64"), pjl.mark_static(pt.dscalar("power"))
    f = compiled([x, power], x**power)
    for p in (2.0, 3.0, 0.5, 2.0):
        np.testing.assert_allclose(f(X, p), X**p)
    assert programs(f) == 3
    assert "integer_pow[y=2]" in str(pjl.make_jaxpr(f, X, 2.0))
    g = pickle.loads(pickle.dumps(f))
    np.testing.assert_allclose(g(X, 4.0), X**4)
    assert g.vm.runner.program.static_positions == f.copy().vm.runner.program.static_positions == (1,)


@pytest.mark.parametrize("kind", ["vector", "matrix", "shared"])
def test_mark_static_arrays(kind):
    x = pt.vector("x", dtype="float64")
    values = np.array([3, 0, 1])
    if kind == "shared":
        index = pjl.mark_static(pytensor.shared(values, name="index"))
        f = compiled([x], big(x)[index])
        first = f(X)
        index.set_value(values[::-1].copy())
        second = f(X)
    else:
        index = pjl.mark_static(pt.lvector("index") if kind == "vector" else pt.lmatrix("index"))
        f = compiled([x, index], big(x)[index])
        values = values if kind == "vector" else values[None]
        first, second = f(X, values), f(X, values[..., ::-1].copy())
    y = np.exp(X) + np.log1p(X**2)
    np.testing.assert_allclose(first, y[values])
    np.testing.assert_allclose(second, y[values[..., ::-1]])
    assert programs(f) == 2


def test_mark_static_counts_towards_the_limit():
    x, power = pt.vector("x", dtype="float64"), pjl.mark_static(pt.dscalar("power"))
    f = compiled([x, power], x**power, recompile_limit=2, on_recompile_limit="raise")
    f(X, 1.0), f(X, 2.0)
    with pytest.raises(pjl.RecompileError, match="value of 'power'"):
        f(X, 3.0)


def test_mark_static_under_jit():
    x, power = pt.vector("x", dtype="float64"), pjl.mark_static(pt.dscalar("power"))
    fn = pjl.as_jax_function([x, power], [x**power])
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.jit(lambda x: fn(x, 2.0)[0])(X), X**2)
        with pytest.raises(pjl.RuntimeTracerError, match="'power'"):
            jax.jit(fn)(X, 2.0)


def test_mark_dynamic_value():
    n, x = pjl.mark_dynamic(pt.lscalar("n")), pt.vector("x", dtype="float64")
    with pytest.raises(pjl.GraphBreakError, match=r"JX010.*marked dynamic.*'n'"):
        compiled([n, x], pt.arange(n * 2).sum() * big(x), fullgraph=True)
    f = compiled([n, x], pt.arange(n * 2).sum() * big(x), on_break="ignore")
    for k in (1, 2, 3):
        np.testing.assert_allclose(f(k, X), np.arange(2 * k).sum() * (np.exp(X) + np.log1p(X**2)))
    assert programs(f) <= 1 + len(f.vm.runner.executor.programs)
    assert compiled([n, x], x * n, fullgraph=True)(2, X)[1] == 2 * X[1]


def test_mark_dynamic_value_that_sets_a_length():
    """What follows from it does not compile either: a region that meets another length runs on the host."""
    n, x = pjl.mark_dynamic(pt.lscalar("n")), pt.dscalar("x")
    y = big(pt.arange(n * 1) * x)
    f = compiled([n, x], y, on_break="ignore")
    for k in (2, 3, 4, 2):
        value = np.arange(k) * 0.5
        np.testing.assert_allclose(f(k, 0.5), np.exp(value) + np.log1p(value**2))
    assert programs(f) == 1


def test_mark_dynamic_axis():
    x = pjl.mark_dynamic(pt.matrix("x", dtype="float64"), -2)
    f = compiled([x], big(x).sum(0))
    np.testing.assert_allclose(f(np.ones((3, 2))), 3 * (np.e + np.log(2)))
    with pytest.warns(pjl.GraphBreakWarning, match=r"JX011.*axis 0 of 'x'") as caught:
        for n in (4, 5, 3):
            np.testing.assert_allclose(f(np.ones((n, 2))), n * (np.e + np.log(2)))
    assert len(caught) == 1 and programs(f) == 1
    f(np.ones((3, 4)))  # the other axis may be compiled for
    assert programs(f) == 2
    with pjl.options(fullgraph=True):
        g = pytensor.function([x], big(x).sum(0), mode="JAXPR")
    g(np.ones((3, 2)))
    with pytest.raises(pjl.GraphBreakError, match="JX011"):
        g(np.ones((4, 2)))


def test_mark_dynamic_axis_of_a_shared_variable():
    s = pjl.mark_dynamic(pytensor.shared(np.ones(3), name="s"), 0)
    f = compiled([], big(s).sum(), on_break="ignore")
    for n in (3, 4, 3):
        s.set_value(np.ones(n))
        np.testing.assert_allclose(f(), n * (np.e + np.log(2)))
    assert programs(f) == 1


@pytest.mark.parametrize(
    ("mark", "variable", "error"),
    [
        (pjl.mark_static, pt.vector() * 2, TypeError),
        (pjl.mark_static, pt.constant(2), TypeError),
        (pjl.mark_static, 3, TypeError),
        (pjl.mark_dynamic, pytensor.shared(np.random.default_rng(1)), TypeError),
        (lambda v: pjl.mark_dynamic(v, 1), pt.vector(), ValueError),
        (lambda v: pjl.mark_dynamic(v, 0), pt.vector(shape=(3,)), ValueError),
        (lambda v: pjl.mark_static(pjl.mark_dynamic(v)), pt.lscalar(), ValueError),
        (lambda v: pjl.mark_dynamic(pjl.mark_static(v)), pt.lscalar(), ValueError),
    ],
)
def test_bad_marks(mark, variable, error):
    with pytest.raises(error):
        mark(variable)


# Stances


def test_fail_on_recompile():
    n, x = pt.lscalar("n"), pt.vector("x", dtype="float64")
    f = compiled([n, x], pt.arange(n) * x.sum())
    g = compiled([x], big(x))
    f(2, X)
    with pjl.stance("fail_on_recompile"):
        np.testing.assert_allclose(f(2, X), np.arange(2) * X.sum())
        with pytest.raises(pjl.RecompileError, match="value of 'n' is 3, not 2"):
            f(3, X)
        with pytest.raises(pjl.RecompileError, match=r"shape of 'x' is \(2,\), not \(5,\)"):
            f(2, X[:2])
        with pytest.raises(pjl.RecompileError, match="not been compiled before"):
            g(X)
        with pjl.stance("default"):
            f(3, X)
        f(3, X)
    g(X)


@pytest.mark.parametrize("break_", [False, True])
def test_force_host(break_, monkeypatch):
    x = pt.vector("x", dtype="float64")
    s = pytensor.shared(np.ones(5), name="s")
    y = big(Doubled()(big(x))) if break_ else big(x)
    mode = Mode(JaxprLinker(Options(on_break="ignore")), "fast_run")
    f = pytensor.function([x], [y, x[1:]], updates={s: s * y}, mode=mode)
    with monkeypatch.context() as patch, pjl.stance("force_host"):
        patch.setattr(jax, "jit", None)
        got = f(X)
    assert programs(f) == 0
    value = s.get_value()
    s.set_value(np.ones(5))
    want = f(X)
    for a, b in zip([*got, value], [*want, s.get_value()], strict=True):
        assert type(a) is type(b) and a.dtype == b.dtype
        np.testing.assert_allclose(a, b)


def test_force_host_runs_inner_graphs():
    x, n = pt.vector("x", dtype="float64"), pt.lscalar("n")
    summed = pytensor.scan(lambda v, total: total + v, sequences=[x], outputs_info=[pt.zeros(())], return_updates=False)
    wrapped = OpFromGraph([x], [pt.exp(x) * 2])(x)
    chosen = ifelse(n > 0, wrapped, x)
    outputs = [summed[-1], chosen, pt.arange(n), x[x > 0.5]]
    f = compiled([x, n], outputs, on_break="ignore")
    wanted = pytensor.function([x, n], outputs, mode="FAST_COMPILE")
    with pjl.stance("force_host"):
        for k in (0, 3):
            for got, want in zip(f(X, k), wanted(X, k), strict=True):
                assert got.dtype == want.dtype
                np.testing.assert_allclose(got, want)


@pytest.mark.parametrize("condition", [True, False])
def test_force_host_chooses_a_number(condition):
    """A conditional of integers is one of PyTensor's lazy nodes: it says which operand it needs."""
    c, n = pt.scalar("c", dtype="bool"), pt.lscalar("n")
    f = compiled([c, n], pt.arange(ifelse(c, n + 1, n * 2)))
    assert any(isinstance(node.op, IfElse) for node in f.vm.runner.graph.nodes)
    with pjl.stance("force_host"):
        np.testing.assert_array_equal(f(condition, 3), np.arange(4 if condition else 6))


def test_force_host_takes_device_arrays_and_keeps_errors():
    x, i = pt.vector("x", dtype="float64"), pt.lscalar("i")
    f = compiled([x, i], big(x)[i])
    with pjl.stance("force_host"):
        with jax.enable_x64(True):
            value = jax.device_put(X)
        np.testing.assert_allclose(f(value, 1), np.exp(X[1]) + np.log1p(X[1] ** 2))
        with pytest.raises(IndexError):
            f(X, 9)


def test_stance_is_of_one_thread_and_ends():
    x = pt.vector("x", dtype="float64")
    f = compiled([x], big(x))
    results = []
    with pjl.stance("fail_on_recompile"):
        thread = threading.Thread(target=lambda: results.append(f(X)))
        thread.start()
        thread.join()
    assert len(results) == 1
    with pytest.raises(KeyError), pjl.stance("fail_on_recompile"):
        raise KeyError
    f(np.ones(2))
    with pytest.raises(ValueError, match="stance must be"), pjl.stance("eager"):
        pass


# Logs


@pytest.mark.parametrize(
    ("artifact", "level", "parts"),
    [
        ("breaks", logging.INFO, ["JX001", "Doubled"]),
        ("recompiles", logging.INFO, ["not been compiled before", "shape of 'x' is (2,), not (5,)"]),
        ("guards", logging.DEBUG, ["'x' of shape (5,)"]),
        ("jaxpr", logging.DEBUG, ["lambda", "f64[5]", "log1p"]),
        ("hlo", logging.DEBUG, ["stablehlo.exponential", "tensor<5xf64>"]),
        ("plan", logging.DEBUG, ["3 batches, 1 breaks", "0: region", "1: host step of 1 nodes (1 Doubled)"]),
        ("timing", logging.INFO, ["partitioning", "lowering region_0", "with XLA", " ms"]),
    ],
)
def test_logs(artifact, level, parts, caplog):
    name = f"pytensor_jaxpr_linker.{artifact}"
    x = pt.vector("x", dtype="float64")

    def run():
        f = compiled([x], big(Doubled()(big(x))), on_break="ignore")
        f(X)
        f(X[:2])
        return f

    with caplog.at_level(level, name):
        f = run()
        count = len(caplog.records)
        f(X)  # a call that compiles nothing logs nothing
    assert {record.name for record in caplog.records} == {name} and len(caplog.records) == count
    for part in parts:
        assert part in caplog.text
    caplog.clear()
    with caplog.at_level(level + 1, name):
        run()
    assert not caplog.records


# Progress


class Screen(io.StringIO):
    """Stands in for stderr."""

    def __init__(self, is_terminal):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_line(is_terminal, monkeypatch):
    monkeypatch.setattr(logs, "PATIENCE", 0.02)
    monkeypatch.setattr(logs, "INTERVAL", 0.01)
    monkeypatch.setattr(sys, "stderr", Screen(is_terminal))
    threads = threading.active_count()
    x = pt.matrix("x", dtype="float64")
    f = compiled([x], pt.linalg.cholesky(x @ x.T + pt.eye(4)).sum())
    f(np.ones((4, 4)))
    text = sys.stderr.getvalue()
    assert threading.active_count() == threads
    if is_terminal:
        assert "compiling pytensor_function with XLA (" in text and "nodes)" in text and text.endswith("\r\x1b[K")
        f(np.ones((4, 4)))
        assert sys.stderr.getvalue() == text
    else:
        assert text == ""


def test_progress_ends_with_an_error(monkeypatch):
    monkeypatch.setattr(logs, "PATIENCE", 0.001)
    monkeypatch.setattr(sys, "stderr", Screen(True))
    threads = threading.active_count()
    x = pt.vector("x", dtype="float64")
    f = compiled([x], x + np.ones(3))
    with pytest.raises(AssertionError):
        f(np.ones(2))
    assert threading.active_count() == threads and not f.vm.runner._policy.progress.active
    assert sys.stderr.getvalue().endswith("\r\x1b[K") or not sys.stderr.getvalue()


def test_progress_of_threads():
    shown = logs.Progress()

    def build():
        for _ in range(50):
            with shown.stage("partitioning", 3):
                time.sleep(0)

    workers = [threading.Thread(target=build) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not shown.active


def test_a_build_that_ends_while_another_thread_enters_its_stage():
    class Ended(logs.Progress):
        def begin(self, stage, nodes):
            self.end()  # as the other thread does
            return super().begin(stage, nodes)

    shown = Ended()
    shown.begin("lowering", 3)
    with shown.stage("partitioning", 3):
        assert shown.active
    assert not shown.active


def test_without_stderr(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    x = pt.vector("x", dtype="float64")
    with warnings.catch_warnings():
        np.testing.assert_array_equal(compiled([x], x * 2)(X), 2 * X)
