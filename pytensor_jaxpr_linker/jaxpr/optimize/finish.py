"""The passes over a finished Jaxpr, in order.

A builder is given the list, runs it in `JaxprBuilder.build`, and hands it on to the builders of the Jaxprs inside its own. A pass takes
the equations, their builder and the results of the Jaxpr, and returns new equations, or the same list where it does not apply.

`distribute`, `residuals` and `reopened` are no passes: they move equations from a loop that is being emitted to the Jaxpr around it, or
into an earlier loop, and so are steps of emitting it.
"""

from __future__ import annotations

from pytensor_jaxpr_linker.base.passes import Pass
from pytensor_jaxpr_linker.jaxpr.builder import DEAD_CODE
from pytensor_jaxpr_linker.jaxpr.optimize.barriers import add_barriers
from pytensor_jaxpr_linker.jaxpr.optimize.branch_guards import guard_branches
from pytensor_jaxpr_linker.jaxpr.optimize.fuse_rows import fuse_rows

#: Each pass takes equations of which none is dead, and leaves none.
PASSES = (
    DEAD_CODE,
    Pass("fuse rows", fuse_rows),
    Pass("branch guards", guard_branches),
    Pass("barriers", add_barriers),
)
