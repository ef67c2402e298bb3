"""Reductions, cumulative Ops, sorting, searching and products."""

import jax
import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
import pytest
from helpers import compare, compare_error, compare_grad, tensor_like
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pytensor.compile.mode import get_mode
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.math import ProdWithoutZeros

import pytensor_jaxpr_linker as pjl

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

X = np.random.default_rng(1).normal(size=(2, 3, 4))
WITH_NAN = np.where(np.arange(24).reshape(2, 3, 4) % 7 == 3, np.nan, X)
REDUCTIONS = {"sum": pt.sum, "prod": pt.prod, "max": pt.max, "min": pt.min, "any": pt.any, "all": pt.all}


def example(dtype: str, shape: tuple[int, ...] = (3, 4)) -> np.ndarray:
    """Return small numbers of a dtype."""
    numbers = np.random.default_rng(2).integers(0 if dtype[0] in "ub" else -3, 4, shape)
    return numbers.astype(dtype)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction_axes(name):
    reduce, x = REDUCTIONS[name], tensor_like(X, "x")
    outputs = [reduce(x), reduce(x, axis=1), reduce(x, axis=(0, 2)), reduce(x, axis=-1, keepdims=True)]
    compare([x], outputs, [X], rtol=1e-12)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "float16", "float32", "complex64"])
def test_reduction_dtypes(dtype):
    value = example(dtype)
    x = tensor_like(value, "x")
    outputs = [pt.sum(x, axis=0), pt.prod(x, axis=0)]
    if dtype != "complex64":
        outputs += [pt.max(x, axis=0), pt.min(x, axis=0), pt.any(x, axis=0), pt.all(x, axis=0)]
    compare([x], outputs, [value], rtol=1e-3 if dtype == "float16" else 1e-6)


@pytest.mark.parametrize("dtype", ["bool", "int32"])
@pytest.mark.parametrize("scalar_op", [ps.add, ps.mul, ps.and_, ps.or_, ps.xor, ps.maximum, ps.minimum], ids=str)
def test_reduction_by_scalar_op(scalar_op, dtype):
    value = example(dtype)
    x = tensor_like(value, "x")
    compare([x], CAReduce(scalar_op, axis=(1,))(x), [value])


def test_sum_in_accumulator_dtype():
    value = np.full(3000, 1.0, "float16")
    x = tensor_like(value, "x")
    compare([x], [pt.sum(x), pt.sum(x, acc_dtype="float64"), pt.sum(x, dtype="float64")], [value])


def test_product_without_zeros():
    value = np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 0.0]])
    x = tensor_like(value, "x")
    compare([x], [ProdWithoutZeros(axis=(1,))(x), ProdWithoutZeros(axis=(0,))(x)], [value])


def test_extrema_propagate_nan():
    x = tensor_like(WITH_NAN, "x")
    compare([x], [pt.max(x, axis=1), pt.min(x, axis=1), pt.max(x), pt.sum(x, axis=0)], [WITH_NAN])


def test_reduction_of_scalar():
    x = pt.dscalar("x")
    compare([x], [pt.sum(x), pt.max(x), pt.argmax(x)], [2.5])


def test_empty_reduction():
    value = np.empty((0, 3))
    x = tensor_like(value, "x")
    compare([x], [pt.sum(x, axis=0), pt.prod(x), pt.any(x), pt.all(x, axis=0), pt.max(x, axis=1)], [value])


@pytest.mark.parametrize("dtype", ["float64", "int16"])
def test_empty_maximum_with_initial(dtype):
    value = np.empty((0, 3), dtype)
    x = tensor_like(value, "x")
    compare([x], [pt.math.Max(axis=(0,), initial=True)(x), pt.math.Min(axis=None, initial=True)(x)], [value])


@pytest.mark.parametrize(
    ("reduce", "match"),
    [(pt.max, "zero-size array.*maximum"), (pt.min, "zero-size array.*minimum"), (pt.argmax, "empty sequence")],
    ids=["max", "min", "argmax"],
)
def test_empty_extremum_is_an_error(reduce, match):
    x = pt.dmatrix("x")
    compare_error([x], reduce(x, axis=0), [np.empty((0, 3))], match)


@settings(max_examples=25, deadline=None)
@given(
    hnp.arrays("float64", hnp.array_shapes(max_dims=3, max_side=3), elements=st.floats(-9, 9, width=16)),
    st.sampled_from(sorted(REDUCTIONS)),
    st.data(),
)
def test_reduction_of_any_shape(value, name, data):
    axis = data.draw(st.none() | st.integers(-value.ndim, value.ndim - 1))
    x = tensor_like(value, "x")
    compare([x], REDUCTIONS[name](x, axis=axis), [value])


def test_argmax():
    value = np.array([[1.0, 5.0, 5.0], [np.nan, 2.0, np.nan]])
    x = tensor_like(value, "x")
    compare([x], [pt.argmax(x, axis=1), pt.argmin(x, axis=1), pt.argmax(x), pt.argmax(x, axis=0)], [value])


def test_argmax_of_several_axes():
    x = tensor_like(X, "x")
    compare([x], [pt.argmax(x, axis=(0, 2)), pt.argmax(x, axis=(1, 2)), pt.argmax(x > 0, axis=1)], [X])


@pytest.mark.parametrize("dtype", ["int64", "float32", "float64"])
def test_cumulative(dtype):
    value = example(dtype)
    x = tensor_like(value, "x")
    compare([x], [pt.cumsum(x, axis=0), pt.cumprod(x, axis=1), pt.cumsum(x)], [value], rtol=1e-6)


SYMBOLIC = {
    "softmax": lambda x: pt.special.softmax(x, axis=1),
    "softmax_all": pt.special.softmax,
    "log_softmax": lambda x: pt.special.log_softmax(x, axis=(0, 2)),
    "logsumexp": lambda x: pt.special.logsumexp(x, axis=-1),
    "logaddexp": lambda x: pt.logaddexp(x, 2 * x),
    "xlogy": lambda x: pt.special.xlogy(x, pt.exp(x)),
    "xlog1py": lambda x: pt.special.xlog1py(x, pt.exp(x)),
    "einsum": lambda x: pt.einsum("ijk,ilk->jl", x, x),
    "tensordot": lambda x: pt.tensordot(x, x, axes=((0, 2), (0, 2))),
    "var": lambda x: pt.var(x, axis=1),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic(name):
    x = tensor_like(X, "x")
    compare([x], SYMBOLIC[name](x), [X], rtol=1e-10)


@pytest.mark.parametrize("name", [name for name in SYMBOLIC if name != "var"])
def test_symbolic_gradient(name):
    x = tensor_like(X, "x")
    compare_grad([x], SYMBOLIC[name](x), [X])


def test_softmax_of_large_numbers():
    value = np.array([[1e4, 1e4 - 1.0], [-1e4, 0.0]])
    x = tensor_like(value, "x")
    compare([x], [pt.special.softmax(x, axis=1), pt.special.log_softmax(x, axis=1)], [value])


def test_softmax_float32():
    value = X.astype("float32")
    x = tensor_like(value, "x")
    compare([x], [pt.special.softmax(x, axis=0), pt.special.log_softmax(x)], [value], rtol=1e-5)


def test_xlogy_at_zero():
    x, y = pt.dvector("x"), pt.dvector("y")
    values = [np.array([0.0, 0.0, 2.0]), np.array([0.0, 3.0, 0.5])]
    compare([x, y], [pt.special.xlogy(x, y), pt.special.xlog1py(x, y - 1)], values)
    mode = get_mode("JAXPR").excluding("late_inline_OpFromGraph")
    fn = pjl.as_jax_function([x, y], pt.special.xlogy(x, y).sum(), mode=mode, gradient="jax")
    with jax.enable_x64(True):
        gradient = jax.grad(lambda x: fn(x, values[1][1:]))(jax.numpy.asarray(values[0][1:]))
    np.testing.assert_allclose(gradient, np.log(values[1][1:]))


REDUCTION_GRADIENTS = {
    "sum": lambda x: pt.sum(x, axis=1),
    "prod": lambda x: pt.prod(x, axis=1),
    "max": lambda x: pt.max(x, axis=(0, 2)),
    "min": lambda x: pt.min(x, axis=0),
    "cumsum": lambda x: pt.cumsum(x, axis=1),
    "cumprod": lambda x: pt.cumprod(x, axis=2),
    "sort": lambda x: pt.sort(x, axis=1),
    "matmul": lambda x: pt.matmul(x, pt.sin(x).mT),
}


@pytest.mark.parametrize("name", REDUCTION_GRADIENTS)
def test_gradient(name):
    x = tensor_like(X, "x")
    compare_grad([x], REDUCTION_GRADIENTS[name](x), [X])


@pytest.mark.parametrize("dtype", ["bool", "int16", "float32"])
def test_sort(dtype):
    value = example(dtype)
    x = tensor_like(value, "x")
    compare([x], [pt.sort(x), pt.sort(x, axis=0), pt.sort(x, axis=None), pt.argsort(x, kind="stable")], [value])


def test_sort_special_values():
    value = np.array([np.nan, 0.0, -0.0, np.inf, -np.inf, 0.0, -np.nan])
    x = tensor_like(value, "x")
    compare([x], [pt.sort(x), pt.argsort(x, kind="stable")], [value])
    compare([x], [pt.sort(x), pt.argsort(x)], [value[:0]])


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted(side):
    values = [np.array([1, 2, 2, 5]), np.array([[0.5, 2.0, 9.0], [5.0, 1.0, np.nan]])]
    x, v = (tensor_like(value, name) for value, name in zip(values, "xv", strict=True))
    compare([x, v], [pt.searchsorted(x, v, side=side), pt.searchsorted(x, 2, side=side)], values)
    compare([v, x], pt.searchsorted(pt.sort(v[1]), v[0], side=side), values[::-1])
    compare([x, v], pt.searchsorted(x, v, side=side), [values[0][:0], values[1]])


def test_searchsorted_with_sorter():
    x, v, order = pt.dvector("x"), pt.dvector("v"), pt.lvector("order")
    values = [np.array([3.0, 1.0, 2.0]), np.array([0.0, 1.5, 2.0])]
    result = pt.searchsorted(x, v, sorter=order)
    compare([x, v, order], result, [*values, np.array([1, 2, 0])])
    compare_error([x, v, order], result, [*values, np.array([1, 2])], "sorter.size")
    compare_error([x, v, order], result, [values[0], values[1] + 9, np.array([1, 2, 3])], "Sorter index out of range")


def test_dot_ranks():
    x, y, u, v = pt.dmatrix("x"), pt.dmatrix("y"), pt.dvector("u"), pt.dvector("v")
    values = [X[0], X[1].T, X[0, 0], X[1, 0]]
    compare([x, y, u, v], [x @ y, x @ u, u @ y, u @ v, pt.outer(u, v)], values, rtol=1e-12)
    compare_grad([x, y, u], x @ y @ (x @ u), values[:3])


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int64", "bool"])
@pytest.mark.parametrize(
    "n, k, m", [(5, 3, 1), (1, 3, 4), (1, 3, 1), (5, 1, 1), (1, 1, 1), (0, 3, 1), (1, 0, 1), (5, 0, 1)]
)
def test_products_with_a_single_row_or_column(n, k, m, dtype):
    """They are products with vectors: XLA would copy a matrix with one column."""
    values = [example(dtype, (n, k)), example(dtype, (k, m)), example(dtype, (2, n, k)), example(dtype, (2, k, m))]
    x, y, xs, ys = (pt.tensor(dtype=dtype, shape=v.shape) for v in values)
    outputs = [x @ y, pt.dot(x, y), xs @ ys, (y.T @ x.T).T]
    if dtype != "bool":
        outputs += [BatchedDot()(xs, ys), (x @ y)[:, 0] + 1, (xs @ ys).sum(axis=2)]
    compare([x, y, xs, ys], outputs, values, rtol=1e-6)
    eqns = pjl.make_jaxpr(pytensor.function([x, y], x @ y, mode="JAXPR"), *values[:2]).eqns
    operands = [v for eqn in eqns if eqn.primitive.name == "dot_general" for v in eqn.invars]
    assert all(1 not in v.aval.shape or k == 1 for v in operands)
    if dtype == "float64":
        compare_grad([x, y], x @ y, values[:2])
        compare_grad([xs, ys], xs @ ys, values[2:])


def test_products_read_transposed_operands_in_place():
    x, y, t = pt.dmatrix("x"), pt.dmatrix("y"), pt.dtensor3("t")
    values = [X[0], X[1], X]
    outputs = [x.T @ y, x @ y.T, x.T @ (x @ y.T).T.T, t.swapaxes(1, 2) @ t, t.transpose(2, 0, 1) @ y]
    compare([x, y, t], outputs, values, rtol=1e-12)
    compare_grad([x, y, t], outputs[2].sum() + outputs[3].sum() + outputs[4].sum(), values)
    f = pytensor.function([x, y], x.T @ y, mode="JAXPR")
    assert [eqn.primitive.name for eqn in pjl.make_jaxpr(f, *values[:2]).eqns] == ["dot_general"]


@pytest.mark.parametrize("dtypes", ["int8-int8", "int32-float32", "float16-float16", "bool-bool", "complex64-float64"])
def test_dot_dtypes(dtypes):
    first, second = dtypes.split("-")
    values = [example(first), example(second).T]
    x, y = (tensor_like(value, name) for value, name in zip(values, "xy", strict=True))
    compare([x, y], pt.matmul(x, y), values, rtol=1e-3 if "16" in first else 1e-6)


def test_dot_of_nothing():
    x, y = pt.dmatrix("x"), pt.dmatrix("y")
    compare([x, y], x @ y, [np.empty((2, 0)), np.empty((0, 3))])


def test_dot_shapes_that_differ():
    x, y = pt.dmatrix("x"), pt.dmatrix("y")
    compare_error([x, y], x @ y, [np.ones((2, 3)), np.ones((4, 5))], r"shapes \(2,3\) and \(4,5\) not aligned")
    x, y = pt.dtensor3("x"), pt.dtensor3("y")
    compare_error([x, y], BatchedDot()(x, y), [np.ones((2, 3, 4)), np.ones((3, 4, 5))], "same size in axis 0")


def test_matmul_broadcasts_batches():
    values = [X, X[:1, None].swapaxes(-1, -2)]
    x, y = tensor_like(X, "x"), pt.tensor("y", shape=(1, 1, None, None), dtype="float64")
    compare([x, y], pt.matmul(x, y), values, rtol=1e-12)
    compare_grad([x, y], pt.matmul(x, y), values)


def test_matmul_broadcast_that_was_not_declared():
    x, y = pt.dtensor3("x"), pt.dtensor3("y")
    f = pytensor.function(
        [x, y], pt.matmul(x, y), mode="JAXPR"
    )  # PyTensor rewrites it as a `BatchedDot`, which raises this
    with pytest.raises(TypeError, match="must have the same size in axis 0"):
        f(X, X[:1].swapaxes(1, 2))


def test_truths_about_arrays_of_one_shape_are_reduced_in_one_pass():
    x, y = pt.dvector("x"), pt.dscalar("y")
    whole = pt.all(pt.stack([pt.all(x >= 0), pt.all(x <= 1), y > 0, pt.all(y < 2)]))
    f = pytensor.function([x, y], whole, mode="JAXPR")
    for value, number in [
        ([0.5, 1.0], 1.0),
        ([0.5, 1.5], 1.0),
        ([-0.5, 1.0], 1.0),
        ([], 1.0),
        ([0.5], -1.0),
        ([0.5], 3.0),
    ]:
        want = all(0 <= v <= 1 for v in value) and 0 < number < 2
        assert f(np.array(value), number) == want
    with jax.enable_x64(True):
        equations = pjl.make_jaxpr(f, np.zeros(3), 1.0).jaxpr.eqns
    assert [e.primitive.name for e in equations].count("reduce_and") == 1


@pytest.mark.parametrize("parts", [1, 3])
def test_truth_of_a_vector_of_numbers(parts):
    xs = [pt.bscalar(f"x{i}") for i in range(parts)]
    for values in ([1] * parts, [1] * (parts - 1) + [0]):
        compare(xs, pt.all(pt.stack([x > 0 for x in xs])), np.array(values, "int8"))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("value", [-np.inf, np.inf, np.nan, 0.0, 0.1])
@pytest.mark.parametrize("axis", [None, 0, (1, 2)])
def test_sum_of_a_choice_by_one_truth(dtype, value, axis):
    """As PyMC's checks of parameters: the number everywhere, or a sum that doesn't wait for the truth."""
    x, c = tensor_like(np.ones((2, 2, 2), dtype), "x"), pt.bscalar("c")
    number = np.asarray(value, dtype)
    chosen = [pt.switch(c > 0, x, number).sum(axis=axis), pt.switch(c > 0, number, x).sum(axis=axis)]
    for flag in (0, 1):
        for shape in [(2, 3, 2), (0, 3, 2), (2, 0, 2)]:
            compare([x, c], chosen, [np.ones(shape, dtype) / 3, flag], rtol=1e-6)


def test_sum_of_a_choice_sums_what_may_be_chosen_only():
    x = pt.dvector("x")
    checked = pt.switch(pt.all(x > 0), pt.log(x), -np.inf).sum()
    f = pytensor.function([x], checked, mode="JAXPR")
    with jax.enable_x64(True):
        equations = pjl.make_jaxpr(f, np.ones(3)).jaxpr.eqns
    (total,) = (e for e in equations if e.primitive.name == "reduce_sum")
    (log,) = (e for e in equations if e.primitive.name == "log")
    assert total.invars[0] is log.outvars[0]
    compare_grad([x], checked, [np.array([0.5, 2.0])])
