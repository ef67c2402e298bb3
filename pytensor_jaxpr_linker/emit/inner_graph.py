"""Ops with inner graphs that stay as they are: conditionals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import jax.extend.core as jex
import numpy as np
from pytensor.graph.basic import Apply
from pytensor.graph.fg import AbstractFunctionGraph

from pytensor_jaxpr_linker.base import marks
from pytensor_jaxpr_linker.base.errors import INNER_GRAPH, MISFITS, CannotEmit, GraphBreakError, Reason, WrongResult
from pytensor_jaxpr_linker.base.pytensor_compat import IfElse, LazyIfElse
from pytensor_jaxpr_linker.base.rules import emits, find_rule
from pytensor_jaxpr_linker.emit import traced_leaf
from pytensor_jaxpr_linker.emit.scalar import convert
from pytensor_jaxpr_linker.graph.prepare import prepare
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, live_equations
from pytensor_jaxpr_linker.plan.model import Plan
from pytensor_jaxpr_linker.plan.partition import partition

#: The plans of each inner graph, with and without traced leaves, by how many of its inputs vary.
_PLANS: WeakKeyDictionary[AbstractFunctionGraph, dict[tuple[bool, int], Plan]] = WeakKeyDictionary()


def inner_plan(fgraph: AbstractFunctionGraph, varying: int = 0) -> Plan:
    """Return the plan of an inner graph, made once.

    Parameters
    ----------
    fgraph
        The inner graph.
    varying
        How many of its inputs, the first, differ from step to step, so that their values are not known before it runs.
    """
    plans, key = _PLANS.setdefault(fgraph, {}), (traced_leaf.allowed.get(), varying)
    plan = plans.get(key)
    if plan is None:

        def rule(node: Apply) -> Any:
            return find_rule(node.op) or traced_leaf.leaf_rule(node)

        # The nodes of a frozen graph can't be copied, as `prepare` does; and what is marked is a copy.
        graph: Any = fgraph
        thawed = graph.unfreeze() if hasattr(graph, "unfreeze") else graph.clone()
        for v in thawed.inputs[:varying]:
            marks.mark_varying(v)
        plan = plans[key] = partition(prepare(thawed, rule), rule)
    return plan


def branch_plans(op: LazyIfElse) -> tuple[Plan, Plan]:
    """Return the plans of the false and of the true branch, in the order of the index that chooses."""
    return inner_plan(op.false_branch.fgraph), inner_plan(op.true_branch.fgraph)


def static_branch_inputs(node: Apply) -> list[int]:
    """Return the positions of the inputs whose values one of the branches must know."""
    positions: set[int] = set()
    for plan in branch_plans(node.op):
        if not plan.breaks:
            (region,) = plan.regions
            positions.update(region.inputs.index(v) + 1 for v in region.static_inputs)
    return sorted(positions)


def refuse_branches(node: Apply) -> str | None:
    """Return why a branch can't be emitted, or None."""
    breaks = [b for plan in branch_plans(node.op) for b in plan.breaks]
    return Reason("in a branch: " + str(GraphBreakError(breaks)), INNER_GRAPH) if breaks else None


@emits(LazyIfElse, static=static_branch_inputs, refuse=refuse_branches)
def emit_LazyIfElse(op, node, b, condition, *operands):
    """Emit the branches as Jaxprs of one ``cond``."""
    plans = branch_plans(op)
    known = fixed_value(condition)
    if known is not None:
        results = emit_branch(b, plans[bool(known)], node, dict(enumerate(operands)))
        return results if len(results) > 1 else results[0]
    # Numbers are written into each branch; the rest are operands of the `cond`, whose values rules may know all the same.
    fixed = {i: value for i, x in enumerate(operands) if (value := fixed_value(x)) is not None}
    passed = [i for i in range(len(operands)) if i not in fixed]
    count = len(b.checks)
    children, results = [], []
    misfits: dict[int, Exception] = {}
    for i, plan in enumerate(plans):
        before = len(b.checks)
        child, atoms = branch_builder(b, [operands[i] for i in passed])
        try:
            found = emit_branch(child, plan, node, {**fixed, **dict(zip(passed, atoms, strict=True))})
        except WrongResult:
            raise
        except MISFITS as error:
            if misfits or not b.checked:
                raise
            del b.checks[before:]
            child, _ = branch_builder(b, [operands[i] for i in passed])
            found, misfits[i] = [], error
        children.append(child)
        results.append(found)
    for i, misfit in misfits.items():
        results[i] = fail_if_taken(children[i], misfit, node, [x.aval for x in results[1 - i]])
    has_checks = len(b.checks) > count
    outputs = emit_cond(b, condition, children, results, [operands[i] for i in passed], has_checks)
    return outputs if len(outputs) > 1 else outputs[0]


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


def fixed_value(operand: Any) -> np.ndarray | None:
    """Return the value of a static operand or of a literal, or None."""
    if isinstance(operand, np.ndarray | np.generic):
        return np.asarray(operand)
    return np.asarray(operand.val) if isinstance(operand, jex.Literal) else None


def emit_branch(b: JaxprBuilder, plan: Plan, node: Apply, operands: Mapping[int, Any]) -> list[Atom]:
    """Emit one branch at the insertion point of `b`; an operand is an atom, or its value."""
    from pytensor_jaxpr_linker.jaxpr.lower import lower_into

    (region,) = plan.regions
    static, atoms = {}, []
    for i, variable in enumerate(region.inputs):
        x = operands[i]
        if isinstance(x, np.ndarray | np.generic):
            static[variable] = x
            x = b.constant(x, getattr(variable.type, "dtype", None))
        atoms.append(x)
    try:
        return lower_into(b, region, atoms, {v: static[v] for v in region.static_inputs})
    except CannotEmit as error:  # the plan of the outer graph knows no inner node
        raise CannotEmit(f"in a branch: {error}") from None


@emits(IfElse)
def emit_IfElse(op, node, b, condition, *values):
    """Choose one of two lists of values, which are computed already."""
    on_true, on_false = values[: op.n_outs], values[op.n_outs :]
    known = fixed_value(condition)
    if known is not None:
        outputs = list(on_true if known else on_false)
    else:
        operands = list(dict.fromkeys(x for x in values if isinstance(x, jex.Var)))
        children, results = [], []
        for chosen in (on_false, on_true):
            child, atoms = b.sub_jaxpr([x.aval for x in operands])
            inner = dict(zip(operands, atoms, strict=True))
            children.append(child)
            results.append([inner[x] if isinstance(x, jex.Var) else x for x in chosen])
        outputs = emit_cond(b, condition, children, results, operands, False)
    return outputs if len(outputs) > 1 else outputs[0]


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
            raise CannotEmit(
                f"the true branch returns the shape {on_true.aval.shape} and the false branch {on_false.aval.shape}", 0
            )
    avals = [x.aval for x in results[0]]
    if has_checks:
        results = [[*xs, child.check_code()] for child, xs in zip(children, results, strict=True)]
        avals.append(b.aval((), prims.INT32))
    shared = pass_constants(b, children, results)
    branches = [child.build(xs) for child, xs in zip(children, results, strict=True)]
    index = prims.convert(b, convert(b, condition, bool), prims.INT32)
    outputs = prims.cond(b, index, branches, [*operands, *shared], avals)
    if has_checks:
        b.check_code_of(outputs.pop())
    return outputs


def pass_constants(b: JaxprBuilder, children: Sequence[JaxprBuilder], results: Sequence[Sequence[Atom]]) -> list[Atom]:
    """Make the array constants that any of `children` reads inputs of each of them; return their atoms in `b`.

    JAX's rules for ``cond`` take branches without constants and with the same inputs.
    """
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
