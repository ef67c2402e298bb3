"""Loop fusion: what is computed row by row for one loop alone is computed in it.

PyTensor moves out of a loop what needs no earlier step. For a few operations on each element that gains nothing: the loop reads what
they would write. On a CPU it can cost more than the loop, since XLA counts the operations of a loop's body once, whatever the number
of steps, and a program of more than 1,000 operations waits for a thread.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from jax.extend.core import Var
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker import prims
from pytensor_jaxpr_linker._compat import scan_counts
from pytensor_jaxpr_linker.builder import Atom, JaxprBuilder, is_variable, live_equations
from pytensor_jaxpr_linker.emit.loops.distribution import CALLS, CHEAP, CONTROL_FLOW
from pytensor_jaxpr_linker.emit.loops.residuals import ELEMENTWISE


def sink_rows(b: JaxprBuilder, outputs: Sequence[Atom]) -> None:
    """Move cheap elementwise equations whose result only one loop reads, row by row, into that loop.

    Loops with matrix products, factorizations or inner loops stay: there XLA would make a kernel of its own, in each step, of what is moved.
    """
    loops = [eqn for eqn in b.eqns if eqn.primitive is p.scan_p and is_fusible(eqn.params["jaxpr"])]
    if not loops:
        return
    readers = live_equations(b.eqns, outputs)[1]
    ends = set(filter(is_variable, outputs))
    single = {var for var, count in readers.items() if count == 1 and var not in ends}
    for eqn in loops:
        if not single.isdisjoint(filter(is_variable, eqn.invars)):
            loop = FusedLoop(b, eqn, single)
            if loop.has_sunk:
                loop.replace()


def is_fusible(body: Any) -> bool:
    """Tell whether a loop's body has no equation that XLA does not fuse with what it reads."""
    return NOT_FUSED.isdisjoint(eqn.primitive for eqn in body.eqns)


class FusedLoop:
    """A loop that is emitted already, with a body that computes some of its rows.

    Parameters
    ----------
    b
        Where the loop is.
    eqn
        Its equation, a ``scan``.
    single
        The variables that are read once.
    """

    def __init__(self, b: JaxprBuilder, eqn: Any, single: Collection[Atom]):
        self.b, self._eqn, self._single, self.has_sunk = b, eqn, single, False
        self.child = b.sub_jaxpr([])[0]
        body: Any = eqn.params["jaxpr"].jaxpr
        count, n_carry = scan_counts(eqn.params)
        self._consts: dict[Atom, Var] = {}
        self._rows: dict[Atom, Var] = {}
        self._initial = eqn.invars[count : count + n_carry]
        self._carry = [self.child.input(x.aval.shape, x.aval.dtype) for x in self._initial]
        values = [*map(self._const, eqn.invars[:count]), *self._carry, *map(self._row, eqn.invars[count + n_carry :])]
        env: dict[Any, Atom] = dict(zip(body.invars, values, strict=True))
        for inner in body.eqns:
            self.child.copy(inner, env)
        self._results = [env[x] if is_variable(x) else self.child.constant(x.val, x.aval.dtype) for x in body.outvars]

    def _const(self, x: Atom) -> Atom:
        """Return a value of the outer Jaxpr that no step changes."""
        if not is_variable(x):
            return self.child.constant(x.val, x.aval.dtype)
        if x not in self._consts:
            self._consts[x] = self.child.input(x.aval.shape, x.aval.dtype)
        return self._consts[x]

    def _row(self, x: Atom) -> Atom:
        """Return the row of an array that a step takes, computed from other rows if it is for this loop alone."""
        shape, eqn = x.aval.shape, self.b.definition(x) if x in self._single else None
        if eqn is not None:
            if eqn.primitive is p.broadcast_in_dim_p:
                (inner,), dims = eqn.invars, eqn.params["broadcast_dimensions"]
                has_rows = 0 in dims
                if not has_rows or inner.aval.shape[0] == shape[0]:
                    self.has_sunk = True
                    value = self._row(inner) if has_rows else self._const(inner)
                    return prims.broadcast_in_dim(self.child, value, shape[1:], [d - 1 for d in dims[has_rows:]])
            elif eqn.primitive in SUNK:
                self.has_sunk = True
                operands = [self._row(y) if y.aval.shape else self._const(y) for y in eqn.invars]
                return self.child.bind(eqn.primitive, operands, shape[1:], x.aval.dtype, eqn.params)
        if x not in self._rows:
            self._rows[x] = self.child.input(shape[1:], x.aval.dtype)
        return self._rows[x]

    def replace(self) -> None:
        """Put the loop in place of the one that was."""
        self.child.invars = [*self._consts.values(), *self._carry, *self._rows.values()]
        self.child.arg_names = [f"arg{i}" for i in range(len(self.child.invars))]
        params = self._eqn.params
        how = (params["length"], params["unroll"], params["reverse"], self._eqn)
        body = self.child.build(self._results)
        prims.scan(self.b, body, list(self._consts), self._initial, list(self._rows), *how)


#: Equations whose operands are computed by kernels of their own.
NOT_FUSED = CALLS | CONTROL_FLOW | {p.dot_general_p, p.conv_general_dilated_p}

#: The equations that are moved.
SUNK = ELEMENTWISE & CHEAP
