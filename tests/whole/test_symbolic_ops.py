"""Each Op of the table in a program of unknown lengths: `jax.export` with symbolic dimensions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.signal
import numpy as np
import op_table_sparse as sparse
import pytensor.tensor as pt
import pytest
from jax.errors import InconclusiveDimensionOperation
from op_row import Row
from op_table import FAMILIES as OF_ARRAYS
from pytensor.tensor.random.type import random_generator_type
from pytensor.xtensor.random.type import rng_to_xrng, xrng_to_rng

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base.rules import class_name
from pytensor_jaxpr_linker.report import support
from pytensor_jaxpr_linker.report.support import SYMBOLIC
from tests.whole.test_op_table import (
    AS_BUILT,
    NOT_BUILT,
    PARAMETERS,
    REFERENCE,
    TOLERANCE,
    Case,
    assert_close,
    evaluate,
    joined,
    ops_of,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(invalid value|divide by zero|overflow) encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:`axes` should not be `None`:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
    pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning"),  # in the reference
]


FAMILIES = {**OF_ARRAYS, "sparse": sparse.ROWS}


def names_of(row: Row) -> list[str]:
    """Return the symbolic shape of each input: inputs of one shape share their names, unless the row says otherwise."""
    if row.lengths:
        return row.lengths.split(";")
    letters, names = map("abcdefghij".__getitem__, count()), {}
    for v in map(np.shape, row.values):
        names.setdefault(v, ",".join(next(letters) for _ in v))
    return [names[np.shape(v)] for v in row.values]


def symbolic_shapes(rows: Sequence[Row]) -> Iterator[tuple[Any, ...]]:
    """Yield the shapes of the inputs of all rows; each row has names of its own."""
    texts, constraints = [], []
    for i, row in enumerate(rows):
        own = re.compile(r"\b([a-z])\b")
        texts += [own.sub(rf"\g<1>{i}", text) for text in names_of(row)]
        constraints += [own.sub(rf"\g<1>{i}", text) for text in row.where]
    scope = jax.export.SymbolicScope(constraints)
    for text in texts:
        yield jax.export.symbolic_shape(text, scope=scope) if text.strip() else ()


def exported(rows: Sequence[Row]) -> jax.export.Exported:
    """Export the expressions of all rows as one program."""
    cases = [Case(row, row.values, "float64") for row in rows]
    inputs, outputs = joined(cases)
    fn = pjl.as_jax_function(inputs, outputs, AS_BUILT)
    values = [v for case in cases for v in case.values]
    avals = [jax.ShapeDtypeStruct(s, v.dtype) for s, v in zip(symbolic_shapes(rows), values, strict=True)]
    with jax.enable_x64(True):
        return jax.export.export(jax.jit(fn))(*avals)


def call_of(f: Any, arguments: Sequence[Any]) -> Any:
    """Return the results of a function that is called once: XLA optimizes little."""
    with jax.enable_x64(True):
        return jax.jit(f, compiler_options={"xla_backend_optimization_level": 0})(*arguments)


def other_values(row: Row) -> tuple[np.ndarray, ...] | None:
    """Return values of other lengths: a sample, or the values without the last elements."""
    shapes = [np.shape(v) for v in row.values]
    for values in row.samples:
        found = [np.shape(v) for v in values]
        if found != shapes and list(map(len, found)) == list(map(len, shapes)) and 0 not in sum(found, ()):
            return values
    symbolic = [[not n.strip().isdigit() for n in text.split(",") if n.strip()] for text in names_of(row)]
    return tuple(
        v[tuple(slice(-1 if s else None) for s in axes)] if axes else v
        for v, axes in zip(map(np.asarray, row.values), symbolic, strict=True)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_symbolic_lengths(family: str) -> None:
    rows = [row for row in FAMILIES[family] if row.one_program]
    program = exported(rows)
    choices = [lambda row: row.values, other_values]
    for choose in choices[family == "functions" :]:  # XLA takes seconds to compile these
        cases = [Case(row, choose(row), "float64") for row in rows]
        values = [v for case in cases for v in case.values]
        results = call_of(program.call, values)
        assert_close(cases, results, evaluate(REFERENCE, cases, values), *TOLERANCE["float64"])


# What JAX can't do


def listed(row: Row) -> set[str]:
    """Return the restricted Ops that a row has."""
    case = Case(row, row.values, "float64")
    return {class_name(type(op)) for op in ops_of(case.outputs)} & set(SYMBOLIC)


#: What JAX says where a primitive or a function needs an integer.
NEEDS_INTEGERS = "FFT with non-constant fft_length|is inconclusive|cannot be interpreted as an integer"

#: Functions of JAX that do what a restricted Op does, or one of its steps, and the lengths of their arguments.
CONTROLS: dict[str, tuple[Any, list[str]]] = {
    "pytensor.tensor.fft.RFFTOp": (jnp.fft.rfft, ["n"]),
    "pytensor.tensor.fft.IRFFTOp": (lambda x: jnp.fft.irfft(x, x.shape[0]), ["n"]),
    "pytensor.tensor.fourier.Fourier": (jnp.fft.fft, ["n"]),
    "pytensor.tensor.linalg.decomposition.qr.QR": (lambda x: jnp.linalg.qr(x, mode="complete"), ["m,n"]),
    "pytensor.tensor.signal.conv.Convolve1d": (jnp.convolve, ["n", "k"]),
    "pytensor.tensor.signal.conv.Convolve2d": (jax.scipy.signal.convolve2d, ["m,n", "j,k"]),
}

REFUSED = [row for rows in FAMILIES.values() for row in rows if row.refused]


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.name)
def test_refused_lengths(row: Row) -> None:
    """The lengths of the row itself, of which one is known or constrained, are exported above."""
    (name,) = listed(row)
    with pytest.raises(Exception, match=SYMBOLIC[name].error):
        exported([row._replace(lengths=row.refused, where=())])


def test_each_restriction_has_a_row() -> None:
    assert {name for row in REFUSED for name in listed(row)} == set(SYMBOLIC)


@pytest.mark.parametrize("name", CONTROLS)
def test_restrictions_are_those_of_jax(name: str) -> None:
    """JAX can't export its own function of these lengths either."""
    fn, shapes = CONTROLS[name]
    scope = jax.export.SymbolicScope()
    avals = [jax.ShapeDtypeStruct(jax.export.symbolic_shape(s, scope=scope), "float32") for s in shapes]
    with pytest.raises((NotImplementedError, TypeError, InconclusiveDimensionOperation), match=NEEDS_INTEGERS):
        jax.export.export(jax.jit(fn))(*avals)


def test_each_restriction_has_a_control() -> None:
    assert set(CONTROLS) == set(SYMBOLIC)


# Random variables


def parameters(name: str, x: Any) -> tuple[Any, ...]:
    """Return parameters of the length of `x`: numbers for each element, or a vector."""
    vectors = {
        "categorical": lambda: (pt.special.softmax(x),),
        "choice": lambda: (x,),
        "dirichlet": lambda: (pt.exp(x),),
        "multinomial": lambda: (5, pt.special.softmax(x)),
        "multivariate_normal": lambda: (x, pt.eye(x.shape[0])),
        "permutation": lambda: (x,),
    }
    if name in vectors:
        return vectors[name]()
    first, *others = (pt.as_tensor(p) for p in PARAMETERS[name])
    return (first + pt.zeros_like(x, dtype=first.dtype), *others)


def draws(x: Any) -> Iterator[tuple[Any, Any]]:
    """Yield a generator and draws from it, of each distribution, and in shapes that are asked for."""
    n = x.shape[0]
    shapes = [("normal", (2, n)), ("gamma", (n, n)), ("categorical", (n + 1,)), ("dirichlet", (n,))]
    fixed: dict[str, dict[str, Any]] = {"gamma": {"scale": 3.0}, "choice": {"size": (2,), "replace": False}}
    for name, size in [*((name, None) for name in PARAMETERS), *shapes]:
        rng = random_generator_type("rng")
        options = {**fixed.get(name, {}), **({} if size is None else {"size": size})}
        source = xrng_to_rng(rng_to_xrng(rng)) if name == "uniform" else rng
        yield rng, getattr(pt.random, name)(*parameters(name, x), rng=source, return_next_rng=True, **options)[1]


def test_random_variables() -> None:
    """The draws are those of the same key without symbolic dimensions."""
    x = pt.dvector("x")
    generators, outputs = zip(*draws(x), strict=True)
    fn = pjl.as_jax_function([*generators, x], outputs, AS_BUILT)
    keys = [np.array([1, i], "uint32") for i, _ in enumerate(generators)]
    with jax.enable_x64(True):
        (n,) = jax.export.symbolic_shape("n", constraints=["n >= 2"])  # of which `choice` takes two
        avals = [jax.ShapeDtypeStruct((2,), "uint32") for _ in keys]
        program = jax.export.export(jax.jit(fn))(*avals, jax.ShapeDtypeStruct((n,), "float64"))
    values = [*keys, np.linspace(-1.0, 1.0, 3)]
    for v, got, want in zip(outputs, call_of(program.call, values), call_of(fn, values), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, err_msg=str(v.owner.op))


# The table


def test_each_op_is_tried() -> None:
    """An Op of which the table says that lengths may be symbolic is in a row."""
    cases = [Case(row, row.values, "float64") for rows in FAMILIES.values() for row in rows if row.one_program]
    outputs = [v for case in cases for v in case.outputs] + [v for _, v in draws(pt.dvector("x"))]
    tried = {class_name(type(op)) for op in ops_of(outputs)}
    said = {f"{row.module}.{row.name}" for row in support.table() if row.symbolic in (support.YES, support.IN_PART)}
    assert said - tried == NOT_BUILT
