"""Sums of many numbers: scalars that leave them, and rows that are added to known groups."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import compare, compare_grad

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.jaxpr.optimize import sums

N = 3000
RNG = np.random.default_rng(0)
#: Runs of rows by group: some long, some of one row; the groups 7 and 39 have none.
GROUPS = np.repeat(np.tile(RNG.permutation(np.setdiff1d(np.arange(40), [7, 39])), 4), RNG.integers(1, 80, 152))[:N]


def jaxpr_of(inputs, outputs, values):
    """Return the Jaxpr of a compiled function."""
    f = pytensor.function(inputs, outputs, mode="JAXPR")
    with jax.enable_x64(True):
        return pjl.make_jaxpr(f, *values)


def sizes(closed, *names):
    """Return the shapes of the results of the primitives of these names."""
    return [eqn.outvars[0].aval.shape for eqn in closed.jaxpr.eqns if eqn.primitive.name in names]


# -- scalars -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normal_log_density_with_one_scale(dtype):
    y, mu, s = (
        pt.vector("y", dtype=dtype, shape=(N,)),
        pt.vector("mu", dtype=dtype, shape=(N,)),
        pt.scalar("s", dtype=dtype),
    )
    logp = (-0.5 * ((y - mu) / s) ** 2 - np.array(0.9, dtype) - pt.log(s)).sum()
    values = [RNG.normal(size=N).astype(dtype), RNG.normal(size=N).astype(dtype), np.array(0.7, dtype)]
    compare([y, mu, s], [logp, *pytensor.grad(logp, [mu, s])], values, rtol=1e-12 if dtype == "float64" else 1e-4)


def test_terms_and_factors_leave_a_sum_of_squares():
    y, s = pt.vector("y", shape=(N,)), pt.scalar("s")
    outputs = [(2.0 - 0.5 * (y / s) ** 2 - pt.log(s)).sum(), (y / s * y).sum()]
    value = RNG.normal(size=N)
    closed = jaxpr_of([y, s], outputs, [value, 0.7])
    assert (N,) not in sizes(closed, "div", "sub", "add")
    f = pytensor.function([y, s], outputs, mode="JAXPR")
    exact = math.fsum(value**2)
    np.testing.assert_allclose(f(value, 0.7), [N * (2 - np.log(0.7)) - exact / 0.98, exact / 0.7], rtol=1e-14)


def test_terms_stay_in_sums_that_may_cancel():
    y, m = pt.vector("y", shape=(N,)), pt.scalar("m")
    value = 1e8 + RNG.normal(size=N)
    closed = jaxpr_of([y, m], (y - m).sum(), [value, 1e8])
    assert (N,) in sizes(closed, "sub")
    f = pytensor.function([y, m], (y - m).sum(), mode="JAXPR")
    np.testing.assert_allclose(f(value, 1e8), math.fsum(value - 1e8), rtol=1e-12)


def test_products_of_small_floats_are_not_formed():
    y, s = pt.fvector("y"), pt.fscalar("s")
    f = pytensor.function([y, s], [(y / s * y).sum(), ((y / s) ** 2).sum()], mode="JAXPR")
    for size in (1e25, 1e-25):
        value = np.full(N, size, "float32")
        np.testing.assert_allclose(f(value, np.float32(size)), [N * size, N], rtol=1e-6)


def test_no_function_is_computed_twice():
    x, s = pt.vector("x", shape=(N,)), pt.scalar("s")
    quotient = pt.exp(pt.sin(x)) / s
    closed = jaxpr_of(
        [x, s],
        [quotient[GROUPS], (quotient * x).sum(), pt.inc_subtensor(pt.zeros(40)[GROUPS], quotient)],
        [RNG.normal(size=N), 2.0],
    )
    assert sizes(closed, "div") == [(N,)]


@pytest.mark.parametrize("s", [0.0, np.inf, -np.inf, np.nan])
def test_scalars_that_are_not_finite_or_zero(s):
    y, scale = pt.vector("y", shape=(N,)), pt.scalar("s")
    value = np.abs(RNG.normal(size=N))
    outputs = [(-0.5 * y**2 + scale).sum(), (y * scale).sum(), (3.0 - (y / scale) ** 2).sum()]
    outputs += [pt.inc_subtensor(pt.ones(40)[GROUPS], y / scale), pt.inc_subtensor(pt.ones(40)[GROUPS], y * scale)]
    compare([y, scale], outputs, [value, np.array(s)])


def test_sums_over_one_axis_and_complex_sums():
    x, z, s = pt.matrix("x", shape=(50, 60)), pt.zvector("z"), pt.scalar("s")
    outputs = [(-0.5 * (x / s) ** 2 - pt.log(s)).sum(0), (x / s * x).sum(1), (z / s).sum(), (1.0 + z * s).sum()]
    value = RNG.normal(size=(50, 60))
    compare([x, z, s], outputs, [value, value.ravel() * (1 + 2j), np.array(0.3)])


def test_sums_inside_a_loop():
    y, s = pt.vector("y", shape=(N,)), pt.vector("s")

    def step(scale, total, y):
        rows = pt.inc_subtensor(pt.zeros(40)[GROUPS], (y - total[0]) / scale)
        return total + rows - 0.1 * (-0.5 * ((y - total[1]) / scale) ** 2 - pt.log(scale)).sum() / N

    steps = pytensor.scan(step, [s], [pt.zeros(40)], [y], return_updates=False)
    loss = (steps[-1] ** 2).sum()
    compare([y, s], [loss, *pytensor.grad(loss, [y, s])], [RNG.normal(size=N), np.linspace(0.5, 2, 4)], rtol=1e-9)


# -- sums over groups --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int8", "complex128"])
@pytest.mark.parametrize("rows", [255, 256, 1023, 3000])
def test_sums_over_groups(dtype, rows):
    groups = np.sort(np.random.default_rng(rows).integers(0, 40, rows))
    start, values = pt.vector("start", dtype=dtype, shape=(40,)), pt.vector("values", dtype=dtype, shape=(rows,))
    numbers = np.random.default_rng(1).integers(-9, 9, rows).astype(dtype)  # sums are exact in any order
    compare([start, values], [pt.inc_subtensor(start[groups], values)], [np.ones(40, dtype), numbers])
    compare([start, values], [pt.inc_subtensor(start[groups - 40], 2 * values[::-1])], [np.ones(40, dtype), numbers])


@pytest.mark.parametrize(("groups", "copies"), [(np.repeat(np.arange(40), 50), 8), (np.arange(2000) % 40, 0)])
def test_sums_are_taken_apart_where_neighbours_meet(groups, copies):
    start, values = pt.dvector("start"), pt.dvector("values")
    f = pytensor.function([start, values], pt.inc_subtensor(start[groups], values), mode="JAXPR")
    text = str(pjl.make_jaxpr(f, np.ones(40), np.ones(2000)))
    assert (f"f64[{40 * copies}]" in text) == bool(copies)
    np.testing.assert_array_equal(f(np.zeros(40), np.ones(2000)), np.full(40, 50.0))


def test_sums_over_groups_of_a_matrix_of_indices_and_their_gradients():
    groups = np.sort(np.random.default_rng(0).integers(0, 40, 2400)).reshape(2, 1200)
    effects, weights = pt.dvector("effects"), pt.dmatrix("weights")
    loss = (pt.exp(effects)[groups] * weights).sum()
    values = [np.linspace(0, 1, 40), np.random.default_rng(1).normal(size=(2, 1200))]
    compare([effects, weights], [loss, *pytensor.grad(loss, [effects, weights])], values)
    added = pt.inc_subtensor(effects[groups], weights)
    grads = pytensor.grad((added**2).sum(), [effects, weights])
    compare([effects, weights], [added, *grads], values)
    fn = pjl.as_jax_function([effects, weights], (added**2).sum(), gradient="jax")
    with jax.enable_x64(True):
        for got, want in zip(
            jax.grad(fn, (0, 1))(*values), pytensor.function([effects, weights], grads)(*values), strict=True
        ):
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
        stacked = [np.stack([v, 2 * v]) for v in values]
        batch = jax.vmap(fn)(*stacked)
        np.testing.assert_allclose(batch, [fn(*(v[i] for v in stacked)) for i in range(2)], rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_factors_leave_sums_over_groups(dtype):
    effects, y = pt.vector("effects", dtype=dtype, shape=(40,)), pt.vector("y", dtype=dtype, shape=(N,))
    s = pt.scalar("s", dtype="float32" if dtype == "float32" else "float64")
    rows = (y - effects[GROUPS]) / s
    outputs = [pt.inc_subtensor(effects[GROUPS - 40], rows / s), pt.inc_subtensor(effects[GROUPS], -2 * (y * rows))]
    values = [RNG.normal(size=40).astype(dtype), RNG.normal(size=N).astype(dtype), np.array(0.7, s.dtype)]
    compare([effects, y, s], [*outputs, rows], values, rtol=1e-11 if dtype != "float32" else 1e-3)
    added = jaxpr_of([effects, y, s], outputs[0], values)
    if dtype != "complex128":  # the quotient of complex numbers is made of real ones
        assert (N,) not in sizes(added, "div")


def test_groups_without_rows_keep_their_start():
    start, y, s = pt.vector("start"), pt.vector("y", shape=(N,)), pt.scalar("s")
    f = pytensor.function([start, y, s], pt.inc_subtensor(start[GROUPS], y / s), mode="JAXPR")
    found = f(np.arange(40.0), np.ones(N), 0.0)
    assert np.flatnonzero(np.isfinite(found)).tolist() == [7, 39]
    assert found[[7, 39]].tolist() == [7.0, 39.0]


@pytest.mark.parametrize("rows", [256, 257, 287, 4000])
@pytest.mark.parametrize("run", [1, 2, 3, 7, 32, 33, 500])
def test_rows_in_runs(run, rows):
    groups = (np.arange(rows) // run * 5) % 16
    start, values = pt.vector("start"), pt.vector("values")
    numbers = np.random.default_rng(run).integers(-9, 9, rows).astype(float)  # sums are exact in any order
    f = pytensor.function([start, values], pt.inc_subtensor(start[groups], values), mode="JAXPR")
    np.testing.assert_array_equal(f(np.ones(16), numbers), 1 + np.bincount(groups, numbers, 16))


@pytest.mark.parametrize("many", [8, 64, 2**16])
@pytest.mark.parametrize("rows", [256, 257, 1023, 4000])
@pytest.mark.parametrize("run", [1, 3, 40, 500])
@pytest.mark.parametrize("are_stacked", [False, True])
def test_blocks_of_blocks(monkeypatch, are_stacked, run, rows, many):
    monkeypatch.setattr(sums, "MANY_SUMS", many)
    groups = (np.arange(rows) // run * 5) % 16
    if are_stacked:
        count = rows // 8 * 8
        groups = np.append(groups[:count].reshape(-1, 8).T, groups[count:])
    numbers = np.random.default_rng(run).integers(-9, 9, rows).astype(float)
    plan = sums.plan_rows(groups, 16)
    if run == 500 and rows > 1000:
        assert plan.blocks[0].are_stacked == are_stacked
        assert (len(plan.blocks) > 1) == (many < 100)
    start, values = pt.vector("start"), pt.vector("values")
    f = pytensor.function([start, values], pt.inc_subtensor(start[groups], values), mode="JAXPR")
    np.testing.assert_array_equal(f(np.ones(16), numbers), 1 + np.bincount(groups, numbers, 16))


def test_neighbours_of_one_group_are_added_first():
    closed = jaxpr_of(
        [x := pt.vector("x"), y := pt.vector("y")], pt.inc_subtensor(x[GROUPS], y), [np.ones(40), np.ones(N)]
    )
    (added,) = (eqn.invars[2].aval.shape[0] for eqn in closed.jaxpr.eqns if eqn.primitive.name == "scatter-add")
    assert added < N / 2


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_many_blocks_are_not_joined_with_other_rows(dtype):
    groups = np.repeat(np.arange(20_000) % 40, 30)[1:]
    x, y = pt.vector("x", dtype=dtype), pt.vector("y", dtype=dtype)
    sums = pt.inc_subtensor(x[groups], y)
    numbers = np.random.default_rng(0).integers(-9, 9, len(groups)).astype(dtype)  # sums are exact in any order
    closed = jaxpr_of([x, y], sums, [np.ones(40, dtype), numbers])
    assert not sizes(closed, "concatenate")
    assert len(sizes(closed, "scatter-add")) == 2
    found = pytensor.function([x, y], sums, mode="JAXPR")(np.ones(40, dtype), numbers)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, 1 + np.bincount(groups, numbers, 40))


def test_gradients_of_grouped_effects():
    effects, s = pt.vector("effects", shape=(40,)), pt.scalar("s")
    y, slope = RNG.normal(size=N), RNG.integers(0, 2, N)
    loss = (-0.5 * ((y - effects[GROUPS] - effects[GROUPS] * slope) / pt.exp(s)) ** 2 - s).sum()
    values = [RNG.normal(size=40), np.array(0.3)]
    compare_grad([effects, s], loss, values)
    fn = pjl.as_jax_function([effects, s], loss, gradient="jax")
    hessian = pytensor.function([effects, s], pytensor.gradient.hessian(loss, effects))
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.hessian(fn)(*values), hessian(*values), rtol=1e-9, atol=1e-9)
        stacked = [np.stack([v, 2 * v, 0 * v]) for v in values]
        wants = [jax.grad(fn, (0, 1))(*(v[i] for v in stacked)) for i in range(3)]
        for got, *want in zip(jax.vmap(jax.grad(fn, (0, 1)))(*stacked), *wants, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("function", [pt.exp, pt.digamma, lambda x: 1 + x / 2])
def test_rows_that_are_expensive_are_computed_before_they_are_added(function):
    effects, y = pt.vector("effects", shape=(40,)), pt.vector("y", shape=(N,))
    added = pt.inc_subtensor(pt.zeros(40)[GROUPS], function(effects[GROUPS] + y))
    values = [RNG.uniform(1, 2, 40), RNG.uniform(1, 2, N)]
    compare([effects, y], added, values)
    compare_grad([effects, y], (added**2).sum(), values)
    closed = jaxpr_of([effects, y], added, values)
    assert (function in (pt.exp, pt.digamma)) == bool(sizes(closed, "optimization_barrier"))
