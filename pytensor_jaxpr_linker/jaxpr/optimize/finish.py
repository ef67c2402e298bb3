"""The Jaxpr passes, in order: passes over each finished Jaxpr, and passes over a program for calls on our CPU client.

`JaxprBuilder.build` runs the first. Such a pass takes the equations and their builder, which knows the results of the
Jaxpr, and returns new equations, or the same list. `for_calls` runs the second, which take a `CallProgram`.

Two rewrites of `loops`, `distribute` and `keep_residuals`, are part of emitting a loop: they move its equations before
it, or into an earlier loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from pytensor_jaxpr_linker.base.passes import Pass, run_passes
from pytensor_jaxpr_linker.jaxpr.builder import DEAD_CODE
from pytensor_jaxpr_linker.jaxpr.optimize import (
    barriers,
    branch_guards,
    long_arrays,
    loops,
    products,
    shared_functions,
    small_calls,
    steps,
    sums,
    xla_options,
)
from pytensor_jaxpr_linker.jaxpr.optimize.xla_options import CallProgram
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
    Pass("fuse rows", loops.fuse_rows, loops.is_fusible_loop, when=(PLAIN, OUTERMOST)),
    Pass("column stacks", long_arrays.split_stacks, long_arrays.is_stack, when=(PLAIN, CPU)),
    Pass("operand choices", shared_functions.choose_operands, shared_functions.is_choice, when=(PLAIN,)),
    Pass("sums", sums.simplify_sums, sums.is_sum_of_many),
    Pass("sums by group", sums.sum_groups, sums.is_sum_by_group, when=(OUTERMOST, CPU)),
    Pass("shared exponentials", shared_functions.share_exponentials, shared_functions.is_sigmoid, when=(PLAIN,)),
    Pass("joined functions", shared_functions.join_functions, shared_functions.may_join, when=(UNTRANSFORMED, CPU)),
    Pass("vector logarithms", long_arrays.vectorize, long_arrays.is_long_logarithm, when=(PLAIN, CPU)),
    equation_pass("matrix sums", products.is_matrix_sum, products.product_with_ones, when=(CPU,)),
    equation_pass("products", products.is_tall_product, products.blockwise_product, when=(CPU,)),
    Pass("branch guards", branch_guards.guard_branches, shared_functions.is_choice, when=(DIFFERENTIATED,)),
    equation_pass("extrema of NaN", barriers.loses_nan, barriers.nan_or_extremum, when=(ALSO_CPU,)),
    Pass("steps", steps.decide_once, steps.is_jump),
    Pass("barriers", barriers.add_barriers, when=(OUTERMOST,)),
    Pass("library barriers", barriers.keep_from_library, barriers.is_misread, when=(ALSO_CPU,)),
)

SHARED_SUMS = Pass("shared sums", products.share_sums)
CALL_PASSES = (
    Pass("small calls", small_calls.with_small_calls),
    SHARED_SUMS,
    Pass("XLA's options", xla_options.choose_options),
)
#: For a program that XLA's compiler must not make small calls of.
WITHOUT_SMALL_CALLS = (
    Pass("no small calls", partial(small_calls.with_small_calls, split=lambda eqns: [small_calls.Part(eqns, False)])),
    SHARED_SUMS,
)


def for_calls(closed: Any, into_first: bool, passes: Sequence[Pass] = CALL_PASSES) -> CallProgram:
    """Return a closed Jaxpr as a program for calls; `with_small_calls` describes its additional result."""
    return run_passes(passes, CallProgram(closed), into_first, parts=lambda program: program.jaxpr.eqns, show=str)
