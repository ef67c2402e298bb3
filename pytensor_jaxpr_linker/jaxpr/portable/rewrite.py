"""`portable`: a Jaxpr in basic operations, assembled anew by an interpreter with the replacements of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.extend.core as jex
import numpy as np
from jax import enable_x64, lax
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import INT32, Atom, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.formula import apply, where
from pytensor_jaxpr_linker.jaxpr.portable import elimination, orthogonal
from pytensor_jaxpr_linker.jaxpr.portable.arrays import Array, full
from pytensor_jaxpr_linker.jaxpr.portable.fourier import fourier
from pytensor_jaxpr_linker.jaxpr.portable.schur import schur_factors

#: Takes the params of an equation and its operands; returns its results, or None if the equation may stay.
type Emission = Callable[..., Sequence[Array] | Array | None]


def product_by_entries(data: Array, columns: Array, starts: Array, y: Array) -> Array:
    """Return the product; `starts` says where the entries of each row begin, and then how many entries there are."""
    b, count, rows, n = data.b, data.shape[0], starts.shape[0] - 1, y.shape[1]
    if not count or not rows:
        return full(b, 0, (rows, n), y.dtype)
    # Every row but the first begins a step up in the numbers of the rows.
    steps = full(b, 0, (count + 1,), INT32)
    begins = starts.astype(INT32)[..., 1:-1]
    ups = added(steps, begins, full(b, 1, begins.shape, INT32)) if rows > 1 else steps
    numbers = Array(b, prims.cumsum(b, ups.atom, 0))[..., :count]
    terms = data.reshape(count, 1) * taken_rows(y, columns.astype(INT32))
    return added(full(b, 0, (rows, n), terms.dtype), numbers, terms)


def taken_rows(x: Array, places: Array) -> Array:
    """Return rows of a matrix, at places in bounds."""
    dims = lax.GatherDimensionNumbers((1,), (0,), (0,))
    rows, n = *places.shape, x.shape[1]
    return Array(x.b, prims.gather(x.b, x.atom, places.reshape(rows, 1).atom, dims, (1, n), (rows, n)))


def added(x: Array, places: Array, terms: Array) -> Array:
    """Return an array with terms added to its rows at places in bounds, which may repeat."""
    dims = lax.ScatterDimensionNumbers(tuple(range(1, len(terms.shape))), (0,), (0,))
    indices = places.reshape(*places.shape, 1)
    return Array(x.b, prims.scatter_add(x.b, x.atom, indices.atom, terms.astype(x.dtype).atom, dims))


def replacement_of(
    eqn: Any, params: Mapping[str, Any], b: JaxprBuilder, operands: Sequence[Atom], table: Mapping[Any, Emission]
) -> list[Atom] | None:
    """Emit the replacement of an equation with these params; return its results, or None if the equation may stay."""
    emit = table.get(eqn.primitive)
    if emit is None or not operands:
        return None
    found = emit(params, *[Array(b, x) for x in operands])
    if found is None:
        return None
    results = [found] if isinstance(found, Array) else found
    pairs = [(x.atom, var.aval.dtype) for x, var in zip(results, eqn.outvars, strict=True)]
    return [x if x.aval.dtype == dtype else prims.convert(b, x, dtype) for x, dtype in pairs]


def pivoted_reflections(params: Mapping[str, Any], a: Array, columns: Array) -> Sequence[Array]:
    """Reflections one after the other, each of the largest column that may move."""
    *batch, n = columns.shape
    packed, taus, order = orthogonal.reflections(a, (columns == 0).reshape(*batch, 1, n))
    return packed, order + 1, taus


def whole_spectrum(emit: Emission) -> Emission:
    """Return an emission that leaves alone an equation of some of the eigenvalues or singular values."""
    return lambda params, a: None if params["subset_by_index"] is not None else emit(params, a)


def cube_root(params: Mapping[str, Any], x: Array) -> Array:
    """A power, and a step of Newton's method: to 1 ulp or so."""
    size = abs(x)
    is_ordinary = (size > 0) & (size < np.inf)
    safe = where(is_ordinary, size, 1)
    third = Array(x.b, prims.pow_(x.b, safe.atom, x.b.constant(np.asarray(1 / 3, x.dtype))))
    third = third - (third - safe / (third * third)) / 3.0
    root = where(is_ordinary, third, size)
    return where(x == 0, x, where(x < 0, -root, root))


def by_signed(primitive: jex.Primitive, flips: bool) -> Emission:
    """Return an emission that computes a cumulative function of unsigned integers as one of signed integers.

    Sums and products have the same bits. For a maximum or minimum the first bit is flipped: then the order is the same.
    """

    def emit(params: Mapping[str, Any], x: Array) -> Array | None:
        if x.dtype.kind != "u":
            return None
        b, signed, bits = x.b, np.dtype(f"i{x.dtype.itemsize}"), 8 * x.dtype.itemsize
        first = full(b, 1 << (bits - 1), x.shape, x.dtype) if flips else None
        given = x if first is None else apply(prims.xor, x, first)
        found = b.bind(primitive, (prims.bitcast(b, given.atom, signed),), x.shape, signed, dict(params))
        result = Array(b, prims.bitcast(b, found, x.dtype))
        return result if first is None else apply(prims.xor, result, first)

    return emit


#: The replacement of each primitive.
REPLACEMENTS: dict[jex.Primitive, Emission] = {
    p.cbrt_p: cube_root,
    p.cholesky_p: lambda params, a: elimination.lower_cholesky(a),
    p.cummax_p: by_signed(p.cummax_p, flips=True),
    p.cummin_p: by_signed(p.cummin_p, flips=True),
    p.cumprod_p: by_signed(p.cumprod_p, flips=False),
    p.cumsum_p: by_signed(p.cumsum_p, flips=False),
    p.eigh_p: whole_spectrum(lambda params, a: orthogonal.eigh_factors(a, params["lower"])),
    p.fft_p: lambda params, x: fourier(x, params["fft_type"], params["fft_lengths"]),
    jax_compat.geqp3_p: pivoted_reflections,
    jax_compat.geqrf_p: lambda params, a: orthogonal.reflections(a)[:2],
    p.householder_product_p: lambda params, a, taus: orthogonal.product_of_reflections(a, taus),
    p.lu_p: lambda params, a: elimination.factors_with_exchanges(a),
    lax.linalg.lu_pivots_to_permutation_p: lambda params, pivots: elimination.permutation_of(
        pivots, params["permutation_size"]
    ),
    p.qr_p: lambda params, a: orthogonal.qr_factors(a, params["full_matrices"], params["pivoting"]),
    p.schur_p: lambda params, a: (
        None if params["sort_eig_vals"] else schur_factors(a)[: 1 + params["compute_schur_vectors"]]
    ),
    p.svd_p: whole_spectrum(lambda params, a: orthogonal.svd_factors(a, params["full_matrices"], params["compute_uv"])),
    p.triangular_solve_p: lambda params, a, x: elimination.substituted(a, x, **params),
    p.tridiagonal_solve_p: lambda params, *operands: elimination.solve_tridiagonal(*operands),
}


#: Calls, whose Jaxpr takes their place, and the param that holds it. A derivative of its own means nothing to a
#: compiler.
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
    """An equation without a replacement."""

    primitive: str
    names: str  #: the PyTensor node, and the user's variable, outermost first
    line: str = ""  #: the line of the user's program that made it, if that is known


class NotPortableError(NotImplementedError):
    """A program has operations that can't be replaced. `refused` lists them."""

    def __init__(self, refused: Sequence[Refused]):
        self.refused = tuple(refused)
        what = [f"{r.primitive}{r.names and f' of {r.names}'}{r.line and f'. Made at {r.line}'}" for r in self.refused]
        super().__init__(
            f"The target has no form of these operations, and nothing stands for them: {'; '.join(what)}. To do: leave"
            " them out, or export the function for JAX, by a path that does not end in .vmfb."
        )

    def __reduce__(self) -> tuple:
        return type(self), (self.refused,)


def portable(jaxpr: Any, table: Mapping[jex.Primitive, Emission] = REPLACEMENTS) -> Any:
    """Return a closed Jaxpr that computes the same by basic operations.

    Loops take the place of factorizations, and products the place of Fourier transforms.

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
    """Return a closed Jaxpr, rewritten by `portable`, as a branch or the body of a call in the Jaxpr of `b`."""
    body, operands = b.sub_jaxpr([v.aval for v in jaxpr.jaxpr.invars])
    return body.build(emit_portable(body, jaxpr, operands, REPLACEMENTS))


def emit_portable(
    b: JaxprBuilder, jaxpr: Any, operands: Sequence[Atom], table: Mapping[jex.Primitive, Emission]
) -> list[Atom]:
    """Emit the portable form of a closed Jaxpr, and return the atoms of its results."""
    walk = PortableWalk(table)
    results = walk.inlined(b, jaxpr, operands, "")
    if walk.refused:
        raise NotPortableError(list(dict.fromkeys(walk.refused)))
    return results


class PortableWalk:
    """Walks over a Jaxpr and the Jaxprs inside it, and notes equations that have no portable form."""

    def __init__(self, table: Mapping[jex.Primitive, Emission]):
        self.table = table
        self.refused: list[Refused] = []

    def inlined(self, b: JaxprBuilder, jaxpr: Any, operands: Sequence[Atom], where: str) -> list[Atom]:
        """Emit a closed Jaxpr, inside the equation that `where` names, and return the atoms of its results."""
        env: dict[Any, Atom] = dict(zip(jaxpr.jaxpr.invars, operands, strict=True))
        for var, value in zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True):
            env[var] = b.constant(value, var.aval.dtype)

        def read(x: Any) -> Atom:
            return env[x] if isinstance(x, jex.Var) else b.constant(x.val, x.aval.dtype)

        for eqn in jaxpr.jaxpr.eqns:
            names = str(eqn.source_info.name_stack)
            if names:
                b.at_names_of(eqn)
            results = self.emitted(b, eqn, [read(x) for x in eqn.invars], names or where)
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(x) for x in jaxpr.jaxpr.outvars]

    def emitted(self, b: JaxprBuilder, eqn: Any, atoms: list[Atom], names: str) -> Sequence[Atom]:
        """Emit the portable form of an equation and of its inner Jaxprs, and return the atoms of its results."""
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
            return [full(b, 0, v.aval.shape, v.aval.dtype).atom for v in eqn.outvars]  # nobody sees them
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


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a param with the Jaxprs in it changed."""
    if isinstance(value, jex.Jaxpr):
        return change(value)
    if type(value) in (tuple, list) and any(isinstance(x, jex.Jaxpr) for x in value):
        return type(value)(mapped(x, change) for x in value)
    return value


def as_closed(jaxpr: Any) -> Any:
    """Return a closed Jaxpr; an open one has no constants."""
    return jaxpr if isinstance(jaxpr, jex.ClosedJaxpr) or hasattr(jaxpr, "consts") else jex.ClosedJaxpr(jaxpr, ())
