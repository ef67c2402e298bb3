"""When functions are compiled again, and what they do and say about it."""

from __future__ import annotations

import gc

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import Doubled
from pytensor.compile.mode import Mode

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker import JaxprLinker, Options

X = np.linspace(0.1, 1.0, 5)


def compiled(inputs, outputs, **options):
    """Compile with mode JAXPR and options."""
    return pytensor.function(inputs, outputs, mode=Mode(JaxprLinker(Options(**options)), "fast_run"))


def big(x):
    """Return an expression that is worth a program."""
    return pt.exp(x) + pt.log1p(x**2)


def programs(f):
    """Return how often a function was compiled."""
    runner = f.vm.runner
    found = [runner.program] if runner.program is not None else runner.executor.programs
    return sum(program.recompiles.count for program in found)


# The limit


def test_warning_names_the_axis_and_the_node():
    data = pt.matrix("data", dtype="float64")
    f = compiled([data], pt.exp(data).sum(), recompile_limit=3)
    for n in (1, 2, 3, 2):
        f(np.ones((n, 2)))
    with pytest.warns(pjl.RecompileWarning) as caught:
        f(np.ones((4, 2)))
    text = str(caught[0].message)
    for part in ("axis 0 of 'data'", "4 values: 1, 2, 3, 4", "Exp", "recompile_limit", __file__):
        assert part in text
    assert caught[0].filename == __file__
    for n in (5, 6):
        np.testing.assert_allclose(f(np.ones((n, 2))), 2 * n * np.e)  # once: a second warning is an error here
    assert programs(f) == 6


def test_warning_names_the_value_and_the_node():
    n, x = pt.lscalar("count"), pt.vector("x", dtype="float64")
    f = compiled([n, x], pt.arange(n * 2).sum() * x, recompile_limit=3)
    for k in (1, 2, 3):
        f(k, X)
    with pytest.warns(pjl.RecompileWarning, match=r"value of .*keeps changing \(4 values.*and ARange"):
        f(4, X)


def test_values_that_need_no_program_are_not_counted():
    i, x = pt.lscalar("i"), pt.vector("x", dtype="float64")
    f = compiled([i, x], x[: pt.minimum(i, 3)] * 2, recompile_limit=1, on_recompile_limit="raise")
    for k in range(3, 8):
        np.testing.assert_array_equal(f(k, X), 2 * X[:3])
    assert programs(f) == 1
    with pytest.raises(
        pjl.RecompileError, match=r"value of .*, which follows from 'i', keeps changing \(2 values: 3, 2\)"
    ):
        f(2, X)


def test_raise():
    x = pt.vector("x", dtype="float64")
    with pjl.options(recompile_limit=2, on_recompile_limit="raise"):
        f = pytensor.function([x], x.sum(), mode="JAXPR", name="total")
    assert f(np.ones(1)) == 1 and f(np.ones(2)) == 2
    for _ in range(2):
        with pytest.raises(pjl.RecompileError, match=r"of 'total' needs more than 2.*axis 0 of 'x'"):
            f(np.ones(3))
    assert f(np.ones(1)) == 1 and f(np.ones(2)) == 2


def test_host_takes_what_is_beyond_the_limit():
    n, x = pt.lscalar("n"), pt.vector("x", dtype="float64")
    s = pytensor.shared(np.zeros(()), name="s")
    y = pt.exp(pt.arange(n)) * x.sum()
    mode = Mode(JaxprLinker(Options(recompile_limit=2, on_recompile_limit="host", specializations=2)), "fast_run")
    f = pytensor.function([n, x], y, updates={s: s + y.sum()}, mode=mode)
    total = 0.0
    with pytest.warns(pjl.RecompileWarning, match="runs on the host"):
        for k in (1, 2, 3, 4, 5, 1, 2):
            want = np.exp(np.arange(k)) * X.sum()
            got = f(k, X)
            assert type(got) is np.ndarray and got.dtype == want.dtype
            np.testing.assert_allclose(got, want)
            total += want.sum()
    np.testing.assert_allclose(s.get_value(), total)
    assert programs(f) == 2  # both stay: a run on the host does not push them out


def test_what_fails_is_not_counted():
    x, y = (pt.vector(name, dtype="float64") for name in "xy")
    f = compiled([x, y], x + y, recompile_limit=1)
    for n in (2, 3, 4):
        with pytest.raises(ValueError, match=r"shape|dimension|size"):
            f(np.ones(n), np.ones(n + 1))
    f(X, X)
    assert programs(f) == 1


def test_host_takes_one_region_of_several():
    x = pt.vector("x", dtype="float64")
    y = big(Doubled()(big(x)))
    f = compiled([x], y, recompile_limit=2, on_recompile_limit="host", on_break="ignore")
    wanted = pytensor.function([x], y, mode="FAST_COMPILE")
    with pytest.warns(pjl.RecompileWarning) as caught:
        for n in (1, 2, 3, 4, 1):
            np.testing.assert_allclose(f(np.full(n, 0.5)), wanted(np.full(n, 0.5)))
    assert [w.category for w in caught] == [pjl.RecompileWarning]
    assert programs(f) == 4


def test_random_draws_on_the_host():
    n = pt.lscalar("n")
    rng = pytensor.shared(np.random.default_rng(3), name="rng")
    following, draw = pt.random.normal(size=n, rng=rng, return_next_rng=True)
    mode = Mode(JaxprLinker(Options(recompile_limit=1, on_recompile_limit="host")), "fast_run")
    f = pytensor.function([n], draw, updates={rng: following}, mode=mode)
    f(2)
    with pytest.warns(pjl.RecompileWarning):
        first = f(3)
    assert first.shape == (3,) and not np.array_equal(first, f(3))
    assert isinstance(rng.get_value(borrow=True), np.random.Generator)


def test_programs_for_shapes_are_bounded():
    x = pt.vector("x", dtype="float64")
    f = compiled([x], x.sum(), specializations=3, recompile_limit=1000)
    for n in range(1, 12):
        assert f(np.ones(n)) == n
    specialization = f.vm.runner.program.specialize(())
    assert len(specialization.lowered) <= 3 and len(specialization.packed_calls) <= 3
    assert programs(f) == 11
    gc.collect()
