"""Broadcasting and dimension shuffling, against PyTensor."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import compare, compare_error, compare_grad, tensor_like
from hypothesis import given, settings
from hypothesis import strategies as st

X = np.arange(6.0).reshape(2, 3) + 1


@pytest.mark.parametrize(
    "shapes",
    [((2, 3), (1, 3)), ((2, 3), (2, 1)), ((2, 1), (1, 3)), ((2, 3), (3,)), ((2, 3), ()), ((), ()), ((0, 3), (1, 3))],
    ids=str,
)
def test_declared_broadcasting(shapes):
    arrays = [np.cos(np.arange(np.prod(s))).reshape(s) for s in shapes]
    inputs = [tensor_like(a, f"x{i}", static=True) for i, a in enumerate(arrays)]
    x, y = inputs
    compare(inputs, [x + y, x * y - x, pt.switch(x > y, x, y)], arrays)


def test_constants_broadcast():
    x = pt.matrix("x")
    compare([x], [x + 1, 2 * x, x * np.array([[1.0], [2.0]]), x + np.ones((1, 1)), pt.zeros_like(x) + 3], [X])


@pytest.mark.parametrize("shape", [(1, 3), (2, 1)], ids=str)
def test_undeclared_broadcasting_is_an_error(shape):
    x, y = pt.matrix("x"), pt.matrix("short")
    compare_error([x, y], x * y, [X, np.ones(shape)], match="Runtime broadcasting not allowed")
    with pytest.raises(ValueError, match="short"):
        pytensor.function([x, y], x * y, mode="JAXPR")(X, np.ones(shape))


@pytest.mark.parametrize("shape", [(2, 4), (3, 3), (0, 3)], ids=str)
def test_different_lengths_are_an_error(shape):
    x, y = pt.matrix("x"), pt.matrix("y")
    compare_error([x, y], x + y, [X, np.ones(shape)], match="dimension mismatch")


@pytest.mark.parametrize("order", [(1, 0), ("x", 0, 1), (0, "x", 1), (1, "x", 0, "x"), ("x", "x", 1, 0)], ids=str)
@pytest.mark.parametrize("value", [X, X[:0]], ids=["full", "empty"])
def test_dimshuffle(order, value):
    x = pt.matrix("x")
    compare([x], x.dimshuffle(order), [value])


def test_dimshuffle_drops_dimensions():
    x = pt.tensor("x", shape=(1, None, 1))
    compare([x], [x.dimshuffle(1), x.dimshuffle(2, 1), x.squeeze(), x.dimshuffle(1, "x", "x")], [X[:1, :, None]])


def test_dropping_a_long_dimension_is_an_error():
    x = pt.matrix("x")
    compare_error([x], pt.specify_broadcastable(x, 0).dimshuffle(1), [X])
    compare_error([x], pt.squeeze(x, 0), [X])


def test_shared_subexpressions():
    x, y = pt.matrix("x"), pt.vector("y")
    twice = pt.exp(x + y) * pt.exp(x + y) + (x + y) - (y + x)
    compare([x, y], [twice, pt.exp(x + y), x.T.T + y], [X, X[0]])


def test_one_variable_as_several_outputs():
    x = pt.matrix("x")
    compare([x], [x, x, x + 1, x + 1, x.T], [X])


def test_gradients():
    x, y = pt.matrix("x"), pt.row("y")
    output = pt.sin(x * y) + x.dimshuffle("x", 0, 1).sum(0) * y.dimshuffle(1) + pt.sqrt(x) / y
    compare_grad([x, y], output, [X, X[:1] / 2])


UNARY = {"neg": lambda x: -x, "abs": abs, "sqr": pt.sqr, "sign": pt.sign, "tanh": pt.tanh, "sin": pt.sin}
BINARY = {
    "add": pt.add,
    "sub": lambda x, y: x - y,
    "mul": pt.mul,
    "true_div": pt.true_div,
    "maximum": pt.maximum,
    "less": pt.lt,
    "switch": lambda x, y: pt.switch(x > y, x, y),
}
LEAVES = [("int8", (2, 3)), ("int64", (1, 3)), ("float32", (2, 1)), ("float64", ()), ("bool", (2, 3)), ("uint8", (3,))]
TREES = st.recursive(
    st.integers(0, len(LEAVES) - 1),
    lambda t: st.tuples(st.sampled_from(sorted(UNARY)), t) | st.tuples(st.sampled_from(sorted(BINARY)), t, t),
    max_leaves=6,
)


def build(tree, leaves):
    if isinstance(tree, int):
        return leaves[tree]
    name, *operands = tree
    operands = [build(t, leaves) for t in operands]
    # PyTensor's rewrites of `neg` and its like fail for booleans and unsigned integers, in every mode.
    operands = [
        x.astype("int16") if x.dtype in ("bool", "uint8", "uint16", "uint32", "uint64") else x for x in operands
    ]
    return (UNARY | BINARY)[name](*operands)


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(st.lists(TREES, min_size=1, max_size=3))
def test_random_expressions(trees):
    arrays = [
        (np.arange(np.prod(s)) - 1).clip(0 if d in ("uint8", "bool") else -1).reshape(s).astype(d) for d, s in LEAVES
    ]
    leaves = [tensor_like(a, f"x{i}", static=True) for i, a in enumerate(arrays)]
    outputs = [build(tree, leaves) for tree in trees]
    with np.errstate(all="ignore"):
        compare(leaves, outputs, arrays, rtol=1e-4, atol=1e-5)


def test_a_mask_times_what_is_not_finite_is_nan() -> None:
    x, m, c = pt.dvector("x"), pt.bvector("m"), pt.zvector("c")
    values = np.array([np.nan, np.inf, 2.0, np.nan]), np.array([0, 0, 1, 1], "int8")
    compare([x, m], [x * (m > 0), x * (m > 0).astype("float64")], values)
    compare([c, m], c * (m > 0), (values[0].astype(complex), values[1]))
