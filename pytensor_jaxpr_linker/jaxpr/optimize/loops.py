"""Equations that move out of a loop, or into one.

- Distribution moves equations before a loop, if they read no carry: they are computed for all steps at once.
- Fusion moves cheap equations into the only loop that reads their rows.
- An earlier loop returns residuals, values that a later loop would compute again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.extend.core as jex
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base.interpreter import identity
from pytensor_jaxpr_linker.base.jax_compat import scan_counts
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape, is_variable, live_equations
from pytensor_jaxpr_linker.jaxpr.nested import row_of
from pytensor_jaxpr_linker.jaxpr.passes import count_readers
from pytensor_jaxpr_linker.jaxpr.traits import Trait, having

#: Shorter loops are left alone: computing costs less than storing, or, if they call LAPACK, not much more.
LEAST_STEPS, LEAST_STEPS_WITH_CALLS = 32, 4

#: The most elements that are stored for all steps.
MOST_ELEMENTS = 2**23

CHEAP, CONTROL_FLOW, LAYOUT = having(Trait.CHEAP), having(Trait.CONTROL_FLOW), having(Trait.LAYOUT)

#: Distribution pays where library calls leave the loop: one call for each step becomes one for all. XLA fuses other
#: equations, which then only cost memory traffic: of the gradients of 1,000 and 10,000 steps, a Kalman filter's takes
#: 0.7 times as long, one of RK4 1.05 times.
CALLS = having(Trait.LIBRARY_CALL)

#: Equations whose rows follow from the rows of their operands by the same equation.
ROW_BY_ROW = having(Trait.ELEMENTWISE)

#: Equations that move into the loop that reads their rows.
MOVED = (ROW_BY_ROW & CHEAP) | {p.broadcast_in_dim_p}

#: Equations that XLA does not fuse with their operands.
NOT_FUSED = having(Trait.KERNEL | Trait.LIBRARY_CALL | Trait.CONTROL_FLOW)

#: Equations that are followed from an array to the loop that computed its rows.
FOLLOWED = ROW_BY_ROW | {p.broadcast_in_dim_p, p.concatenate_p, p.rev_p, p.slice_p}


class Distribution(NamedTuple):
    """The equations of a body, divided."""

    crossing: list[jex.Var]  #: values that are computed before the loop, and that its steps read
    kept: list[jex.JaxprEqn]  #: the equations of the steps
    has_calls: bool  #: whether library calls leave the loop


def distribute(
    eqns: Sequence[jex.JaxprEqn], results: Sequence[Atom], carry: Iterable[jex.Var], steps: int
) -> Distribution | None:
    """Divide a body into equations that depend on `carry`, its inputs from earlier steps, and others, if that pays.

    Loop distribution (Allen and Kennedy, Optimizing Compilers for Modern Architectures, 2001, section 5.2) computes the
    others for all steps at once, before the loop. PyTensor's gradient of a loop computes each forward step again, from
    states that are known by then, so most of its body does not depend on the carry.
    """
    if type(steps) is not int or steps < LEAST_STEPS_WITH_CALLS:
        return None
    eqns, _ = live_equations(eqns, results)
    recurrent: set[Atom] = set(carry)
    moved: set[Atom] = set()
    is_dear = has_calls = False
    kept = []
    for eqn in eqns:
        reads = [x for x in eqn.invars if is_variable(x)]
        if eqn.effects or eqn.primitive in CONTROL_FLOW or not recurrent.isdisjoint(reads):
            recurrent.update(eqn.outvars)
            kept.append(eqn)
        elif eqn.primitive in LAYOUT:
            kept.append(eqn)
        else:
            moved.update(eqn.outvars)
            is_dear |= eqn.primitive not in CHEAP
            has_calls |= eqn.primitive in CALLS
    if not is_dear or (steps < LEAST_STEPS and not has_calls):
        return None
    kept, used = live_equations(kept, results)
    crossing = [var for eqn in eqns for var in eqn.outvars if var in moved and var in used]
    shapes: list[Shape] = [var.aval.shape for var in crossing]  # type: ignore[attr-defined]
    if not crossing or not all(isinstance(n, int) for shape in shapes for n in shape):
        return None
    if steps * sum(map(math.prod, shapes)) > MOST_ELEMENTS:
        return None
    return Distribution(crossing, kept, has_calls)


class ReopenedLoop:
    """A new body, with the insertion point `child`, for the ``scan`` `eqn` of `b`.

    `consts` and `rows` map atoms of `b` to the body's inputs for their values and their rows. `initial` are the first
    values of `carry`.
    """

    def __init__(self, b: JaxprBuilder, eqn: Any):
        self.b, self._eqn, self.child = b, eqn, b.sub_jaxpr([])[0]
        count, n_carry = scan_counts(eqn.params)
        self.consts: dict[Atom, jex.Var] = {}
        self.rows: dict[Atom, jex.Var] = {}
        self.initial: list[Atom] = list(eqn.invars[count : count + n_carry])
        self.carry = [self.child.input(x.aval.shape, x.aval.dtype) for x in self.initial]
        self._given: tuple[list[Atom], list[Atom]] = (eqn.invars[:count], eqn.invars[count + n_carry :])

    def const(self, x: Atom) -> Atom:
        """Return the body's input for a constant of the loop."""
        if not is_variable(x):
            return self.child.constant(x.val, x.aval.dtype)
        if x not in self.consts:
            self.consts[x] = self.child.input(x.aval.shape, x.aval.dtype)
        return self.consts[x]

    def row_input(self, x: Atom) -> Atom:
        """Return the body's input for the row of an array."""
        if x not in self.rows:
            self.rows[x] = self.child.input(x.aval.shape[1:], x.aval.dtype)
        return self.rows[x]

    def copy_body(self, row: Callable[[Atom], Atom]) -> list[Atom]:
        """Emit the equations of the old body and return its results; `row` returns the rows that it reads."""
        consts, arrays = self._given
        values = [*map(self.const, consts), *self.carry, *map(row, arrays)]
        return self.child.inline(self._eqn.params["jaxpr"], values)

    def computed_row(
        self, x: Atom, row: Callable[[Atom], Atom | None], const: Callable[[Atom], Atom | None]
    ) -> Atom | None:
        """Emit the row of a broadcast or an elementwise result; return None if an operand has none."""
        eqn, shape = self.b.definition(x), x.aval.shape
        if eqn.primitive is p.broadcast_in_dim_p:
            (inner,), dims = eqn.invars, eqn.params["broadcast_dimensions"]
            has_rows = 0 in dims
            if has_rows and inner.aval.shape[0] != shape[0]:
                return None
            value = row(inner) if has_rows else const(inner)
            dims = [axis - 1 for axis in dims[has_rows:]]
            return None if value is None else prims.broadcast_in_dim(self.child, value, shape[1:], dims)
        if eqn.primitive in ROW_BY_ROW:
            values: list[Any] = [row(y) if y.aval.shape else const(y) for y in eqn.invars]
            if None not in values:
                return self.child.bind(eqn.primitive, values, shape[1:], x.aval.dtype, eqn.params)
        return None

    def close(self, results: Sequence[Atom]) -> list[Atom]:
        """Replace the old loop and return the results that are new; they follow the old ones in `results`."""
        self.child.invars = [*self.consts.values(), *self.carry, *self.rows.values()]
        self.child.arg_names = [f"arg{i}" for i in range(len(self.child.invars))]
        how = (*(self._eqn.params[name] for name in ("length", "unroll", "reverse")), self._eqn)
        return prims.scan(self.b, self.child.build(results), list(self.consts), self.initial, list(self.rows), *how)


def fuse_rows(eqns: list[Any], b: JaxprBuilder) -> list[Any]:
    """Move cheap elementwise equations whose result only one loop reads, row by row, into that loop.

    PyTensor moves equations that need no earlier step out of a loop. For a few operations on each element that gains
    nothing. On a CPU it can cost more than the loop: XLA counts the operations of a loop's body once, whatever the
    number of steps, and a program of more than 1,000 operations waits for a thread.

    A Jaxpr that JAX differentiates is left out: it would keep residuals of a loop's body.
    """
    single = {var for var, count in count_readers(eqns, b.outputs).items() if count == 1}
    loops = [eqn for eqn in eqns if is_fusible_loop(eqn, b) and not single.isdisjoint(filter(is_variable, eqn.invars))]
    fused = [loop for loop in (FusedLoop(b, eqn, single) for eqn in loops) if loop.has_moved]
    if not fused:
        return eqns
    b.eqns = list(eqns)
    for loop in fused:
        loop.close(loop.results)
    return live_equations(b.eqns, b.outputs)[0]


def is_fusible_loop(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether a loop has no products, factorizations or loops: XLA would not fuse moved equations with them."""
    return eqn.primitive is p.scan_p and NOT_FUSED.isdisjoint(inner.primitive for inner in eqn.params["jaxpr"].eqns)


class FusedLoop(ReopenedLoop):
    """A loop that computes the rows that it alone reads; `single` are the variables that are read once."""

    def __init__(self, b: JaxprBuilder, eqn: Any, single: Collection[Atom]):
        super().__init__(b, eqn)
        self._single, self.has_moved = single, False
        self.results = self.copy_body(self._row)

    def _row(self, x: Atom) -> Atom:
        """Return the row of an array that a step takes."""
        eqn = self.b.definition(x) if x in self._single else None
        is_moved = eqn is not None and eqn.primitive in MOVED
        computed = self.computed_row(x, self._row, self.const) if is_moved else None
        self.has_moved |= computed is not None
        return self.row_input(x) if computed is None else computed


def keep_residuals(
    b: JaxprBuilder,
    eqns: Sequence[jex.JaxprEqn],
    crossing: Sequence[jex.Var],
    consts: Mapping[jex.Var, Atom],
    rows: Mapping[jex.Var, Atom],
    steps: int,
) -> list[Atom] | None:
    """Return the values of `crossing`, which `eqns` of a body compute, in all steps.

    Return None unless an earlier loop has the results of all expensive equations. PyTensor's gradient of a loop
    computes each forward step again from the recorded states. Its expensive equations are equal to equations of the
    forward loop, whose values become further results of it, like the residuals of JAX's reverse mode (Radul et al., You
    Only Linearize Once, 2023): loop fusion, then common subexpression elimination.

    `consts` and `rows` map variables of the body to atoms of `b`, and to arrays of rows.
    """
    read = {x for eqn in eqns for x in eqn.invars if is_variable(x)}
    rows = {var: x for var, x in rows.items() if var in read}
    for loop in loops_behind(b, list(rows.values()), steps):
        for backwards in (True, False):
            earlier = EarlierLoop(b, loop)
            count = len(earlier.child.eqns)
            first, stride = (steps - 1, -1) if backwards else (0, 1)
            env = {var: earlier.row(x, first, stride) for var, x in rows.items()}
            env |= {var: earlier.invariant(x) for var, x in consts.items() if var in read}
            if None in env.values():
                continue
            for eqn in eqns:
                earlier.child.copy(eqn, env)
            if all(eqn.primitive in CHEAP for eqn in earlier.child.eqns[count:]):
                found = earlier.close([*earlier.results, *(env[var] for var in crossing)])
                return [prims.rev(b, x, (0,)) for x in found] if backwards else found
    return None


def loops_behind(b: JaxprBuilder, arrays: list[Atom], steps: int) -> list[jex.JaxprEqn]:
    """Return the loops of `steps` steps that computed rows of arrays."""
    loops, seen, stack = [], set(), arrays
    while stack:
        x = stack.pop()
        eqn = b.definition(x)
        if eqn is None or identity(eqn) in seen:
            continue
        seen.add(identity(eqn))
        if eqn.primitive is p.scan_p and eqn.params["length"] == steps:
            loops.append(eqn)
        elif eqn.primitive in FOLLOWED:
            stack += eqn.invars
    return loops


class EarlierLoop(ReopenedLoop):
    """A loop that finds arrays of the outer Jaxpr among its rows."""

    def __init__(self, b: JaxprBuilder, eqn: Any):
        super().__init__(b, eqn)
        self.results = self.copy_body(self.row_input)
        place = next(i for i, e in enumerate(b.eqns) if e is eqn)
        self._later = {v for e in b.eqns[place:] for v in e.outvars}
        self._stacked: dict[Atom, Atom] = {**self.rows}
        self._stacked |= dict(zip(eqn.outvars[len(self.carry) :], self.results[len(self.carry) :], strict=True))

    def invariant(self, x: Atom) -> Atom | None:
        """Return a constant of the loop, or None if the atom is computed after the loop."""
        return None if is_variable(x) and x in self._later else self.const(x)

    def row(self, x: Atom, first: int, stride: int) -> Atom | None:
        """Return the row ``first + stride * r`` of an array in the step that writes the rows r, or None."""
        if (first, stride) == (0, 1) and x in self._stacked:
            return self._stacked[x]
        eqn, shape = self.b.definition(x), x.aval.shape
        if eqn is None:
            return None
        inner: Atom = eqn.invars[0] if eqn.invars else None
        if eqn.primitive is p.rev_p and eqn.params["dimensions"] == (0,):
            return self.row(inner, shape[0] - 1 - first, -stride)
        if eqn.primitive is p.slice_p and not eqn.params["strides"] and inner.aval.shape[1:] == shape[1:]:
            return self.row(inner, first + eqn.params["start_indices"][0], stride)
        if eqn.primitive is p.concatenate_p and eqn.params["dimension"] == 0:
            return self._state(x, eqn.invars, first, stride)
        return self.computed_row(x, lambda y: self.row(y, first, stride), self.invariant)

    def _state(self, x: Atom, parts: Sequence[Atom], first: int, stride: int) -> Atom | None:
        """Return a row of an array that consists of initial states and then the rows that the loop writes."""
        initial, traced = parts[:2]
        is_reversed = self._eqn.params["reverse"]
        begin = first + stride * (self._eqn.params["length"] - 1) * is_reversed  # the row that the first step reads
        known = initial.aval.shape[0]
        if begin >= known:
            return self.row(traced, first - known, stride)
        if begin < 0 or stride != (-1 if is_reversed else 1):
            return None
        # One row on is the row that this step writes for the next one.
        written, found = self.row(x, first + 1, stride), row_of(self.b, initial, begin)
        for var, start, result in zip(self.carry, self.initial, self.results, strict=False):
            if result is written and start is found:
                return var
        return None
