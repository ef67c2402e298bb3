"""Loops that were emitted before, reopened to compute more in each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import Var
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base.jax_compat import scan_counts
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, is_variable
from pytensor_jaxpr_linker.jaxpr.traits import Trait, having

#: Equations whose rows follow from the rows of their operands by the same equation.
ROW_BY_ROW = having(Trait.ELEMENTWISE)


class ReopenedLoop:
    """A new body, with the insertion point `child`, for the ``scan`` `eqn` of `b`.

    `consts` and `rows` map atoms of `b` to the body's inputs for their values and their rows. `initial` are the first values of
    `carry`.
    """

    def __init__(self, b: JaxprBuilder, eqn: Any):
        self.b, self._eqn, self.child = b, eqn, b.sub_jaxpr([])[0]
        count, n_carry = scan_counts(eqn.params)
        self.consts: dict[Atom, Var] = {}
        self.rows: dict[Atom, Var] = {}
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
        """Emit the row of an array that a broadcast or an elementwise equation computes; None if an operand has none."""
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
        params = self._eqn.params
        how = (params["length"], params["unroll"], params["reverse"], self._eqn)
        return prims.scan(self.b, self.child.build(results), list(self.consts), self.initial, list(self.rows), *how)
