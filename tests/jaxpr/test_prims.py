"""The assembler against `jax.lax`: each function of `prims` makes the equation that JAX itself would trace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Jaxpr, check_jaxpr, jaxpr_as_fun
from prim_rows import ROWS, Row, assembled

from pytensor_jaxpr_linker import prims
from pytensor_jaxpr_linker.jaxpr.traits import TRAITS, Trait

pytestmark = pytest.mark.usefixtures("x64")

#: Functions of `prims` that do not assemble an equation: they help, or make assembler functions.
HELPERS = {
    "arg_reduction",
    "complex_dtype",
    "cumulative",
    "dimensions",  # see tests/whole/test_symbolic.py
    "length_or_zero",
    "named_after",
    "elementwise",
    "elementwise_shape",
    "fill_value",
    "part_dtype",
    "real_dtype",
    "reduction",
    "scatter_body",
    "scatter_family",
}


every_row = pytest.mark.parametrize("row", ROWS, ids=[r.name for r in ROWS])


def as_functions(row: Row) -> tuple[Callable, Callable]:
    """Return what we assemble, and the reference, as functions that return lists."""
    return jaxpr_as_fun(assembled(row)), lambda *args: jax.tree.leaves(row.reference(*args))


def outcome(f: Callable, *args: Any) -> Any:
    """Return the result of ``f(*args)`` or the type of its exception."""
    try:
        return f(*args)
    except Exception as error:
        return type(error)


def assert_same(ours: Any, theirs: Any) -> None:
    """Check that two outcomes are the same exception type or the same arrays."""
    if isinstance(theirs, type):
        assert ours is theirs
        return
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def described(value: Any) -> Any:
    """Return a param in a form that compares: Jaxprs as they print."""
    if isinstance(value, Jaxpr):
        return value.pretty_print(name_stack=False)
    if hasattr(value, "call_wrapped"):  # how a custom derivative is found
        jaxpr, _, zeros = value.call_wrapped(False)
        return [eqn.primitive for eqn in jaxpr.eqns], list(zeros)
    if hasattr(value, "unpack"):  # a flat tree of operands: JAX's own keeps the user's nesting within each part
        return [len(part) for part in value.unpack()]
    if isinstance(value, float):
        return repr(value)  # a NaN equals none
    return tuple(map(described, value)) if isinstance(value, tuple) else value


def test_every_function_has_a_row():
    """An assembler function without a row is not checked against JAX."""
    package = f"{prims.__name__}."
    functions = {n for n, f in vars(prims).items() if getattr(f, "__module__", "").startswith(package)}
    assert {n for n in functions if not n.startswith("_")} - HELPERS == {r.name for r in ROWS}


@every_row
def test_traits_of_every_primitive(row):
    """A primitive without a row in the table of traits would silently be one that no pass knows."""
    if row.name != "bcsr_dot_general":  # which is imported when it is first needed
        assert {eqn.primitive for eqn in assembled(row).eqns} <= TRAITS.keys()


@every_row
def test_primitives_that_jax_lowers_to_functions(row):
    """Two equal equations call one function: `xla_options` must know.

    Calls of small parts and of libraries are not such functions.
    """
    closed = assembled(row)
    traits = [TRAITS.get(eqn.primitive, Trait.FUNCTION) for eqn in closed.eqns]
    if row.name in ("bcsr_dot_general", "metadata_call") or any(Trait.CONTROL_FLOW in found for found in traits):
        return

    def twice(*xs):
        return [jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *xs) for _ in range(2)]

    with jax.enable_x64(True):
        text = jax.jit(twice).lower(*row.operands).as_text()
    called = Counter(re.findall(r" call @([\w.]+)\(", text))
    assert max(called.values(), default=0) < 2 or any(Trait.FUNCTION in found for found in traits), called


@every_row
def test_equation_is_the_one_that_jax_traces(row):
    """Primitive, params, operands and results are JAX's own."""
    ours, theirs = assembled(row), jax.make_jaxpr(row.reference)(*row.operands)
    assert [e.primitive.name for e in ours.eqns] == [e.primitive.name for e in theirs.eqns]
    for a, b in zip(ours.eqns, theirs.eqns, strict=True):
        assert a.primitive is b.primitive
        assert sorted(a.params) == sorted(b.params)
        for key in a.params:
            assert described(a.params[key]) == described(b.params[key]), key
        assert [x.aval for x in a.invars] == [x.aval for x in b.invars]
        assert [x.aval for x in a.outvars] == [x.aval for x in b.outvars]
        assert a.effects == b.effects


@every_row
def test_jaxpr_checks_and_prints(row):
    """JAX's checker takes the Jaxpr, and it prints in both ways."""
    jaxpr = assembled(row)
    check_jaxpr(jaxpr)
    assert jaxpr.eqns[-1].primitive.name in str(jaxpr)
    assert jaxpr.eqns[-1].primitive.name in jaxpr.pretty_print(name_stack=True)


@every_row
def test_value(row):
    """Compiled, it computes what `jax.lax` computes."""
    ours, theirs = as_functions(row)
    assert_same(jax.jit(ours)(*row.operands), jax.jit(theirs)(*row.operands))


@every_row
def test_gradient(row):
    """`jax.grad` of the sum of its floating outputs is that of the reference, or neither has one."""
    positions = tuple(i for i, x in enumerate(row.operands) if x.dtype.kind == "f")
    if not positions:
        pytest.skip("no floating operand")

    def gradient(f: Callable) -> Callable:
        def total(*args: Any) -> Any:
            outputs = [jnp.sum(y * jnp.cos(y)) for y in f(*args) if y.dtype.kind == "f"]
            return sum(outputs, jnp.zeros(()))

        return jax.jit(jax.grad(total, positions))

    ours, theirs = as_functions(row)
    assert_same(outcome(gradient(ours), *row.operands), outcome(gradient(theirs), *row.operands))


@every_row
def test_vmap(row):
    """`jax.vmap` over every operand gives what it gives for the reference."""
    if not row.operands:
        pytest.skip("no operand")
    stacked = [np.stack([x, x[::-1] if x.ndim == 1 else x]) for x in row.operands]
    ours, theirs = as_functions(row)
    assert_same(outcome(jax.jit(jax.vmap(ours)), *stacked), outcome(jax.jit(jax.vmap(theirs)), *stacked))


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
@every_row
def test_lowering(row, platform):
    """It lowers for each platform, unless JAX has no lowering of the primitive there."""

    def lower(f: Callable) -> Any:
        return jax.jit(f).trace(*row.operands).lower(lowering_platforms=(platform,))

    ours, theirs = (outcome(lower, f) for f in as_functions(row))
    if isinstance(theirs, type):
        assert ours is theirs
    else:
        assert ours.as_text()
