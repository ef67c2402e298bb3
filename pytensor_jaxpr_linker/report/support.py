"""The support table: how each Op of the installed PyTensor runs. ``python -m pytensor_jaxpr_linker.report.support`` writes it."""

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
from pytensor_jaxpr_linker.plan.host_ops import HOST
from pytensor_jaxpr_linker.report.limitations import IREE, LIMITATIONS, SYMBOLIC

#: The document that the table is written to.
DOCUMENT = Path(__file__).parents[2] / "docs" / "ops.md"

#: Modules without Ops that a graph can have: other backends, and what is not library code.
NOT_WALKED = (
    "pytensor.bin",
    "pytensor.ipython",
    "pytensor.link.jax.dispatch",
    "pytensor.link.mlx",
    "pytensor.link.numba",
    "pytensor.link.pytorch",
    "pytensor.misc",
)

#: Base classes, and marks that are no part of a graph.
BASES: dict[str, tuple[str, ...]] = {
    "pytensor.compile.ops": ("TypeCastingOp",),
    "pytensor.compile.builders": ("FinalizedOpFromGraph", "SymbolicOp"),
    "pytensor.graph.fg": ("Output",),
    "pytensor.graph.op": ("_NoPythonOp",),
    "pytensor.link.c.op": ("COp", "ExternalCOp", "OpenMPOp", "_NoPythonCOp"),
    "pytensor.scalar.basic": (
        "BinaryBitOp",
        "BinaryScalarOp",
        "FixedLogicalComparison",
        "LogicalComparison",
        "ScalarInnerGraphOp",
        "ScalarOp",
        "UnaryBitOp",
        "UnaryScalarOp",
    ),
    "pytensor.sparse.basic": ("Stack",),
    "pytensor.sparse.math": ("__ComparisonOpSparseDense", "__ComparisonOpSparseSparse"),
    "pytensor.tensor.blas.blas_c": ("BaseBLAS",),
    "pytensor.tensor.blas.gemm": ("GemmRelated",),
    "pytensor.tensor.linalg.constructors": ("BaseBlockDiagonal",),
    "pytensor.tensor.linalg.solvers.core": ("SolveBase",),
    "pytensor.tensor.math": ("FixedOpCAReduce", "MaxAndMinCAReduce", "NonZeroDimsCAReduce"),
    "pytensor.tensor.optimize": ("ScipyScalarWrapperOp", "ScipyVectorWrapperOp", "ScipyWrapperOp"),
    "pytensor.tensor.random.basic": ("ScipyRandomVariable",),
    "pytensor.tensor.random.op": ("AbstractRNGConstructor", "RNGConsumerOp", "RandomVariable"),
    "pytensor.tensor.symbolic": ("TensorSymbolicOp",),
    "pytensor.xtensor.basic": ("XOp", "XTypeCastOp"),
}

DIRECT, SIMPLER, INNER = "direct", "simpler Ops", "inner graph"
LOWERED, LEAF, HOSTED = "lowered by PyTensor", "traced leaf", "host"
#: How an Op runs, and what that means.
WAYS = {
    DIRECT: "an emission rule makes equations of it",
    SIMPLER: "it is said in other Ops of this table before the graph is cut",
    INNER: "its inner graph takes its place, and runs as the Ops there do",
    LOWERED: "a rewrite of PyTensor's replaces it before a linker sees the graph",
    LEAF: "the user's JAX function is traced by itself",
    HOSTED: "its own Python implementation runs between programs",
}

YES, IN_PART, NO, AS_THESE = "yes", "in part", "no", "–"
#: What lengths of an Op that runs in one of these ways may be symbolic dimensions of `jax.export`, if nothing restricts them.
SYMBOLIC_BY_WAY = {DIRECT: YES, SIMPLER: YES, INNER: AS_THESE, LOWERED: AS_THESE, LEAF: AS_THESE, HOSTED: NO}

#: Whether IREE runs an Op that runs in one of these ways, if nothing restricts it.
IREE_BY_WAY = SYMBOLIC_BY_WAY

#: Ops that become Ops of this package while sizes are found, see `graph.lanes`.
SIZED = {
    Nonzero: "Places of the elements that are not zero, as many as a program before has counted.",
    Lstsq: "All residuals; which of them are returned depends on the rank, which is known only then.",
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
    """Return the Op classes of the installed PyTensor, without those of other backends."""
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
    """Return the rows of all Ops that a graph can have.

    Raises
    ------
    LookupError
        If nothing says how an Op runs.
    """
    return [support_row(c) for c in op_classes() if c.__name__ not in BASES.get(c.__module__, ())]


def support_row(op_class: type[Op]) -> Row:
    """Return the row of an Op."""
    how, summary = how_it_runs(op_class)
    name = class_name(op_class)
    symbolic, limit = (IN_PART, SYMBOLIC[name].sentence) if name in SYMBOLIC else (SYMBOLIC_BY_WAY[how], "")
    by_iree = IREE.get(name)
    iree = IREE_BY_WAY[how] if by_iree is None else IN_PART if by_iree.in_part else NO
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
    if has_rule(op_class):
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
        f"The support table does not know {class_name(op_class)}: it needs an emission rule, or an entry in host_ops.py"
    )


def has_rule(op_class: type[Op]) -> bool:
    """Return whether an Op becomes equations by a rule."""
    if issubclass(op_class, RandomVariable):
        return RULES.exact(op_class) is not None
    return rule_of_class(op_class) is not None


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
    """Return whether PyTensor says how an Op is differentiated; what a class of other Ops says for all of them does not count."""
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

How mode JAXPR runs each of the {count} Ops of PyTensor {version}. `python -m pytensor_jaxpr_linker.report.support` writes this
page from the emission rules; `tests/whole/test_op_table.py` runs the Ops on samples.

| how | Ops | meaning |
|---|---|---|
{ways}

No Op of PyTensor's own is traced. *Gradient* says whether PyTensor defines one. `jax.grad` of what
`as_jax_function` returns is PyTensor's gradient ([gradients.md](gradients.md)). *Symbolic* says whether `jax.export` takes
lengths by name (`jax.export.symbolic_shape`): all of them, in part, or, as for Ops that take the place of an Op (–), as these do.
What an integer input determines, such as the number of rows of `Eye`, is known while the program is built, or follows from such
lengths. `tests/whole/test_symbolic_ops.py` exports the Ops, and calls them with several lengths. *Iree* says whether IREE runs the Op without
Python ([iree.md](iree.md)); `tests/whole/test_iree_ops.py` compiles and runs samples, `tests/support/iree_sweep.py` all of them. A scalar Op is what an `Elemwise`,
a `CAReduce` or a loop over numbers applies. What a note excludes ("Not ...") is a break ([breaks.md](breaks.md)): the node runs
on the host. [special-functions.md](special-functions.md) states how far off special functions are.
"""


if __name__ == "__main__":
    DOCUMENT.write_text(markdown(table()))
