"""Indexing: reading, setting and incrementing, by slices, integers and index arrays."""

from __future__ import annotations

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import compare, compare_error, compare_grad, tensor_like
from hypothesis import given, settings
from hypothesis import strategies as st

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base.options import for_platforms

S = np.s_
X = np.arange(60.0).reshape(3, 4, 5) + 0.5


def variables(*values):
    """Return one input a value, named a, b, ..."""
    return [tensor_like(v, "abcdef"[i]) for i, v in enumerate(values)]


def reads_and_writes(x, index, y):
    """Return what one index reads, sets and increments."""
    part = x[index]
    return [part, pt.set_subtensor(part, y), pt.inc_subtensor(part, y)]


BASIC = {
    "integer": S[1],
    "negative": S[-1, :, -2],
    "every_axis": S[0, 1, 2],
    "slice": S[1:, :2],
    "step": S[::2, 1::3],
    "backwards": S[::-1, 3:0:-2],
    "one_backwards": S[2:1:-1, :, ::-7],
    "clipped": S[1:10, -9:2],
    "empty": S[3:1, 10:],
    "mixed": S[::-2, -2, 1:],
    "ellipsis": S[..., 1],
    "newaxis": S[None, 1, :, None],
}


@pytest.mark.parametrize("index", BASIC.values(), ids=BASIC)
def test_constant_slices_and_integers(index):
    x = pt.dtensor3("x")
    y = np.cos(np.arange(X[index].size)).reshape(X[index].shape)
    compare([x], [*reads_and_writes(x, index, y), pt.inc_subtensor(x[index], 2.0)], [X])


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint16", "bool", "complex64"])
def test_dtypes(dtype):
    value = (np.arange(12).reshape(3, 4) % 3).astype(dtype)
    x, i, v = tensor_like(value, "x"), pt.lscalar("i"), pt.lvector("v")
    y = np.ones(4, dtype)
    outputs = [out for index in (S[1], S[::2], i, v) for out in reads_and_writes(x, index, y)]
    compare([x, i, v], outputs, [value, -1, np.array([0, 2, 0])])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
def test_index_dtypes(dtype):
    long = np.arange(300.0)
    x, i, v = pt.dvector("x"), pt.scalar("i", dtype=dtype), pt.vector("v", dtype=dtype)
    compare([x, i, v], [x[i], x[v], pt.inc_subtensor(x[v], 1.0)], [long, np.array(2, dtype), np.array([3, 100], dtype)])


def test_integers_known_at_run_time():
    x, i, j = pt.dtensor3("x"), pt.lscalar("i"), pt.lscalar("j")
    indices = [S[i], S[:, j], S[i, :, j], S[::-1, i, 1::2], S[i, j, i], S[j, 1:3, -1]]
    outputs = [out for index in indices for out in reads_and_writes(x, index, 2.0)]
    f = pytensor.function([x, i, j], outputs, mode="JAXPR")
    reference = pytensor.function([x, i, j], outputs, mode="FAST_COMPILE")
    for values in [(0, 1), (2, -3), (-1, 0)]:
        for got, want in zip(f(X, *values), reference(X, *values), strict=True):
            np.testing.assert_array_equal(got, want)


def test_slice_bounds_known_from_inputs():
    x, i, j = pt.dmatrix("x"), pt.lscalar("i"), pt.lscalar("j")
    outputs = [x[i:j], x[:, i : x.shape[1] - 1], x[i], pt.set_subtensor(x[i::j], 1.0)]
    compare([x, i, j], outputs, [X[0], 1, 3])


ADVANCED = {
    "rows": (S[0], [[0, 2, -1, 2]]),
    "matrix_of_rows": (S[0], [[[0, 1], [2, 2]]]),
    "inner_axis": (S[:, 0], [[3, 3, 1]]),
    "last_axis": (S[..., 0], [[0, -5]]),
    "two_in_place": (S[:, 0, 1], [[0, 1], [4, 4]]),
    "two_in_front": (S[0, :, 1], [[0, 1], [4, -4]]),
    "broadcast": (S[0, 1], [[[0], [2]], [1, 2, 3]]),
    "with_slices": (S[0, ::-1, 1:3], [[0, 0, 1]]),
    "flipped_in_front": (S[0, ::-2, 1], [[0, 0, 1], [2, 2, 3]]),
    "empty": (S[0], [np.zeros(0, int)]),
    "empty_matrix": (S[:, 0], [np.zeros((2, 0), int)]),
    "every_axis": (S[0, 1, 2], [[0, 0], [1, 1], [2, 2]]),
}


def substitute(index, arrays):
    """Return `index` with integer k in the place of ``arrays[k]``."""
    index = index if isinstance(index, tuple) else (index,)
    return tuple(arrays[k] if isinstance(k, int) else k for k in index)


@pytest.mark.parametrize("known", [False, True], ids=["run_time", "constant"])
@pytest.mark.parametrize(("index", "arrays"), ADVANCED.values(), ids=ADVANCED)
def test_index_arrays(index, arrays, known):
    x, arrays = pt.dtensor3("x"), [np.asarray(a) for a in arrays]
    inputs = [] if known else variables(*arrays)
    symbolic = substitute(index, [pt.constant(a) for a in arrays] if known else inputs)
    shape = X[substitute(index, arrays)].shape
    y = np.cos(np.arange(np.prod(shape, dtype=int))).reshape(shape)
    outputs = reads_and_writes(x, symbolic, y)
    outputs += [pt.inc_subtensor(x[symbolic], y, ignore_duplicates=True), pt.inc_subtensor(x[symbolic], 2.0)]
    compare([x, *inputs], outputs, [X, *([] if known else arrays)])


def test_integer_beside_index_array():
    x, v, i = pt.dtensor3("x"), pt.lvector("v"), pt.lscalar("i")
    outputs = [*reads_and_writes(x, S[v, :, i], 1.0), *reads_and_writes(x, S[:, v, 1], 1.0)]
    compare([x, v, i], outputs, [X, np.array([2, 2, 0]), -2])


def test_constant_mask():
    x = pt.dtensor3("x")
    mask = np.arange(12).reshape(3, 4) % 2 == 0
    compare([x], [x[mask], x[mask[:, 0]], pt.set_subtensor(x[mask], 0.0), pt.inc_subtensor(x[:, mask[0]], 1.0)], [X])


def test_last_duplicate_is_set():
    x, v, y = pt.dvector("x"), pt.lvector("v"), pt.dvector("y")
    compare([x, v, y], pt.set_subtensor(x[v], y), [np.zeros(3), np.array([1, 1, 2, 1]), np.arange(4.0)])


@pytest.mark.parametrize("known", [False, True], ids=["run_time", "constant"])
@pytest.mark.parametrize(("index", "arrays"), ADVANCED.values(), ids=ADVANCED)
def test_the_last_duplicate_is_set_where_scatters_have_no_order(index, arrays, known):
    """On GPUs: a scatter gets each position once there, so any order of its updates has one result."""
    x, y, arrays = pt.dtensor3("x"), pt.dvector("y"), [np.asarray(a) for a in arrays]
    inputs = [] if known else variables(*arrays)
    part = x[substitute(index, [pt.constant(a) for a in arrays] if known else inputs)]
    given = np.cos(np.arange(X[substitute(index, arrays)].size))
    output = pt.set_subtensor(part, y.reshape(part.shape))
    values = [X, given, *([] if known else arrays)]
    want = pytensor.function([x, y, *inputs], output, mode="FAST_COMPILE")(*values)
    fn = pjl.as_jax_function([x, y, *inputs], output)
    with for_platforms(["cuda"]), jax.enable_x64(True):
        np.testing.assert_array_equal(fn(*values), want)
        pairs = [np.stack([v, v[::-1]]) for v in values]
        np.testing.assert_array_equal(jax.vmap(fn)(*pairs), [fn(*(pair[i] for pair in pairs)) for i in (0, 1)])
        closed = pjl.make_jaxpr(fn, *values)
        written = [eqn.invars[1] for eqn in closed.eqns if eqn.primitive.name == "scatter"]
        found = jax.core.eval_jaxpr(closed.jaxpr.replace(outvars=written), closed.consts, *values)
    for vectors in found:
        kept = [v for v in np.reshape(vectors, (-1, vectors.shape[-1])).tolist() if min(v) >= 0]
        assert len(np.unique(kept, axis=0)) == len(kept) > 0


def test_zero_length_axis():
    x, v = pt.dmatrix("x"), pt.lvector("v")
    values = [np.zeros((0, 3)), np.zeros(0, int)]
    compare([x, v], [x[v], x[1:], x[::-1], pt.inc_subtensor(x[v], 1.0), x[:, 1], x[:, [0, 1]]], values)


NONE, FAR = np.zeros(0, int), np.array([0, 9])
#: What selects nothing of an array of shape (3, 4), and whether NumPy raises for what stands beside it.
SELECT_NOTHING = {
    "array_number": ([NONE, np.array(9)], True),
    "number_array": ([np.array(-4), NONE], True),
    "column_number": ([NONE[:, None], np.array(-5)], True),
    "mask_number": ([np.zeros(3, bool), np.array(4)], True),
    "number_mask": ([np.array(3), np.zeros(4, bool)], True),
    "slice_number": ([S[1:1], np.array(9)], True),
    "slice_array": ([S[1:1], FAR], True),
    "array_wrong_mask": ([NONE, np.zeros(2, bool)], True),
    "array_number_inside": ([NONE, np.array(-4)], False),
    "column_array": ([NONE[:, None], FAR], False),
    "mask_array": ([np.zeros(3, bool), FAR[1:]], False),
    "array_empty_mask": ([NONE, np.zeros(0, bool)], False),
    "empty_mask_array": ([np.zeros(0, bool), FAR[1:]], False),
    "slice_empty_mask": ([S[1:1], np.zeros(0, bool)], False),
    "empty_mask": ([np.zeros(0, bool)], False),
    "empty_matrix_mask": ([np.zeros((3, 0), bool)], False),
}


@pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.GraphBreakWarning")
@pytest.mark.parametrize("known", [False, True], ids=["run_time", "constant"])
@pytest.mark.parametrize(("index", "raises"), SELECT_NOTHING.values(), ids=SELECT_NOTHING)
def test_beside_what_selects_nothing(index, raises, known):
    """NumPy checks numbers, slices and masks, but neither arrays nor masks of length 0."""
    x, arrays = pt.dmatrix("x"), [k for k in index if not isinstance(k, slice)]
    inputs = [] if known else variables(*arrays)
    rest = iter([pt.constant(a) for a in arrays] if known else inputs)
    outputs = reads_and_writes(x, tuple(k if isinstance(k, slice) else next(rest) for k in index), 2.0)
    values = [X[:, :, 0], *([] if known else arrays)]
    if not raises:
        compare([x, *inputs], [*outputs, pytensor.grad((outputs[2] ** 2).sum(), x)], values)
    for output in outputs if raises else ():
        compare_error([x, *inputs], output, values, match="out of bounds|boolean index did not match")


@pytest.mark.parametrize("write", [None, "set", "inc"], ids=["read", "set", "inc"])
@pytest.mark.parametrize("kind", ["constant", "scalar", "inner", "array", "two_arrays", "empty_axis"])
def test_out_of_range(kind, write):
    x, i, v = pt.dmatrix("x"), pt.lscalar("i"), pt.lvector("v")
    index = {
        "constant": S[:, 7],
        "scalar": S[i],
        "inner": S[::2, i],
        "array": S[v],
        "two_arrays": S[v, v],
        "empty_axis": S[i],
    }[kind]
    value = np.zeros((0, 4)) if kind == "empty_axis" else X[0, :3, :4]
    values = [value, 4 if kind != "scalar" else -4, np.array([0, 1, -4])]
    part = x[index]
    output = part if write is None else (pt.set_subtensor if write == "set" else pt.inc_subtensor)(part, 1.0)
    compare_error([x, i, v], output, values, match="out of bounds for axis")


def test_index_arrays_that_do_not_broadcast():
    x, v, w = pt.dmatrix("x"), pt.lvector("v"), pt.lvector("w")
    values = [np.zeros((3, 3)), np.array([0, 1]), np.array([0, 1, 2])]
    compare_error([x, v, w], x[v, w], values, match=r"indexing arrays could not be broadcast .* shapes \(2,\) \(3,\) ")


@pytest.mark.parametrize("advanced", [False, True], ids=["slice", "array"])
@pytest.mark.parametrize("write", [pt.set_subtensor, pt.inc_subtensor], ids=["set", "inc"])
def test_value_that_does_not_broadcast(write, advanced):
    x, v, y = pt.dmatrix("x"), pt.lvector("v"), pt.dmatrix("y")
    index = S[:, v] if advanced else S[:2]
    compare_error(
        [x, v, y], write(x[index], y), [np.zeros((3, 4)), np.array([0, 1]), np.zeros((5, 4))], match="broadcast"
    )


def test_value_broadcast_that_was_not_declared():
    x, v, y = pt.dmatrix("x"), pt.lvector("v"), pt.dmatrix("y")
    values = [np.zeros((3, 4)), np.array([0, 1]), np.zeros((1, 4))]
    compare_error([x, v, y], pt.inc_subtensor(x[v], y), values, match="Runtime broadcasting not allowed")


GRADIENTS = {
    "slice": lambda x, y, i, v: x[::2, ::-1],
    "integer": lambda x, y, i, v: x[i, 1:],
    "array": lambda x, y, i, v: x[v],
    "two_arrays": lambda x, y, i, v: x[v, v],
    "set_slice": lambda x, y, i, v: x[1:, ::2].set(y[:2, :2]),
    "set_integer": lambda x, y, i, v: x[i].set(y[1]),
    "set_array": lambda x, y, i, v: x[[2, 0]].set(y[:2]),
    "inc_slice": lambda x, y, i, v: x[::-2].inc(y[:2]),
    "inc_array": lambda x, y, i, v: x[:, v].inc(y[:, :3]),
}


@pytest.mark.parametrize("build", GRADIENTS.values(), ids=GRADIENTS)
def test_gradient(build):
    x, y, i, v = pt.dmatrix("x"), pt.dmatrix("y"), pt.lscalar("i"), pt.lvector("v")
    used = {"i": i, "v": v, "y": y}
    output = build(x, y, i, v)
    inputs = [x, *(var for var in used.values() if var in pytensor.graph.traversal.ancestors([output]))]
    values = {x: X[0, :3, :4], y: X[1, :3, :4], i: -2, v: np.array([2, 0, 2])}
    compare_grad(inputs, output**2, [np.asarray(values[var]) for var in inputs])


def test_unchecked_reads_are_filled():
    x, i, v = pt.dvector("x"), pt.lscalar("i"), pt.lvector("v")
    outputs = [x[i], x[v], pt.set_subtensor(x[i], 1.0), pt.inc_subtensor(x[v], 1.0)]
    with jax.enable_x64(True):
        fn = pjl.as_jax_function([x, i, v], outputs)
        results = [np.asarray(r) for r in fn(np.arange(3.0), np.array(3), np.array([-1, -4]))]
    assert np.isnan(results[0])
    np.testing.assert_array_equal(results[1], [2.0, np.nan])
    np.testing.assert_array_equal(results[2], [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(results[3], [0.0, 1.0, 3.0])


@st.composite
def shapes_and_indices(draw):
    """Draw the shape of an array and an index of slices, integers and index arrays that is valid for it."""
    shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    bounds = st.none() | st.integers(-5, 5)
    common = draw(st.sampled_from([(), (2,), (0,), (2, 3)]))
    index = []
    for n in shape:
        kind = draw(st.sampled_from(["slice", "integer", "array"] if n else ["slice"]))
        if kind == "slice":
            index.append(slice(draw(bounds), draw(bounds), draw(st.sampled_from([None, 1, 2, -1, -2]))))
        else:
            size = common if kind == "array" else ()
            numbers = draw(st.lists(st.integers(-n, n - 1), min_size=int(np.prod(size)), max_size=int(np.prod(size))))
            index.append(np.array(numbers, "int64").reshape(size))
    return tuple(shape), tuple(index)


@settings(max_examples=25, deadline=None)
@given(shapes_and_indices())
def test_any_index(drawn):
    shape, index = drawn
    value = np.arange(np.prod(shape), dtype="float64").reshape(shape)
    x = tensor_like(value, "x")
    arrays = [k for k in index if not isinstance(k, slice)]
    inputs = variables(*arrays)
    rest = iter(inputs)
    symbolic = tuple(k if isinstance(k, slice) else next(rest) for k in index)
    compare([x, *inputs], reads_and_writes(x, symbolic, 2.0), [value, *arrays])


@pytest.mark.parametrize("dtype", ["float32", "float64", "bool", "int8"])
@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (4, 2), (0, 2), (1, 1)])
def test_diagonal_is_written_without_scatter(shape, dtype):
    value = np.ones(shape, dtype)
    x, place = tensor_like(value, "x", static=True), np.arange(min(shape))
    y = tensor_like(np.ones(len(place), dtype), "y", static=True)
    outputs = [pt.set_subtensor(x[place, place], y), pt.inc_subtensor(x[place, place], y)]
    y_value = (np.arange(len(place)) % 3).astype(dtype)
    compare([x, y], outputs, [value, y_value])
    f = pytensor.function([x, y], outputs, mode="JAXPR")
    with jax.enable_x64(True):
        assert "scatter" not in str(pjl.make_jaxpr(f, value, y_value))


def test_diagonals_of_stacks():
    x, y = pt.dtensor4("x"), pt.dtensor3("y")
    place, value = np.arange(3), np.arange(72.0).reshape(2, 3, 3, 4)
    middle, last = pt.set_subtensor(x[:, place, place], 2.0), pt.inc_subtensor(x[:, ::-1, place, place], y)
    compare([x, y], [middle, last, pt.diag(y[0, 0])], [value, np.arange(18.0).reshape(2, 3, 3)])
    compare([x], pt.set_subtensor(x[0, place, place], x[1, 0]), [value])
    compare_grad([x, y], last.sum() + (middle * x).sum(), [value, np.arange(18.0).reshape(2, 3, 3)])


@pytest.mark.parametrize("places", [([1, 0], [1, 0]), ([0, 1], [1, 2]), ([0, 0], [0, 0])])
def test_points_that_are_no_whole_diagonal(places):
    x = pt.dmatrix("x")
    compare([x], [pt.set_subtensor(x[places], 5.0), pt.inc_subtensor(x[places], [1.0, 2.0])], [np.ones((3, 3))])


def test_reads_and_writes_at_known_points_share_one_constant():
    x, points = pt.dvector("x"), np.array([3, 0, -1, 0])
    outputs = [x[points], pt.inc_subtensor(pt.zeros_like(x)[points], x[points])]
    compare([x], outputs, [np.arange(4.0)])
    f = pytensor.function([x], outputs, mode="JAXPR")
    with jax.enable_x64(True):
        closed = pjl.make_jaxpr(f, np.arange(4.0))
    assert [np.ravel(c).tolist() for c in closed.consts if c.dtype.kind == "i"] == [[3, 0, 3, 0]]
