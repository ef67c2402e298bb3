"""Each Op of the table on its samples: values, derivatives, batches; and the table itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import tensor_like
from op_row import Row
from op_table import FAMILIES, OP
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import ScalarOp
from pytensor.xtensor.random.type import rng_to_xrng, xrng_to_rng

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base.rules import class_name
from pytensor_jaxpr_linker.emit import traced_leaf
from pytensor_jaxpr_linker.report import support

#: FAST_COMPILE's rewrites and PyTensor's Python implementations.
REFERENCE = Mode("py", "fast_compile")
#: Nothing is rewritten, so each Op is emitted as it was built.
AS_BUILT = Mode(pjl.JaxprLinker(pjl.Options(on_break="ignore")), None)
FULLGRAPH = Mode(pjl.JaxprLinker(pjl.Options(on_break="raise")), None)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(invalid value|divide by zero|overflow) encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:`axes` should not be `None`:DeprecationWarning"),
    # PyTensor's C code, in inner graphs, complains where no BLAS is installed.
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
]


class Case:
    """The expressions of a row on one tuple of values."""

    def __init__(self, row: Row, values: Sequence[np.ndarray], dtype: str):
        self.row = row
        self.values = [in_precision(np.asarray(v), dtype) for v in values]
        self.inputs = [tensor_like(v, f"x{i}") for i, v in enumerate(self.values)]
        outputs = row.build(*self.inputs)
        self.outputs = list(outputs) if isinstance(outputs, list | tuple) else [outputs]

    @property
    def costs(self) -> list[Variable]:
        """The outputs that have a gradient."""
        return [v for v in self.outputs if is_real(v)] if any(map(is_real, self.inputs)) else []

    @property
    def flipped(self) -> list[np.ndarray]:
        """The values in the opposite order, or once more."""
        return [np.flip(v) for v in self.values] if self.row.flip else self.values


def in_precision(value: np.ndarray, dtype: str) -> np.ndarray:
    """Return real and complex numbers in the precision of `dtype`."""
    if value.dtype.kind in "fc" and dtype == "float32":
        return value.astype("float32" if value.dtype.kind == "f" else "complex64")
    return value


def joined(cases: Sequence[Case]) -> tuple[list[Variable], list[Variable]]:
    """Return inputs and outputs of all cases."""
    return [v for c in cases for v in c.inputs], [v for c in cases for v in c.outputs]


def evaluate(mode: Mode, cases: Sequence[Case], values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the results of all cases, computed as one function."""
    return evaluate_graph(mode, *joined(cases), values)


def evaluate_graph(
    mode: Mode, inputs: Sequence[Variable], outputs: Sequence[Variable], values: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return the results of a graph."""
    with pytensor.config.change_flags(
        mode=REFERENCE
    ):  # that of inner graphs which PyTensor runs: no C code is compiled
        return pytensor.function(list(inputs), list(outputs), mode=mode, on_unused_input="ignore")(*values)


def assert_close(
    cases: Sequence[Case], results: Sequence[Any], expected: Sequence[Any], rtol: float, atol: float
) -> None:
    """Compare all results, and name all cases that differ."""
    labels = [f"{c.row.name} of {[v.shape for v in c.values]}" for c in cases for _ in c.outputs]
    wrong = []
    for label, got, want in zip(labels, results, expected, strict=True):
        got, want = np.asarray(got), np.asarray(want)
        if got.dtype != want.dtype or got.shape != want.shape:
            wrong.append(f"{label}: {got.dtype}{got.shape} is not {want.dtype}{want.shape}")
        elif not np.allclose(got, want, rtol=rtol, atol=atol, equal_nan=True):
            wrong.append(f"{label}:\n{got}\nis not\n{want}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_values(family: str, dtype: str) -> None:
    rows = [row for row in FAMILIES[family] if row.single or dtype == "float64"]
    many = None if dtype == "float64" else 1
    rtol, atol = TOLERANCE[dtype]
    for one_program, mode in ((True, FULLGRAPH), (False, AS_BUILT)):
        cases = [Case(r, v, dtype) for r in rows if r.one_program is one_program for v in r.samples[:many]]
        values = [v for case in cases for v in case.values]
        assert_close(cases, evaluate(mode, cases, values), evaluate(REFERENCE, cases, values), rtol, atol)


TOLERANCE = {"float64": (1e-9, 1e-12), "float32": (1e-3, 1e-4)}


@pytest.mark.parametrize("family", FAMILIES)
def test_batches_and_derivatives(family: str) -> None:
    """`jax.vmap` against one after the other, `jax.vjp` of the emitted equations against PyTensor's gradient."""
    cases = [Case(row, row.values, "float64") for row in FAMILIES[family] if row.one_program]
    smooth = [case for case in cases if case.row.gradient and case.costs]
    values, flipped = [v for c in cases for v in c.values], [v for c in cases for v in c.flipped]
    wrt = [v for case in smooth for v in case.inputs if is_real(v)]
    cost = sum((pt.sum(v * weights_like(v)) for case in smooth for v in case.costs), start=pt.constant(0.0))
    inputs, outputs = joined(cases)
    fn = pjl.as_jax_function(inputs, [*outputs, cost], AS_BUILT, gradient="jax")

    @jax.jit
    def transformed(pairs: list[Any], xs: list[Any]) -> tuple[list, list]:
        positions = [inputs.index(v) for v in wrt]

        def cost_of(*floats: Any) -> Any:
            arguments = list(xs)
            for i, x in zip(positions, floats, strict=True):
                arguments[i] = x
            return fn(*arguments)[-1]

        slopes = jax.grad(cost_of, range(len(wrt)))(*(xs[i] for i in positions)) if wrt else []
        return jax.vmap(fn)(*pairs)[:-1], slopes

    with jax.enable_x64(True):
        batched, slopes = transformed([np.stack(pair) for pair in zip(values, flipped, strict=True)], values)
    for element, arguments in enumerate((values, flipped)):
        assert_close(cases, [x[element] for x in batched], evaluate(REFERENCE, cases, arguments), *TOLERANCE["float64"])
    gradients = pytensor.grad(cost, wrt, disconnected_inputs="ignore")
    expected = evaluate_graph(REFERENCE, inputs, gradients, values)
    names = [case.row.name for case in smooth for v in case.inputs if is_real(v)]
    pairs = zip(names, slopes, expected, strict=True)
    wrong = [f"{n}:\n{x}\nis not\n{y}" for n, x, y in pairs if not np.allclose(x, y, rtol=1e-6, atol=1e-8)]
    assert not wrong, "\n".join(wrong)


def is_real(v: Variable) -> bool:
    """Return whether a variable can have a gradient that is a real number."""
    return getattr(v.type, "dtype", "").startswith("float")


def weights_like(v: Variable) -> Variable:
    """Return different weights for the elements of a variable."""
    return pt.cos(pt.arange(v.size) + 1.0).reshape(v.shape)


# Random variables: other numbers than NumPy's, see emit/random/test_sampler.py and its neighbours


PARAMETERS: dict[str, tuple[Any, ...]] = {
    "bernoulli": (0.3,),
    "beta": (2.0, 3.0),
    "betabinom": (5, 2.0, 3.0),
    "binomial": (5, 0.3),
    "categorical": ([0.2, 0.3, 0.5],),
    "cauchy": (1.0, 2.0),
    "choice": (4,),
    "dirichlet": ([1.0, 2.0, 3.0],),
    "exponential": (2.0,),
    "gamma": (2.0,),
    "gengamma": (2.0, 1.5, 1.0),
    "geometric": (0.3,),
    "gumbel": (1.0, 2.0),
    "halfcauchy": (0.0, 1.0),
    "halfnormal": (0.0, 1.0),
    "hypergeometric": (5, 6, 4),
    "integers": (0, 7),
    "invgamma": (3.0, 2.0),
    "laplace": (1.0, 2.0),
    "logistic": (1.0, 2.0),
    "lognormal": (1.0, 0.5),
    "multinomial": (5, [0.2, 0.8]),
    "multivariate_normal": ([0.0, 1.0], [[2.0, 0.5], [0.5, 1.0]]),
    "negative_binomial": (5, 0.3),
    "normal": (0.0, 1.0),
    "pareto": (3.0, 2.0),
    "permutation": ([3, 1, 2],),
    "poisson": (2.0,),
    "t": (3.0, 0.0, 1.0),
    "triangular": (0.0, 0.5, 1.0),
    "truncexpon": (1.5, 0.0, 1.0),
    "uniform": (0.0, 1.0),
    "vonmises": (0.0, 1.0),
    "wald": (3.0, 2.0),
    "weibull": (1.5,),
}


def random_draws() -> list[Variable]:
    """Return draws of all distributions of PyTensor."""
    rng = pytensor.shared(np.random.default_rng(1), name="rng")
    options: dict[str, dict[str, Any]] = {
        "choice": {"size": (2,), "replace": False},
        "permutation": {},
        "gamma": {"scale": 3.0, "size": (2,)},
    }
    draws = []
    for name, parameters in PARAMETERS.items():
        kwargs = options.get(name, {"size": (2,)})
        draws.append(getattr(pt.random, name)(*parameters, rng=rng, return_next_rng=True, **kwargs)[1])
    draws.append(pt.random.normal(size=(2,), rng=xrng_to_rng(rng_to_xrng(rng)), return_next_rng=True)[1])
    return draws


def test_random_variables() -> None:
    """All samplers in one program, of the shapes and dtypes that PyTensor draws; it is built, and not compiled."""
    draws = random_draws()
    expected = pytensor.function([], draws, mode=REFERENCE)()
    avals = pjl.make_jaxpr(pytensor.function([], draws, mode=FULLGRAPH)).out_avals
    for v, aval, want in zip(draws, avals, expected, strict=False):
        assert (aval.shape, aval.dtype) == (want.shape, want.dtype), v.owner.op


# The table


@cache
def rows() -> list[support.Row]:
    """Return the support table."""
    return support.table()


def test_each_op_is_known() -> None:
    """An Op that is new in PyTensor needs a rule, or an entry in plan/breaks.py: `support.table` names it."""
    assert {row.how for row in rows()} <= set(support.WAYS)


def test_an_unknown_op_is_named() -> None:
    class New(Op):
        pass

    with pytest.raises(LookupError, match="New"):
        support.support_row(New)


def test_no_op_is_listed_twice() -> None:
    """What has a rule, or is not there, needs no reason to run on the host."""
    hosted = {f"{row.module}.{row.name}" for row in rows() if row.how == support.HOSTED}
    known = {f"{row.module}.{row.name}" for row in rows()}
    assert set(support.HOST) == hosted
    assert set(support.LIMITATIONS) <= known
    bases = {f"{module}.{name}" for module, names in support.BASES.items() for name in names.split()}
    assert bases.isdisjoint(known) and bases <= set(map(class_name, support.op_classes()))


@pytest.mark.skipif(bool(OP), reason="these are some rows of the table")
def test_each_op_has_a_sample() -> None:
    outputs = [v for rows in FAMILIES.values() for row in rows for v in Case(row, row.values, "float64").outputs]
    seen = {class_name(type(op)) for op in ops_of([*outputs, *random_draws()])}
    ways = (support.DIRECT, support.SIMPLER)
    direct = {f"{row.module}.{row.name}" for row in rows() if row.how in ways and row.module not in SPARSE}
    assert direct - seen == NOT_BUILT


#: Their Ops have tests of their own, in emit/test_sparse.py.
SPARSE = ("pytensor.sparse.basic", "pytensor.sparse.linalg", "pytensor.sparse.math")

#: `OutputGuard` is what PyTensor itself puts around outputs, and it refuses graphs that have one already.
NOT_BUILT = {"pytensor.compile.debug.debugmode.OutputGuard"}


def ops_of(outputs: Sequence[Variable]) -> Iterator[Op]:
    """Yield all Ops of a graph, with those that other Ops apply."""
    for v in ancestors(outputs):
        if v.owner is not None:
            yield from parts_of(v.owner.op)


def parts_of(op: Op) -> Iterator[Op]:
    """Yield an Op and those that it applies."""
    yield op
    for name in ("scalar_op", "core_op"):
        if (part := getattr(op, name, None)) is not None:
            yield from parts_of(part)
    if isinstance(op, OpFromGraph | ScalarOp) and hasattr(op, "fgraph"):
        yield from ops_of(op.fgraph.outputs)


def test_document_is_up_to_date() -> None:
    text = support.DOCUMENT.read_text()
    version = re.search(r"Ops of PyTensor (\S+)\.", text)
    assert version is not None
    if version[1] != pytensor.__version__:
        pytest.skip(f"docs/ops.md is about PyTensor {version[1]}")
    assert text == support.markdown(rows())


@pytest.mark.parametrize(
    "op", [pytensor.printing.Print("x"), pytensor.compile.ops.FromFunctionOp], ids=["Print", "wrap_py"]
)
def test_host_ops_say_why(op: Any) -> None:
    x = pt.dvector("x")
    if isinstance(op, type):
        op = op(np.sort, [x.type], [x.type], None)
    with pytest.raises(pjl.GraphBreakError, match=re.escape(support.HOST[class_name(type(op))])):
        pytensor.function([x], pt.exp(op(x)), mode=FULLGRAPH)


def test_host_ops_are_never_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced_leaf, "third_party_function", lambda op: lambda op, **kwargs: lambda x: x)
    x = pt.dvector("x")
    assert traced_leaf.leaf_rule(pytensor.printing.Print("x")(x).owner) is None
    assert traced_leaf.leaf_rule(pt.exp(x).owner) is not None
