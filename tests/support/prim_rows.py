"""A row for each function of `jaxpr.prims`: sample operands, and the call of `jax.lax` that it stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.experimental import sparse
from jax.experimental.xla_metadata import xla_metadata_call
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker import prims
from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.jaxpr.builder import JaxprBuilder


class Row(NamedTuple):
    """One assembler function, called as ``assemble(b, *operands)``, and the call of `jax.lax` that it stands for."""

    name: str
    assemble: Callable[..., Any]
    reference: Callable[..., Any]
    operands: tuple[np.ndarray, ...]


F = np.linspace(0.15, 0.85, 6).reshape(2, 3)
G = F[::-1].copy()
S = F.astype("float32")
I = np.arange(1, 7, dtype="int32").reshape(2, 3)  # noqa: E741
J = np.array([[2, 1, 3], [1, 2, 1]], "int32")
B = F > 0.4
C = (F + 1j * G).astype("complex64")
V = np.array([3.0, 1.0, 2.0, 5.0, 4.0])
M = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]])
ROWS: list[Row] = []


def row(name: str, reference: Callable, *operands: np.ndarray, assemble: Callable | None = None) -> None:
    """Add a row; `assemble` is given where the function takes more than operands."""
    ROWS.append(Row(name, assemble or getattr(prims, name), reference, operands))


for name in [
    "acos",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "bessel_i0e",
    "bessel_i1e",
    "ceil",
    "cos",
    "cosh",
    "digamma",
    "erf",
    "erf_inv",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
]:
    row(name, getattr(lax, name), F)
for name in [
    "is_finite",
    "lgamma",
    "log",
    "log1p",
    "logistic",
    "neg",
    "rsqrt",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
]:
    row(name, getattr(lax, name), S)
for name in [
    "add",
    "atan2",
    "div",
    "eq",
    "ge",
    "gt",
    "igamma",
    "igammac",
    "le",
    "lt",
    "max",
    "min",
    "mul",
    "ne",
    "nextafter",
    "pow",
    "rem",
    "sub",
]:
    ours = getattr(prims, name, None) or getattr(prims, f"{name}_")
    row(name if hasattr(prims, name) else f"{name}_", getattr(lax, name), F, G, assemble=ours)
row("add", lax.add, F, G[0, 0], assemble=prims.add)  # a 0-d operand beside another shape
row("mul", lax.mul, S, S[::-1], assemble=prims.mul)
row("abs_", lax.abs, F)
row("abs_", lax.abs, C)
row("acosh", lax.acosh, F + 1)
row("zeta", lax.zeta, F + 1, G)
row("polygamma", lax.polygamma, np.ones_like(F), F)
row("regularized_incomplete_beta", lax.betainc, F, G, F)
row("round_even", lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), F)
row("round_away", lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), F)
row("stop_gradient", lax.stop_gradient, F)
for name, function in {"and_": lax.bitwise_and, "or_": lax.bitwise_or, "xor": lax.bitwise_xor}.items():
    row(name, function, I, J)
    row(name, function, B, ~B)
row("not_", lax.bitwise_not, I)
for name in ["shift_left", "shift_right_arithmetic", "shift_right_logical"]:
    row(name, getattr(lax, name), I, J)
row("real", lax.real, C)
row("imag", lax.imag, C)
row("conj", lax.conj, C)
row("complex_", lax.complex, F, G)
row("integer_pow", lambda x: lax.integer_pow(x, 3), F, assemble=lambda b, x: prims.integer_pow(b, x, 3))
row(
    "convert", lambda x: lax.convert_element_type(x, "float32"), F, assemble=lambda b, x: prims.convert(b, x, "float32")
)
row("convert", lambda x: lax.convert_element_type(x, "bool"), I, assemble=lambda b, x: prims.convert(b, x, "bool"))
row("bitcast", lambda x: lax.bitcast_convert_type(x, "uint32"), S, assemble=lambda b, x: prims.bitcast(b, x, "uint32"))
row("copy", p.copy_p.bind, F)
row("select", lax.select, B, F, G)
row("clamp", lax.clamp, F[0, 0], G, F[1, 1])

# -- shapes

row(
    "broadcast_in_dim",
    lambda x: lax.broadcast_in_dim(x, (2, 4, 3), (0, 2)),
    F,
    assemble=lambda b, x: prims.broadcast_in_dim(b, x, (2, 4, 3), (0, 2)),
)
row(
    "broadcast_to",
    lambda x: lax.broadcast_in_dim(x, (4, 2, 3), (1, 2)),
    F,
    assemble=lambda b, x: prims.broadcast_to(b, x, (4, 2, 3)),
)
row("reshape", lambda x: lax.reshape(x, (3, 2)), F, assemble=lambda b, x: prims.reshape(b, x, (3, 2)))
row("squeeze", lambda x: lax.squeeze(x, (2, 0)), F[None, :, None], assemble=lambda b, x: prims.squeeze(b, x, (2, 0)))
row("transpose", lambda x: lax.transpose(x, (1, 0)), F, assemble=lambda b, x: prims.transpose(b, x, (1, 0)))
row(
    "concatenate",
    lambda x, y: lax.concatenate([x, y], 1),
    F,
    G,
    assemble=lambda b, x, y: prims.concatenate(b, [x, y], 1),
)
row(
    "pad",
    lambda x, v: lax.pad(x, v, [(1, 2, 1), (-1, 0, 0)]),
    F,
    V[0],
    assemble=lambda b, x, v: prims.pad(b, x, v, [(1, 2, 1), (-1, 0, 0)]),
)
row("rev", lambda x: lax.rev(x, (0,)), F, assemble=lambda b, x: prims.rev(b, x, (0,)))
for strides in ((1, 1), (1, 2)):
    row(
        "slice_",
        lambda x, k=strides: lax.slice(x, (1, 0), (2, 3), None if k == (1, 1) else k),
        F,
        assemble=lambda b, x, k=strides: prims.slice_(b, x, (1, 0), (2, 3), k),
    )
row(
    "dynamic_slice",
    lambda x, i, j: p.dynamic_slice_p.bind(x, i, j, slice_sizes=(1, 2)),
    F,
    I[0, 0],
    I[0, 0],
    assemble=lambda b, x, *starts: prims.dynamic_slice(b, x, starts, (1, 2)),
)
row(
    "dynamic_update_slice",
    lambda x, u, i, j: p.dynamic_update_slice_p.bind(x, u, i, j),
    F,
    G[:1, :2],
    I[0, 0],
    I[0, 0],
    assemble=lambda b, x, u, *starts: prims.dynamic_update_slice(b, x, u, starts),
)
row(
    "iota",
    lambda: lax.broadcasted_iota("int32", (2, 3), 1),
    assemble=lambda b: prims.iota(b, "int32", (2, 3), 1),
)

# -- reductions, sorting, products

for name, x in {"sum": F, "prod": F, "max": F, "min": F, "xor": I}.items():
    f = f"reduce_{name}"
    row(f, lambda x, f=f: getattr(lax, f)(x, (1,)), x, assemble=lambda b, x, f=f: getattr(prims, f)(b, x, (1,)))
for name in ("reduce_and", "reduce_or"):
    for x in (B, I):
        row(
            name,
            lambda x, f=name: getattr(lax, f)(x, (0,)),
            x,
            assemble=lambda b, x, f=name: getattr(prims, f)(b, x, (0,)),
        )
for name in ("argmax", "argmin"):
    row(
        name,
        lambda x, f=name: getattr(lax, f)(x, 1, "int64"),
        F,
        assemble=lambda b, x, f=name: getattr(prims, f)(b, x, 1, "int64"),
    )
for kind, operand in [("FFT", C), ("IFFT", C), ("RFFT", F), ("RFFT", S), ("IRFFT", C)]:
    lengths = (2, 4) if kind == "IRFFT" else (2, 3)
    row(
        "fft",
        lambda x, kind=kind, lengths=lengths: lax.fft.__wrapped__(x, kind, lengths),  # without its own `jit`
        operand,
        assemble=lambda b, x, kind=kind, lengths=lengths: prims.fft(b, x, lax.FftType[kind], lengths),
    )
for name in ("cumsum", "cumprod", "cummax"):
    row(name, lambda x, f=name: getattr(lax, f)(x, 1), F, assemble=lambda b, x, f=name: getattr(prims, f)(b, x, 1))
row("sort", lambda x: lax.sort((x,), 0), V, assemble=lambda b, x: prims.sort(b, [x], 0))
row(
    "sort",
    lambda x, y: lax.sort((x, y), 1, num_keys=2, is_stable=False),
    I,
    F,
    assemble=lambda b, x, y: prims.sort(b, [x, y], 1, 2, False),
)
row(
    "dot_general",
    lambda x, y: lax.dot_general(x, y, (((1,), (1,)), ((), ())), preferred_element_type=x.dtype),
    F,
    G,
    assemble=lambda b, x, y: prims.dot_general(b, x, y, ((1,), (1,))),
)
row(
    "dot_general",
    lambda x, y: lax.dot_general(x, y, (((1,), (1,)), ((0,), (0,))), preferred_element_type=x.dtype),
    F,
    G,
    assemble=lambda b, x, y: prims.dot_general(b, x, y, ((1,), (1,)), ((0,), (0,))),
)

# -- gather and scatter

POSITIONS = np.array([[3], [0], [3]], "int32")
GATHER = lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,))
SCATTER = lax.ScatterDimensionNumbers(
    update_window_dims=(), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
)
for mode in ("PROMISE_IN_BOUNDS", "CLIP", "FILL_OR_DROP"):
    for x in (V, I[0]):
        row(
            "gather",
            lambda x, i, m=lax.GatherScatterMode[mode]: lax.gather(x, i, GATHER, (1,), mode=m),
            x,
            POSITIONS % len(x),
            assemble=lambda b, x, i, m=lax.GatherScatterMode[mode]: prims.gather(b, x, i, GATHER, (1,), (3,), m),
        )
for name in ("scatter", "scatter_add", "scatter_max", "scatter_mul"):
    for unique in (False, True):
        row(
            name,
            lambda x, i, u, f=name, unique=unique: getattr(lax, f)(
                x, i, u, SCATTER, unique_indices=unique, mode=lax.GatherScatterMode.FILL_OR_DROP
            ),
            V,
            POSITIONS[:2],
            V[:2],
            assemble=lambda b, x, i, u, f=name, unique=unique: getattr(prims, f)(
                b, x, i, u, SCATTER, unique_indices=unique
            ),
        )

row(
    "bcsr_dot_general",
    lambda d, i, n, y: sparse.bcsr_dot_general(
        sparse.BCSR((d, i, n), shape=(2, 3)), y, dimension_numbers=(((1,), (0,)), ((), ()))
    ),
    V[:3],
    np.array([0, 2, 1], "int32"),
    np.array([0, 2, 3], "int32"),
    M,
    assemble=lambda b, *operands: prims.bcsr_dot_general(b, *operands, (2, 3)),
)

# -- linear algebra, control, random bits


def assemble_cholesky(b: JaxprBuilder, x: Any) -> Any:
    """Assemble the factor, then zeros above the diagonal as `jax.lax` does."""
    factor = prims.cholesky(b, x)
    rows = prims.add(b, prims.iota(b, "int64", (3, 3), 0), b.constant(0, "int64"))
    kept = prims.ge(b, rows, prims.iota(b, "int64", (3, 3), 1))
    return prims.select(b, kept, factor, b.constant(0.0))


row("cholesky", lambda x: lax.linalg.cholesky(x, symmetrize_input=False), M, assemble=assemble_cholesky)
row(
    "triangular_solve",
    lambda a, x: lax.linalg.triangular_solve(a, x, left_side=True, lower=True, transpose_a=True),
    M,
    M[:, :2],
    assemble=lambda b, a, x: prims.triangular_solve(b, a, x, True, transpose_a=True),
)
row(
    "triangular_solve",
    lambda a, x: lax.linalg.triangular_solve(a, x, left_side=True, transpose_a=True, conjugate_a=True),
    M + 1j * np.triu(M),
    M[:, :2] + 0j,
    assemble=lambda b, a, x: prims.triangular_solve(b, a, x, False, transpose_a=True, conjugate_a=True),
)
row("tridiagonal_solve", lax.linalg.tridiagonal_solve, V * [0, 1, 1, 1, 1], V + 5, V * [1, 1, 1, 1, 0], V[:, None])
row(
    "linear_solve",
    lambda a, d, x: lax.custom_linear_solve(
        lambda y: lax.mul(y, a), x, lambda _, y: lax.div(y, d), lambda _, y: lax.div(y, d)
    ),
    F,
    F,
    G,
    assemble=lambda b, a, d, x: prims.linear_solve(
        b,
        [a],
        [d],
        x,
        lambda b, a, y, transposed: prims.mul(b, y, a),
        lambda b, d, y, transposed: prims.div(b, y, d),
    ),
)
for x in (M, F):
    row("lu", lax.linalg.lu, x)
    row("geqrf", jax_compat.geqrf_p.bind, x)
row(
    "lu_pivots_to_permutation",
    lambda x: lax.linalg.lu_pivots_to_permutation(x, 3),
    np.array([2, 2, 2], "int32"),
)
for x, full in ((M, True), (F, True), (F.T.copy(), False)):
    row(
        "qr",
        lambda x, full=full: lax.linalg.qr(x, full_matrices=full),
        x,
        assemble=lambda b, x, full=full: prims.qr(b, x, full),
    )
    for uv in (False, True):
        row(
            "svd",
            lambda x, full=full, uv=uv: lax.linalg.svd_p.bind(
                x, full_matrices=full, compute_uv=uv, subset_by_index=None, algorithm=None
            ),
            x,
            assemble=lambda b, x, full=full, uv=uv: prims.svd(b, x, full, uv),
        )
row("qr", lambda x: lax.linalg.qr(x, pivoting=True), M, assemble=lambda b, x: prims.qr(b, x, True, pivoting=True))
row("geqp3", lambda x, columns: jax_compat.geqp3_p.bind(x, columns, use_magma=None), F, np.zeros(3, "int32"))
row("eigh", lambda x: lax.linalg.eigh(x, symmetrize_input=False), M, assemble=lambda b, x: prims.eigh(b, x, True))
row("eig", lambda x: lax.linalg.eig(x, compute_left_eigenvectors=False), M)
row("schur", lax.linalg.schur, M)


def branches(b: JaxprBuilder, x: Any) -> list[Any]:
    """Return the Jaxprs of ``sin`` and ``cos``."""
    made = []
    for f in (prims.sin, prims.cos):
        body, (operand,) = b.sub_jaxpr([x.aval])
        made.append(body.build([f(body, operand)]))
    return made


row(
    "cond",
    lambda i, x: p.cond_p.bind(i, x, branches=tuple(jax.make_jaxpr(f)(np.zeros((2, 3))) for f in (lax.sin, lax.cos)))[
        0
    ],
    I[0, 0],
    F,
    assemble=lambda b, i, x: prims.cond(b, i, branches(b, x), [x], [x.aval]),
)


def assemble_scan(b: JaxprBuilder, k: Any, c: Any, x: Any) -> Any:
    """Assemble the scan of ``c, x -> k * c + x, k * x``."""
    body, (k_, c_, x_) = b.sub_jaxpr([k.aval, c.aval, b.aval((3,), x.aval.dtype)])
    carry = prims.add(body, prims.mul(body, k_, c_), x_)
    return prims.scan(b, body.build([carry, prims.mul(body, k_, x_)]), [k], [c], [x], 2, unroll=2)


row(
    "scan",
    lambda k, c, x: lax.scan(lambda c, x: (k * c + x, k * x), c, x, unroll=2),
    F[0],
    F[1],
    G,
    assemble=assemble_scan,
)


def assemble_while(b: JaxprBuilder, limit: Any, k: Any, c: Any) -> Any:
    """Assemble ``while c < limit: c = k * c``."""
    condition, (limit_, c_) = b.sub_jaxpr([limit.aval, c.aval])
    condition = condition.build([prims.lt(condition, c_, limit_)])
    body, (k_, c_) = b.sub_jaxpr([k.aval, c.aval])
    return prims.while_loop(b, condition, [limit], body.build([prims.mul(body, k_, c_)]), [k], [c])


row(
    "while_loop",
    lambda limit, k, c: lax.while_loop(lambda c: c < limit, lambda c: k * c, c),
    np.float64(50.0),
    np.float64(1.5),
    np.float64(0.3),
    assemble=assemble_while,
)


def assemble_closed_call(b: JaxprBuilder, x: Any) -> Any:
    """Assemble the call of a Jaxpr that is ``sin``."""
    return prims.closed_call(b, branches(b, x)[0], [x])


row(
    "closed_call",
    lambda x: p.closed_call_p.bind(x, call_jaxpr=jax.make_jaxpr(lax.sin)(np.zeros((2, 3))))[0],
    F,
    assemble=assemble_closed_call,
)
row(
    "platform_cond",
    lambda x: lax.platform_dependent(x, cpu=lax.sin, default=lax.cos),
    F,
    assemble=lambda b, x: prims.platform_cond(b, ["cpu"], *branches(b, x), [x]),
)
row("barrier", lambda *xs: lax.optimization_barrier(xs), F, S, assemble=lambda b, *xs: prims.barrier(b, xs))
row(
    "metadata_call",
    lambda x: xla_metadata_call(lax.sin, key="value", other="1")(x),
    F,
    assemble=lambda b, x: prims.metadata_call(b, branches(b, x)[0], [x], {"other": "1", "key": "value"}),
)


def assemble_custom_jvp_call(b: JaxprBuilder, x: Any) -> Any:
    """Assemble the call of a Jaxpr that is ``sin``, whose derivative is said to be twice its cosine."""

    def differentiate(child: JaxprBuilder, primals: Any, tangents: Any) -> Any:
        (x,), (t,) = primals, tangents
        result = prims.sin(child, x)
        slope = prims.mul(child, prims.cos(child, x), child.constant(np.float64(2)))
        return [result], [prims.mul(child, slope, t)]

    return prims.custom_jvp_call(b, branches(b, x)[0], differentiate, [x])


@jax.custom_jvp
def custom_sin(x: Any) -> Any:
    """The function that `assemble_custom_jvp_call` stands for."""
    return lax.sin(x)


custom_sin.defjvp(lambda xs, ts: (lax.sin(xs[0]), lax.cos(xs[0]) * 2 * ts[0]), symbolic_zeros=True)
row("custom_jvp_call", custom_sin, F, assemble=assemble_custom_jvp_call)
WORDS = np.arange(4, dtype="uint32")
row(
    "threefry2x32",
    p.threefry2x32_p.bind,
    WORDS[1],
    WORDS[2],
    WORDS,
    WORDS,
    assemble=lambda b, k0, k1, x0, x1: prims.threefry2x32(b, (k0, k1), (x0, x1)),
)


def assembled(row: Row) -> Any:
    """Return the Jaxpr that the assembler function gives."""
    b = JaxprBuilder()
    atoms = [b.input(x.shape, x.dtype) for x in row.operands]
    results = row.assemble(b, *atoms)
    return b.build(results if isinstance(results, list) else [results])
