"""Loop fusion: elementwise equations whose rows only one loop reads move into that loop.

PyTensor moves equations that need no earlier step out of a loop. For a few operations on each element that gains nothing. On a CPU it
can cost more than the loop: XLA counts the operations of a loop's body once, whatever the number of steps, and a program of more than
1,000 operations waits for a thread.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, is_variable, live_equations
from pytensor_jaxpr_linker.jaxpr.optimize.barriers import count_readers
from pytensor_jaxpr_linker.jaxpr.optimize.reopened import ReopenedLoop
from pytensor_jaxpr_linker.jaxpr.traits import Trait, having

#: The equations that are moved.
MOVED = (having(Trait.ELEMENTWISE) & having(Trait.CHEAP)) | {p.broadcast_in_dim_p}

#: Equations that XLA does not fuse with what they read.
NOT_FUSED = having(Trait.KERNEL | Trait.LIBRARY_CALL | Trait.CONTROL_FLOW)


def fuse_rows(eqns: list[Any], b: JaxprBuilder, outputs: Sequence[Atom]) -> list[Any]:
    """Move cheap elementwise equations whose result only one loop reads, row by row, into that loop.

    Loops with matrix products, factorizations or inner loops stay: XLA would run the moved equations in a kernel of their own in
    each step. Programs that JAX differentiates stay, too: it would keep residuals of a loop's body.
    """
    if b.differentiable or b.is_inner:
        return eqns
    loops = [eqn for eqn in eqns if eqn.primitive is p.scan_p and is_fusible(eqn.params["jaxpr"])]
    if not loops:
        return eqns
    ends = set(filter(is_variable, outputs))
    single = {var for var, count in count_readers(eqns).items() if count == 1 and var not in ends}
    fused = []
    for eqn in loops:
        if not single.isdisjoint(filter(is_variable, eqn.invars)):
            loop = FusedLoop(b, eqn, single)
            if loop.has_moved:
                fused.append(loop)
    if not fused:
        return eqns
    b.eqns = list(eqns)
    for loop in fused:
        loop.close(loop.results)
    return live_equations(b.eqns, outputs)[0]


def is_fusible(body: Any) -> bool:
    """Tell whether a loop's body has no equation that XLA does not fuse with what it reads."""
    return NOT_FUSED.isdisjoint(eqn.primitive for eqn in body.eqns)


class FusedLoop(ReopenedLoop):
    """A loop that computes the rows that it alone reads; `single` are the variables that are read once."""

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
