"""Ops that have only a JAX function of somebody else."""

import logging
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import compare, compare_grad
from jax.extend.core import primitives
from pytensor import wrap_jax
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.emit import traced_leaf

X = np.array([0.5, -1.0, 2.0])


class ShiftedCube(Op):
    """``x**3 + shift``, and its sum."""

    __props__ = ()

    def make_node(self, x, shift):
        x, shift = pt.as_tensor(x), pt.as_tensor(shift)
        return Apply(self, [x, shift], [x.type(), pt.scalar(dtype=x.type.dtype)])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] ** 3 + inputs[1]
        outputs[1][0] = np.asarray(outputs[0][0].sum())

    def pullback(self, inputs, outputs, gradients):
        raise NotImplementedError


class NotRegistered(ShiftedCube):
    pass


@pytest.fixture(scope="module")
def registered():
    wide = jax.config.jax_enable_x64
    from pytensor.link.jax.dispatch import jax_funcify  # sets the flag

    jax.config.update("jax_enable_x64", wide)

    @jax_funcify.register(ShiftedCube)
    def funcify(op, node=None, **kwargs):
        def cube(x, shift):
            y = x**3 + shift
            return y, jnp.sum(y)

        return cube


def test_registered_function(registered, caplog):
    x, shift = pt.dvector("x"), pt.dscalar("shift")
    with caplog.at_level(logging.INFO, "pytensor_jaxpr_linker"):
        y, total = ShiftedCube()(x, shift)
        wide = jax.config.jax_enable_x64
        compare([x, shift], [y * 2, total], [X, 1.5])
        compare([x], ShiftedCube()(x, 2.5), [X])
        assert jax.config.jax_enable_x64 == wide
    assert [record.message for record in caplog.records if "ShiftedCube" in record.message] == [
        "ShiftedCube has no emission rule; the JAX function registered for it is traced"
    ]
    f = pytensor.function([x, shift], y, mode="JAXPR")
    assert primitives.closed_call_p in [eqn.primitive for eqn in pjl.make_jaxpr(f, X, 1.0).eqns]
    (node,) = (node for node in f.maker.fgraph.apply_nodes if isinstance(node.op, ShiftedCube))
    assert traced_leaf.is_traced_leaf(traced_leaf.leaf_rule(node))
    fn = pjl.as_jax_function([x, shift], [y])
    with jax.enable_x64(True):
        gradient = jax.vmap(jax.grad(lambda x: fn(x, 1.0)[0].sum()))(np.stack([X, X + 1]))
    np.testing.assert_allclose(gradient, 3 * np.stack([X, X + 1]) ** 2)


def test_only_third_parties_count(registered):
    assert traced_leaf.third_party_function(pt.linalg.Det()) is None

    class Unknown(Op):
        def perform(self, node, inputs, outputs):
            raise NotImplementedError

    assert traced_leaf.third_party_function(Unknown()) is None
    assert traced_leaf.third_party_function(NotRegistered()) is not None  # as PyTensor's registry finds it


def test_in_a_branch(registered):
    c, x = pt.dscalar("c"), pt.dvector("x")
    y, _ = ShiftedCube()(x, 1.0)
    f = pytensor.function([c, x], pytensor.conditional.ifelse(c > 0, y, x), mode="JAXPR")
    np.testing.assert_allclose(f(1.0, X), X**3 + 1)
    np.testing.assert_allclose(f(-1.0, X), X)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_jax_op(dtype):
    x, y = pt.vector("x", dtype=dtype, shape=(3,)), pt.scalar("y", dtype=dtype)

    @wrap_jax
    def f(x, y):
        return jnp.sin(x) * y, jnp.sum(x)

    wide = jax.config.jax_enable_x64
    values = [X.astype(dtype), np.asarray(2.0, dtype)]
    rtol = 1e-5 if dtype == "float32" else 1e-12
    with jax.enable_x64(True):  # which the Op itself needs for its dtypes and values
        a, b = f(x, y)
        compare([x, y], [a + b, a], values, rtol=rtol)
        if dtype == "float64":
            compare_grad([x, y], a + b, values)
            compare([x, y], pytensor.grad((a * b).sum(), [x, y]), values)
    assert jax.config.jax_enable_x64 == wide


def test_the_flag_of_jax_is_left_alone():
    code = """
import jax, numpy as np, pytensor, pytensor.tensor as pt
from jax.extend.core import primitives
from pytensor import wrap_jax
import pytensor_jaxpr_linker
x = pt.vector("x", dtype="float64", shape=(2,))
with jax.enable_x64(True):
    y = wrap_jax(lambda x: jax.numpy.sin(x))(x)
assert not jax.config.jax_enable_x64
f = pytensor.function([x], y, mode="JAXPR")
np.testing.assert_allclose(f([1.0, 2.0]), np.sin([1.0, 2.0]), rtol=1e-12)
assert not jax.config.jax_enable_x64
"""
    subprocess.run([sys.executable, "-c", code], check=True)
