"""An earlier loop returns the values that a later one would compute again.

PyTensor's gradient of a loop computes each forward step again from the recorded states. The expensive equations are equal to
equations of the forward loop, whose values become further results of it, like the residuals of JAX's reverse mode (Radul et
al., You Only Linearize Once, 2023): loop fusion, then common subexpression elimination.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.extend.core as jex
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base.identity import identity
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, is_variable
from pytensor_jaxpr_linker.jaxpr.optimize.reopened import ReopenedLoop
from pytensor_jaxpr_linker.jaxpr.rows import row_of
from pytensor_jaxpr_linker.jaxpr.traits import Trait, having

CHEAP = having(Trait.CHEAP)

#: Equations that are followed from an array to the loop that computed its rows.
FOLLOWED = having(Trait.ELEMENTWISE) | {p.broadcast_in_dim_p, p.concatenate_p, p.rev_p, p.slice_p}


def keep_residuals(
    b: JaxprBuilder,
    eqns: Sequence[jex.JaxprEqn],
    crossing: Sequence[jex.Var],
    consts: Mapping[jex.Var, Atom],
    rows: Mapping[jex.Var, Atom],
    steps: int,
) -> list[Atom] | None:
    """Return the values of `crossing`, which `eqns` of a body compute, in all steps, if an earlier loop has the expensive ones.

    `consts` and `rows` map variables of the body to atoms of `b`, and to arrays of rows.
    """
    read = {x for eqn in eqns for x in eqn.invars if type(x) is jex.Var}
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
        begin = first + stride * (self._eqn.params["length"] - 1) * is_reversed  # what the first step reads
        known = initial.aval.shape[0]
        if begin >= known:
            return self.row(traced, first - known, stride)
        if begin < 0 or stride != (-1 if is_reversed else 1):
            return None
        # One row on is what this step writes for the next one.
        written, found = self.row(x, first + 1, stride), row_of(self.b, initial, begin)
        for var, start, result in zip(self.carry, self.initial, self.results, strict=False):
            if result is written and start is found:
                return var
        return None
