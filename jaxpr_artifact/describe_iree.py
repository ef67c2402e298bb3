"""What a ``.vmfb`` file of IREE was made of, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jaxpr_artifact.describe import array, check_texts, columns, nbytes, titled, version_text
from jaxpr_artifact.header import Argument
from jaxpr_artifact.iree_header import IreeHeader
from jaxpr_artifact.iree_program import IreeProgram
from jaxpr_artifact.module_header import FunctionDescription, GlobalDescription, ModuleDescription, StateDescription
from jaxpr_artifact.tree_description import tree_like
from jaxpr_artifact.trees import leaves_of


def described_program(program: IreeProgram) -> str:
    """Return what a program says of itself. It need not be one for this machine."""
    return described_module(program.description()) if program.is_module else described_function(program.header())


def described_function(header: IreeHeader) -> str:
    """Return a table of what a function is made of."""
    found = {
        "made with": [version_text(header.versions)],
        "arguments": columns([(a.name, array(a)) for a in header.arguments]),
        "state": columns([(s.name, array(s), "" if s.output is None else "updated") for s in header.state]),
        "fixed": columns([(f.name, f.value) for f in header.fixed]),
        "outputs": columns([(o.name, array(o)) for o in header.outputs]),
        "checks": check_texts(header.checks),
    }
    return titled(f"{header.name}, a function compiled by IREE for {header.target}", header.note, found)


def described_module(description: ModuleDescription) -> str:
    """Return a table of what a module is made of."""
    known = {g.name: g for g in description.globals}
    beside = [(str(g.parameter), global_array(g), nbytes(g.nbytes)) for g in known.values() if g.parameter]
    found = {
        "made with": [version_text(description.versions)],
        "functions": columns([row for f in description.functions for row in function_rows(f)]),
        "state": columns([row for s in description.state for row in state_rows(s, known)]),
        "parameters": columns(beside),
        "checks": check_texts([check for f in description.functions for check in f.checks]),
    }
    return titled(f"{description.name}, a module compiled by IREE for {description.target}", "", found)


def function_rows(function: FunctionDescription) -> Iterator[tuple[str, ...]]:
    """Yield a row for each array that a function takes or returns."""
    first = f"{function.name}({', '.join(given.name for given in function.signature)})"
    rows = [("takes", a) for a in function.arguments]
    rows += [("returns", r) for r in function.results[: -1 if function.checks else None]]
    if not rows:
        yield first, "", "", ""
    for i, (verb, a) in enumerate(rows):
        yield "" if i else first, verb, a.name, array(a)


def state_rows(state: StateDescription, known: Mapping[str, GlobalDescription]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each array of state; that of an alias says of which global."""
    for place, name in leaves_of(tree_like(state.tree, iter(state.globals)), state.name):
        alias = "" if place == name else f" = {name}"
        yield f"{place}{alias}", global_array(known[name]), "" if known[name].is_mutable else "constant"


def global_array(given: GlobalDescription) -> str:
    """Return dtype and shape of a global."""
    return array(Argument(given.name, given.dtype, given.shape, given.is_key))
