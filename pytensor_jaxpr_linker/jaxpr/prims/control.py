"""Primitives that call Jaxprs, for branches, loops and functions with a derivative of their own; and barriers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.jaxpr.builder import INT32, Atom, JaxprBuilder


def cond(
    b: JaxprBuilder, index: Atom, branches: Sequence[Any], operands: Sequence[Atom], avals: Sequence[Any]
) -> list[Atom]:
    """Assemble the branch number `index` (int32; clamped) of closed Jaxprs that take `operands` and return `avals`."""
    return list(b.bind_many(p.cond_p, (index, *operands), avals, {"branches": tuple(branches)}))


def platform_cond(
    b: JaxprBuilder, platforms: Sequence[str], there: Any, elsewhere: Any, operands: Sequence[Atom]
) -> list[Atom]:
    """Assemble one closed Jaxpr where the program is lowered for one of `platforms`, and another one elsewhere."""
    which = (tuple(platforms), None)
    index = b.bind(jax_compat.platform_index_p, (), (), INT32, {"platforms": which})
    params = {"branches": (there, elsewhere), "branches_platforms": which}
    return list(b.bind_many(p.cond_p, (index, *operands), there.out_avals, params))


def scan(
    b: JaxprBuilder,
    body: Any,
    consts: Sequence[Atom],
    carry: Sequence[Atom],
    xs: Sequence[Atom],
    length: int,
    unroll: int = 1,
    reverse: bool = False,
    extends: Any = None,
) -> list[Atom]:
    """Assemble `length` steps of a closed Jaxpr from constants, carry and a row of each of `xs` to carry and rows.

    Returns the last carry, then the rows of all steps, stacked. With `reverse` the first step takes and writes the last
    rows. If `extends` is the equation of an earlier scan, the new one replaces it, and only the further rows are
    returned.
    """
    rows = [b.aval((length, *aval.shape), aval.dtype) for aval in body.out_avals[len(carry) :]]
    params = {"reverse": reverse, "length": length, "jaxpr": body, "unroll": unroll}
    params |= jax_compat.scan_trees(len(consts), len(carry), len(xs), len(rows))
    operands, avals = (*consts, *carry, *xs), [*(x.aval for x in carry), *rows]
    if extends is not None:
        return list(b.extend(extends, operands, avals[len(extends.outvars) :], params))
    return list(b.bind_many(p.scan_p, operands, avals, params))


def while_loop(
    b: JaxprBuilder,
    condition: Any,
    condition_consts: Sequence[Atom],
    body: Any,
    consts: Sequence[Atom],
    carry: Sequence[Atom],
) -> list[Atom]:
    """Assemble steps of a closed Jaxpr from constants and carry to carry, as long as `condition` of the carry holds."""
    params = {"cond_jaxpr": condition, "cond_nconsts": len(condition_consts)}
    params |= {"body_jaxpr": body, "body_nconsts": len(consts)}
    return list(b.bind_many(p.while_p, (*condition_consts, *consts, *carry), [x.aval for x in carry], params))


def closed_call(b: JaxprBuilder, jaxpr: Any, operands: Sequence[Atom]) -> list[Atom]:
    """Assemble the call of a closed Jaxpr."""
    return list(b.bind_many(p.closed_call_p, operands, jaxpr.out_avals, {"call_jaxpr": jaxpr}))


def barrier(b: JaxprBuilder, operands: Sequence[Atom]) -> list[Atom]:
    """Assemble an optimization barrier: XLA knows nothing of the arrays behind it."""
    avals = [x.aval for x in operands]
    return list(b.bind_many(jax_compat.optimization_barrier_p, operands, avals, {})) if operands else []


def metadata_call(b: JaxprBuilder, jaxpr: Any, operands: Sequence[Atom], attributes: Mapping[str, str]) -> list[Atom]:
    """Assemble the call of a closed Jaxpr as a function of the StableHLO, with frontend attributes for XLA."""
    params = {"jaxpr": jaxpr, "xla_metadata": tuple(sorted(attributes.items())), "ad_metadata": "same"}
    return list(b.bind_many(jax_compat.xla_metadata_call_p, operands, jaxpr.out_avals, params))


def custom_jvp_call(
    b: JaxprBuilder,
    jaxpr: Any,
    differentiate: Callable[[JaxprBuilder, Sequence[Atom], Sequence[Atom | None]], tuple[list[Atom], list[Atom]]],
    operands: Sequence[Atom],
) -> list[Atom]:
    """Assemble the call of a closed Jaxpr that has a derivative of its own.

    ``differentiate(child, primals, tangents)`` emits the results and their tangents to `child`. It is called when JAX
    differentiates the call, and not before; a tangent that is None is zero.
    """

    def jvp_jaxpr(*zeros: bool) -> Any:
        avals = [x.aval for x in operands]
        tangent_avals = [aval for aval, zero in zip(avals, zeros, strict=True) if not zero]
        child, atoms = b.sub_jaxpr([*avals, *tangent_avals])
        given = iter(atoms[len(avals) :])
        results, slopes = differentiate(child, atoms[: len(avals)], [None if zero else next(given) for zero in zeros])
        return child.build([*results, *slopes]), [False] * len(slopes)

    params = {"call_jaxpr": jaxpr, "num_consts": 0, "symbolic_zeros": True}
    params |= jax_compat.jvp_param(jvp_jaxpr, jaxpr.jaxpr.debug_info)
    return list(b.bind_many(p.custom_jvp_call_p, operands, jaxpr.out_avals, params))
