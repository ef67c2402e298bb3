"""Rows of data by group (`graph/data_layout.py`), and large constants in a narrow dtype (`plan/model.py`)."""

from __future__ import annotations

import gc

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import compare
from hypothesis import given, settings
from hypothesis import strategies as st
from pytensor.raise_op import Assert

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.graph import data_layout
from pytensor_jaxpr_linker.plan import model
from pytensor_jaxpr_linker.plan.model import narrowed

N, GROUPS = 9_001, 12
RNG = np.random.default_rng(5)
COUNTY, YEAR = RNG.integers(0, GROUPS, N), RNG.integers(0, 5, N)
X, Y = RNG.normal(size=(N, 3)), RNG.normal(size=N)


def indices_of(f):
    """Return the known index arrays of the graph that a function runs, by the shape of what they index."""
    nodes = [node for node in f.vm.runner.graph.nodes if type(node.op).__name__ == "AdvancedSubtensor"]
    return {node.inputs[0].type.shape: node.inputs[-1].data for node in nodes}


def is_sorted(index, in_parts=True):
    """Return whether an index array is in the order of `sort_rows`.

    Rows at one place of the eight parts belong to one group, except where groups meet.
    """
    if not in_parts:
        return bool(np.all(index[1:] >= index[:-1]))
    blocks = index[: len(index) // 8 * 8].reshape(8, -1)
    return np.count_nonzero((blocks != blocks[0]).any(0)) < len(np.unique(index))


def effects():
    return pt.dvector("effects", shape=(GROUPS,))


# -- sorted rows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("index_dtype", ["uint8", "int32", "int64"])
def test_a_grouped_effect_and_its_gradient(dtype, index_dtype):
    a = pt.vector("a", dtype=dtype, shape=(GROUPS,))
    residual = Y.astype(dtype) - a[COUNTY.astype(index_dtype)] * X[:, 0].astype(dtype)
    loss = (residual**2).sum()
    outputs = [loss, pytensor.grad(loss, a)]
    compare([a], outputs, [np.arange(GROUPS, dtype=dtype)], rtol=1e-4 if dtype == "float32" else 1e-9)
    assert is_sorted(indices_of(pytensor.function([a], outputs, mode="JAXPR"))[(GROUPS,)])


def test_rows_of_matrices_products_and_two_kinds_of_groups():
    a, b = pt.dmatrix("a", shape=(GROUPS, 3)), pt.dvector("b", shape=(5,))
    beta = pt.dvector("beta", shape=(3,))
    mean = pt.constant(X) @ beta + (X * a[COUNTY]).sum(1) + b[YEAR]
    loss = pt.softplus(mean).sum() + pt.max(mean) + pt.switch(pt.all(mean < 1e9), 1.0, 2.0)
    inputs = [a, b, beta]
    outputs = [loss, *pytensor.grad(loss, inputs)]
    args = [RNG.normal(size=(GROUPS, 3)), RNG.normal(size=5), RNG.normal(size=3)]
    compare(inputs, outputs, args, rtol=1e-9)
    found = indices_of(pytensor.function(inputs, outputs, mode="JAXPR"))
    assert is_sorted(found[GROUPS, 3])
    assert not is_sorted(found[(5,)])
    np.testing.assert_array_equal(
        np.bincount(found[(5,)] * GROUPS + found[GROUPS, 3]), np.bincount(YEAR * GROUPS + COUNTY)
    )


def test_a_checked_value_and_one_without_rows():
    a = effects()
    checked = Assert("a is large")(a[COUNTY], pt.all(a < 100))
    loss = (checked * Y).sum() + pt.inc_subtensor(pt.zeros(GROUPS)[COUNTY], a[:1])[3]
    outputs = [loss, pytensor.grad(loss, a)]
    compare([a], outputs, [np.arange(1.0, GROUPS + 1)])
    f = pytensor.function([a], outputs, mode="JAXPR")
    assert is_sorted(indices_of(f)[(GROUPS,)])
    with pytest.raises(AssertionError, match="a is large"):
        f(np.full(GROUPS, 200.0))


@pytest.mark.parametrize("groups", [500, 1000, 70_000])
def test_small_groups_are_neighbours(groups):
    a = pt.dvector("a", shape=(groups,))
    index = RNG.integers(0, groups, N)
    index[0] = groups - 1
    loss = ((Y - a[index]) ** 2).sum()
    outputs = [loss, pytensor.grad(loss, a)]
    compare([a], outputs, [RNG.normal(size=groups)])
    f = pytensor.function([a], outputs, mode="JAXPR")
    assert is_sorted(indices_of(f)[(groups,)], in_parts=16 * groups <= N)


@pytest.mark.parametrize("rows", [8192, 8193, 9_999, 65_536, 100_003])
def test_rows_in_parts(rows):
    """Groups take turns, in the parts of 64 rows, so that no addition waits for the one before it."""
    index = np.random.default_rng(rows).integers(0, 9, rows)
    order = data_layout.order_of_rows([index])
    np.testing.assert_array_equal(np.sort(order), np.arange(rows))
    count = rows // 8
    blocks = index[order][: count * 8].reshape(8, count)
    assert np.count_nonzero((blocks != blocks[0]).any(0)) < 9
    larger = blocks[0][: count // 8 * 8].reshape(8, -1)
    assert np.count_nonzero((larger != larger[0]).any(0)) < 9
    assert np.count_nonzero(larger[0][1:] == larger[0][:-1]) < len(larger[0]) / 4 + 9


LATENT = pt.dvector("latent", shape=(N,))
KEPT = {
    "a result of each row": lambda a: [a[COUNTY] * Y],
    "an input of each row": lambda a: [(a[COUNTY] * LATENT).sum()],
    "a cumulative sum": lambda a: [pt.cumsum(a[COUNTY] * Y)[100]],
    "the place of a maximum": lambda a: [pt.argmax(a[COUNTY] * Y)],
    "an element": lambda a: [(a[COUNTY] * Y)[17]],
    "neighbours": lambda a: [((a[COUNTY] * Y)[1:] * Y[:-1]).sum()],
    "pairs of rows": lambda a: [((a[COUNTY][:, None] - a[COUNTY][None]) ** 2)[:3].sum()],
    "a group's last row": lambda a: [pt.set_subtensor(pt.zeros(GROUPS)[COUNTY], a[COUNTY] * Y)],
    "a group's last addition": lambda a: [
        pt.inc_subtensor(pt.zeros(GROUPS)[COUNTY], a[COUNTY] * Y, ignore_duplicates=True)
    ],
    "a vector that rows index": lambda a: [(a[COUNTY] * Y)[YEAR[:N]].sum()],
    "negative groups": lambda a: [(a[COUNTY - GROUPS] * Y).sum()],
    "few rows": lambda a: [(a[COUNTY[:1000]] * Y[:1000]).sum()],
}


@pytest.mark.parametrize("make", KEPT.values(), ids=KEPT)
def test_rows_whose_order_matters_stay(make):
    a = effects()
    outputs = make(a)
    args = [RNG.normal(size=GROUPS), RNG.normal(size=N)]
    compare([a, LATENT], outputs, args)
    f = pytensor.function([a, LATENT], outputs, mode="JAXPR", on_unused_input="ignore")
    index = indices_of(f).get((GROUPS,))
    assert index is None or not is_sorted(index)


def test_other_platforms_keep_the_order():
    a = effects()
    with pjl.base.options.for_platforms(["cuda"]):
        f = pytensor.function([a], (a[COUNTY] * Y).sum(), mode="JAXPR")
    assert not is_sorted(indices_of(f)[(GROUPS,)])


def test_more_bytes_than_a_copy_is_worth_stay(monkeypatch):
    monkeypatch.setattr(data_layout, "MOST_SORTED_BYTES", 1000)
    a = effects()
    f = pytensor.function([a], (a[COUNTY] * Y).sum(), mode="JAXPR")
    assert not is_sorted(indices_of(f)[(GROUPS,)])


def test_an_error_names_the_first_group_in_the_order_of_the_user():
    a = pt.dvector("a")
    groups = np.where(np.arange(N) == 100, 90, np.where(np.arange(N) == 200, 80, COUNTY))
    for output in ((a[groups] * Y).sum(), pytensor.grad((a[groups] * Y).sum(), a)):
        f = pytensor.function([a], output, mode="JAXPR")
        with pytest.raises(IndexError, match="index 90 is out of bounds for axis 0 with size 12"):
            f(np.ones(GROUPS))
        want = np.bincount(groups, Y) if output.type.ndim else Y.sum()
        np.testing.assert_allclose(f(np.ones(91)), want, rtol=1e-9)


def test_data_that_was_written_to_since():
    """A constant holds the user's array, and a function that was made before may still hold what was sorted of it."""
    y, groups = Y.copy(), COUNTY.copy()
    a = effects()
    at = np.linspace(-1, 1, GROUPS)
    functions = []
    for _ in range(2):
        for array in (y, groups):
            f = pytensor.function([a], ((y - a[groups]) ** 2).sum(), mode="JAXPR")
            np.testing.assert_allclose(f(at), ((y - at[groups]) ** 2).sum(), rtol=1e-12)
            functions.append(f)
            array[:] = array[::-1] + (array is y)


def test_functions_of_a_model_share_sorted_arrays_and_free_them():
    gc.collect()
    before = len(data_layout.MADE)
    a = effects()
    county, y = pt.constant(COUNTY), pt.constant(Y)
    loss = ((y - a[county]) ** 2).sum()
    functions = [pytensor.function([a], out, mode="JAXPR") for out in (loss, pytensor.grad(loss, a))]
    one, other = (indices_of(f).get((GROUPS,)) for f in functions)
    assert one is not None and np.shares_memory(one, other)
    assert len(data_layout.MADE) == before + 2  # the groups and the numbers
    del functions, one, other
    gc.collect()
    assert len(data_layout.MADE) == before


def test_a_model_of_two_likelihoods():
    with pm.Model(coords={"county": range(GROUPS)}) as model:
        s, a = pm.HalfNormal("s"), pm.Normal("a", dims="county")
        pm.Normal("y", a[COUNTY] + X[:, 0], s, observed=Y)
        pm.Poisson("z", pm.math.exp(a[YEAR]), observed=RNG.integers(0, 5, N))
    inputs, outputs = model.value_vars, [model.logp(), model.dlogp()]
    f, reference = (pm.compile(inputs, outputs, mode=mode) for mode in ("JAXPR", "FAST_COMPILE"))
    args = [np.array(0.3) if v.type.ndim == 0 else RNG.normal(size=GROUPS) for v in inputs]
    for got, want in zip(f(*args), reference(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9)


def test_a_jax_function_its_gradient_and_its_batches():
    a = effects()
    fn = pjl.as_jax_function([a], ((Y - a[COUNTY]) ** 2).sum())
    with jax.enable_x64(True):
        values = RNG.normal(size=(2, GROUPS))
        got = jax.vmap(jax.grad(fn))(values)
    want = [-2 * np.bincount(COUNTY, Y - value[COUNTY]) for value in values]
    np.testing.assert_allclose(got, want, rtol=1e-9)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_computation_row_by_row(data):
    """Graphs of rows, as they come; what depends on the order may be among them."""
    a, b = effects(), pt.dvector("b", shape=(5,))
    rows = [a[COUNTY], b[YEAR], pt.constant(Y), pt.constant(X) @ b[:3]]
    for _ in range(data.draw(st.integers(1, 6))):
        one, other = (data.draw(st.sampled_from(rows)) for _ in range(2))
        rows.append(
            data.draw(
                st.sampled_from(
                    [
                        one + other,
                        one * other,
                        pt.sin(one),
                        one[:, None][:, 0],
                        pt.switch(one > 0, other, 1.0),
                        one[::-1],
                    ]
                )
            )
        )
    how = data.draw(st.sampled_from([pt.sum, pt.max, lambda x: pt.inc_subtensor(a[COUNTY], x)[3], lambda x: x[5]]))
    output = how(rows[-1])
    compare([a, b], output, [np.linspace(-1, 1, GROUPS), np.linspace(0, 1, 5)], rtol=1e-8, atol=1e-8)


# -- narrow constants --------------------------------------------------------------------------------------------------

LONG = 2**17 + 1
NARROW = {
    "zeros and ones": (np.arange(LONG) % 2.0, "int8"),
    "small integers": ((np.arange(LONG) % 700) - 300, "int16"),
    "counts": ((np.arange(LONG) % 200), "uint8"),
    "many groups": (np.arange(LONG) % 60_000, "uint16"),
    "large integers": (np.arange(LONG) * 1000, "int32"),
    "halves": (np.arange(LONG) / 2, "float32"),
    "thirds": (np.arange(LONG) / 3, "float64"),
    "a negative zero": (np.where(np.arange(LONG) == 9, -0.0, 1.0), "float32"),
    "not a number": (np.where(np.arange(LONG) == 9, np.nan, 1.0), "float32"),
    "infinity": (np.where(np.arange(LONG) == LONG - 1, np.inf, 1.0), "float32"),
    "a float32": (np.ones(2 * LONG, "float32"), "int8"),
    "a short array": (np.ones(2**17), "float64"),
    "truths": (np.ones(9 * LONG, bool), "bool"),
    "complex numbers": (np.ones(LONG, complex), "complex128"),
    "columns": (np.ones((3, LONG)).T, "int8"),
}


@pytest.mark.parametrize("array, dtype", NARROW.values(), ids=NARROW)
def test_the_smallest_dtype_that_holds_all_numbers(array, dtype):
    found = narrowed(array)
    assert found.dtype == dtype
    again = found.astype(array.dtype)
    np.testing.assert_array_equal(again, array)
    np.testing.assert_array_equal(np.signbit(again.real), np.signbit(array.real))


def test_constants_that_are_read_element_by_element_are_narrow(monkeypatch):
    monkeypatch.setattr(model, "INLINE_CONSTANT_BYTES", 100)
    monkeypatch.setattr(model, "WIDE_CONSTANT_BYTES", 100)
    x, beta = pt.dvector("x", shape=(60,)), pt.dvector("beta", shape=(2,))
    flags, matrix, groups = np.arange(60) % 2.0, np.ones((60, 2)), np.arange(60)[::-1] % 60
    compare([x, beta], [x * flags, pt.constant(matrix) @ beta, x[groups]], [np.linspace(0, 1, 60), np.ones(2)])
    f = pytensor.function([x, beta], [x * flags, pt.constant(matrix) @ beta, x[groups]], mode="JAXPR")
    dtypes = {(c.shape, c.dtype.name) for c in f.vm.runner.program.constants}
    assert dtypes == {((60,), "int8"), ((60, 2), "float64")}


def test_a_narrow_constant_that_a_product_reads_too_is_wide(monkeypatch):
    monkeypatch.setattr(model, "WIDE_CONSTANT_BYTES", 100)
    x, beta = pt.dmatrix("x", shape=(9000, 2)), pt.dvector("beta", shape=(2,))
    matrix = pt.constant(np.ones((9000, 2)))
    f = pytensor.function([x, beta], [x * matrix, matrix @ beta], mode="JAXPR")
    assert [c.dtype for c in f.vm.runner.program.constants] == ["float64"]
