"""The message of lengths that do not fit: the user's variables, their shapes and the line."""

from __future__ import annotations

import re

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.jaxpr import lower

X, Y = pt.matrix("X", dtype="float64"), pt.matrix("Y", dtype="float64")
A, B = pt.tensor3("A", dtype="float64"), pt.tensor3("B", dtype="float64")
b, y = pt.vector("b", dtype="float64"), pt.vector("y", dtype="float64")
product = X @ b
difference = pt.exp(2 * b) - y
batches = pt.matmul(A, B)
products = pt.dot(X, Y)
inner = pt.dot(b, y)
moved = pytensor.scan(
    lambda row, state, v: pt.tanh(state + row) * v, [X], [pt.zeros(3)], non_sequences=b, return_updates=False
)


@pytest.mark.parametrize(
    ("output", "lengths", "error", "line"),
    [
        (products, {X: (777, 12), Y: (4, 1)}, ValueError, "products = pt.dot(X, Y)"),
        (product, {X: (777, 12), b: (4,)}, ValueError, "product = X @ b"),
        (inner, {b: (3,), y: (4,)}, ValueError, "inner = pt.dot(b, y)"),
        (pt.exp(product) * y, {X: (5, 3), b: (3,), y: (6,)}, ValueError, "(pt.exp(product) * y, {X"),
        (difference, {b: (3,), y: (2,)}, ValueError, "difference = pt.exp(2 * b) - y"),
        (batches, {A: (2, 3, 4), B: (2, 3, 4)}, ValueError, "batches = pt.matmul(A, B)"),
        (batches, {A: (2, 3, 4), B: (5, 4, 3)}, TypeError, "batches = pt.matmul(A, B)"),
        (pt.grad(product.sum(), b), {X: (5, 3), b: (4,)}, None, ""),
        (pt.grad((product**2).sum(), b), {X: (5, 3), b: (4,)}, ValueError, "product = X @ b"),
        (pt.grad((difference**2).sum(), b), {b: (3,), y: (4,)}, ValueError, "difference = pt.exp(2 * b) - y"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_misfit_names_the_users_variables_and_the_line(output, lengths, error, line):
    f = pytensor.function([*lengths], output, mode="JAXPR", on_unused_input="ignore")
    args = [np.ones(shape) for shape in lengths.values()]
    if error is None:  # the gradient of a sum reads no value of b
        f(*args)
        return
    as_jax = pjl.as_jax_function([*lengths], [output])
    for call in (f, f, as_jax):  # a failed call leaves nothing behind
        with pytest.raises(error) as raised:
            call(*args)
        message = str(raised.value)
        assert all(f"'{v.name}' has shape {shape}" in message for v, shape in lengths.items())
        assert re.search(rf"Made at {re.escape(__file__)}:\d+: .*{re.escape(line)}", message)
        assert message.count("Made at") == 1


def test_a_misfit_in_a_loop_is_told_once():
    f = pytensor.function([X, b], moved[-1], mode="JAXPR")
    with pytest.raises(ValueError, match="Incompatible Elemwise input shapes") as raised:
        f(np.ones((5, 3)), np.ones(4))
    message = str(raised.value)
    assert message.count(" Here ") == 1 and "'b' has shape (4,)" in message


def test_the_nearest_names_are_told_up_to_a_number(monkeypatch):
    monkeypatch.setattr(lower, "MOST_OPERANDS", 2)
    mu = pt.exp(X) * 2
    mu.name = "mu"
    scale = pt.scalar("scale", dtype="float64")
    f = pytensor.function([X, Y, A, scale, mu], mu[None] * scale + A * Y[None], mode="JAXPR", on_unused_input="ignore")
    with pytest.raises(ValueError, match="Incompatible") as raised:
        f(np.ones((2, 3)), np.ones((2, 4)), np.ones((1, 2, 4)), 1.0, np.ones((2, 3)))
    told = re.findall(r"'(\w+)' has shape", str(raised.value))
    assert len(told) == 2 and "scale" not in told and "X" not in told


def test_variables_without_a_name_leave_the_message_as_it_is():
    u, v = pt.dvector(), pt.dvector()
    f = pytensor.function([u, v], u + v, mode="JAXPR")
    with pytest.raises(ValueError, match="Made at") as raised:  # in the note
        f(np.ones(2), np.ones(3))
    assert str(raised.value).endswith("dimension mismatch in dimension 0")
