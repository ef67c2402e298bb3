"""The support table: how each Op of the installed PyTensor runs.

``python -m pytensor_jaxpr_linker.report.support`` writes it.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pytensor
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.op import Op
from pytensor.link.jax.ops import JAXOp
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor.basic import Nonzero
from pytensor.tensor.linalg.solvers.lstsq import Lstsq
from pytensor.tensor.random.op import RandomVariable
from pytensor.xtensor.basic import XOp

from pytensor_jaxpr_linker.base.rules import RULES, SCALAR_RULES, Rule, ScalarRule, class_name
from pytensor_jaxpr_linker.graph.decompose import DECOMPOSITIONS
from pytensor_jaxpr_linker.graph.sparse.lowering import LOWERINGS
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.plan.breaks import HOST

OF_TWO = "Of two sparse matrices if all entries are at constant places; else the host finds the places faster."

#: The limits of emission rules, and where they differ from PyTensor, by the names that `class_name` gives to Ops.
LIMITATIONS: dict[str, str] = {
    "pytensor.sparse.basic.GetItem2d": "With constant steps of at least 1.",
    "pytensor.sparse.basic.GetItemList": "Of entries at constant places; else their number depends on numbers.",
    "pytensor.sparse.math.StructuredDot": OF_TWO,
    "pytensor.sparse.math.StructuredDotGradCSC": OF_TWO,
    "pytensor.sparse.math.StructuredDotGradCSR": OF_TWO,
    "pytensor.sparse.math.TrueDot": OF_TWO,
    "pytensor.tensor.linalg.decomposition.schur.Schur": "Not with `sort`. JAX has it on CPUs; elsewhere it is a loop.",
    "pytensor.tensor.linalg.decomposition.eigen.Eig": "Not on TPUs.",
    "pytensor.tensor.linalg.decomposition.eigen.Eigh": "Not of complex matrices, whose eigenvectors PyTensor"
    " declares real. With the default driver eigenvectors may have the other sign.",
    "pytensor.tensor.linalg.decomposition.qr.QR": "With pivoting or in raw mode a loop on TPUs.",
    "pytensor.tensor.linalg.solvers.lstsq.Lstsq": "Not of a vector, whose solution PyTensor declares a matrix, nor of"
    " complex numbers, whose solution it declares real.",
    "pytensor.tensor.linalg.solvers.linear_control.SolveSylvester": "On a GPU or TPU, the Schur forms are loops.",
    "pytensor.tensor.linalg.solvers.linear_control.SolveDiscreteARE": "Its `QZ` runs on the host.",
    "pytensor.tensor.extra_ops.Unique": "Not along an axis of a matrix, and not of complex numbers.",
    "pytensor.tensor.math.Max": "Not of complex numbers.",
    "pytensor.tensor.math.Min": "Not of complex numbers.",
    "pytensor.tensor.random.basic.BinomialRV": "Not for a number of trials whose type is not an integer.",
    "pytensor.tensor.random.basic.HyperGeometricRV": "Not for counts whose type is not an integer.",
    "pytensor.tensor.random.basic.MultinomialRV": "Not for one number of trials whose type is not an integer.",
    "pytensor.tensor.random.basic.IntegersRV": "Not for bounds whose type is not an integer.",
    "pytensor.tensor.random.basic.PermutationRV": "Not for several numbers at once.",
    "pytensor.tensor.random.basic.ChoiceWithoutReplacement": "Not for several numbers at once.",
    "pytensor.tensor.blockwise.Blockwise": "If its core Op has a rule for batches.",
}


class SymbolicLimit(NamedTuple):
    """The lengths of an Op that can't be symbolic dimensions of `jax.export`, and a pattern of the error."""

    sentence: str
    error: str


NO_FFT = SymbolicLimit("The length that is transformed can't be symbolic.", "FFT with non-constant fft_length")

ONE_LENGTH = SymbolicLimit("The length of the signal or of the kernel can't be symbolic.", "can't decide how many taps")

#: By the names of classes. All other Ops that become equations take any lengths.
SYMBOLIC: dict[str, SymbolicLimit] = {
    "pytensor.tensor.fft.RFFTOp": NO_FFT,
    "pytensor.tensor.fft.IRFFTOp": NO_FFT,
    "pytensor.tensor.fourier.Fourier": NO_FFT,
    "pytensor.tensor.signal.conv.Convolve1d": ONE_LENGTH,
    "pytensor.tensor.signal.conv.Convolve2d": ONE_LENGTH,
    "pytensor.tensor.linalg.decomposition.qr.QR": SymbolicLimit(
        'Of symbolic lengths JAX has to know which is larger, as by `constraints=["m >= n"]`.',
        "comparison .* is inconclusive",
    ),
}


class IreeLimit(NamedTuple):
    """The part of an Op that IREE does not run, and whether it runs the rest."""

    sentence: str
    in_part: bool = False


#: By the names of classes. All other Ops that become equations run on IREE.
IREE: dict[str, IreeLimit] = {
    "pytensor.tensor.linalg.decomposition.eigen.Eig": IreeLimit("Not by IREE: it lacks LAPACK's `geev`."),
    **dict.fromkeys(
        ("pytensor.tensor.math.Sum", "pytensor.tensor.math.Prod"),
        IreeLimit("By IREE not of empty complex arrays.", in_part=True),
    ),
}


#: The document that the table is written to.
DOCUMENT = Path(__file__).parents[2] / "docs" / "ops.md"

#: Modules without Ops for graphs: other backends, and code outside the library.
NOT_WALKED = tuple(
    f"pytensor.{name}"
    for name in ["bin", "ipython", "link.jax.dispatch", "link.mlx", "link.numba", "link.pytorch", "misc"]
)

#: Base classes, and marks that are no part of a graph, by module.
BASES = {
    "pytensor.compile.ops": "TypeCastingOp",
    "pytensor.compile.builders": "FinalizedOpFromGraph SymbolicOp",
    "pytensor.graph.fg": "Output",
    "pytensor.graph.op": "_NoPythonOp",
    "pytensor.link.c.op": "COp ExternalCOp OpenMPOp _NoPythonCOp",
    "pytensor.scalar.basic": "BinaryBitOp BinaryScalarOp FixedLogicalComparison LogicalComparison ScalarInnerGraphOp"
    " ScalarOp UnaryBitOp UnaryScalarOp",
    "pytensor.sparse.basic": "Stack",
    "pytensor.sparse.math": "__ComparisonOpSparseDense __ComparisonOpSparseSparse",
    "pytensor.tensor.blas.blas_c": "BaseBLAS",
    "pytensor.tensor.blas.gemm": "GemmRelated",
    "pytensor.tensor.linalg.constructors": "BaseBlockDiagonal",
    "pytensor.tensor.linalg.solvers.core": "SolveBase",
    "pytensor.tensor.math": "FixedOpCAReduce MaxAndMinCAReduce NonZeroDimsCAReduce",
    "pytensor.tensor.optimize": "ScipyScalarWrapperOp ScipyVectorWrapperOp ScipyWrapperOp",
    "pytensor.tensor.random.basic": "ScipyRandomVariable",
    "pytensor.tensor.random.op": "AbstractRNGConstructor RNGConsumerOp RandomVariable",
    "pytensor.tensor.symbolic": "TensorSymbolicOp",
    "pytensor.xtensor.basic": "XOp XTypeCastOp",
}

DIRECT, SIMPLER, INNER = "direct", "simpler Ops", "inner graph"
LOWERED, LEAF, HOSTED = "lowered by PyTensor", "traced leaf", "host"
#: How an Op runs, and the meaning.
WAYS = {
    DIRECT: "an emission rule makes equations of it",
    SIMPLER: "other Ops of this table replace it before the graph is cut",
    INNER: "its inner graph replaces it, and runs as the Ops there do",
    LOWERED: "a rewrite of PyTensor's replaces it before a linker sees the graph",
    LEAF: "the user's JAX function is traced by itself",
    HOSTED: "its own Python implementation runs between programs",
}

YES, IN_PART, NO, AS_THESE = "yes", "in part", "no", "–"
#: Whether an Op takes symbolic dimensions of `jax.export`, and whether IREE runs it, by how it runs, if nothing
#: restricts it.
BY_WAY = {DIRECT: YES, SIMPLER: YES, INNER: AS_THESE, LOWERED: AS_THESE, LEAF: AS_THESE, HOSTED: NO}

#: Ops that become Ops of this package while sizes are found, see `graph.lanes`.
SIZED = {
    Nonzero: "Places of the elements that are not zero; a program before has counted them.",
    Lstsq: "All residuals; the rank, known only then, says which of them are returned.",
}


class Row(NamedTuple):
    """One Op of the table."""

    module: str
    name: str
    how: str
    gradient: bool
    symbolic: str
    iree: str
    note: str


def op_classes(prefix: str = "pytensor.") -> list[type[Op]]:
    """Return the Op classes of the installed PyTensor, without the classes of other backends."""
    import_modules(pytensor.__path__, prefix)
    found = {c for c in subclasses(Op) if c.__module__.startswith(prefix) and not c.__module__.startswith(NOT_WALKED)}
    return sorted(found, key=class_name)


def import_modules(path: Iterable[str], prefix: str) -> None:
    """Import all modules of a package whose requirements are installed."""
    holder = sys.modules[prefix.removesuffix(".")]
    for module in pkgutil.iter_modules(path, prefix):
        if module.name.startswith(NOT_WALKED):
            continue
        short = module.name.removeprefix(prefix)
        before = getattr(holder, short, None)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                package = importlib.import_module(module.name)
        except ImportError:  # PyTensor has modules for libraries that need not be installed
            continue
        if before is not None:  # the import would hide a function of that name, as `pytensor.tensor.var` does
            setattr(holder, short, before)
        if module.ispkg:
            import_modules(package.__path__, module.name + ".")


def subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    """Yield all classes that are derived from `cls`."""
    for derived in cls.__subclasses__():
        yield derived
        yield from subclasses(derived)


def table() -> list[Row]:
    """Return the rows of all Ops that a graph can have, or raise a LookupError if nothing says how an Op runs."""
    return [support_row(c) for c in op_classes() if c.__name__ not in BASES.get(c.__module__, "").split()]


def support_row(op_class: type[Op]) -> Row:
    """Return the row of an Op."""
    how, summary = how_it_runs(op_class)
    name = class_name(op_class)
    symbolic, limit = (IN_PART, SYMBOLIC[name].sentence) if name in SYMBOLIC else (BY_WAY[how], "")
    by_iree = IREE.get(name)
    iree = BY_WAY[how] if by_iree is None else IN_PART if by_iree.in_part else NO
    limits = (summary, LIMITATIONS.get(name, ""), limit, by_iree and by_iree.sentence)
    note = " ".join(filter(None, limits))
    return Row(op_class.__module__, op_class.__name__, how, op_has_gradient(op_class), symbolic, iree, note)


def how_it_runs(op_class: type[Op]) -> tuple[str, str]:
    """Return how an Op runs, and a sentence about that."""
    if (simpler := DECOMPOSITIONS.of(op_class)) is not None:
        return SIMPLER, first_sentence(simpler)
    if op_class in SIZED:
        return SIMPLER, SIZED[op_class]
    if op_class.__module__.startswith("pytensor.sparse.") and (lowering := LOWERINGS.of(op_class)) is not None:
        return SIMPLER, first_sentence(lowering)
    rule = RULES.exact(op_class) if issubclass(op_class, RandomVariable) else rule_of_class(op_class)
    if rule is not None:
        return DIRECT, summary_of_rule(op_class)
    if issubclass(op_class, OpFromGraph):
        return INNER, ""
    if issubclass(op_class, XOp):
        return LOWERED, ""
    if issubclass(op_class, JAXOp):
        return LEAF, "`wrap_jax`"
    if (reason := HOST.get(class_name(op_class))) is not None:
        return HOSTED, reason[0].upper() + reason[1:] + "."
    raise LookupError(
        f"The support table lacks {class_name(op_class)}: it needs an emission rule, or an entry in plan/breaks.py"
    )


def rule_of_class(op_class: type[Op]) -> Rule | ScalarRule | None:
    """Return the rule of an Op, or None."""
    return SCALAR_RULES.of(op_class) if issubclass(op_class, ScalarOp) else RULES.of(op_class)


def summary_of_rule(op_class: type[Op]) -> str:
    """Return the first sentence of an Op's rule, or the primitive that the rule is."""
    rule = rule_of_class(op_class)
    if rule is not None and rule.emit.__module__.startswith(f"{prims.__name__}."):
        return f"The primitive `{rule.emit.__name__.rstrip('_')}`."
    return first_sentence(rule and rule.emit)


def first_sentence(function: Any) -> str:
    """Return the first line of the docstring of a function of this package, or nothing."""
    while isinstance(function, partial):
        function = function.func
    if not str(getattr(function, "__module__", "")).startswith("pytensor_jaxpr_linker"):
        return ""
    lines = (inspect.getdoc(function) or "").splitlines()
    return lines[0] if lines else ""


def op_has_gradient(op_class: type[Op]) -> bool:
    """Return whether PyTensor defines the gradient of an Op. Definitions in the most general classes do not count."""
    methods, general = ("pullback", "L_op", "grad"), (Op, ScalarOp, RandomVariable)
    definer = next((c for c in op_class.__mro__ if any(m in vars(c) for m in methods)), Op)
    return definer not in general


def markdown(rows: Iterable[Row]) -> str:
    """Return the document."""
    rows = list(rows)
    counts = Counter(row.how for row in rows)
    ways = "\n".join(f"| {how} | {counts[how]} | {text} |" for how, text in WAYS.items())
    sections = (section(module, list(members)) for module, members in groupby(rows, key=lambda row: row.module))
    return f"{HEAD.format(version=pytensor.__version__, count=len(rows), ways=ways)}\n" + "\n".join(sections)


def section(module: str, rows: list[Row]) -> str:
    """Return the part of the document about one module of PyTensor."""
    lines = [
        f"| `{r.name}` | {r.how} | {YES if r.gradient else NO} | {r.symbolic} | {r.iree} | {r.note.replace('|', BAR)} |"
        for r in rows
    ]
    heads = ["| Op | how | gradient | symbolic | iree | notes |", "|---|---|---|---|---|---|"]
    return "\n".join([f"## `{module}`", "", *heads, *lines, ""])


#: A bar that does not end a cell, also within code.
BAR = "\\|"

HEAD = """\
# Ops

How mode JAXPR runs each of the {count} Ops of PyTensor {version}. `python -m pytensor_jaxpr_linker.report.support`
writes this page from the emission rules; `tests/whole/test_op_table.py` runs the Ops on samples.

| how | Ops | meaning |
|---|---|---|
{ways}

No Op of PyTensor's own is traced. *Gradient* says whether PyTensor defines one. `jax.grad` of the result of
`as_jax_function` is PyTensor's gradient ([gradients.md](gradients.md)). *Symbolic* says whether `jax.export` takes
lengths by name (`jax.export.symbolic_shape`): all of them, in part, or as the Ops that replace the Op do (–). Sizes
that integer inputs determine, such as the number of rows of `Eye`, are known while the program is built, or follow from
such lengths. `tests/whole/test_symbolic_ops.py` exports the Ops, and calls them with several lengths. *Iree* says
whether IREE runs the Op without Python ([iree.md](iree.md)); `tests/whole/test_iree_ops.py` compiles and runs samples,
`tests/support/iree_sweep.py` all of them. An `Elemwise`, a `CAReduce` or a loop over numbers applies a scalar Op. The
cases that a note excludes ("Not ...") are breaks ([breaks.md](breaks.md)): the node runs on the host.
[special-functions.md](special-functions.md) states the errors of special functions.
"""


if __name__ == "__main__":
    DOCUMENT.write_text(markdown(table()))
