"""A rule that returns something else than its node declares is named, wherever it runs."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.jax.ops import JAXOp
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker import emits, emits_scalar, prims

VALUE = np.arange(3.0)


class Wrong(Op):
    """Has a rule that returns what its prop says."""

    __props__ = ("kind", "count")
    gufunc_signature = "(n)->(n)"

    def __init__(self, kind, count=1):
        self.kind, self.count = kind, count

    def make_node(self, x):
        x = pt.as_tensor(x)
        return Apply(self, [x], [x.type("wanted"), *(x.type() for _ in range(self.count - 1))])

    def perform(self, node, inputs, outputs):
        for storage in outputs:
            storage[0] = inputs[0]


RESULTS = {
    "dtype": lambda b, x: prims.convert(b, x, "float32"),
    "rank": lambda b, x: prims.reshape(b, x, (1, *x.aval.shape)),
    "length": lambda b, x: prims.slice_(b, x, [0], [2], [1]),
    "two": lambda b, x: [x, x],
    "none of two": lambda b, x: [],
    "array": lambda b, x: VALUE,
    "nothing": lambda b, x: None,
    "list of one": lambda b, x: [prims.copy(b, x)],
    "tuple of one": lambda b, x: (prims.copy(b, x),),
}


@pjl.emits(Wrong)
def emit_wrong(op, node, b, x):
    return RESULTS[op.kind](b, x)


HERE = rf"tests\.jaxpr\.test_rule_results\.emit_wrong \({re.escape(__file__)}:\d+\) "
EXPECTED = {
    "dtype": r"returned float32\[3\] for 'wanted', which is a Vector\(float64, shape=\(3,\)\)",
    "rank": r"returned float64\[1, 3\] for 'wanted', which is a Vector",
    "length": r"returned float64\[2\] for 'wanted', which is a Vector\(float64, shape=\(3,\)\)",
    "two": "returned 2 outputs, but the node has 1 output",
    "none of two": "returned 0 outputs, but the node has 2 outputs",
    "array": "returned a ndarray for 'wanted', which must be an atom",
    "nothing": "returned a NoneType for 'wanted', which must be an atom",
}


def vector(shape=(3,)):
    return pt.tensor("x", dtype="float64", shape=shape)


@pytest.mark.parametrize("kind", EXPECTED)
def test_the_rule_is_named(kind):
    x = vector()
    y = Wrong(kind, 2 if kind == "none of two" else 1)(x)
    with pytest.raises(TypeError, match=HERE + EXPECTED[kind]) as raised:
        pytensor.function([x], y, mode="JAXPR")
    assert re.search(r"The node is Wrong\{.*\}\(x\) = 'wanted'", str(raised.value))
    assert "Made at" in str(raised.value)


@pytest.mark.parametrize("kind", ["list of one", "tuple of one"])
def test_one_output_may_be_in_a_sequence(kind):
    x = vector()
    np.testing.assert_array_equal(pytensor.function([x], Wrong(kind)(x) + 1, mode="JAXPR")(VALUE), VALUE + 1)


def test_a_length_that_is_not_declared_is_free():
    x = vector((None,))
    f = pytensor.function([x], Wrong("length")(x), mode="JAXPR")
    np.testing.assert_array_equal(f(VALUE), VALUE[:2])


@pytest.mark.parametrize(
    "make",
    [
        lambda x: pytensor.scan(lambda v: Wrong("dtype")(v), outputs_info=[x], n_steps=3, return_updates=False),
        lambda x: pytensor.conditional.ifelse(x[0] > 0, Wrong("dtype")(x), x),
        lambda x: Blockwise(Wrong("dtype"))(pt.stack([x, x])),
        lambda x: pytensor.compile.builders.OpFromGraph([x], [Wrong("dtype")(x)])(x),
    ],
    ids=["scan", "ifelse", "blockwise", "graph"],
)
def test_rules_of_inner_graphs(make):
    x = vector()
    with pytest.raises(TypeError, match=HERE + r"returned float32\[3\]"):
        pytensor.function([x], make(x), mode="JAXPR")(VALUE)


def test_traced_leaf():
    """Its JAX function is named, not the rule that traces it."""
    x = vector()
    y = JAXOp([x.type], [x.type], lambda x: (jnp.concatenate([x, x]),))(x)
    y.name = "twice"
    with pytest.raises(TypeError, match=r"JAX function of .* returned an array of shape \(6,\) for 'twice', a Vector"):
        pytensor.function([x], y, mode="JAXPR")


def test_arguments_that_are_not_as_declared_are_no_rules_fault():
    x = vector()
    f = pytensor.function([x], pt.exp(x), mode="JAXPR")
    f.trust_input = True
    assert f(np.zeros(4)).shape == (4,)


@pytest.mark.parametrize("given", [("W",), (3,), (Elemwise(ps.exp),), (int,), ()], ids=str)
@pytest.mark.parametrize("decorator", [emits, emits_scalar])
def test_rules_are_of_classes_of_ops(decorator, given):
    with pytest.raises(TypeError, match=rf"{decorator.__name__} takes (classes of Ops|the class of an Op)"):
        decorator(*given)
