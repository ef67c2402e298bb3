"""Loop fusion: elementwise equations whose rows only one loop reads move into that loop.

PyTensor moves equations that need no earlier step out of a loop. For a few operations on each element that gains nothing. On a CPU it
can cost more than the loop: XLA counts the operations of a loop's body once, whatever the number of steps, and a program of more than
1,000 operations waits for a thread.
"""

from __future__ import annotations

from collections.abc import Collection
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


def fuse_rows(eqns: list[Any], b: JaxprBuilder) -> list[Any]:
    """Move cheap elementwise equations whose result only one loop reads, row by row, into that loop.

    A Jaxpr that JAX differentiates is left out: it would keep residuals of a loop's body.
    """
    loops = [eqn for eqn in eqns if is_fusible_loop(eqn, b)]
    ends = set(filter(is_variable, b.outputs))
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
    return live_equations(b.eqns, b.outputs)[0]


def is_fusible_loop(eqn: Any, b: JaxprBuilder) -> bool:
    """Return whether an equation is a loop without matrix products, factorizations and inner loops.

    XLA would run what moves into such a loop in a kernel of its own in each step.
    """
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
        if eqn is not None and eqn.primitive in MOVED:
            computed = self.computed_row(x, self._row, self.const)
            if computed is not None:
                self.has_moved = True
                return computed
        return self.row_input(x)
