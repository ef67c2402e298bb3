"""Random graphs over large arrays, for `tests/whole/test_random_graphs.py`: around the sizes from which XLA takes other kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytensor
import pytensor.tensor as pt
from hypothesis import strategies as st
from pytensor.graph.basic import Variable

#: From 4,096 numbers XLA reduces by its library, from 16,384 or 65,536 in tasks for several cores.
LARGE = [n + more for n in (4096, 16_384, 65_536) for more in (-1, 0, 1)]
SPECIAL = [np.nan, np.inf, -np.inf, -0.0]
LARGE_UNARY = [pt.exp, pt.tanh, pt.sigmoid, pt.softplus, pt.sqr, pt.expm1, pt.abs, pt.neg, pt.sign, pt.floor]
LARGE_BINARY = [pt.add, pt.mul, pt.sub, pt.maximum, pt.minimum, pt.true_div]
CASTS = [
    ("float32", "float64"),
    ("float32",),
    ("float64",),
    ("int8", "float64"),
    ("int32", "float64"),
    ("int64",),
    ("bool", "float64"),
]


@dataclass
class LargeGraph:
    """Inputs with their values, an array of known shape that is being made, and outputs."""

    inputs: list[Variable]
    values: list[np.ndarray]
    x: Variable
    shape: tuple[int, ...]
    outputs: list[Variable] = field(default_factory=list)
    #: Sums of the absolute terms of outputs: their rounding errors are in proportion to these.
    scales: list[Variable] = field(default_factory=list)

    def add(self, output: Variable, scale: Variable | float = 1.0) -> None:
        self.outputs.append(output)
        self.scales.append(pt.as_tensor(scale).astype("float64"))


@st.composite
def large_graphs(draw):
    """Return a random graph over one large array and others that are broadcast to it."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    n = draw(st.sampled_from(LARGE))
    shape = draw(st.sampled_from([(n,), (n // 8, 8), (8, n // 8), (-(-n // 8), 8), (n // 16, 4, 4), (n, 1), (1, n)]))
    dtype = draw(st.sampled_from(["float64", "float64", "float32", "int64"]))
    g = LargeGraph([], [], None, shape)
    g.x = operand(draw, g, rng, shape, dtype)
    for _ in range(draw(st.integers(1, 5))):
        draw(st.sampled_from(LARGE_STEPS))(draw, g, rng)
    for _ in range(draw(st.integers(1, 3))):
        reduced(draw, g)
    if not g.outputs:
        g.add(pt.max(g.x))
    return g


def operand(draw, g, rng, shape, dtype):
    """Return a new input, with NaN, infinities and -0.0 in some places of an array.

    A single number has none: PyTensor's rewrites take it out of sums, though infinity times a sum is not the sum of products.
    """
    value = np.asarray(rng.normal(size=shape) * 3)
    if dtype.startswith("float") and value.size > 1:
        for special in draw(st.lists(st.sampled_from(SPECIAL), max_size=2)):
            value.flat[draw(st.sampled_from([0, value.size // 3, value.size - 1]))] = special
    declared = tuple(1 if n == 1 else None for n in shape)
    x = pt.tensor(f"x{len(g.inputs)}", dtype=dtype, shape=declared)
    with np.errstate(over="ignore"):
        g.values.append(value.astype(dtype))
    g.inputs.append(x)
    return x


def is_narrow(outputs):
    """Return whether 32 bits are in it: then a rounding error may decide between two integers."""
    return "float32" in {getattr(v, "dtype", "") for v in pytensor.graph.traversal.ancestors(outputs)}


def large_unary(draw, g, rng):
    f = draw(st.sampled_from(LARGE_UNARY))
    if f not in (pt.floor, pt.sign) or not is_narrow([g.x]):
        g.x = f(g.x)


def large_binary(draw, g, rng):
    """With an array, a row, a column, a number, or itself."""
    kept = draw(st.sampled_from(["all", "last", "first", "none", "itself"]))
    if kept == "itself":
        other = g.x
    else:
        last, first = kept in ("all", "last"), kept in ("all", "first")
        shape = tuple(
            n if (last if i == len(g.shape) - 1 else first) else 1 for i, n in enumerate(g.shape)
        ) if kept != "none" else ()  # fmt: skip
        other = operand(draw, g, rng, shape, draw(st.sampled_from(["float64", "float32"])))
    pair = [g.x, other] if draw(st.booleans()) else [other, g.x]
    g.x = draw(st.sampled_from(LARGE_BINARY))(*pair)


def large_cast(draw, g, rng):
    """A number that is none, or too large, has no defined integer."""
    dtypes = draw(st.sampled_from(CASTS))
    if not all(dtype.startswith("float") for dtype in dtypes):
        if is_narrow([g.x]) and g.x.owner is not None:
            return
        # Of a function that tends to an integer, as tanh, a rounding error decides: a quarter more is cut to one number.
        g.x = pt.switch(pt.isnan(g.x), 0.5, pt.clip(g.x, -100, 100) + 0.25)
    for dtype in dtypes:
        g.x = pt.cast(g.x, dtype)


def large_layout(draw, g, rng):
    x, n = g.x, g.shape
    forms = [
        (x.T, n[::-1]), (x[1:], (n[0] - 1, *n[1:])), (x[::-1], n), (x[::2], (-(-n[0] // 2), *n[1:])), (x.ravel(), (int(np.prod(n)),)),
        (pt.concatenate([x, x[:5]]), (n[0] + min(5, n[0]), *n[1:])), (pt.concatenate([x, x], axis=-1), (*n[:-1], 2 * n[-1])),
        (x[..., None], (*n, 1)), (pt.roll(x, 3, axis=0), n), (x[..., 1:], (*n[:-1], n[-1] - 1)),
    ]  # fmt: skip
    fits = [(y, shape) for y, shape in forms if 0 not in shape and len(shape) <= 4]
    g.x, g.shape = draw(st.sampled_from(fits))


def large_choice(draw, g, rng):
    other = draw(st.sampled_from([0.0, 1.5, np.nan]))
    g.x = pt.switch(g.x > 0, g.x, other)


def large_product(draw, g, rng):
    """With a small matrix, with a broadcast number or row, or of the array with itself."""
    k = g.shape[-1]
    if len(g.shape) != 2 or k > 16:
        return
    x = pt.clip(pt.switch(pt.isnan(g.x), 0.5, g.x), -3, 3).astype("float64")
    kind = draw(st.sampled_from(["matrix", "number", "ones", "row", "gram", "vector"]))
    if kind == "gram":
        g.x, g.shape = x @ (x.T @ x) / g.shape[0], g.shape
        return
    number = operand(draw, g, rng, {"matrix": (k, 3), "row": (3,), "vector": (k,)}.get(kind, ()), "float64")
    number = pt.clip(pt.switch(pt.isnan(number), 0.5, number), -3, 3)
    if kind == "vector":
        g.x, g.shape = x @ number, g.shape[:1]
    else:
        g.x, g.shape = (
            x @ (number if kind == "matrix" else pt.ones((k, 3)) * (1 if kind == "ones" else number)),
            (g.shape[0], 3),
        )


LARGE_STEPS = [
    large_unary, large_unary, large_binary, large_binary, large_binary, large_cast, large_cast, large_layout, large_choice,
    large_product,
]  # fmt: skip


def reduced(draw, g):
    """Add what a reduction makes of the array, and maybe of what else is made of it."""
    x = g.x * draw(st.sampled_from([1, 1, 2])) if draw(st.booleans()) else g.x
    axis = draw(st.sampled_from([None, *range(x.type.ndim)]))
    how = draw(
        st.sampled_from(["sum", "sum", "mean", "max", "min", "max and sum", "count", "cumsum", "square", "logsumexp"])
    )
    wide = pt.abs(x.astype("float64"))
    if how in ("sum", "mean"):
        g.add(getattr(pt, how)(x, axis=axis), getattr(pt, how)(wide, axis=axis))
    elif how == "square":
        g.add(pt.sum(pt.sqr(x), axis=axis), pt.sum(pt.sqr(wide), axis=axis))
    elif how == "max and sum":
        g.add(pt.max(x, axis=axis))
        g.add(pt.sum(x, axis=axis), pt.sum(wide, axis=axis))
    elif how == "cumsum":
        x = x.astype("float64").ravel()[:5000]
        g.add(pt.cumsum(x), pt.sum(pt.abs(x)))
    elif how == "count":
        if not is_narrow([x]):
            g.add(pt.any(x > 2, axis=axis))
            g.add(pt.sum(x > 0, axis=axis))
    elif how == "logsumexp":
        # XLA contracts a product and the difference from its maximum: above 1e15 the rounding of the product counts.
        g.add(pt.logsumexp(pt.clip(x.astype("float64"), -1e9, 1e9), axis=axis))
    else:
        g.add(getattr(pt, how)(x, axis=axis))
