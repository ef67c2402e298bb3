"""`portable`: a Jaxpr in basic operations. An interpreter walks over the equations and assembles the Jaxpr anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.extend.core as jex
from jax import enable_x64
from jax.extend.core import Var
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.portable.arrays import Array
from pytensor_jaxpr_linker.jaxpr.portable.replacements import REPLACEMENTS, Emission, product_by_entries, replacement_of

#: Calls, whose Jaxpr takes their place, and the param that holds it. A derivative of its own means nothing to a compiler.
INLINED_CALLS = {
    "checkpoint": "jaxpr",
    p.closed_call_p.name: "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "jit": "jaxpr",
    "remat2": "jaxpr",
    "xla_metadata_call": "jaxpr",
}

#: Primitives that are LAPACK's alone, or JAX's Python.
NOT_PORTABLE = frozenset(["debug_callback", "eig", "hessenberg", "io_callback", "pure_callback", "tridiagonal"])


class Refused(NamedTuple):
    """An equation that nothing stands for."""

    primitive: str
    names: str
    """The PyTensor node, and the user's variable, outermost first."""
    line: str = ""
    """The line of the user's program that made it, if that is known."""


class NotPortableError(NotImplementedError):
    """A program has operations that can't be replaced. `refused` lists them."""

    def __init__(self, refused: Sequence[Refused]):
        self.refused = tuple(refused)
        what = [f"{r.primitive}{r.names and f' of {r.names}'}{r.line and f'. Made at {r.line}'}" for r in self.refused]
        super().__init__(
            f"The target has no form of these operations, and nothing stands for them: {'; '.join(what)}. To do: leave them out,"
            " or export the function for JAX, by a path that does not end in .vmfb."
        )

    def __reduce__(self) -> tuple:
        return type(self), (self.refused,)


def portable(jaxpr: Any, table: Mapping[jex.Primitive, Emission] = REPLACEMENTS) -> Any:
    """Return a closed Jaxpr that computes the same by basic operations: loops in place of factorizations, products in place of Fourier transforms.

    Parameters
    ----------
    jaxpr : jax.extend.core.Jaxpr
        A closed Jaxpr with known shapes, from this package or from `jax.make_jaxpr`.
    table : dict
        What stands for each primitive. Of one with Jaxprs inside it, these are rewritten before.

    Raises
    ------
    NotPortableError
        If an operation can't be replaced.

    Examples
    --------
    >>> import jax, numpy as np
    >>> from pytensor_jaxpr_linker.jaxpr.portable.rewrite import portable
    >>> with jax.enable_x64(True):
    ...     found = portable(jax.make_jaxpr(jax.lax.linalg.cholesky)(np.eye(3)))
    >>> {eqn.primitive.name for eqn in found.eqns} & {"cholesky", "scan"}
    {'scan'}
    """
    with enable_x64(True):
        b = JaxprBuilder(jaxpr.jaxpr.debug_info.func_name)
        inputs = [b.input(v.aval.shape, v.aval.dtype) for v in jaxpr.jaxpr.invars]
        return b.build(emit_portable(b, jaxpr, inputs, table))


def portable_inside(b: JaxprBuilder, jaxpr: Any) -> Any:
    """Return what `portable` makes of a closed Jaxpr, as a branch or the body of a call in what `b` builds."""
    body, operands = b.sub_jaxpr([v.aval for v in jaxpr.jaxpr.invars])
    return body.build(emit_portable(body, jaxpr, operands, REPLACEMENTS))


def emit_portable(
    b: JaxprBuilder, jaxpr: Any, operands: Sequence[Atom], table: Mapping[jex.Primitive, Emission]
) -> list[Atom]:
    """Emit what stands for a closed Jaxpr, and return the atoms of its results."""
    walk = PortableWalk(table)
    results = walk.inlined(b, jaxpr, operands, "")
    if walk.refused:
        raise NotPortableError(list(dict.fromkeys(walk.refused)))
    return results


class PortableWalk:
    """Walks over a Jaxpr and those inside it, and notes what it refuses."""

    def __init__(self, table: Mapping[jex.Primitive, Emission]):
        self.table = table
        self.refused: list[Refused] = []

    def inlined(self, b: JaxprBuilder, jaxpr: Any, operands: Sequence[Atom], where: str) -> list[Atom]:
        """Emit a closed Jaxpr at the insertion point of `b`, and return the atoms of its results. `where` names the equation around it."""
        env: dict[Any, Atom] = dict(zip(jaxpr.jaxpr.invars, operands, strict=True))
        for var, value in zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True):
            env[var] = b.constant(value, var.aval.dtype)

        def read(x: Any) -> Atom:
            return env[x] if isinstance(x, Var) else b.constant(x.val, x.aval.dtype)

        for eqn in jaxpr.jaxpr.eqns:
            names = str(eqn.source_info.name_stack)
            if names:
                b.at_names_of(eqn)
            results = self.emitted(b, eqn, [read(x) for x in eqn.invars], names or where)
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(x) for x in jaxpr.jaxpr.outvars]

    def emitted(self, b: JaxprBuilder, eqn: Any, atoms: list[Atom], names: str) -> Sequence[Atom]:
        """Emit what stands for an equation, with all that is inside it, and return the atoms of its results."""
        name = eqn.primitive.name
        if name in INLINED_CALLS:
            return self.inlined(b, as_closed(eqn.params[INLINED_CALLS[name]]), atoms, names)
        if jax_compat.branches_platforms(eqn) is not None:  # the last branch is the one for platforms without a library
            return self.inlined(b, eqn.params["branches"][-1], atoms[1:], names)
        if eqn.primitive is p.linear_solve_p:
            lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
            start = lengths.matvec + lengths.vecmat
            factors = atoms[start : start + lengths.solve]
            return self.inlined(b, jaxprs.solve, [*factors, *atoms[sum(lengths) :]], names)
        if name in NOT_PORTABLE:
            self.refused.append(Refused(name, names))
            return [zeros(b, v.aval) for v in eqn.outvars]  # nobody sees them
        if name == "bcsr_dot_general":  # its primitive is imported where a graph has sparse matrices only
            return [product_by_entries(*[Array(b, x) for x in atoms]).atom]
        params = {
            key: value if key == "update_jaxpr" else mapped(value, lambda j: self.inner(b, j, names))
            for key, value in eqn.params.items()
        }
        if (found := replacement_of(eqn, params, b, atoms, self.table)) is not None:
            return found
        return b.bind_many(eqn.primitive, atoms, [v.aval for v in eqn.outvars], params)

    def inner(self, b: JaxprBuilder, jaxpr: Any, where: str) -> Any:
        """Return a closed Jaxpr inside another one, rewritten."""
        body, operands = b.sub_jaxpr([v.aval for v in jaxpr.jaxpr.invars])
        return body.build(self.inlined(body, as_closed(jaxpr), operands, where))


def zeros(b: JaxprBuilder, aval: Any) -> Atom:
    """Return an array of zeros."""
    return prims.broadcast_to(b, b.constant(0, aval.dtype), aval.shape)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a param with the Jaxprs in it changed."""
    if isinstance(value, jex.Jaxpr):
        return change(value)
    if type(value) in (tuple, list) and any(isinstance(x, jex.Jaxpr) for x in value):
        return type(value)(mapped(x, change) for x in value)
    return value


def as_closed(jaxpr: Any) -> Any:
    """Return a Jaxpr with its constants, of which an open one has none."""
    return jaxpr if isinstance(jaxpr, jex.ClosedJaxpr) or hasattr(jaxpr, "consts") else jex.ClosedJaxpr(jaxpr, ())
