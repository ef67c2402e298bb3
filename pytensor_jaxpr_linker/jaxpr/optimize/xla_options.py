"""XLA's options for a program on a CPU, by the reductions and products that it has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base.jax_compat import all_equations, xla_metadata_call_p
from pytensor_jaxpr_linker.jaxpr.traits import TRAITS, Trait

#: XLA makes two reductions of one, which vectorizes the reduction of a large array. For shorter ones the second takes
#: longer than it saves: the model `hierarchical` took 21.5 instead of 18.5 µs a call.
LONG_REDUCTION = 256
#: The same in the loops of a Markov chain, whose arrays stay in the cache: a transition of the models `hierarchical`
#: and `logistic` took 0.74 of the time without, the geometric mean over eleven models was 0.93.
LONG_IN_LOOPS = 4096
#: XLA computes products by a library, which takes 1 µs to start: `lkj` took 17.6 instead of 15.8 µs a call, and 345
#: instead of 284 ms in a Markov chain. For more elements the library is faster.
LIBRARY_PRODUCT = 4096
#: XLA's option for the equations of the library, YNNPACK: by default products and reductions. Some of its reductions
#: are wrong, see `barriers`.
LIBRARY = "xla_cpu_experimental_ynn_fusion_type"
NO_LIBRARY = {LIBRARY: ""}
#: A maximum of many short rows takes longer in the library: a mixture of three components and 20,000 rows took 1,070
#: instead of 460 µs in a Markov chain, of 3,000 rows 152 instead of 88 µs, both with the barriers of `barriers`.
ONLY_PRODUCTS = {LIBRARY: "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
#: For a program that runs only a few times, LLVM's optimizations take longer than they save: `hierarchical` starts its
#: chains by a program that compiles in 160 instead of 300 ms of processor time, and that runs once for each.
FEW_CALLS = {"xla_backend_optimization_level": 0}
#: In the arithmetic of arrays LLVM's higher levels make calls at most 1 % faster, and take a tenth of XLA's time. In
#: loops and special functions they do more: with this level a call of `state_space` took 1.15 times as long, of
#: `dirichlet_multinomial` 1.08 times.
SHORT_FUNCTIONS = {"xla_backend_optimization_level": 1}


class CallProgram(NamedTuple):
    """A program for calls on our own CPU client."""

    jaxpr: Any  #: the closed Jaxpr
    options: Mapping[str, Any] = MappingProxyType({})  #: options of XLA's compiler

    def __str__(self) -> str:
        return f"XLA's options: {dict(self.options)}\n{self.jaxpr}" if self.options else str(self.jaxpr)


def choose_options(program: CallProgram, _: Any) -> CallProgram:
    """Choose the options of a program that has its small calls."""
    return program._replace(options=options_of_call(program.jaxpr))


def options_of_call(closed: Any) -> dict[str, Any]:
    """Return the options for a program of `with_small_calls`. Only equations outside of small calls matter."""
    outside = [eqn for eqn in closed.eqns if eqn.primitive is not xla_metadata_call_p]
    passes = [] if most_read(outside, is_reduction) > LONG_REDUCTION else ["tree_reduction_rewriter"]
    if not repeats_functions(closed):
        passes.append("flatten-call-graph")  # else XLA copies the function that `products` lets sums share
    return chosen_options(passes, outside) | ({} if has_long_functions(closed.eqns) else SHORT_FUNCTIONS)


def options_of_chain(closed: Any) -> dict[str, Any]:
    """Return the options for the programs of a Markov chain, by the Jaxpr that makes transitions.

    Equations under a condition are left out: most belong to the adaptation, which runs once a transition or less, and
    not at each gradient.
    """
    passes = [] if most_read(closed.eqns, is_reduction, p.cond_p) > LONG_IN_LOOPS else ["tree_reduction_rewriter"]
    return chosen_options(passes, closed.eqns, p.cond_p)


def chosen_options(passes: list[str], eqns: Sequence[Any], *closed: Any) -> dict[str, Any]:
    """Return the options that leave out some of XLA's passes, and its library.

    All of the library is left out if products and sums are small, and its reductions if a maximum is large.
    """
    found: dict[str, Any] = {"xla_disable_hlo_passes": ",".join(passes)} if passes else {}
    if most_read(eqns, is_product, *closed) <= LIBRARY_PRODUCT:
        return found | NO_LIBRARY
    return found | ONLY_PRODUCTS if most_read(eqns, is_extremum, *closed) > LIBRARY_PRODUCT else found


def has_long_functions(eqns: Iterable[Any]) -> bool:
    """Return whether there are loops, branches or special functions that are written out."""
    return any(
        Trait.CONTROL_FLOW in TRAITS.get(eqn.primitive, Trait.CONTROL_FLOW) or eqn.primitive is p.custom_jvp_call_p
        for eqn in all_equations(eqns)
    )


def most_read(eqns: Iterable[Any], is_counted: Any, *closed: Any) -> int:
    """Return the size of the largest operand of counted equations, also inside others but for `closed`, or 0."""
    counted = filter(is_counted, all_equations(eqns, *closed))
    return max((math.prod(x.aval.shape) for eqn in counted for x in eqn.invars), default=0)


def is_reduction(eqn: Any) -> bool:
    """Return whether an equation is a reduction over axes."""
    return eqn.primitive.name.startswith("reduce_")


def is_product(eqn: Any) -> bool:
    """Return whether an equation is a sum of products, or a sum, for which XLA has a library."""
    return eqn.primitive in (p.dot_general_p, p.reduce_sum_p)


def is_extremum(eqn: Any) -> bool:
    """Return whether an equation is the maximum or minimum over axes."""
    return eqn.primitive in (p.reduce_max_p, p.reduce_min_p)


def repeats_functions(closed: Any) -> bool:
    """Return whether XLA may have to copy functions of a program: functions of equal equations, and bodies of loops."""
    found: set[Any] = set()
    for eqn in all_equations(closed.eqns):
        traits = TRAITS.get(eqn.primitive, Trait.FUNCTION)
        if Trait.CONTROL_FLOW in traits or (Trait.FUNCTION in traits and eqn.primitive in found):
            return True
        found.add(eqn.primitive)
    return False
