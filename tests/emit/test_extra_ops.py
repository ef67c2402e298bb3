"""Diagonals, flat positions, choices, permutations, unique elements and searches, against PyTensor."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import compare, compare_error, compare_grad, tensor_like
from pytensor.tensor.basic import choose, permute_row_elements
from pytensor.tensor.extra_ops import (
    Unique,
    bartlett,
    fill_diagonal,
    fill_diagonal_offset,
    ravel_multi_index,
    unravel_index,
)

import pytensor_jaxpr_linker as pjl

X = np.arange(12.0).reshape(3, 4)
DTYPES = ["float64", "float32", "int8", "bool", "complex128"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 4), (5, 3), (3, 3, 3), (0, 2)], ids=str)
def test_fill_diagonal(dtype, shape):
    value = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    x = tensor_like(value, "x")
    compare([x], fill_diagonal(x, np.asarray(1, dtype)), [value])


def test_fill_diagonal_of_unequal_lengths():
    x = pt.tensor3("x")
    compare_error([x], fill_diagonal(x, 1.0), [np.ones((2, 2, 3))], match="equal length")


@pytest.mark.parametrize("shape", [(3, 4), (5, 3)], ids=str)
def test_fill_diagonal_offset(shape):
    value = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    x, k = pt.matrix("x"), pt.iscalar("k")
    f = pytensor.function([x, k], fill_diagonal_offset(x, -1.0, k), mode="JAXPR")
    reference = pytensor.function([x, k], fill_diagonal_offset(x, -1.0, k), mode="FAST_COMPILE")
    for offset in range(1 - shape[0], shape[1]):
        np.testing.assert_array_equal(f(value, offset), reference(value, offset))
    (region,) = pjl.explain(f).regions
    assert len(region.specializations) == 1


@pytest.mark.parametrize("offset", [5, 7, 100, -3, -7])
def test_an_offset_outside_the_matrix_changes_nothing(offset):
    """PyTensor's Python code writes one element for 7: docs/notes/upstream/pytensor-fill-diagonal.md."""
    x, k = pt.dmatrix("x"), pt.lscalar("k")
    f = pytensor.function([x, k], fill_diagonal_offset(x, 1.0, k), mode="JAXPR")
    assert not f(np.zeros((3, 5)), offset).any()


def test_gradients_of_filled_diagonals():
    x, value = pt.matrix("x"), pt.scalar("value")
    compare_grad([x, value], fill_diagonal(x, value), [X, 2.5])
    compare_grad([x, value], fill_diagonal_offset(x, value, 1), [X, 2.5])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,)], ids=str)
def test_unravel_index(order, shape):
    flat = np.resize(np.array([0, 7, 23, 11, 5], "int32"), shape)
    index = tensor_like(flat, "index")
    compare([index], unravel_index(index, (2, 3, 4), order=order), [flat])
    compare([index], unravel_index(index, (24,), order=order), [flat])


@pytest.mark.parametrize("bad", [24, -1])
def test_unravel_index_out_of_bounds(bad):
    index = pt.lvector("index")
    compare_error([index], unravel_index(index, (2, 3, 4))[0], [np.array([1, bad])], match="out of bounds")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("mode", ["raise", "wrap", "clip"])
def test_ravel_multi_index(order, mode):
    rows, columns = np.array([0, 1, 1]), np.array([2, 0, 1], "int16")
    if mode != "raise":
        rows, columns = np.array([-5, 1, 9]), np.array([2, -7, 40], "int16")
    i, j = tensor_like(rows, "i"), tensor_like(columns, "j")
    compare([i, j], ravel_multi_index((i, j), (2, 3), mode=mode, order=order), [rows, columns])


@pytest.mark.parametrize("bad", [3, -1])
def test_ravel_multi_index_out_of_bounds(bad):
    i, j = pt.lvectors("i", "j")
    flat = ravel_multi_index((i, j), (2, 3))
    compare_error([i, j], flat, [np.array([0, 1]), np.array([1, bad])], match="invalid entry in coordinates array")


@pytest.mark.parametrize("mode", ["raise", "wrap", "clip"])
@pytest.mark.parametrize("tail", [(), (4,), (3, 1), (3, 4)], ids=str)
def test_choose(mode, tail):
    choices = np.arange(float(3 * np.prod(tail, dtype=int))).reshape((3, *tail))
    which = np.array([[0, 2, 1, 0], [1, 1, 0, 2], [2, 0, 1, 1]])
    which = which if mode == "raise" else which * 5 - 4
    a, c = tensor_like(which, "a"), tensor_like(choices, "c", static=True)
    compare([a, c], choose(a, c, mode=mode), [which, choices])


def test_choose_what_is_not_there():
    a, c = pt.lvector("a"), pt.matrix("c")
    compare_error([a, c], choose(a, c), [np.array([0, 3]), np.ones((3, 2))], match="invalid entry in choice array")


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize(
    "x_shape, order",
    [
        ((3, 4), [2, 0, 3, 1]),
        ((3, 4), [[2, 0, 3, 1], [0, 1, 2, 3], [3, 2, 1, 0]]),
        ((4,), [[2, 0, 3, 1], [-1, 0, 2, 1]]),
        ((0, 4), [2, 0, 3, 1]),
    ],
    ids=["one for all rows", "one a row", "many of a vector", "no rows"],
)
def test_permute_row_elements(inverse, x_shape, order):
    value, order = np.arange(float(np.prod(x_shape))).reshape(x_shape), np.array(order)
    x, y = tensor_like(value, "x"), tensor_like(order, "y")
    compare([x, y], permute_row_elements(x, y, inverse), [value, order])


def test_permutations_that_do_not_fit():
    x, y = pt.matrix("x"), pt.lmatrix("y")
    order = np.array([[2, 0, 3, 1], [0, 1, 2, 3]])
    compare_error([x, y], permute_row_elements(x, y), [X, order], match="Dimension mismatch: 3, 2")
    compare_error([x, y], permute_row_elements(x, y), [X[:2], order + 1], match="out of bounds")


def test_gradient_of_permuted_rows():
    x, y = pt.matrix("x"), pt.lvector("y")
    compare_grad([x, y], permute_row_elements(x, y), [X, np.array([2, 0, 3, 1])])


@pytest.mark.parametrize("length", [0, 1, 2, 7])
def test_bartlett(length):
    n = pt.lscalar("n")
    compare([n], bartlett(n), [length])


@pytest.mark.parametrize("value", [[2.0, np.nan, 1.0, 2.0, np.nan, -np.inf], [], [3.0]], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_unique(value, dtype):
    value = np.array(value, dtype)
    x = tensor_like(value, "x")
    with pytest.warns(pjl.GraphBreakWarning):
        compare([x], Unique(True, True, True)(x), [value])


@pytest.mark.parametrize("value", [[[3, 1], [1, 2]], [[True, False], [True, True]]], ids=["integers", "booleans"])
def test_unique_of_matrices(value):
    value = np.array(value)
    x = tensor_like(value, "x")
    with pytest.warns(pjl.GraphBreakWarning):
        compare([x], Unique(True, True, True)(x), [value])


def test_what_is_computed_of_unique_elements_needs_no_break():
    x = pt.vector("x")
    f = pytensor.function([x], pt.exp(Unique()(x)).sum(), mode="JAXPR")
    for value in ([1.0, 2.0, 1.0], [1.0, 1.0, 1.0], [3.0, 2.0, 1.0]):
        np.testing.assert_allclose(f(value), np.exp(np.unique(value)).sum())
    (region,) = pjl.explain(f).regions
    assert len(region.specializations) == 1


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("size", [0, 1, 3, 1000], ids=str)
def test_searchsorted_of_many(side, size):
    rng = np.random.default_rng(3)
    ordered = np.sort(rng.integers(0, 300, size).astype(float))
    values = np.concatenate([rng.integers(-5, 310, 997), [np.nan, np.inf, -np.inf]]).reshape(10, 100)
    x, v = pt.vector("x"), pt.matrix("v")
    compare([x, v], pt.searchsorted(x, v, side=side), [ordered, values])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_repeat_by_a_vector(axis, dtype):
    x, counts = pt.matrix("x"), pt.vector("counts", dtype=dtype)
    f = pytensor.function([x, counts], pt.repeat(x, counts, axis=axis), mode="JAXPR", on_unused_input="ignore")
    for each in ([2, 0, 1], [0, 3, 0], [1, 1, 1], [0, 0, 0], [2]):
        value = X[:, :3]
        np.testing.assert_array_equal(f(value, np.array(each, dtype)), np.repeat(value, each, axis))


@pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.GraphBreakWarning")
def test_repeat_by_computed_counts():
    x, v = pt.vector("x"), pt.lvector("v")
    compare([x, v], pt.repeat(x, v + (x > 1), axis=0), [X[0], np.array([2, 0, 1, 3])])


@pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.GraphBreakWarning")
@pytest.mark.parametrize("counts", [[1, 2], [-1, 2, 1, 0]], ids=["too few", "negative"])
def test_repeat_by_bad_counts(counts):
    x, v = pt.vector("x"), pt.lvector("v")
    compare_error([x, v], pt.repeat(x, v, axis=0), [X[0], np.array(counts)])


@pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.GraphBreakWarning")
def test_gradient_of_repeated_elements():
    x, v = pt.vector("x"), pt.lvector("v")
    cost = (pt.repeat(x, v, axis=0) ** 3).sum()
    compare([x, v], pytensor.grad(cost, x), [X[0], np.array([2, 0, 1, 3])])


@pytest.mark.parametrize("length", [0, 1, 3, 8, 9])
@pytest.mark.parametrize("function", [pt.cumsum, pt.cumprod])
def test_cumulative_ops_of_few_elements(function, length):
    rng = np.random.default_rng(length)
    for dtype in ("float64", "float32", "int64", "complex128"):
        values = (2 * rng.standard_normal((2, length, 3))).astype(dtype)
        x = tensor_like(values, "x")
        compare([x], [function(x, axis=1), function(x[:, :, 0], axis=1)], [values], rtol=1e-5)
    x = pt.dmatrix("x")
    values = rng.standard_normal((2, length))
    compare_grad([x], function(x, axis=1), [values])
    closed = pjl.make_jaxpr(pytensor.function([x], function(x, axis=1), mode="JAXPR"), values)
    assert any(eqn.primitive.name.startswith("cum") for eqn in closed.eqns) == (length not in (1, 3, 8))


def test_cumulative_ops_of_few_elements_are_not_finite_where_numpys_are():
    x = pt.dvector("x")
    with np.errstate(invalid="ignore"):
        compare([x], [pt.cumsum(x), pt.cumprod(x)], [np.array([1.0, np.inf, -np.inf, np.nan, 2])])
