"""The Jaxpr passes, in order: those over each finished Jaxpr, and those over a program for calls on our own CPU client.

`JaxprBuilder.build` runs the first. Such a pass takes the equations and their builder, which knows the results of the
Jaxpr, and returns new equations, or the same list. `for_calls` runs the second, which take a `CallProgram`.

Two rewrites of `loops`, `distribute` and `keep_residuals`, are part of emitting a loop: they move its equations before it,
or into an earlier loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from pytensor_jaxpr_linker.base.passes import Pass, run_passes
from pytensor_jaxpr_linker.jaxpr.builder import DEAD_CODE
from pytensor_jaxpr_linker.jaxpr.optimize.barriers import (
    add_barriers,
    is_misread,
    keep_from_library,
    loses_nan,
    nan_or_extremum,
)
from pytensor_jaxpr_linker.jaxpr.optimize.branch_guards import guard_branches
from pytensor_jaxpr_linker.jaxpr.optimize.column_stacks import is_stack, split_stacks
from pytensor_jaxpr_linker.jaxpr.optimize.loops import fuse_rows, is_fusible_loop
from pytensor_jaxpr_linker.jaxpr.optimize.products import (
    blockwise_product,
    is_matrix_sum,
    is_tall_product,
    product_with_ones,
    share_sums,
)
from pytensor_jaxpr_linker.jaxpr.optimize.shared_functions import (
    choose_operands,
    is_choice,
    is_sigmoid,
    join_functions,
    may_join,
    share_exponentials,
)
from pytensor_jaxpr_linker.jaxpr.optimize.small_calls import Part, with_small_calls
from pytensor_jaxpr_linker.jaxpr.optimize.sums import is_sum_by_group, is_sum_of_many, simplify_sums, sum_groups
from pytensor_jaxpr_linker.jaxpr.optimize.vector_logarithms import is_long_logarithm, vectorize_logarithms
from pytensor_jaxpr_linker.jaxpr.optimize.xla_options import CallProgram, choose_options
from pytensor_jaxpr_linker.jaxpr.passes import (
    ALSO_CPU,
    CPU,
    DIFFERENTIATED,
    OUTERMOST,
    PLAIN,
    UNTRANSFORMED,
    equation_pass,
)

#: The input and output of each pass but the first contain no dead equation.
PASSES = (
    DEAD_CODE,
    Pass("fuse rows", fuse_rows, is_fusible_loop, when=(PLAIN, OUTERMOST)),
    Pass("column stacks", split_stacks, is_stack, when=(PLAIN, CPU)),
    Pass("operand choices", choose_operands, is_choice, when=(PLAIN,)),
    Pass("sums", simplify_sums, is_sum_of_many),
    Pass("sums by group", sum_groups, is_sum_by_group, when=(OUTERMOST, CPU)),
    Pass("shared exponentials", share_exponentials, is_sigmoid, when=(PLAIN,)),
    Pass("joined functions", join_functions, may_join, when=(UNTRANSFORMED, CPU)),
    Pass("vector logarithms", vectorize_logarithms, is_long_logarithm, when=(PLAIN, CPU)),
    equation_pass("matrix sums", is_matrix_sum, product_with_ones, when=(CPU,)),
    equation_pass("products", is_tall_product, blockwise_product, when=(CPU,)),
    Pass("branch guards", guard_branches, is_choice, when=(DIFFERENTIATED,)),
    equation_pass("extrema of NaN", loses_nan, nan_or_extremum, when=(ALSO_CPU,)),
    Pass("barriers", add_barriers, when=(OUTERMOST,)),
    Pass("library barriers", keep_from_library, is_misread, when=(ALSO_CPU,)),
)

SHARED_SUMS = Pass("shared sums", share_sums)
CALL_PASSES = (Pass("small calls", with_small_calls), SHARED_SUMS, Pass("XLA's options", choose_options))
#: For a program of which XLA's compiler has no small calls.
WITHOUT_SMALL_CALLS = (
    Pass("no small calls", partial(with_small_calls, split=lambda eqns: [Part(eqns, False)])),
    SHARED_SUMS,
)


def for_calls(closed: Any, into_first: bool, passes: Sequence[Pass] = CALL_PASSES) -> CallProgram:
    """Return a closed Jaxpr as a program for calls; `with_small_calls` says what it returns in addition."""
    return run_passes(passes, CallProgram(closed), into_first, parts=lambda program: program.jaxpr.eqns, show=str)
