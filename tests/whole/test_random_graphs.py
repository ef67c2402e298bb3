"""Random graphs over the rule families, with random shapes (none, too), dtypes, edge values, masks, host steps and bad input,
against PyTensor's own Python implementations: value, dtype, and the type of what is raised.

``RANDOM_GRAPHS=10000 pytest tests/whole/test_random_graphs.py`` looks at more of them; ``--hypothesis-show-statistics`` tells how
many graphs have which Op. Small graphs have many kinds of Ops; large ones have arrays around the sizes from which XLA takes
other kernels, tasks for several cores, and its library, see docs/notes/xla-library.md.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import HealthCheck, event, given, note, seed, settings
from hypothesis import strategies as st
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.conditional.op import ifelse
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import applys_between
from pytensor.raise_op import Assert
from pytensor.scan.utils import until

import pytensor_jaxpr_linker as pjl

REFERENCE = Mode("py", "fast_compile")
#: PyTensor's rewrites remove nodes that would have raised: for these the reference is what its own mode makes of them.
REWRITTEN = Mode("py", "fast_run")
GRAPHS = int(os.environ.get("RANDOM_GRAPHS", "160"))
SHARDS = 8
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


def run(mode, inputs, outputs, values):
    """Return the results, or what was raised."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")(*values)
    except Exception as error:
        return error


# PyTensor raises the recursion limit when it needs to; hypothesis remarks on it.
@pytest.mark.filterwarnings("ignore:The recursion limit")
@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_graphs(shard):
    """The same graphs in each run, so that a change of the code is what changes the result."""
    checks = settings(
        max_examples=GRAPHS // SHARDS, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )(given(graphs())(check_graph))
    seed(shard)(checks)()


def check_graph(graph):
    """Compare what mode JAXPR makes of a graph with what PyTensor does."""
    inputs, outputs, values = graph
    for v in outputs:
        note(pytensor.printing.debugprint(v, file="str"))
    note(repr(values))
    for op in {type(node.op).__name__ for node in applys_between(inputs, outputs)}:
        event(op)
    want, got = run(REFERENCE, inputs, outputs, values), run("JAXPR", inputs, outputs, values)
    if isinstance(want, Exception) != isinstance(got, Exception):
        want = run(REWRITTEN, inputs, outputs, values)
    if isinstance(want, Exception) or isinstance(got, Exception):
        assert isinstance(want, Exception) and isinstance(got, Exception), (want, got)
        # A graph with several errors raises any of them: one that follows from shapes is found before the program runs,
        # a failed assertion or an index out of bounds when it has run.
        if isinstance(want, AssertionError):
            return
        raised = {type(e) for v in outputs if isinstance(e := run(REFERENCE, inputs, [v], values), Exception)}
        raised |= {type(want)} | ({ValueError} if isinstance(want, IndexError) else set())
        assert type(got) in raised, (want, got)
        return
    for variable, expected, result in zip(outputs, want, got, strict=True):
        assert result.dtype == variable.dtype
        expected = expected.astype(variable.dtype)  # NumPy's cumsum widens small integers, whatever the node declares
        assert result.shape == expected.shape
        narrow = not {"float32", "float16", "complex64"}.isdisjoint([variable.dtype, *(v.dtype for v in inputs)])
        np.testing.assert_allclose(result, expected, rtol=1e-4 if narrow else 1e-8, atol=1e-6 if narrow else 1e-10)


# -- large arrays ------------------------------------------------------------------------------------------------------

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
        g.x = pt.switch(pt.isnan(g.x), 0.5, pt.clip(g.x, -100, 100))
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
        g.add(pt.logsumexp(x.astype("float64"), axis=axis))
    else:
        g.add(getattr(pt, how)(x, axis=axis))


@pytest.mark.filterwarnings("ignore:The recursion limit")
@pytest.mark.parametrize("shard", range(SHARDS))
def test_large_random_graphs(shard):
    checks = settings(
        max_examples=max(GRAPHS // SHARDS, 1), deadline=None, suppress_health_check=list(HealthCheck), database=None
    )(given(large_graphs())(check_large_graph))
    seed(shard)(checks)()


def check_large_graph(g):
    """Compare results with PyTensor's, to a part of the largest term or of the sum of all terms."""
    for v in g.outputs:
        note(pytensor.printing.debugprint(v, file="str"))
    note(repr([(x.name, x.dtype, value.shape) for x, value in zip(g.inputs, g.values, strict=True)]))
    for op in {type(node.op).__name__ for node in applys_between(g.inputs, g.outputs)}:
        event(op)
    count = len(g.outputs)
    both = run(REFERENCE, g.inputs, [*g.outputs, *g.scales], g.values)
    got = run("JAXPR", g.inputs, g.outputs, g.values)
    assert not isinstance(both, Exception) and not isinstance(got, Exception), (both, got)
    narrow = is_narrow(g.outputs)
    for variable, want, scale, result in zip(g.outputs, both[:count], both[count:], got, strict=True):
        assert result.dtype == variable.dtype and result.shape == want.shape
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.abs(result.astype("f8") - want)
            bound = (1e-5 if narrow else 1e-12) * np.maximum(scale, 1) + (1e-4 if narrow else 1e-9) * np.abs(want)
        is_same = (result == want) | (np.isnan(result) & np.isnan(want)) | (difference <= bound)
        is_same |= ~np.isfinite(scale) & (np.isnan(result) == np.isnan(want))
        assert np.all(is_same), (variable, result[~is_same][:5], want[~is_same][:5])


def test_functions_of_the_test_are_what_they_say():
    """An Op without a rule is in the pool, so that host steps are."""
    x = pt.dvector("x")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pjl.GraphBreakWarning)
        f = pytensor.function([x], reversed_on_host(x * 2) + 1, mode="JAXPR")
    assert len(f.vm.runner.plan.batches) == 3
