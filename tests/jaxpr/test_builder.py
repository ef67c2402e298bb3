"""`JaxprBuilder`: sharing, constants, dead code, run-time checks, names."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.extend.core import Jaxpr, Literal, check_jaxpr, jaxpr_as_fun

from pytensor_jaxpr_linker import prims
from pytensor_jaxpr_linker.jaxpr.builder import JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.optimize.finish import PASSES
from pytensor_jaxpr_linker.jaxpr.optimize.simplify import PEEPHOLES

pytestmark = pytest.mark.usefixtures("x64")

F32, F64 = np.dtype("float32"), np.dtype("float64")


@pytest.fixture
def b():
    """Return an empty builder that records checks."""
    return JaxprBuilder(checked=True, passes=PASSES, peepholes=PEEPHOLES)


def test_equal_equations_are_shared(b):
    """Binding the same thing twice gives the same variable, also with commuted names above it."""
    x = b.input((3,), F64)
    b.at("first")
    y = prims.sin(b, x)
    b.at("second")
    assert prims.sin(b, x) is y
    assert prims.reduce_sum(b, y, (0,)) is prims.reduce_sum(b, y, [0])
    assert len(b.eqns) == 2


def test_different_params_operands_and_dtypes_are_not_shared(b):
    """What differs in dtype, params or operands is another equation."""
    x = b.input((3,), F64)
    y = b.input((3,), F64)
    results = [
        prims.convert(b, x, "float32"),
        prims.convert(b, x, "float16"),
        prims.convert(b, y, "float32"),
        prims.iota(b, "int32", (3,), 0),
        prims.iota(b, "int64", (3,), 0),
        prims.add(b, x, b.constant(1.0)),
        prims.sub(b, x, b.constant(1.0)),
        prims.sub(b, b.constant(1.0), x),
    ]
    assert len(set(results)) == len(results) == len(b.eqns)


def test_literals_keep_their_dtype(b):
    """Equal numbers of different dtypes are different literals, and of equal dtype one."""
    atoms = [b.constant(1, dtype) for dtype in ("int8", "int32", "float32", "float64", "bool")]
    assert [a.aval.dtype.name for a in atoms] == ["int8", "int32", "float32", "float64", "bool"]
    assert all(isinstance(a, Literal) and not a.aval.weak_type and a.val.dtype == a.aval.dtype for a in atoms)
    assert len({id(a) for a in atoms}) == len(atoms)
    assert b.constant(np.float32(1)) is atoms[2]
    assert b.constant(0.0) is not b.constant(-0.0)
    assert b.constant(np.nan) is b.constant(np.nan)


def test_unused_equations_and_constants_are_dropped(b):
    """Only what the outputs need is part of the Jaxpr."""
    x = b.input((3,), F64, "x")
    prims.add(b, prims.exp(b, x), b.constant(np.ones(3)))
    prims.add(b, prims.exp(b, b.constant(np.ones(9))), b.constant(1.0))
    jaxpr = b.build([prims.sin(b, x)])
    assert [e.primitive.name for e in jaxpr.eqns] == ["sin"]
    assert not jaxpr.consts and len(jaxpr.invars) == 1


def test_an_equation_whose_other_result_is_unused_stays(b):
    """An equation is live if any of its results is."""
    x = b.input((3,), F64)
    _, y = prims.sort(b, [x, b.constant(np.arange(3.0))], 0)
    jaxpr = b.build([y])
    check_jaxpr(jaxpr)
    np.testing.assert_array_equal(jaxpr_as_fun(jaxpr)(np.array([2.0, 1.0, 3.0]))[0], [1, 0, 2])


def test_small_results_with_many_readers_are_computed_once(b):
    """A scalar that many equations read goes through one optimization barrier, and nothing else does."""
    x = b.input((100,), F64, "x")
    total = prims.reduce_sum(b, x, (0,))
    outputs = [prims.mul(b, x, prims.add(b, total, b.constant(float(i)))) for i in range(10)]
    jaxpr = b.build(outputs)
    check_jaxpr(jaxpr)
    assert [e.primitive.name for e in jaxpr.eqns].count("optimization_barrier") == 1
    np.testing.assert_allclose(jaxpr_as_fun(jaxpr)(np.ones(100))[3], 103.0)


def test_known_values(b):
    """The builder knows constants and what was remembered, and nothing else."""
    x = b.input((3,), F64)
    counts = b.remember(prims.iota(b, "int64", (3,), 0), np.arange(3))
    assert b.known(b.constant(2)) == 2
    assert b.known(b.constant(np.ones(2))).tolist() == [1, 1]
    assert b.known(counts).tolist() == [0, 1, 2]
    assert b.known(x) is None and b.known(prims.sin(b, x)) is None


@pytest.mark.parametrize(
    ("values", "code"), [((1, 1, 1), 0), ((0, 1, 1), 1), ((1, 0, 0), 2), ((1, 1, 0), 3), ((0, 0, 0), 1)]
)
def test_check_code_is_the_first_that_failed(b, values, code):
    """The code counts checks from 1 in the order in which they were made."""
    conditions = [b.input((), np.dtype(bool)) for _ in values]
    for i, condition in enumerate(conditions):
        b.check(condition, lambda i=i: IndexError(i))
    assert [c.make_error().args for c in b.checks] == [(0,), (1,), (2,)]
    jaxpr = b.build([b.check_code()])
    check_jaxpr(jaxpr)
    result = jaxpr_as_fun(jaxpr)(*(np.bool_(v) for v in values))[0]
    assert result == code and result.dtype == np.int32


def test_checks_of_inner_jaxprs_count_on(b):
    """A branch numbers its checks after the checks around it, and its code is passed on."""
    x, y = (b.input((), np.dtype(bool)) for _ in range(2))
    b.check(x, lambda: ValueError("outer"))
    made = []
    for _ in range(2):
        body, (condition,) = b.sub_jaxpr([y.aval])
        body.check(condition, lambda: ValueError("inner"))
        made.append(body.build([body.check_code()]))
    assert all(type(jaxpr) is Jaxpr for jaxpr in made)
    (code,) = prims.cond(b, b.constant(np.int32(1)), made, [y], [b.aval((), np.dtype("int32"))])
    b.check_code_of(code)
    jaxpr = b.build([b.check_code()])
    check_jaxpr(jaxpr)
    f = jaxpr_as_fun(jaxpr)
    codes = [int(f(np.bool_(p), np.bool_(q))[0]) for p, q in [(1, 1), (1, 0), (0, 1), (0, 0)]]
    assert codes == [0, 3, 1, 1]


def test_checks_that_hold_or_are_off_are_not_recorded(b):
    """A constant condition that holds needs no check; an unchecked builder records none."""
    b.check(b.constant(True), lambda: ValueError())
    assert not b.checks
    b.check(b.constant(False), lambda: ValueError())
    assert len(b.checks) == 1
    unchecked = JaxprBuilder()
    unchecked.check(unchecked.input((), np.dtype(bool)), lambda: ValueError())
    assert not unchecked.checks and unchecked.check_code().val == 0


def test_names_are_printed(b):
    """A Jaxpr prints the names of its equations, and no empty comments where there are none."""
    x = b.input((3,), F32, "x")
    y = prims.exp(b, x)
    assert "#" not in str(b.build([y]))
    b.at("Sin[angle]", "inner")
    jaxpr = b.build([prims.sin(b, y)])
    assert "# [Sin[angle]/inner]" in str(jaxpr) and repr(jaxpr) == str(jaxpr)
    assert jaxpr.debug_info.arg_names == ("x",)
    assert "Sin[angle]/inner" in jax.jit(jaxpr_as_fun(jaxpr)).lower(np.ones(3, F32)).as_text(debug_info=True)


def test_broadcasts_compose(b):
    """A broadcast of a broadcast, and a reshape of a reshape, are one equation."""
    x = b.input((3,), F64)
    wide = prims.broadcast_to(b, prims.broadcast_to(b, x, (2, 3)), (4, 2, 3))
    flat = prims.reshape(b, prims.reshape(b, wide, (8, 3)), (24,))
    jaxpr = b.build([flat])
    check_jaxpr(jaxpr)
    assert [e.primitive.name for e in jaxpr.eqns] == ["broadcast_in_dim", "reshape"]
    assert prims.reshape(b, prims.reshape(b, x, (1, 3)), (3,)) is x


def test_operands_of_a_commutative_primitive_may_be_exchanged(b):
    """Both orders of a sum are one equation, of a difference two. A negation of a negation vanishes."""
    x, y = b.input((3,), F64), b.input((3,), F64)
    assert prims.add(b, x, y) is prims.add(b, y, x)
    assert prims.sub(b, x, y) is not prims.sub(b, y, x)
    assert prims.neg(b, prims.neg(b, x)) is x
