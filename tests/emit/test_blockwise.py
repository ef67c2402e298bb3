"""Batches of Ops whose rules take no batch axes."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import FULLGRAPH, compare, compare_error, compare_grad
from pytensor.compile.builders import OpFromGraph
from pytensor.conditional import ifelse
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.extra_ops import Repeat
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor

import pytensor_jaxpr_linker as pjl

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

RNG = np.random.default_rng(5)
X = RNG.normal(size=(2, 4, 3))
ROWS = np.array([[[0, 3], [1, 1]], [[2, 0], [-1, 2]], [[3, 3], [0, 1]]])
take = Blockwise(AdvancedSubtensor((0,)), signature="(i,j),(k)->(k,j)")
put = Blockwise(AdvancedIncSubtensor((0,)), signature="(i,j),(k,j),(k)->(i,j)")


def scaled_head(dtype, length):
    """Return the Op ``(x, scale) -> x[:length] * scale`` in a batch."""
    x, scale = pt.tensor("x", dtype=dtype, shape=(None,)), pt.tensor("s", dtype=dtype, shape=())
    return Blockwise(OpFromGraph([x, scale], [x[:length] * scale, x.sum()]), signature="(i),()->(j),()")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values(dtype):
    x = pt.tensor("x", dtype=dtype, shape=(2, None, 3))
    rows = pt.tensor("rows", dtype="int64", shape=(3, 2, None))
    y = pt.tensor("y", dtype=dtype, shape=(3, 2, 2, 3))
    outputs = [
        take(x[None], rows),  # one batch axis is in both
        take(x[0], rows),  # nothing of `x` is repeated
        take(x[None], rows[0, 0]),
        take(x[None, :, :, :0], rows),
        put(x[None], y, rows),
        *scaled_head(dtype, 2)(x, x[..., 0, :1]),
        Blockwise(Repeat(axis=1), signature="(i,k),(k)->(i,l)")(x, np.array([2, 0, 1])),
    ]
    values = [X.astype(dtype), ROWS, RNG.normal(size=(3, 2, 2, 3)).astype(dtype)]
    results = compare([x, rows, y], outputs, values, rtol=1e-5 if dtype == "float32" else 1e-10)
    assert results[0].shape == (3, 2, 2, 3)
    pytensor.function([x, rows, y], outputs, mode=FULLGRAPH)


def test_a_batched_rule_of_an_inner_graph():
    x = pt.tensor("x", dtype="float64", shape=(2, 2, 2))
    value = 0.3 * X[:, :2, :2]
    compare([x], pt.linalg.solve_discrete_lyapunov(x, x, method="direct"), [value], rtol=1e-9)


def test_a_static_operand_of_no_elements():
    x = pt.tensor("x", dtype="float64", shape=(2, 1))
    no_lengths = pt.zeros((2, 0), dtype="int64")
    reshaped = Blockwise(Reshape(0), signature="(i),(n)->()")(x, no_lengths)
    np.testing.assert_array_equal(pytensor.function([x], reshaped, mode=FULLGRAPH)(X[:, :1, 0]), X[:, 0, 0])


def test_no_batch():
    x = pt.tensor("x", dtype="float64", shape=(None, 4, 3))
    rows = pt.tensor("rows", dtype="int64", shape=(None, 2))
    f = pytensor.function([x, rows], take(x, rows), mode=FULLGRAPH)
    assert f(X[:0], ROWS[0, :0]).shape == (0, 2, 3)  # NumPy's vectorize refuses that
    np.testing.assert_array_equal(f(X, ROWS[0]), np.take_along_axis(X, ROWS[0][..., None], 1))


def test_gradient():
    x = pt.tensor("x", dtype="float64", shape=(2, 4, 3))
    compare_grad([x], take(x, pt.constant(ROWS[0])), [X])


def head_by_loop_and_branch():
    """Return ``(v, n) -> v[:n] * 2 ** 3 (if its sum is positive), -v[:n]`` in a batch: nested inner graphs."""
    v, n = pt.tensor("v", dtype="float64", shape=(None,)), pt.tensor("n", dtype="int64", shape=())
    doubled = pytensor.scan(lambda y: 2 * y, outputs_info=[v[:n]], n_steps=3, return_updates=False)[-1]
    chosen = ifelse(v.sum() > 0, doubled, -v[:n])
    return Blockwise(OpFromGraph([v, n], [chosen]), signature="(i),()->(j)")


def test_inner_graphs_of_an_inner_graph():
    x, n = pt.tensor("x", dtype="float64", shape=(2, 4)), pt.tensor("n", dtype="int64", shape=(1,))
    y = head_by_loop_and_branch()(x, n)
    value = np.array([[1.0, 2, 3, 4], [-1, -2, -3, -4]])
    f = pytensor.function([x, n], y, mode=FULLGRAPH)
    for count in (2, 3):
        expected = value[:, :count] * [[8], [-1]]
        np.testing.assert_allclose(f(value, [count]), expected)
    gradient = pytensor.function([x, n], pytensor.grad(y.sum(), x), mode=FULLGRAPH)
    np.testing.assert_allclose(gradient(value, [3]), [[8, 8, 8, 0], [-1, -1, -1, 0]])


def test_an_index_out_of_bounds_in_any_element():
    x = pt.tensor("x", dtype="float64", shape=(2, 4, 3))
    rows = pt.tensor("rows", dtype="int64", shape=(2, 2))
    compare_error([x, rows], take(x, rows), [X, np.array([[0, 1], [4, 0]])], match="out of bounds")


def test_lengths_that_differ_run_on_the_host():
    x, n = pt.tensor("x", dtype="float64", shape=(2, 3)), pt.tensor("n", dtype="int64", shape=(None,))
    length = pt.tensor("length", dtype="int64", shape=())
    v = pt.tensor("v", dtype="float64", shape=(None,))
    head = Blockwise(OpFromGraph([v, length], [v[:length].sum()]), signature="(i),()->()")(x, n)
    with pytest.warns(pjl.GraphBreakWarning):
        f = pytensor.function([x, n], head, mode="JAXPR")
        result = f(X[0, :2], np.array([1, 3]))
    np.testing.assert_allclose(result, [X[0, 0, 0], X[0, 1].sum()])
