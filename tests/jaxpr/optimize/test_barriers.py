"""XLA's library of CPU kernels against NumPy (`jaxpr/optimize/barriers.py`, docs/notes/xla-library.md)."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from jax import lax

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base.options import for_platforms

#: XLA takes the library for 4,096 numbers and more; tasks for other cores begin at 16,384, or 65,536.
SIZES = [4088, 4096, 4104, 16_384, 16_392, 65_528, 65_544]
FEW_SIZES = [4096, 65_544]
AXES = [(0,), (1,), (0, 1)]
NIGHTLY = pytest.mark.nightly


def sizes(few=FEW_SIZES):
    return [pytest.param(n, marks=[] if n in few else NIGHTLY) for n in SIZES]


class Form(NamedTuple):
    """What a reduction reads: in PyTensor, and in NumPy."""

    ours: Callable
    numpys: Callable


def same(function: Callable) -> Form:
    return Form(function, function)


def cast(*dtypes):
    def ours(x, *others):
        for dtype in dtypes:
            x = pt.cast(x, dtype)
        return x

    def numpys(x, *others):
        for dtype in dtypes:
            x = x.astype(dtype)
        return x

    return Form(ours, numpys)


#: Of a matrix x, another one y, a vector v of its columns, a column w and a number u.
FORMS = {
    "itself": same(lambda x, y, v, w, u: x),
    "times": same(lambda x, y, v, w, u: x * y),
    "number": same(lambda x, y, v, w, u: x * u),
    "row": same(lambda x, y, v, w, u: x * v),
    "column": same(lambda x, y, v, w, u: x - w),
    "outer": same(lambda x, y, v, w, u: w * v),
    "transposed": same(lambda x, y, v, w, u: x.T),
    "transposed twice": same(lambda x, y, v, w, u: (x.T * w[:, 0]).T * y),
    "sliced": same(lambda x, y, v, w, u: x[1:, :-1] * u),
    "strided": same(lambda x, y, v, w, u: (x * y)[::2]),
    "backwards": same(lambda x, y, v, w, u: x[::-1, ::-1]),
    "flat": same(lambda x, y, v, w, u: (x * y).reshape((8, -1))),
    "exp": Form(lambda x, y, v, w, u: pt.exp(-x * x), lambda x, y, v, w, u: np.exp(-x * x)),
    "log1p": Form(lambda x, y, v, w, u: pt.log1p(x * x) * u, lambda x, y, v, w, u: np.log1p(x * x) * u),
    "where": Form(lambda x, y, v, w, u: pt.switch(x > 0, x, y), lambda x, y, v, w, u: np.where(x > 0, x, y)),
    "joined": Form(lambda x, y, v, w, u: pt.concatenate([x, y * u]), lambda x, y, v, w, u: np.concatenate([x, y * u])),
    "rounded": cast("float32", "float64"),
    "rounded to 16 bits": cast("float32", "float16", "float32"),
    "rounding error": Form(
        lambda x, *_: x - pt.cast(pt.cast(x, "float32"), x.dtype), lambda x, *_: x - x.astype("f4").astype(x.dtype)
    ),
    "cut": cast("int8", "float64"),
    "cut to 32 bits": cast("int32", "float64"),
    "condition": Form(lambda x, *_: pt.cast(pt.cast(x > 0, "int8"), "float64"), lambda x, *_: (x > 0).astype("f8")),
    "product": Form(lambda x, y, v, w, u: x[:, :3] @ y[:3], lambda x, y, v, w, u: x[:, :3] @ y[:3]),
    "product with a number": Form(
        lambda x, y, v, w, u: x @ (pt.ones((8, 8)) * u), lambda x, y, v, w, u: x @ (np.ones((8, 8), x.dtype) * u)
    ),
    "product with ones": Form(
        lambda x, y, v, w, u: (x * u) @ pt.ones((8, 8)) * y,
        lambda x, y, v, w, u: (x * u) @ np.ones((8, 8), x.dtype) * y,
    ),
    "product with a row": Form(
        lambda x, y, v, w, u: x @ (pt.ones((8, 8)) * v), lambda x, y, v, w, u: x @ (np.ones((8, 8), x.dtype) * v)
    ),
    "products in turn": same(lambda x, y, v, w, u: (x @ y[:8]) @ y[:8].T),
}  # fmt: skip


def operands(size, dtype):
    rng = np.random.default_rng(size)
    rows = size // 8
    shapes = (rows, 8), (rows, 8), (8,), (rows, 1), ()
    return [np.asarray(rng.normal(size=shape) * 3).astype(dtype) for shape in shapes]


def symbols(dtype):
    return [pt.tensor(name, dtype=dtype, shape=(None,) * n) for name, n in zip("xyvwu", (2, 2, 1, 2, 0), strict=True)]


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=NIGHTLY)])
@pytest.mark.parametrize("size", sizes())
@pytest.mark.parametrize("door", ["function", "user's jit"])
def test_no_program_has_a_form_that_is_wrong(door, size, dtype):
    inputs, values = symbols(dtype), operands(size, dtype)
    inputs[3] = pt.tensor("w", dtype=dtype, shape=(None, 1))
    outputs, wanted, names = [], [], []
    for (name, form), axis in itertools.product(FORMS.items(), AXES):
        ours, numpys = form.ours(*inputs), form.numpys(*values)
        for how in ("sum", "max", "min"):
            outputs.append(getattr(pt, how)(ours, axis=axis))
            wanted.append(getattr(np, how)(numpys.astype("f8"), axis=axis))
            names.append((name, how, axis, np.abs(numpys.astype("f8")).sum(axis).max() if how == "sum" else 1))
    if door == "function":
        found = pytensor.function(inputs, outputs, mode="JAXPR")(*values)
    else:
        with jax.enable_x64(True):
            found = jax.jit(pjl.as_jax_function(inputs, outputs))(*values)
    is_narrow = dtype == "float32"
    for (name, how, axis, scale), want, got in zip(names, wanted, found, strict=True):
        narrow = is_narrow or got.dtype == "float32"
        atol = scale * (1e-6 if narrow else 1e-14)
        if "product" in name:
            atol += 1e-3 if is_narrow else 1e-11
        np.testing.assert_allclose(got, want, rtol=3e-5 if narrow else 1e-12, atol=atol, err_msg=f"{name} {how} {axis}")


@pytest.mark.parametrize("size", sizes())
@pytest.mark.parametrize("place", [0, 17, -1])
def test_extrema_of_nan(size, place):
    """Also where a user's `vmap` makes a small array a large one."""
    x = pt.dmatrix("x")
    outputs = [f(x, axis=axis) for f in (pt.max, pt.min) for axis in AXES]
    value = np.random.default_rng(0).normal(size=(size // 8, 8))
    value.flat[place] = np.nan
    wanted = [f(value, axis=axis) for f in (np.max, np.min) for axis in AXES]
    function, pure = pytensor.function([x], outputs, mode="JAXPR"), pjl.as_jax_function([x], outputs)
    with jax.enable_x64(True):
        for found in (function(value), jax.jit(pure)(value)):
            for got, want in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(got, want)
        rows = jax.jit(jax.vmap(lambda row: pure(row[None])))(value)
    np.testing.assert_array_equal(rows[2], value.max(axis=1))
    np.testing.assert_array_equal(rows[5], value.min(axis=1))


@pytest.mark.parametrize("gradient", ["pytensor", "jax"])
def test_gradient_of_a_maximum(gradient):
    x = pt.dvector("x")
    value = np.random.default_rng(0).normal(size=5000)
    with jax.enable_x64(True):
        pure = pjl.as_jax_function([x], (pt.max(x) * pt.min(x)), gradient=gradient)
        got = jax.jit(jax.grad(pure))(value)
    want = np.zeros(5000)
    want[value.argmax()], want[value.argmin()] = value.min(), value.max()
    np.testing.assert_allclose(got, want)


def primitives(function, *values):
    return [eqn.primitive.name for eqn in pjl.make_jaxpr(function, *values).eqns]


def test_small_programs_and_other_platforms_stay_as_they_are():
    x = pt.dvector("x")
    outputs = [x.max(), pt.cast(pt.cast(x, "float32"), "float64").sum()]
    f = pytensor.function([x], outputs, mode="JAXPR")
    assert {"reduce_or", "optimization_barrier"} & set(primitives(f, np.ones(1000))) == set()
    assert {"reduce_or", "optimization_barrier"} < set(primitives(f, np.ones(1024)))
    for platforms, is_changed in ((("cuda",), False), (("cuda", "cpu"), True)):
        with for_platforms(platforms):
            g = pytensor.function([x], outputs, mode="JAXPR")
            assert ({"reduce_or", "optimization_barrier"} <= set(primitives(g, np.ones(5000)))) == is_changed


# -- XLA by itself: forms that the rules above take for right ----------------------------------------------------------

REDUCTIONS = {
    "sum": jnp.sum,
    "prod": jnp.prod,
    "max": jnp.max,
    "min": jnp.min,
    "any": jnp.any,
    "all": jnp.all,
    "argmax": jnp.argmax,
}
#: The first has all forms of `PLAIN`, the others some.
DTYPES = ["float64", "float32", "float16", "int8", "uint8", "int16", "int32", "int64", "uint32", "bool", "complex128"]
PLAIN: dict[str, Callable] = {
    "itself": lambda x, v, w, u: x,
    "number": lambda x, v, w, u: x * u,
    "row": lambda x, v, w, u: x * v,
    "column": lambda x, v, w, u: x + w,
    "repeated number": lambda x, v, w, u: 0 * x + u,
    "transposed": lambda x, v, w, u: x.T,
    "sliced": lambda x, v, w, u: x[1:, :-1],
    "strided": lambda x, v, w, u: x[::2],
    "backwards": lambda x, v, w, u: x[::-1],
    "flat": lambda x, v, w, u: x.reshape((-1, 8)[::-1]),
    "three axes": lambda x, v, w, u: x.reshape((-1, 4, 2))[:, 1],
    "widened": lambda x, v, w, u: x.astype(
        {"float32": "float64", "float16": "float32"}.get(x.dtype.name, x.dtype.name)
    ),
}


def plain_cases():
    for dtype, size, form in itertools.product(DTYPES, SIZES, PLAIN):
        is_usual = size in FEW_SIZES and (dtype == "float64" or form in ("itself", "transposed"))
        yield pytest.param(dtype, size, form, marks=[] if is_usual else NIGHTLY)


@pytest.mark.parametrize(("dtype", "size", "form"), list(plain_cases()))
def test_reductions_of_xla_are_numpys(dtype, size, form):
    """Of whatever jaxlib is installed. What is wrong in jaxlib 0.12.0.1 is not among them."""
    rng = np.random.default_rng(0)
    shapes = (size // 8, 8), (8,), (size // 8, 1), ()
    values = [rng.integers(0, 3, shape) + (0 if np.dtype(dtype).kind in "iub" else 0.25) for shape in shapes]
    values = [np.asarray(value).astype(dtype) for value in values]
    read = PLAIN[form]
    left_out = {
        "complex128": ("max", "min", "argmax"),
        "float32": ("prod",),
        "float16": ("prod",),
    }  # products underflow
    hows = [how for how in REDUCTIONS if how not in left_out.get(dtype, ())]

    def compute(*args):
        x = read(*args)
        one = {"dtype": x.dtype}  # as PyTensor's rules do: NumPy would add small integers in 64 bits
        return [
            REDUCTIONS[how](x, axis=axis, **(one if how in ("sum", "prod") else {}))
            for how, axis in itertools.product(hows, AXES)
            if how != "argmax" or len(axis) == 1
            for axis in [axis[0] if how == "argmax" else axis]
        ]

    with jax.enable_x64(True), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = jax.jit(compute)(*values)
        x = np.asarray(jax.jit(read, compiler_options={"xla_cpu_experimental_ynn_fusion_type": ""})(*values))
        wide = x.astype("f8") if x.dtype.kind == "f" else x
        wanted = [
            getattr(np, how)(
                wide, axis=axis, **({"dtype": x.dtype} if how in ("sum", "prod") and x.dtype.kind in "iub" else {})
            )
            for how, axis in itertools.product(hows, AXES)
            if how != "argmax" or len(axis) == 1
            for axis in [axis[0] if how == "argmax" else axis]
        ]
        exact = {"f": {8: 1e-12, 4: 1e-4, 2: 0.2}, "c": {16: 1e-12}}.get(x.dtype.kind, {}).get(x.dtype.itemsize, 0)
        for got, want in zip(found, wanted, strict=True):
            finite = np.isfinite(np.asarray(got, "c16" if x.dtype.kind == "c" else "f8"))
            assert exact or finite.all()
            np.testing.assert_allclose(np.asarray(got)[finite], np.asarray(want)[finite], rtol=exact)


def error_of_nan():
    x = np.zeros(5000)
    x[7] = np.nan
    return jax.jit(jnp.max)(x), np.nan


def error_of_rounding():
    x = np.random.default_rng(0).normal(size=5000)
    return jax.jit(lambda x: (x - x.astype(jnp.float32).astype(jnp.float64)).sum())(x), (
        x - x.astype("f4").astype("f8")
    ).sum()


def error_of_cutting():
    return jax.jit(lambda x: x.astype(jnp.int8).astype(jnp.float64).sum())(np.full(5000, 2.7)), 10_000


def error_of_a_product():
    x = np.ones((4000, 3))
    return jax.jit(lambda x: (x @ jnp.ones((3, 3)) * x).sum())(x), 36_000


def error_of_an_exponential():
    x = np.full(5000, 709.6)
    x[1:] = 0.0
    return jax.jit(lambda x: jnp.exp(x).sum())(x), np.exp(x).sum()


@pytest.mark.parametrize("dtype, largest", [("float64", 709.7), ("float32", 88.7)])
@pytest.mark.parametrize("function", [pt.exp, pt.expm1])
@pytest.mark.parametrize("shape", [(8, 20), (8, 2047), (5000, 2)], ids=str)
def test_exponentials_just_below_infinity(shape, function, dtype, largest):
    """In our programs, and where a user's `jax.jit` compiles; with a value that a sum needs too."""
    value = np.full(shape, 0.1, dtype)
    value[0, 1] = largest
    want = np.exp(value.astype("f8")).sum(axis=0) - (shape[0] if function is pt.expm1 else 0)
    x = pt.matrix("x", dtype=dtype)
    result = function(x).sum(axis=0)
    f, pure = pytensor.function([x], result, mode="JAXPR"), pjl.as_jax_function([x], result)
    with jax.enable_x64(True):
        for found in (f(value), jax.jit(pure)(value), jax.jit(jax.vmap(pure))(value[None])[0]):
            np.testing.assert_allclose(found, want, rtol=1e-12 if dtype == "float64" else 1e-4)


@pytest.mark.parametrize("result", ["product", "exponential"])
def test_results_that_a_user_sums(result):
    """The reduction is behind the Jaxpr, in the user's program."""
    x = pt.dmatrix("x")
    value = np.random.default_rng(0).normal(size=(4000, 3))
    if result == "product":
        pure, want = pjl.as_jax_function([x], x @ pt.full((3, 3), 2.0)), value @ np.full((3, 3), 2.0) * value
    else:
        value[7, 1] = 709.6
        pure, want = pjl.as_jax_function([x], pt.exp(x)), np.exp(value)
    with jax.enable_x64(True):
        found = jax.jit(lambda x: (pure(x) * x if result == "product" else pure(x)).sum())(value)
    np.testing.assert_allclose(found, want.sum(), rtol=1e-9)


@pytest.mark.parametrize(
    "error", [error_of_nan, error_of_rounding, error_of_cutting, error_of_a_product, error_of_an_exponential]
)
@pytest.mark.xfail(strict=False, reason="XLA's errors, docs/notes/upstream/xla-cpu-library.md")
def test_errors_of_xla(error):
    """A pass says that this jaxlib has the error no more."""
    with jax.enable_x64(True):
        got, want = error()
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("columns", [2, 3, 8, 40])
@pytest.mark.parametrize("rows", [5, 4096, pytest.param(20_000, marks=NIGHTLY)])
def test_products_of_xla_are_numpys(rows, columns):
    """As results: no reduction reads them, or a barrier is before it."""
    rng = np.random.default_rng(rows)
    x, y, u = rng.normal(size=(rows, 8)), rng.normal(size=(8, columns)), 1.5
    products = {
        "": (lambda x, y: x @ y, x @ y),
        "transposed": (lambda x, y: (y.T @ x.T).T, x @ y),
        "number": (lambda x, y: x @ jnp.full(y.shape, u), x @ np.full(y.shape, u)),
        "scaled": (lambda x, y: (x * u) @ jnp.exp(y), (x * u) @ np.exp(y)),
        "sliced": (lambda x, y: x[1:, 2:] @ y[2:], x[1:, 2:] @ y[2:]),
        "sum": (
            lambda x, y: (lax.optimization_barrier(x @ jnp.full(y.shape, u)) * x[:, :1]).sum(),
            (x @ np.full(y.shape, u) * x[:, :1]).sum(),
        ),
        "batch": (lambda x, y: jnp.einsum("nij,jk->nik", x.reshape(-1, 1, 8), y)[:, 0], x @ y),
    }  # fmt: skip
    with jax.enable_x64(True):
        for name, (product, want) in products.items():
            np.testing.assert_allclose(jax.jit(product)(x, y), want, rtol=1e-9, atol=1e-9, err_msg=name)
