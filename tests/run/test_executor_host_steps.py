"""Host steps: values other than arrays, Ops that work in place, conditionals, and transfers."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.sparse
import pytensor.tensor as pt
import pytest
import scipy.sparse
from helpers import compare
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.c.type import Generic
from pytensor.raise_op import Assert

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base.pytensor_compat import IfElse

HOST = pytensor.compile.mode.Mode(pjl.JaxprLinker(pjl.Options(on_break="ignore")), "fast_run")


class HostAdd(Op):
    """Add 1, on the host, in place if asked to."""

    __props__ = ("inplace",)

    def __init__(self, inplace: bool = False):
        self.inplace = inplace
        if inplace:
            self.destroy_map = {0: [0]}

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        (x,) = inputs
        if self.inplace:
            x += 1
            outputs[0][0] = x
        else:
            outputs[0][0] = x + 1


class Fails(Op):
    """Raise."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        raise ZeroDivisionError("ran")


def test_objects_pass_a_conditional() -> None:
    c, x, y = pt.iscalar("c"), Generic()("x"), Generic()("y")
    f = pytensor.function([c, x, y], IfElse(1)(c, x, y), mode=HOST)
    assert f(1, ["x"], "y") == ["x"]
    assert f(0, ["x"], "y") == "y"
    assert "which is no array" in str(f.vm.runner.plan.breaks[0].reason)


def test_an_object_that_nothing_reads() -> None:
    x, y = pt.dvector("x"), Generic()("y")
    f = pytensor.function([x, y], x * 2, mode="JAXPR", on_unused_input="ignore")
    np.testing.assert_array_equal(f([1.0], object()), [2.0])
    assert not f.vm.runner.plan.breaks
    with pytest.raises(TypeError, match="'y'"):
        f.vm.jit_fn(np.ones(1), None)
    with pytest.raises(TypeError, match="'y'"):
        pjl.as_jax_function([x, y], [x * 2])


def test_an_object_is_returned() -> None:
    x = Generic()("x")
    value = {"a": [1]}
    (copied,) = pytensor.function([x], [x], mode=HOST)(value)
    assert copied == value
    out = pytensor.Out(x, borrow=True)
    (same,) = pytensor.function([pytensor.In(x, borrow=True)], [out], mode=HOST)(value)
    assert same == value


def test_sparse_matrices_stay_sparse() -> None:
    x, v = pytensor.sparse.csr_matrix("x"), pt.dvector("v")
    value = scipy.sparse.csr_matrix(np.diag([1.0, 2.0, 0.0]))
    f = pytensor.function([x, v], [x + x, pytensor.sparse.dot(x, v) * 2, x.shape[0] + v.sum()], mode=HOST)
    doubled, product, number = f(value, np.ones(3))
    assert scipy.sparse.issparse(doubled)
    np.testing.assert_array_equal(doubled.toarray(), 2 * value.toarray())
    np.testing.assert_array_equal(product, [2.0, 4.0, 0.0])
    assert number == 6


def test_shared_sparse_matrix_is_updated() -> None:
    x = pytensor.shared(scipy.sparse.csr_matrix(np.eye(2)), name="x")
    pytensor.function([], [], updates=[(x, x + x)], mode=HOST)()
    np.testing.assert_array_equal(x.get_value().toarray(), 2 * np.eye(2))


def test_shape_of_a_constant_sparse_matrix() -> None:
    x = pytensor.sparse.as_sparse_variable(scipy.sparse.csr_matrix(np.eye(3)))
    n = pt.iscalar("n")
    f = pytensor.function([n], pt.zeros(pytensor.sparse.dense_from_sparse(x).shape[0] + n), mode=HOST)
    assert f(2).shape == (5,)


def test_scalar_inputs() -> None:
    x, y = pytensor.scalar.float64("x"), pytensor.scalar.float64("y")
    f = pytensor.function([x, y], Assert("y is small")(x, y > 0), mode="JAXPR")
    assert f(1.5, 1.0) == 1.5
    with pytest.raises(AssertionError, match="y is small"):
        f(1.5, -1.0)


@pytest.mark.parametrize("from_device", [False, True])
def test_in_place_on_the_host_leaves_other_readers_alone(from_device: bool) -> None:
    x = pt.dvector("x")
    y = pt.exp(x) if from_device else HostAdd()(x)
    value = np.array([1.0, 2.0])
    expected = (np.exp(value) if from_device else value + 1) + 1
    f = pytensor.function([x], [HostAdd(inplace=True)(y), y * 2], mode=HOST, accept_inplace=True)
    changed, doubled = f(value)
    np.testing.assert_allclose(changed, expected)
    np.testing.assert_allclose(doubled, 2 * (expected - 1))
    np.testing.assert_array_equal(value, [1.0, 2.0])


def test_in_place_on_an_input_and_a_shared_variable() -> None:
    x, s = pt.dvector("x"), pytensor.shared(np.zeros(2), name="s")
    y = HostAdd(inplace=True)(x)
    f = pytensor.function([pytensor.In(x, mutable=True)], y, mode=HOST, accept_inplace=True)
    np.testing.assert_array_equal(f(np.zeros(2)), [1.0, 1.0])
    g = pytensor.function([], [], updates=[(s, HostAdd(inplace=True)(s))], mode=HOST, accept_inplace=True)
    g(), g()
    np.testing.assert_array_equal(s.get_value(), [2.0, 2.0])


def test_the_branch_not_taken_stays_unevaluated_on_the_host() -> None:
    c, x, fails = pt.iscalar("c"), Generic()("x"), Fails()
    f = pytensor.function([c, x], IfElse(1)(c, x, fails(x)), mode=HOST)
    assert f(1, "x") == "x"
    with pytest.raises(ZeroDivisionError, match="ran"):
        f(0, "x")
    assert f(1, "x") == "x"


def test_axes_of_an_op_count_from_the_end() -> None:
    from pytensor.tensor.special import LogSoftmax, Softmax

    x = pt.dmatrix("x")
    compare([x], [Softmax(axis=(-1,))(x), LogSoftmax(axis=(-2,))(x)], [np.arange(6.0).reshape(2, 3)])


def test_the_mode_of_a_scan_is_for_other_backends() -> None:
    x = pt.dvector("x")
    with pytest.warns(FutureWarning, match="mode"):
        ys = pytensor.scan(
            lambda a, b: a + b**2, sequences=[x], outputs_info=[pt.zeros(())], mode=HOST, return_updates=False
        )
    f = pytensor.function([x], [ys, pytensor.grad(ys[-1], x)], mode=HOST)
    ys, grad = f(np.array([0.5, 0.25, 1.0]))
    np.testing.assert_allclose(ys, [0.5, 0.5, 1.25])
    np.testing.assert_allclose(grad, [1.0, 1.0, 1.0])


def test_a_host_op_makes_a_static_operand() -> None:
    x = pt.dvector("x")
    length, total = HostAdd()(x.shape[0]), HostAdd()(x).sum().astype("int64")
    f = pytensor.function([x], [pt.zeros(length), pt.arange(total), pt.ones((total, x.argmax()))], mode=HOST)
    zeros, numbers, ones = f(np.array([0.5, -0.5, 2.0]))
    assert zeros.shape == (4,)
    np.testing.assert_array_equal(numbers, np.arange(5))
    assert ones.shape == (5, 2)


def test_an_output_that_is_a_constant_and_no_array():
    constant = pytensor.sparse.as_sparse_variable(scipy.sparse.csr_matrix(np.eye(2)))
    x = pt.dvector("x")
    doubled, same = pytensor.function([x], [x * 2, pytensor.Out(constant, borrow=True)], mode="JAXPR")([1.0])
    np.testing.assert_array_equal(doubled, [2.0])
    np.testing.assert_array_equal(same.toarray(), np.eye(2))
