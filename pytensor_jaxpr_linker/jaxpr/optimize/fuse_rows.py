"""Loop fusion: what is computed row by row for one loop alone is computed in it.

PyTensor moves out of a loop what needs no earlier step. For a few operations on each element that gains nothing: the loop reads what
they would write. On a CPU it can cost more than the loop, since XLA counts the operations of a loop's body once, whatever the number
of steps, and a program of more than 1,000 operations waits for a thread.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, is_variable, live_equations
from pytensor_jaxpr_linker.jaxpr.optimize.distribute import CALLS, CHEAP, CONTROL_FLOW
from pytensor_jaxpr_linker.jaxpr.optimize.reopened import ELEMENTWISE, ReopenedLoop

#: The equations that are moved.
MOVED = (ELEMENTWISE & CHEAP) | {p.broadcast_in_dim_p}

#: Equations whose operands are computed by kernels of their own.
NOT_FUSED = CALLS | CONTROL_FLOW | {p.dot_general_p, p.conv_general_dilated_p}


def fuse_rows(b: JaxprBuilder, outputs: Sequence[Atom]) -> None:
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
            if loop.has_moved:
                loop.close(loop.results)


def is_fusible(body: Any) -> bool:
    """Tell whether a loop's body has no equation that XLA does not fuse with what it reads."""
    return NOT_FUSED.isdisjoint(eqn.primitive for eqn in body.eqns)


class FusedLoop(ReopenedLoop):
    """A loop that computes those rows that are for it alone.

    Parameters
    ----------
    b, eqn
        See `ReopenedLoop`.
    single
        The variables that are read once.
    """

    def __init__(self, b: JaxprBuilder, eqn: Any, single: Collection[Atom]):
        super().__init__(b, eqn)
        self._single, self.has_moved = single, False
        self.results = self.copy_body(self._row)

    def _row(self, x: Atom) -> Atom:
        """Return the row of an array that a step takes."""
        eqn = self.b.definition(x) if x in self._single else None
        if eqn is not None and eqn.primitive in MOVED:
            computed = self.computed_row(x, self._row, self.const)
            if computed is not None:
                self.has_moved = True
                return computed
        return self.row_input(x)
