"""The passes over a finished Jaxpr, in order: `JaxprBuilder.build` runs them.

A pass takes the equations, their builder and the results of the Jaxpr, and returns new equations, or the same list.

`distribute`, `residuals` and `reopened` are part of emitting a loop: they move its equations before it, or into an earlier loop.
"""

from __future__ import annotations

from pytensor_jaxpr_linker.base.passes import Pass
from pytensor_jaxpr_linker.jaxpr.builder import DEAD_CODE
from pytensor_jaxpr_linker.jaxpr.optimize.barriers import add_barriers
from pytensor_jaxpr_linker.jaxpr.optimize.branch_guards import guard_branches
from pytensor_jaxpr_linker.jaxpr.optimize.column_stacks import split_stacks
from pytensor_jaxpr_linker.jaxpr.optimize.fuse_rows import fuse_rows
from pytensor_jaxpr_linker.jaxpr.optimize.joined_functions import join_functions
from pytensor_jaxpr_linker.jaxpr.optimize.library_forms import keep_nan
from pytensor_jaxpr_linker.jaxpr.optimize.matrix_sums import multiply_by_ones
from pytensor_jaxpr_linker.jaxpr.optimize.operand_choices import choose_operands
from pytensor_jaxpr_linker.jaxpr.optimize.products import block_products
from pytensor_jaxpr_linker.jaxpr.optimize.shared_exponentials import share_exponentials
from pytensor_jaxpr_linker.jaxpr.optimize.sums import simplify_sums
from pytensor_jaxpr_linker.jaxpr.optimize.vector_logarithms import vectorize_logarithms

#: The input and output of each pass but the first contain no dead equation.
PASSES = (
    DEAD_CODE,
    Pass("fuse rows", fuse_rows),
    Pass("column stacks", split_stacks),
    Pass("operand choices", choose_operands),
    Pass("sums", simplify_sums),
    Pass("shared exponentials", share_exponentials),
    Pass("joined functions", join_functions),
    Pass("vector logarithms", vectorize_logarithms),
    Pass("matrix sums", multiply_by_ones),
    Pass("products", block_products),
    Pass("branch guards", guard_branches),
    Pass("extrema of NaN", keep_nan),
    Pass("barriers", add_barriers),
)
