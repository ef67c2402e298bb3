"""Branches chosen by a value, or by the platform that a program is lowered for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.extend.core as jex
from pytensor.graph.basic import Apply

from pytensor_jaxpr_linker.base.errors import MISFITS, CannotEmit, WrongResult
from pytensor_jaxpr_linker.base.options import GPUS, given_platforms
from pytensor_jaxpr_linker.base.pytensor_compat import IfElse, LazyIfElse
from pytensor_jaxpr_linker.base.rules import InnerGraph, emits
from pytensor_jaxpr_linker.emit.scalar import numpy_astype
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, live_equations
from pytensor_jaxpr_linker.jaxpr.nested import fixed_value, nested
from pytensor_jaxpr_linker.jaxpr.portable.rewrite import portable_inside

# -- branches chosen by a value ----------------------------------------------------------------------------------------


def branches_of(node: Apply) -> list[InnerGraph]:
    """Return the false and the true branch, in the order of the index that chooses."""
    return [InnerGraph(branch.fgraph, "in a branch", first=1) for branch in (node.op.false_branch, node.op.true_branch)]


@emits(LazyIfElse, inner=branches_of)
def emit_LazyIfElse(op, node, b, branches, condition, *operands):
    """Emit the branches as Jaxprs of one ``cond``."""
    if (known := fixed_value(condition)) is not None:
        return branches[bool(known)](b, operands)
    # Branches repeat numbers; other values are operands of the `cond`, and rules may still know them.
    fixed = [fixed_value(x) for x in operands]
    passed = [x for x, value in zip(operands, fixed, strict=True) if value is None]
    count = len(b.checks)
    children, results = [], []
    misfits: dict[int, Exception] = {}
    for i, emit_branch in enumerate(branches):
        before = len(b.checks)
        child, atoms = branch_builder(b, passed)
        try:
            inputs = iter(atoms)
            found = emit_branch(child, [next(inputs) if value is None else value for value in fixed])
        except WrongResult:
            raise
        except MISFITS as error:
            if misfits or not b.checked:
                raise
            del b.checks[before:]
            child, _ = branch_builder(b, passed)
            found, misfits[i] = [], error
        children.append(child)
        results.append(found)
    for i, misfit in misfits.items():
        results[i] = fail_if_taken(children[i], misfit, node, [x.aval for x in results[1 - i]])
    return emit_cond(b, condition, children, results, passed, len(b.checks) > count)


def branch_builder(b: JaxprBuilder, operands: Sequence[Atom]) -> tuple[JaxprBuilder, list[Atom]]:
    """Return the insertion point of a branch, and its inputs, which have the known values of the operands."""
    child, atoms = b.sub_jaxpr([x.aval for x in operands])
    for x, atom in zip(operands, atoms, strict=True):
        if (value := b.known(x)) is not None:
            child.remember(atom, value)
    return child, atoms


def fail_if_taken(child: JaxprBuilder, error: Exception, node: Apply, avals: Sequence[Any]) -> list[Atom]:
    """Emit a branch that these shapes don't fit: PyTensor raises that only where it is taken."""
    child.check(child.constant(False), partial(type(error), *error.args), node)
    return [prims.broadcast_to(child, child.constant(0, aval.dtype), aval.shape) for aval in avals]


@emits(IfElse)
def emit_IfElse(op, node, b, condition, *values):
    """Choose one of two lists of values, which are computed already."""
    on_true, on_false = slice(op.n_outs), slice(op.n_outs, None)
    if (known := fixed_value(condition)) is not None:
        return values[on_true if known else on_false]
    children, results = [], []
    for chosen in (on_false, on_true):
        child, inner, _, operands = nested(b, values, [])
        children.append(child)
        results.append(inner[chosen])
    return emit_cond(b, condition, children, results, operands, False)


def emit_cond(
    b: JaxprBuilder,
    condition: Atom,
    children: Sequence[JaxprBuilder],
    results: Sequence[list[Atom]],
    operands: Sequence[Atom],
    has_checks: bool,
) -> list[Atom]:
    """Emit the choice between two branches, false and true, that were emitted into `children`.

    Raises
    ------
    CannotEmit
        If the branches return different shapes: the type of a Jaxpr's value is fixed before it runs. Then the condition
        has to be known.
    """
    for on_false, on_true in zip(*results, strict=True):
        if on_false.aval.shape != on_true.aval.shape:
            shapes = f"the shape {on_true.aval.shape} and the false branch {on_false.aval.shape}"
            raise CannotEmit(f"the true branch returns {shapes}", 0)
    avals = [x.aval for x in results[0]]
    if has_checks:
        results = [[*xs, child.check_code()] for child, xs in zip(children, results, strict=True)]
        avals.append(b.aval((), prims.INT32))
    shared = pass_constants(b, children, results)
    branches = [child.build(xs) for child, xs in zip(children, results, strict=True)]
    index = prims.convert(b, numpy_astype(b, condition, bool), prims.INT32)
    outputs = prims.cond(b, index, branches, [*operands, *shared], avals)
    if has_checks:
        b.check_code_of(outputs.pop())
    return outputs


def pass_constants(b: JaxprBuilder, children: Sequence[JaxprBuilder], results: Sequence[Sequence[Atom]]) -> list[Atom]:
    """Make array constants inputs of all children, as JAX's rules for ``cond`` want, and return their atoms in `b`."""
    shared, columns = [], []
    for i, child in enumerate(children):
        _, used = live_equations(child.eqns, results[i])
        for variable, value in zip(child.constvars, child.consts, strict=True):
            if variable not in used:
                continue
            shared.append(b.constant(value))
            columns.append([variable if j == i else jex.Var(variable.aval) for j in range(len(children))])
        child.constvars, child.consts = [], []
    for i, child in enumerate(children):
        child.invars += [column[i] for column in columns]
        child.arg_names += [f"constant{j}" for j in range(len(columns))]
    return shared


# -- branches chosen by the platform -----------------------------------------------------------------------------------


#: An emission, from atoms to the atoms of its results.
type EmitResults = Callable[..., Sequence[Atom]]

#: The platforms that JAX has a decomposition for.
ON_CPU, ON_CPU_AND_GPU = ("cpu",), ("cpu", *GPUS)


def emit_one_of(
    b: JaxprBuilder, platforms: Sequence[str], there: EmitResults, elsewhere: EmitResults, operands: Sequence[Atom]
) -> list[Atom]:
    """Emit ``there(b, *operands)`` on some platforms, and elsewhere ``elsewhere(b, *operands)``, right on all.

    If the platforms that the program is lowered for are not given, the program holds both, and the lowering chooses.
    """
    if given := given_platforms():
        return list((there if set(given) <= set(platforms) else elsewhere)(b, *operands))
    branches = []
    for emit in (there, elsewhere):
        child, atoms = b.sub_jaxpr([x.aval for x in operands])
        branches.append(child.build(list(emit(child, *atoms))))
    return prims.platform_cond(b, platforms, branches[0], branches[1], operands)


def emit_by_platform(
    b: JaxprBuilder, emit: EmitResults, operands: Sequence[Atom], platforms: Sequence[str]
) -> list[Atom]:
    """Emit ``emit(b, *operands)`` on platforms that JAX has its primitives for, and elsewhere its portable form.

    If the platforms that the program is lowered for are not given, the program holds both, and the lowering chooses.
    If several are given, and JAX lacks the primitives for one, all get the portable form.
    """
    given = given_platforms()
    if given and set(given) <= set(platforms):
        return list(emit(b, *operands))
    child, atoms = b.sub_jaxpr([x.aval for x in operands])
    there = child.build(list(emit(child, *atoms)))
    if not all(isinstance(n, int) for x in operands for n in x.aval.shape):
        if given:
            shapes = ", ".join(str(x.aval.shape) for x in operands)
            raise CannotEmit(f"on {' and '.join(given)} it is a loop over rows, whose number has to be known: {shapes}")
        return list(emit(b, *operands))
    elsewhere = portable_inside(b, there)
    if given:  # JAX lowers every branch for all of several platforms
        return prims.closed_call(b, elsewhere, operands)
    return prims.platform_cond(b, platforms, there, elsewhere, operands)
