"""The portable pass: factorizations, solves, Fourier transforms in basic operations, against LAPACK and NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytensor.tensor as pt
import pytest
from jax import lax
from jax.extend.core import jaxpr_as_fun
from jax.extend.core import primitives as p

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base.jax_compat import geqp3_p, geqrf_p, inner_jaxprs
from pytensor_jaxpr_linker.jaxpr.portable import schur
from pytensor_jaxpr_linker.jaxpr.portable.rewrite import REPLACEMENTS, NotPortableError, portable

#: What is left to XLA's compiler costs more than what it saves: a program runs once.
FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}

DTYPES = ("float32", "float64", "complex64", "complex128")


def names_in(jaxpr: Any) -> set[str]:
    """Return the primitives of a Jaxpr and of the Jaxprs inside it."""
    inside = [names_in(j) for eqn in jaxpr.eqns for j in inner_jaxprs(eqn)]
    return {eqn.primitive.name for eqn in jaxpr.eqns}.union(*inside)


def run(fn: Callable[..., Any], *args: Any) -> list[np.ndarray]:
    """Return the results of the portable form of a function, which has none of the primitives that are replaced."""
    with jax.enable_x64(True):
        found = portable(jax.make_jaxpr(fn)(*args))
        conditional = {p.cumsum_p, p.cumprod_p, p.cummax_p, p.cummin_p}
        assert names_in(found.jaxpr).isdisjoint({x.name for x in REPLACEMENTS.keys() - conditional})
        return [np.asarray(x) for x in jax.jit(jaxpr_as_fun(found), compiler_options=FAST)(*jax.tree.leaves(args))]


def random_array(shape: Sequence[int], dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def adjoint(x: np.ndarray) -> np.ndarray:
    return np.conj(np.swapaxes(x, -1, -2))


def off(got: Any, want: Any, scale: float | None = None) -> float:
    """Return the largest difference in eps of the dtype, relative to the largest element (or to `scale`)."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    if not got.size:
        return 0.0
    size = np.abs(want).max() if scale is None else scale
    return float(np.abs(got - want).max() / (max(size, 1e-30) * np.finfo(got.dtype).eps))


SQUARE, ANY_SHAPE = [(0, 0), (1, 1), (2, 3, 5, 5), (24, 24)], [(0, 3), (3, 0), (1, 4), (2, 2, 6, 4), (4, 7), (24, 20)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_cholesky_and_triangular_systems(dtype: str) -> None:
    """Lower and upper matrices, from both sides, transposed, conjugated, with ones on the diagonal."""
    ways = [
        (left, lower, transpose, unit) for left in (0, 1) for lower in (0, 1) for transpose in (0, 1) for unit in (0, 1)
    ]
    matrices = [random_array(shape, dtype) for shape in SQUARE]
    positive = [a @ adjoint(a) + 5 * np.eye(a.shape[-1], dtype=dtype) for a in matrices]
    triangular = random_array((2, 5, 5), dtype) / 4 + 2 * np.eye(5, dtype=dtype)
    x = random_array((2, 5, 5), dtype, 1)

    def solve(a: Any, x: Any, left: bool, lower: bool, transpose: bool, unit: bool) -> Any:
        how: dict[str, Any] = {"left_side": bool(left), "lower": bool(lower), "transpose_a": bool(transpose)}
        return lax.linalg.triangular_solve(a, x, unit_diagonal=bool(unit), conjugate_a=bool(transpose), **how)

    def both(positive: Any, a: Any, x: Any) -> Any:
        factors = [lax.linalg.cholesky(m, symmetrize_input=False) for m in positive]
        return [*factors, *[solve(a, x, *way) for way in ways]]

    found = run(both, [np.tril(m) for m in positive], triangular, x)
    for factor, m in zip(found, positive, strict=False):
        assert off(factor @ adjoint(factor), m) < 50
    for y, (left, lower, transpose, unit) in zip(found[len(positive) :], ways, strict=True):
        a = np.tril(triangular) if lower else np.triu(triangular)
        if unit:
            a = a - a * np.eye(5, dtype=dtype) + np.eye(5, dtype=dtype)
        a = adjoint(a) if transpose else a
        assert off(a @ y if left else y @ a, x) < 100


def test_singular_matrices() -> None:
    """Indefinite matrices have no factor, zeros LU and QR factors, all matrices orthonormal singular vectors."""
    zeros, rank_two = np.zeros((3, 3)), random_array((6, 2), "float64") @ random_array((2, 5), "float64")
    failing = np.stack([np.diag([1.0, -1.0, 1.0]), np.diag([1.0, 0.0, 1.0]), np.full((3, 3), np.nan), np.eye(3)])

    def both(failing: Any, zeros: Any, rank_two: Any) -> Any:
        lu, _, order = lax.linalg.lu(zeros)
        svd = lax.linalg.svd(rank_two, full_matrices=True)
        return lax.linalg.cholesky(failing), lu, order, *lax.linalg.qr(zeros), *svd, *lax.linalg.svd(zeros)

    factor, lu, order, q, r, u, s, v, u0, s0, v0 = run(both, failing, zeros, rank_two)
    assert [np.isnan(np.tril(f)).any() for f in factor] == [True, True, True, False]
    assert not lu.any() and list(order) == [0, 1, 2] and (q == np.eye(3)).all() and not r.any()
    assert off((u[:, :5] * s) @ v, rank_two) < 50 and (s[2:] < 1e-14).all()
    for unitary in (u, v, u0, v0):
        assert off(adjoint(unitary) @ unitary, np.eye(len(unitary))) < 50
    assert not s0.any()


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_lu_and_qr(dtype: str) -> None:
    """The factors equal LAPACK's, with their signs and pivots."""
    matrices = [random_array(shape, dtype) for shape in ANY_SHAPE]

    def both(matrices: Any) -> Any:
        return [
            [
                *lax.linalg.lu(a),
                *lax.linalg.qr(a),
                *lax.linalg.qr(a, full_matrices=False),
                *lax.linalg.qr(a, pivoting=True),
            ]
            for a in matrices
        ]

    found = run(both, matrices)
    with jax.enable_x64(True):
        want = [x for a in matrices for x in jax.tree.leaves(both([a]))]
    for i, (x, y) in enumerate(zip(found, want, strict=True)):
        shape = ANY_SHAPE[i // len(jax.tree.leaves(want[:10]))]
        if x.dtype.kind == "i":
            assert 0 in shape or (x == np.asarray(y)).all()
        else:
            assert off(x, y) < 200


def test_packed_reflections() -> None:
    """LAPACK's forms, which PyTensor's raw modes return."""
    a, free = random_array((5, 4), "float64"), np.array([0, 0, 1, 0], "int32")

    def packed(a: Any, free: Any) -> Any:
        return [*geqrf_p.bind(a), *geqp3_p.bind(a, free, use_magma=None)]

    with jax.enable_x64(True):
        want = packed(a, free)
    for x, y in zip(run(packed, a, free), want, strict=True):
        assert (x == np.asarray(y)).all() if x.dtype.kind == "i" else off(x, y) < 50


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_jacobi(dtype: str) -> None:
    """Eigenvalues and singular values, and vectors that give the matrix back."""
    matrices = [random_array(shape, dtype) for shape in ANY_SHAPE]
    hermitian = [(a + adjoint(a)) * 1e3 for a in (random_array(shape, dtype) for shape in (*SQUARE, (7, 7)))]

    def both(hermitian: Any, matrices: Any) -> Any:
        eigh = [lax.linalg.eigh(a, symmetrize_input=False) for a in hermitian]
        return eigh, [[*lax.linalg.svd(a), lax.linalg.svd(a, compute_uv=False)] for a in matrices]

    found = run(both, [np.tril(a) for a in hermitian], matrices)
    for i, a in enumerate(hermitian):
        v, w = found[2 * i : 2 * i + 2]
        n = a.shape[-1]
        assert off(w, np.linalg.eigvalsh(a)) < 50 and off(adjoint(v) @ v, np.broadcast_to(np.eye(n), a.shape)) < 50
        assert off(a @ v, v * w[..., None, :], scale=float(np.abs(a).max(initial=0))) < 200
    found = found[2 * len(hermitian) :]
    for i, a in enumerate(matrices):
        u, s, v, alone = found[4 * i : 4 * i + 4]
        k = min(a.shape[-2:])
        assert off(alone, np.linalg.svd(a, compute_uv=False)) < 50 and off(s, alone) < 50
        assert off((u[..., :, :k] * s[..., None, :]) @ v[..., :k, :], a) < 200
        for m in (u, adjoint(v)):
            assert off(adjoint(m) @ m, np.broadcast_to(np.eye(m.shape[-1]), (*m.shape[:-2], *m.shape[-1:] * 2))) < 50


def hard_matrices(dtype: str) -> np.ndarray:
    """Return a batch: defective, clustered, equal eigenvalues; triangular, normal, tiny, huge matrices."""
    n, tiny = 6, float(np.sqrt(np.finfo(dtype).tiny)) / 1e3
    shift, unitary = np.eye(n, k=1), np.linalg.qr(random_array((n, n), dtype, 4))[0]
    a = random_array((n, n), dtype, 5)
    given = [
        np.zeros((n, n)),
        np.ones((n, n)),
        shift,
        np.roll(np.eye(n), 1, axis=0),  # a companion matrix, on which shifts from its last rows alone do nothing
        unitary @ (shift + 2 * np.eye(n)) @ adjoint(unitary),
        np.eye(n) + 1e-8 * a,
        unitary @ np.diag([1, 1, 1, 2, 2, 1e-6]) @ adjoint(unitary),
        np.triu(a),
        np.tril(a),
        a + adjoint(a),
        a - adjoint(a),
        a * tiny,
        a / tiny,
    ]
    return np.stack([x.astype(dtype) for x in given])


def assert_schur_form(t: np.ndarray, z: np.ndarray, a: np.ndarray) -> None:
    """Check what makes T and Z a Schur form and vectors of a matrix, as LAPACK standardizes them."""
    n = len(a)
    assert off(adjoint(z) @ z, np.eye(n)) < 20 + 5 * n
    size = np.abs(a).max() or a.dtype.type(1)
    assert off(z @ (t / size) @ adjoint(z), a / size, scale=1.0) < 20 + 5 * n
    if a.dtype.kind == "c":
        assert not np.tril(t, -1).any()
        return
    assert not np.tril(t, -2).any()
    below = np.diag(t, -1)
    assert not (below[1:] * (below[:-1] != 0)).any()
    for i in np.flatnonzero(below):
        assert t[i, i] == t[i + 1, i + 1] and np.sign(t[i, i + 1]) == -np.sign(below[i])


@pytest.mark.parametrize("dtype", DTYPES)
def test_schur(dtype: str) -> None:
    """The form and vectors give the matrix back, also where the iteration is hard; triangular matrices stay."""
    two_by_two = np.array(
        [[[0, 1], [-1, 0]], [[1, 2], [0, 1]], [[4, 1], [2, 3]], [[0, 1], [0, 0]], [[1, 2], [-3, 1]]], dtype
    )
    matrices = [*[random_array(shape, dtype) for shape in [*SQUARE, (7, 2, 2)]], two_by_two, hard_matrices(dtype)]
    found = run(lambda matrices: [lax.linalg.schur(a) for a in matrices], matrices)
    for batch, t, z in zip(matrices, found[::2], found[1::2], strict=True):
        n = batch.shape[-1]
        for a, t_, z_ in zip(*(x.reshape(-1, n, n) for x in (batch, t, z)), strict=True) if n else ():
            assert_schur_form(t_, z_, a)
            if not np.tril(a, -1).any():
                assert (t_ == a).all() and (z_ == np.eye(n)).all()
        assert t.shape == z.shape == batch.shape


def test_schur_without_convergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """As LAPACK's, it is NaN; other matrices of the batch have theirs."""
    monkeypatch.setattr(schur, "MOST_SWEEPS_EACH", 0)
    batch = np.stack([np.triu(random_array((4, 4), "float64")), random_array((4, 4), "float64")])
    t, z = run(lax.linalg.schur, batch)
    assert (t[0] == batch[0]).all() and np.isnan(t[1]).all() and np.isnan(z[1]).all()
    monkeypatch.undo()
    batch[0, 0, 0] = np.nan
    t, z = run(lax.linalg.schur, batch)
    assert np.isnan(t[0]).any()
    assert_schur_form(t[1], z[1], batch[1])


def test_tridiagonal_systems() -> None:
    shapes = [(0,), (1,), (2,), (2, 3, 7)]
    given = [[random_array(shape, "float64", i) for i in range(3)] for shape in shapes]
    right = [random_array((*shape, 2), "float64", 3) for shape in shapes]

    def both(given: Any, right: Any) -> Any:
        return [lax.linalg.tridiagonal_solve(*d, x) for d, x in zip(given, right, strict=True)]

    for y, (low, main, high), x in zip(run(both, given, right), given, right, strict=True):
        product = main[..., None] * y
        product[..., 1:, :] += low[..., 1:, None] * y[..., :-1, :]
        product[..., :-1, :] += high[..., :-1, None] * y[..., 1:, :]
        assert off(product, x) < 1e4  # of random matrices, one has a condition of 1e3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fourier(dtype: str) -> None:
    """Short, power-of-two, composite and prime lengths; several axes; half spectra with numbers that do not matter."""
    lengths = [1, 2, 6, 97, 128, 210, 257, 526]
    real = [random_array((2, n), dtype) for n in lengths] + [random_array((3, 4, 6), dtype)]
    shapes = [(n,) for n in lengths] + [(4, 6)]
    complex_dtype = "complex64" if dtype == "float32" else "complex128"
    full = [random_array(x.shape, complex_dtype) for x in real]
    half = [x[..., : x.shape[-1] // 2 + 1] for x in full]

    def both(real: Any, full: Any, half: Any) -> Any:
        kinds = lax.FftType
        results = []
        for x, y, z, n in zip(real, full, half, shapes, strict=True):
            results += [
                lax.fft(x, kinds.RFFT, n),
                lax.fft(y, kinds.FFT, n),
                lax.fft(y, kinds.IFFT, n),
                lax.fft(z, kinds.IRFFT, n),
            ]
        return results

    found = iter(run(both, real, full, half))
    for x, y, z, n in zip(real, full, half, shapes, strict=True):
        axes = tuple(range(-len(n), 0))
        for want in (
            np.fft.rfftn(x, n, axes),
            np.fft.fftn(y, n, axes),
            np.fft.ifftn(y, n, axes),
            np.fft.irfftn(z, n, axes),
        ):
            assert off(next(found), want) < 10


def test_numbers() -> None:
    """Cube roots; running sums, products and extrema of unsigned integers, which wrap."""
    x = np.array([0.0, -0.0, 8.0, -27.0, np.inf, -np.inf, np.nan, 1e-300, -1e300])
    integers = [np.array([1, 2**bits - 1, 3, 0, 7], f"uint{bits}") for bits in (8, 32, 64)]

    def both(x: Any, integers: Any) -> Any:
        running = (lax.cumsum, lax.cumprod, lax.cummax, lax.cummin)
        return [lax.cbrt(x), *[f(i) for i in integers for f in running]]

    roots, *sums = run(both, x, integers)
    np.testing.assert_allclose(roots, np.cbrt(x), rtol=1e-15)
    assert (np.signbit(roots) == np.signbit(np.cbrt(x))).all()
    for i, found in enumerate(sums):
        given = integers[i // 4]
        how = (np.add, np.multiply, np.maximum, np.minimum)[i % 4]
        assert found.dtype == given.dtype and (found == how.accumulate(given, dtype=given.dtype)).all()


def test_inside_loops_and_branches() -> None:
    """Also Jaxprs of PyTensor's own: a scan of Cholesky factors, and its gradient."""
    x = pt.dtensor3("x")
    factors = pt.linalg.cholesky(x)
    cost = pt.log(pt.diagonal(factors, axis1=-2, axis2=-1)).sum()
    fn = pjl.as_jax_function([x], [cost, pt.grad(cost, x)], gradient="jax")
    a = random_array((3, 4, 4), "float64")
    positive = a @ adjoint(a) + np.eye(4)

    def looped(positive: Any) -> Any:
        _, rows = lax.scan(lambda c, m: (c, lax.cond(m[0, 0] > 0, jnp.linalg.cholesky, lambda m: m, m)), 0.0, positive)
        return [*fn(positive), rows]

    cost, gradient, rows = run(looped, positive)
    np.testing.assert_allclose(cost, np.linalg.slogdet(positive)[1].sum() / 2)
    np.testing.assert_allclose(
        gradient + np.swapaxes(gradient, -1, -2), np.linalg.inv(positive), rtol=1e-10, atol=1e-12
    )
    np.testing.assert_allclose(rows, np.linalg.cholesky(positive))


def test_refusal() -> None:
    """Every operation that can't be replaced is named, with its node."""
    x = pt.dmatrix("x")
    fn = pjl.as_jax_function([x], [pt.linalg.eig(x)[0], pt.exp(x)])
    with jax.enable_x64(True):
        jaxpr = jax.make_jaxpr(lambda x: [*fn(x), *lax.linalg.hessenberg(x)])(np.eye(3))
    with pytest.raises(NotPortableError, match="nothing stands for them") as caught:
        portable(jaxpr)
    assert [(r.primitive, r.names.partition("{")[0]) for r in caught.value.refused] == [
        ("eig", "Eig"),
        ("hessenberg", ""),
    ]
