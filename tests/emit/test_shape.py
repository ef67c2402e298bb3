"""Shapes and reshapes, against PyTensor."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import compare, compare_error, compare_grad, tensor_like

X = np.arange(24.0).reshape(2, 3, 4)
EMPTY = np.empty((0, 3))


@pytest.mark.parametrize("value", [np.float64(1), X, EMPTY], ids=["0-d", "3-d", "empty"])
def test_shape(value):
    x = tensor_like(value, "x")
    compare([x], [x.shape, x.size, *(x.shape[i] for i in range(x.ndim))], [value])


def test_specify_shape():
    x, n = pt.matrix("x"), pt.lscalar("n")
    compare([x, n], [pt.specify_shape(x, (2, None)) * 2, pt.specify_shape(x, (None, n)) + 1], [X[0, :2], 4])


@pytest.mark.parametrize("shape", [(3, 4), (2, 5)], ids=["rows", "columns"])
def test_specify_shape_is_checked(shape):
    x = pt.matrix("x")
    compare_error([x], pt.specify_shape(x, shape), [X[0, :2]], match="SpecifyShape")


@pytest.mark.parametrize(
    "value, shape",
    [(X, (6, 4)), (X, (-1,)), (X, (4, -1, 2)), (X, (2, 1, 12)), (X[:1, :1, :1], ()), (EMPTY, (3, 0)), (EMPTY, (-1, 3))],
    ids=str,
)
def test_reshape(value, shape):
    x = tensor_like(value, "x")
    compare([x], x.reshape(shape), [value])


@pytest.mark.parametrize("shape", [(5, 5), (-1, 7), (-1, -1)], ids=str)
def test_reshape_to_another_size(shape):
    x, s = pt.tensor3("x"), pt.lvector("s")
    compare_error([x, s], x.reshape(s, ndim=2), [X, np.array(shape)])


def test_reshape_of_an_empty_array_with_an_unknown_length():
    x, s = pt.matrix("x"), pt.lvector("s")
    compare_error([x, s], x.reshape(s, ndim=2), [EMPTY, np.array([0, -1])])


def test_reshape_to_a_shape_of_the_wrong_length():
    x, s = pt.tensor3("x"), pt.lvector("s")
    compare_error([x, s], x.reshape(s, ndim=2), [X, np.array([24])])


def test_reshape_by_lengths_of_another_input():
    x, n = pt.tensor3("x"), pt.lscalar("n")
    f = pytensor.function([x, n], x.reshape((n, -1)), mode="JAXPR")
    for rows in (1, 2, 6, 24):
        np.testing.assert_array_equal(f(X, rows), X.reshape(rows, -1))
    with pytest.raises(ValueError, match="reshape"):
        f(X, 5)


def test_flatten():
    x = pt.tensor3("x")
    compare([x], [x.flatten(), x.flatten(2), x.ravel()], [X])


@pytest.mark.parametrize("axes", [(0, 1), (1, 2), (0, 1, 2)], ids=str)
def test_join_dims(axes):
    x = pt.tensor3("x")
    compare([x], pt.join_dims(x, start_axis=axes[0], n_axes=len(axes)), [X])


@pytest.mark.parametrize("shape", [(2, 2), (4, 1), (4,)], ids=str)
def test_split_dims(shape):
    x = pt.tensor3("x")
    compare([x], pt.split_dims(x, shape=shape, axis=2), [X])


def test_split_dims_to_another_size():
    x, s = pt.tensor3("x"), pt.lvector("s")
    output = pt.split_dims(x, shape=pt.specify_shape(s, (2,)), axis=2)
    compare_error([x, s], output, [X, np.array([3, 2])])


def test_gradients():
    x = pt.tensor3("x")
    outputs = [x.reshape((4, -1)), pt.join_dims(x, start_axis=0, n_axes=2), pt.split_dims(x, shape=(2, 2), axis=2)]
    outputs.append(pt.specify_shape(x, (2, 3, 4)) ** 2)
    compare_grad([x], pt.concatenate([pt.sin(y).ravel() for y in outputs]), [X / 10])
