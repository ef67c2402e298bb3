"""Slices whose bounds are values: keyed on their length, NumPy's clipping."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import FULLGRAPH, compare, compare_error, compare_grad, tensor_like
from hypothesis import given, settings
from hypothesis import strategies as st
from pytensor.conditional import ifelse
from pytensor.tensor.subtensor import Subtensor

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.graph.lanes.ops import DynamicSlice, DynamicUpdate, SliceBounds, SliceLanes

X = np.arange(60.0).reshape(3, 4, 5) + 0.5

x, m, i, j = pt.dvector("x"), pt.dmatrix("m"), pt.lscalar("i"), pt.lscalar("j")


def specializations(f):
    """Return how many programs a function has compiled for values of its inputs."""
    return len(f.vm.runner.program._specializations)


def ops_of(f):
    """Return the Ops of the regions of a function."""
    return [step.node.op for region in f.vm.runner.plan.regions for step in region.steps]


# -- the key is the length ---------------------------------------------------------------------------------------------


def test_one_program_for_every_start():
    outputs = [x[i : i + 3], pt.set_subtensor(x[i : i + 3], 0.0), pt.inc_subtensor(x[i : i + 3], x[:3])]
    f = pytensor.function([x, i], outputs, mode=FULLGRAPH)
    reference = pytensor.function([x, i], outputs, mode="FAST_COMPILE")
    value = np.arange(20.0)
    for start in range(18):
        for got, want in zip(f(value, start), reference(value, start), strict=True):
            np.testing.assert_array_equal(got, want)
    assert specializations(f) == 1


@pytest.mark.parametrize(
    "build", [lambda x: x * 2, lambda x: pt.exp(x)[None][0], lambda x: pt.set_subtensor(x[0], 1.0)]
)
def test_one_program_for_slices_of_what_is_computed(build):
    f = pytensor.function([x, i], build(x)[i : i + 3].sum(), mode=FULLGRAPH)
    for start in range(9):
        f(np.arange(12.0), start)
    assert specializations(f) == 1


def test_minibatches():
    rows = pytensor.shared(np.arange(40.0).reshape(20, 2), name="rows")
    f = pytensor.function([i], rows[i * 5 : (i + 1) * 5].sum(0), mode=FULLGRAPH)
    for k in range(4):
        np.testing.assert_array_equal(f(k), rows.get_value()[k * 5 : (k + 1) * 5].sum(0))
    assert specializations(f) == 1


def test_clipped_lengths_are_other_programs():
    f = pytensor.function([x, i], x[i : i + 3], mode=FULLGRAPH)
    for start in range(-15, 15):
        np.testing.assert_array_equal(f(np.arange(10.0), start), np.arange(10.0)[start : start + 3])
    assert specializations(f) == 4  # of length 0, 1, 2 and 3


def test_gradient_is_keyed_on_the_length():
    f = pytensor.function([x, i], pt.grad((x[i : i + 3] ** 2).sum(), x), mode=FULLGRAPH)
    for start in range(7):
        want = np.zeros(9)
        want[start : start + 3] = 2 * np.arange(9.0)[start : start + 3]
        np.testing.assert_array_equal(f(np.arange(9.0), start), want)
    assert specializations(f) == 1


@pytest.mark.parametrize("index", [np.s_[1:-1], np.s_[: x.shape[0] - 1], np.s_[x.shape[0] // 2 :]])
def test_bounds_known_from_shapes_stay(index):
    f = pytensor.function([x], x[index] * 2, mode=FULLGRAPH)
    assert any(isinstance(op, Subtensor) for op in ops_of(f))
    assert not any(isinstance(op, DynamicSlice) for op in ops_of(f))


def test_graph_of_the_user_is_left_as_it_is():
    part = x[i : i + 3]
    part.name = "part"
    f = pytensor.function([x, i], part.sum(), mode=FULLGRAPH)
    nodes = f.maker.fgraph.toposort()
    assert any(isinstance(node.op, Subtensor) for node in nodes)
    assert not any(isinstance(node.op, DynamicSlice) for node in nodes)
    names = [step.names for step in f.vm.runner.plan.regions[0].steps if isinstance(step.node.op, DynamicSlice)]
    assert names == [("DynamicSlice{axes=(0,)}[part]",)]


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint64", "bool", "complex64"])
def test_dtypes(dtype):
    value = (np.arange(12).reshape(3, 4) % 3).astype(dtype)
    v = tensor_like(value, "v")
    outputs = [v[i:], pt.set_subtensor(v[:, i:j], 1), pt.inc_subtensor(v[i:j], np.ones((1, 4), dtype))]
    compare([v, i, j], outputs, [value, 1, 2])


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
def test_dtypes_of_bounds(dtype):
    n = pt.scalar("n", dtype=dtype)
    compare([x, n], [x[n:], x[:n]], [np.arange(6.0), np.array(4, dtype)])


INDICES = {
    "two_axes": lambda t: t[i:j, :, j:],
    "with_integer": lambda t: t[1, i:j],
    "with_run_time_integer": lambda t: t[i, :, i:j],
    "with_constant_slice": lambda t: t[i:j, ::-1, 1:3],
    "with_step": lambda t: t[:, i::2],
    "with_bounds_and_step": lambda t: t[:, i:j:2],
    "with_negative_step": lambda t: t[:, j:i:-1],
    "with_step_known_from_input": lambda t: t[:, ::j],
    "with_newaxis": lambda t: t[None, i:j],
}


@pytest.mark.parametrize("build", INDICES.values(), ids=INDICES)
def test_indices(build):
    t = pt.dtensor3("t")
    part = build(t)
    compare([t, i, j], [part, pt.set_subtensor(part, 2.0), pt.inc_subtensor(part, part * 2)], [X, 1, 3])


@pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.RecompileWarning")
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(-7, 7), st.integers(-7, 7)), min_size=4, max_size=4), st.integers(0, 5))
def test_any_bounds(drawn, n):
    value = np.arange(float(n))
    for start, stop in drawn:
        got = READS_AND_WRITES(value, start, stop)
        want_set, want_inc = value.copy(), value.copy()
        want_set[start:stop] = -1.0
        want_inc[start:] += 2.0
        wants = [value[start:stop], value[start:], value[:stop], want_set, want_inc]
        for a, b in zip(got, wants, strict=True):
            np.testing.assert_array_equal(a, b)


READS_AND_WRITES = pytensor.function(
    [x, i, j], [x[i:j], x[i:], x[:j], pt.set_subtensor(x[i:j], -1.0), pt.inc_subtensor(x[i:], 2.0)], mode=FULLGRAPH
)


@pytest.mark.parametrize("write", [pt.set_subtensor, pt.inc_subtensor])
def test_value_of_another_length(write):
    y = pt.dvector("y")
    compare_error([x, i, y], write(x[i : i + 3], y), [np.arange(9.0), 2, np.ones(2)], match="broadcast")


@pytest.mark.parametrize(
    "build",
    [
        lambda: m[i : i + 2] ** 2,
        lambda: pt.exp(m[:, i:]),
        lambda: pt.set_subtensor(m[i : i + 2], m[:2] ** 2),
        lambda: pt.inc_subtensor(m[1:, i:j], m[:2, :1] ** 2),
        lambda: m[5 * i :],
    ],
)
def test_gradients(build):
    inputs = [v for v in (m, i, j) if v in pytensor.graph.traversal.ancestors([build()])]
    values = {m: X[0, :3, :4], i: np.array(1), j: np.array(2)}
    compare_grad(inputs, build(), [values[v] for v in inputs])


def test_part_of_a_shape():
    s = pt.lvector("s")
    compare([x, s, i], x.reshape(s[i : i + 2], ndim=2), [np.arange(6.0), np.array([9, 2, 3, 9]), 1])


def test_in_a_branch():
    output = ifelse(x[0] > 0, x[i : i + 2].sum(), x[:i].sum())
    for value in (np.arange(5.0), np.arange(5.0) + 1):
        compare([x, i], output, [value, 2])


# -- bounds that the program computes ----------------------------------------------------------------------------------


def computed(value):
    """Return an integer that is known only at run time, and what makes it `value` there."""
    return x.sum().astype("int64"), np.array([value, 0.0, 0.0, 0.0])


@pytest.mark.parametrize("n", [0, 1, 3, 4, 7, -1, -3, -9])
def test_reduced_slices_need_no_break(n):
    k, value = computed(n)
    y = pt.exp(x)
    outputs = [y[:k].sum(), y[k:].prod(), (y[1:k] ** 2).sum(), y[:k].shape[0], pt.set_subtensor(x[:k], 7.0)]
    outputs += [pt.inc_subtensor(y[k:], y[k:] * 2), pt.grad((y[:k] ** 2).sum(), y), pt.all(y[k:] > 0)]
    pytensor.function([x], outputs, mode=FULLGRAPH)
    compare([x], outputs, [value])


def test_reduced_slices_of_columns():
    k = x.sum().astype("int64")
    outputs = [m[:, :k].sum(1), m[1, k:].max(), pt.exp(m[:k]).sum(0), (m[:k] @ m[0]).sum()]
    pytensor.function([x, m], outputs, mode=FULLGRAPH)
    compare([x, m], outputs, [np.array([1.0, 1.0]), X[0]])


def test_extremum_of_an_empty_slice():
    k, value = computed(0)
    compare_error([x], x[:k].max(), [value], match="zero-size array to reduction operation maximum")


def test_value_of_a_length_known_at_run_time():
    k, value = computed(2)
    y = pt.dvector("y")
    output = pt.set_subtensor(x[:k], y)
    pytensor.function([x, y], output, mode=FULLGRAPH)
    compare([x, y], output, [value, np.array([5.0, 6.0])])
    compare([x, y], output, [value, np.array([5.0])])
    compare_error([x, y], output, [value, np.ones(3)], match="could not be broadcast")


def test_slice_returned_sends_its_length_only():
    k, value = computed(2)
    k.name = "k"
    with pytest.warns(pjl.GraphBreakWarning, match="JX002.*DynamicSlice"):
        f = pytensor.function([x], pt.exp(x[:k]), mode="JAXPR")
    np.testing.assert_array_equal(f(value), np.exp(value[:2]))
    assert len(f.vm.runner.plan.regions) == 2 == len(f.vm.runner.plan.batches)


def test_multi_axis_slices_known_at_run_time():
    k = m.sum().astype("int64")
    outputs = [m[:k, :k], pt.set_subtensor(m[:k, :k], 1.0), pt.inc_subtensor(m[:k, ::-1], 1.0)]
    with pytest.warns(pjl.GraphBreakWarning):
        compare([m], outputs, [np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])])


# -- the Ops themselves, evaluated before the program is built ---------------------------------------------------------


def test_perform():
    start, length = SliceBounds()(i, j, pt.constant(4))
    outputs = [start, length, SliceLanes()(start, length, pt.constant(4)), DynamicSlice((0,))(x, start, length)]
    outputs += [DynamicUpdate((0,), True)(x, x[0], start, length), DynamicUpdate((0,), False)(x, x[0], start, length)]
    for bounds in [(1, 3), (-2, 9), (3, 1)]:
        compare([x, i, j], outputs, [np.arange(4.0) + 1, *bounds])
