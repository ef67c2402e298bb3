"""Random graphs with many kinds of Ops on small arrays, for `tests/whole/test_random_graphs.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from hypothesis import strategies as st
from pytensor.compile.builders import OpFromGraph
from pytensor.conditional.op import ifelse
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.raise_op import Assert
from pytensor.scan.utils import until

DTYPES = ["float64", "float32", "int64", "int8", "uint16", "bool"]
LENGTHS = [0, 1, 2, 3]

FLOAT_UNARY = [pt.exp, pt.sin, pt.tanh, pt.sigmoid, pt.softplus, pt.sqr, pt.log1p, pt.expm1, pt.sqrt]
ANY_UNARY = [pt.abs, pt.neg, pt.sign, pt.sqr, pt.identity]
BINARY = [pt.add, pt.mul, pt.maximum, pt.minimum, pt.sub, pt.true_div, pt.eq, pt.lt, pt.ge]
BITWISE = [pt.bitwise_and, pt.bitwise_or, pt.bitwise_xor]
REDUCTIONS = [pt.sum, pt.max, pt.min, pt.any, pt.all, pt.mean, pt.prod, pt.argmax]
FACTORS = [pt.linalg.cholesky, pt.linalg.inv, pt.linalg.det, pt.linalg.eigvalsh, lambda m: pt.linalg.solve(m, m[:, :1])]
INDEX_ARRAYS = [
    np.array([0, -1]),
    np.zeros(0, "int64"),
    np.array([0, 9]),
    np.zeros((0, 1), "int64"),
    np.array([[0], [-9]]),
]
SLICES = [slice(None), slice(1, 1), slice(None, None, -1), slice(1, None), slice(9, None), slice(None, -1)]
CUTS = [slice(None), slice(1, None), slice(-2, None), slice(None, 2), slice(None, None, -1), -1, 0]
EDGES = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e300, -1e-310, 2.5]
EDGE_DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]
EDGE_OPS = [
    pt.abs,
    pt.sqr,
    pt.identity,
    lambda x: pt.eq(x, x),
    lambda x: x + x,
    lambda x: x * 2,
    lambda x: pt.switch(pt.eq(x, 0), x, x),
]
EDGE_ORDERED = [pt.maximum, pt.minimum, pt.lt, pt.ge, pt.eq, pt.neq]
COMPLEX_UNARY = [
    pt.exp, pt.sin, pt.cos, pt.sinh, pt.cosh, pt.tanh, pt.sqr, pt.sqrt, pt.conj, pt.neg, pt.identity, lambda z: pt.log(z + 5),
    lambda z: 1 / (z * z + 40), lambda z: z.sum(axis=0), lambda z: z.mean(), lambda z: pt.cumsum(z), lambda z: z[::-1], lambda z: z[None] * 2,
    lambda z: pt.dot(z.ravel(), z.ravel()), lambda z: pt.concatenate([z, z]), lambda z: pt.outer(z.ravel(), z.ravel()), pt.prod,
    lambda z: pt.set_subtensor(z[:1], 1j), lambda z: pt.switch(pt.eq(z, 0), z, z + 1), lambda z: z - 1j * z,
]  # fmt: skip
COMPLEX = [pt.real, pt.imag, pt.abs, lambda z: pt.real(z * pt.conj(z)), lambda z: pt.real(pt.exp(z).sum(axis=0))]


class Reversed(Op):
    """A vector backwards: an Op without a rule."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0][::-1].copy()


reversed_on_host = Reversed()


@dataclass
class Graph:
    """A graph that is being made: inputs with their values, and variables whose shapes are known, or None."""

    inputs: list[Variable] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    pool: list[tuple[Variable, tuple | None]] = field(default_factory=list)
    ends: list[Variable] = field(default_factory=list)  # outputs that nothing else is made of

    def input(self, variable: Variable, value: Any) -> Variable:
        self.inputs.append(variable)
        self.values.append(value)
        return variable

    def add(self, variable: Variable, shape: tuple | None) -> None:
        self.pool.append((variable, shape))


@st.composite
def graphs(draw):
    """Return inputs, outputs and values of a random graph."""
    g = Graph()
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    lengths = draw(st.lists(st.sampled_from(LENGTHS), min_size=2, max_size=2))
    for i in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.sampled_from(lengths)) for _ in range(draw(st.integers(0, 2))))
        dtype = draw(st.sampled_from(DTYPES))
        declared = shape if draw(st.booleans()) else tuple(1 if n == 1 else None for n in shape)
        x = pt.tensor(f"x{i}", dtype=dtype, shape=declared)
        g.inputs.append(x)
        g.values.append(values_of(rng, shape, dtype))
        g.add(x, shape)
    n = pt.lscalar("n")
    g.inputs.append(n)
    g.values.append(np.int64(draw(st.integers(-1, 3))))
    for _ in range(draw(st.integers(1, 6))):
        step = draw(st.sampled_from(STEPS))
        step(draw, g, n)
    outputs = [v for v, _ in g.pool if v.owner is not None] or [g.pool[0][0] + 0]
    return g.inputs, [*outputs[-4:], *g.ends], g.values


def values_of(rng, shape, dtype):
    """Return an array with repeated, negative, special and zero values."""
    values = rng.integers(-3, 4, shape) * rng.choice([0.5, 1.0], shape)
    if dtype.startswith("uint"):
        values = np.abs(values)
    return np.asarray(values).astype(dtype)


def pick(draw, g, known=True, ndim=None, numeric=False):
    """Return a variable of the pool, and its shape; the first input if none is of the kind that is asked for."""
    fits = [
        (v, s)
        for v, s in g.pool
        if (s is not None or not known)
        and (ndim is None or v.type.ndim == ndim)
        and not (numeric and v.dtype == "bool")
    ]
    return draw(st.sampled_from(fits)) if fits else None


def unary(draw, g, n):
    if found := pick(draw, g, known=False, numeric=True):
        x, shape = found
        f = draw(st.sampled_from(FLOAT_UNARY if x.dtype.startswith("float") else ANY_UNARY))
        f = pt.abs if f is pt.neg and x.dtype.startswith("uint") else f
        g.add(f(pt.abs(x) if f in (pt.log1p, pt.sqrt) else x), shape)


def binary(draw, g, n):
    x, shape = pick(draw, g, known=False)
    fits = [
        (v, s) for v, s in g.pool if v is x or v.type.ndim == 0 or (s is not None and s == shape and shape is not None)
    ]
    y, _ = draw(st.sampled_from(fits))
    f = draw(st.sampled_from(BINARY))
    if "bool" in (x.dtype, y.dtype) and f in (pt.sub, pt.true_div):
        f = pt.mul
    g.add(f(x, y), shape)


def reduction(draw, g, n):
    if found := pick(draw, g, known=False):
        x, shape = found
        if x.type.ndim:
            axis = draw(st.sampled_from([None, *range(x.type.ndim)]))
            f = draw(st.sampled_from(REDUCTIONS))
            if f is pt.mean and x.dtype in ("bool", "int8", "uint16"):
                f = pt.sum
            kept = () if axis is None else None if shape is None else shape[:axis] + shape[axis + 1 :]
            g.add(f(x, axis=axis), kept)


def mask(draw, g, n):
    if (found := pick(draw, g)) and found[0].type.ndim:
        x, _ = found
        g.add(x[x > draw(st.integers(-1, 1)) if x.dtype != "bool" else x], None)


def masked_write(draw, g, n):
    if (found := pick(draw, g, numeric=True)) and found[0].type.ndim:
        x, shape = found
        f = draw(st.sampled_from([pt.set_subtensor, pt.inc_subtensor]))
        g.add(f(x[x > 0], np.ones((), x.dtype)), shape)


def prefix(draw, g, n):
    if (found := pick(draw, g)) and found[0].type.ndim:
        x, _ = found
        bounds = draw(
            st.sampled_from([slice(None, n), slice(n, None), slice(n, n + 2), slice(None, -n), slice(n, None, 2)])
        )
        g.add(x[bounds], None)


def element(draw, g, n):
    if (found := pick(draw, g)) and found[0].type.ndim:
        x, shape = found
        g.add(x[draw(st.sampled_from([n, 0, -1, n - 1]))], shape[1:])


def write(draw, g, n):
    if (found := pick(draw, g, numeric=True)) and found[0].type.ndim:
        x, shape = found
        f = draw(st.sampled_from([pt.set_subtensor, pt.inc_subtensor]))
        g.add(
            f(x[draw(st.sampled_from([slice(None, n), slice(1, None), slice(None, None, -2)]))], np.ones((), x.dtype)),
            shape,
        )


def gather(draw, g, n):
    if (found := pick(draw, g)) and found[0].type.ndim:
        x, shape = found
        index = draw(st.sampled_from([np.array([0, 0, -1]), np.array([], "int64"), np.array([[1]])]))
        g.add(x[pt.as_tensor(index) + (n - n)], index.shape + shape[1:])


def from_shape(draw, g, n):
    x, _ = pick(draw, g, known=False)
    if x.type.ndim:
        g.add(pt.zeros(x.shape[0] + 1) + pt.arange(x.shape[0] + 1), None)


def from_value(draw, g, n):
    x, _ = pick(draw, g, known=False)
    size = draw(st.sampled_from([pt.maximum(n, 0), pt.abs(n), pt.clip(x.sum().astype("int64"), 0, 4)]))
    g.add(draw(st.sampled_from([pt.arange, lambda k: pt.zeros((k, 2))]))(size), None)


def transposed(draw, g, n):
    if found := pick(draw, g, known=False, ndim=2):
        g.add(found[0].T, found[1] and found[1][::-1])


def joined(draw, g, n):
    if found := pick(draw, g, known=False, ndim=1):
        g.add(pt.concatenate([found[0], found[0][:1]]), None)


def ordered(draw, g, n):
    if (found := pick(draw, g, known=False, ndim=1)) and found[0].dtype != "bool":
        g.add(draw(st.sampled_from([pt.sort, pt.cumsum]))(found[0]), found[1])


def product(draw, g, n):
    if found := pick(draw, g, ndim=2, numeric=True):
        g.add(found[0] @ found[0].T, (found[1][0], found[1][0]))


def choice(draw, g, n):
    x, shape = pick(draw, g, known=False)
    g.add(ifelse(n > 0, x, pt.abs(x) if x.dtype != "bool" else x), shape)


def ragged_choice(draw, g, n):
    if found := pick(draw, g, known=False, ndim=1):
        g.add(ifelse(n > 0, found[0], found[0][1:]), None)


def on_host(draw, g, n):
    if found := pick(draw, g, known=False, ndim=1):
        g.add(reversed_on_host(found[0].astype("float64")), found[1])


def asserted(draw, g, n):
    x, shape = pick(draw, g, known=False)
    g.add(Assert("n is too small")(x, n > draw(st.sampled_from([-5, 0]))), shape)


def wrapped(draw, g, n):
    x, shape = pick(draw, g, known=False, numeric=True) or (None, None)
    if x is not None:
        inner = x.type()
        g.add(OpFromGraph([inner], [inner * 2 + inner])(x), shape)


def cast(draw, g, n):
    x, shape = pick(draw, g, known=False)
    g.add(x.astype(draw(st.sampled_from(["float32", "float64", "int64", "bool"]))), shape)


def bitwise(draw, g, n):
    if fits := [(v, s) for v, s in g.pool if v.dtype in ("bool", "int8", "int64", "uint16")]:
        x, shape = draw(st.sampled_from(fits))
        other = x if x.dtype == "bool" else x.astype(draw(st.sampled_from([x.dtype, "int64"])))
        g.add(draw(st.sampled_from(BITWISE))(x, ~other), shape)


def switched(draw, g, n):
    x, shape = pick(draw, g, known=False)
    g.add(pt.switch(x > 0 if x.dtype != "bool" else x, x, draw(st.sampled_from([0, 1.5, n]))), shape)


def complex_part(draw, g, n):
    if (found := pick(draw, g, known=False, numeric=True)) and found[0].type.ndim:
        x, shape = found
        f = draw(st.sampled_from(COMPLEX))
        x = pt.clip(x, -3, 3).astype(draw(st.sampled_from(["float32", "float64"])))
        g.add(f(pt.complex(x, x + 1)), shape if f in COMPLEX[:4] else shape and shape[1:])


def complex_chain(draw, g, n):
    """Several Ops of a complex input or of a complex variable."""
    if draw(st.booleans()):
        dtype, shape = draw(st.sampled_from(["complex64", "complex128"])), (draw(st.sampled_from(LENGTHS)),)
        parts = draw(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=2 * shape[0], max_size=2 * shape[0]))
        value = np.array(parts).reshape(2, *shape)
        z = g.input(pt.vector(f"z{len(g.inputs)}", dtype=dtype), (value[0] + 1j * value[1]).astype(dtype))
    elif (found := pick(draw, g, known=False, numeric=True)) and found[0].type.ndim:
        x = pt.clip(found[0], -3, 3).astype(draw(st.sampled_from(["float32", "float64"])))
        z = pt.complex(x, x + 1)
    else:
        return
    for _ in range(draw(st.integers(1, 3))):
        f = draw(st.sampled_from(COMPLEX_UNARY))
        if z.type.ndim:
            z = f(z)
    g.ends.append(draw(st.sampled_from([z, z.real, z.imag, abs(z)])))


def edge_values(draw, g, n):
    """A number, or several, of any dtype at the ends of what it holds."""
    dtype = np.dtype(draw(st.sampled_from(EDGE_DTYPES)))
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        values = [ends.min, ends.max, 0, 1, ends.max - 1, ends.min + 1]
    else:
        values = [False, True] if dtype.kind == "b" else EDGES
    shape = (draw(st.sampled_from(LENGTHS)),) * draw(st.integers(0, 1))
    count = int(np.prod(shape))

    def edge(name):
        drawn = draw(st.lists(st.sampled_from(values), min_size=count, max_size=count))
        with np.errstate(over="ignore"):
            value = np.array(drawn, dtype).reshape(shape)
        return g.input(pt.tensor(f"{name}{len(g.inputs)}", dtype=dtype.name, shape=(None,) * len(shape)), value)

    x = edge("e")
    if draw(st.booleans()) or dtype.kind == "c":
        g.ends.append(draw(st.sampled_from(EDGE_OPS[:5] if dtype.kind in "bc" else EDGE_OPS))(x))
    else:
        g.ends.append(draw(st.sampled_from(EDGE_ORDERED))(x, edge("f")))


def advanced_write(draw, g, n):
    if (found := pick(draw, g, numeric=True)) and found[0].type.ndim:
        x, shape = found
        f = draw(st.sampled_from([pt.set_subtensor, pt.inc_subtensor]))
        index = [pt.as_tensor(np.array([0, -1, 0])) + (n - n)] * draw(st.integers(1, x.type.ndim))
        g.add(f(x[tuple(index)], np.ones((), x.dtype)), shape)


def advanced_read(draw, g, n):
    if found := pick(draw, g, ndim=2):
        rows, columns = (
            pt.as_tensor(np.array([0, -1])),
            draw(st.sampled_from([n, slice(None, 1), np.array([[0], [-1]])])),
        )
        g.add(found[0][rows, columns], None)


def mixed_index(draw, g, n):
    """Integers, slices, arrays, masks and new axes beside each other: in and out of bounds, empty, of a wrong length."""
    if (found := pick(draw, g, numeric=True)) and found[0].type.ndim:
        x, shape = found
        how = draw(st.sampled_from([None, pt.set_subtensor, pt.inc_subtensor]))
        index = []
        for length in shape[: draw(st.integers(1, len(shape)))]:
            is_known = draw(st.booleans())
            zero = 0 if is_known else n - n
            kind = draw(st.sampled_from(["integer", "slice", "array", "mask", "newaxis"]))
            if kind == "newaxis" and how is None:
                index.append(None)
            elif kind == "integer":
                index.append(draw(st.sampled_from([0, -1, 9, -9, n])) + zero)
            elif kind == "array":
                index.append(pt.as_tensor(draw(st.sampled_from(INDEX_ARRAYS))) + zero)
            elif kind == "mask":
                mask = np.arange(draw(st.sampled_from([length, length, length + 1, 0]))) % 2 == draw(st.integers(0, 2))
                index.append(pt.as_tensor(mask) if is_known else pt.as_tensor(mask) & pt.eq(n, n))
            else:
                index.append(draw(st.sampled_from(SLICES)))
        try:
            part = x[tuple(index)]
            result = part if how is None else how(part, np.ones((), x.dtype))
        except (IndexError, ValueError, TypeError):  # of what is known, PyTensor says so at once
            return
        g.add(result, shape if how else None)


def rearranged(draw, g, n):
    if found := pick(draw, g, known=False, ndim=2, numeric=True):
        x = found[0]
        forms = [
            x.ravel(), x.reshape((x.shape[1], x.shape[0])), pt.stack([x, x], axis=1), pt.repeat(x, 2, axis=0),
            pt.concatenate([x, x], axis=1), pt.tile(x, (1, 2)), pt.roll(x, 1, axis=0), x[:, None], pt.diagonal(x),
            pt.broadcast_to(x[None], (2, x.shape[0], x.shape[1])), pt.triu(x), pt.split(x, [1, x.shape[0] - 1], axis=0)[0],
        ]  # fmt: skip
        g.add(draw(st.sampled_from(forms)), None)


def factored(draw, g, n):
    if (found := pick(draw, g, ndim=2, numeric=True)) and found[1]:
        x = pt.clip(found[0], -3, 3).astype("float64")
        m = x @ x.T + 2 * pt.eye(x.shape[0])
        g.add(draw(st.sampled_from(FACTORS))(m), None)


def batched(draw, g, n):
    if found := pick(draw, g, known=False, ndim=2, numeric=True):
        x = pt.clip(found[0], -3, 3).astype("float64")
        g.add(pt.matmul(x[:, None, :], x[:, :, None])[:, 0, 0], None)


def normalized(draw, g, n):
    if (found := pick(draw, g, known=False, numeric=True)) and found[0].type.ndim:
        f = draw(st.sampled_from([pt.special.softmax, pt.special.log_softmax]))
        g.add(f(pt.clip(found[0], -9, 9).astype("float64"), axis=-1), found[1])


def scanned(draw, g, n):
    if found := pick(draw, g, known=False, numeric=True):
        x = pt.clip(found[0], -3, 3).astype("float64")
        steps = draw(st.sampled_from([3, pt.abs(n) + 1, n]))
        states = pytensor.scan(lambda s: 0.5 * s + 1, outputs_info=[x], n_steps=steps, return_updates=False)
        g.add(draw(st.sampled_from([states, states[-1], states.sum(axis=0)])), None)


def scanned_rows(draw, g, n):
    if (found := pick(draw, g, known=False, numeric=True)) and found[0].type.ndim:
        x, shape = found[0].astype("float64"), found[1]
        states = pytensor.scan(
            lambda row, total: total + row.sum(), sequences=[x], outputs_info=[np.float64(0)], return_updates=False
        )
        g.add(states, shape and shape[:1])


def scanned_until(draw, g, n):
    steps = draw(st.sampled_from([5, 1, 0, pt.maximum(n, 0)]))
    states = pytensor.scan(
        lambda s: (s + 1, until(s > n)), outputs_info=[pt.as_tensor(0.0)], n_steps=steps, return_updates=False
    )
    g.add(draw(st.sampled_from([states, states[-1], states[1:], states[-2:]])), None)


def scanned_with_gradient(draw, g, n):
    """A loop over rows, or over none, with or without a condition; what is read of it, and its gradient."""
    # Of rows that are arrays, PyTensor's own gradient fails without steps: it takes their length for 0.
    if found := pick(draw, g, known=False, ndim=1, numeric=True):
        x, ends = pt.clip(found[0], -3, 3).astype("float64"), draw(st.booleans())

        def step(row, *state):
            new = pt.sin(row.sum() + sum(state)) * 0.5
            return (new, until(new > 0.4)) if ends else new

        info = draw(
            st.sampled_from(
                [None, np.float64(0.25), {"initial": pt.as_tensor(np.array([0.25, -0.5])), "taps": [-2, -1]}]
            )
        )
        steps = draw(st.sampled_from([None, 0, pt.minimum(x.shape[0], 1)]))
        rows = pytensor.scan(step, sequences=[x], outputs_info=[info], n_steps=steps, return_updates=False)
        read = rows[draw(st.sampled_from(CUTS))]
        g.ends += draw(
            st.sampled_from([[read], [pytensor.grad(read.sum(), x)], [read, pytensor.grad((read**2).sum(), x)]])
        )


def scanned_misfit(draw, g, n):
    """A body that takes no step, or does not fit."""
    found = pick(draw, g, known=False, ndim=1, numeric=True)
    if found and found[0].type.shape != (1,):  # a state that is declared so must stay so
        x = pt.clip(found[0], -3, 3).astype("float64")
        w = g.input(pt.dvector(f"w{len(g.inputs)}"), np.ones(draw(st.sampled_from([0, 2, 3]))))
        steps = draw(st.sampled_from([0, pt.maximum(n, 0), x.sum().astype("int64") * 0]))
        rows = pytensor.scan(
            lambda s, w: pt.sin(s * w), outputs_info=[x], non_sequences=[w], n_steps=steps, return_updates=False
        )
        g.ends.append(draw(st.sampled_from([rows, rows[-1], rows[1:]])))


def drawn(draw, g, n):
    """Draws that do not depend on the generator: of one integer, or without a deviation."""
    x, shape = pick(draw, g, known=False)
    rng = pytensor.shared(np.random.default_rng(1))
    if x.dtype in ("int64", "int8"):
        low = x.astype("int64")
        g.add(pt.random.integers(low, low + 1, rng=rng, return_next_rng=True)[1], shape)
    else:
        x = x.astype("float64")
        mean = pt.switch(pt.isnan(x) | pt.isinf(x), 0.0, x)
        g.add(pt.random.normal(mean, 0.0, rng=rng, return_next_rng=True)[1], shape)


STEPS = [
    unary, binary, reduction, mask, masked_write, prefix, element, write, gather, from_shape, from_value, transposed,
    joined, ordered, product, choice, ragged_choice, on_host, asserted, wrapped, cast, bitwise, switched, complex_part,
    advanced_write, advanced_read, rearranged, factored, batched, normalized, scanned, scanned_rows, scanned_until, drawn,
    scanned_with_gradient, scanned_misfit, mixed_index, mixed_index, complex_chain, edge_values,
]  # fmt: skip
