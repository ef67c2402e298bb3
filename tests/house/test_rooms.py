"""The layout of the package: each room imports only the rooms before it, and the rooms before JAX do without JAX."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest

import jaxpr_artifact
import pytensor_jaxpr_linker

PACKAGE = pytensor_jaxpr_linker.__name__
ROOT = Path(pytensor_jaxpr_linker.__file__).parent
#: What pickles of older versions name: importing one of these raises an error that says so.
FOR_OLD_PICKLES = ("function", "linker")
#: What ``python -m`` runs.
COMMAND_LINE = "__main__"
#: In the order in which they may import each other. `docs/architecture.md` says what each is for.
ROOMS = ("base", "graph", "plan", "jaxpr", "emit", "run", "frontend", "artifacts", "report", "pymc", "command_line")
#: The rooms that know nothing of JAX, and the one module of theirs that does.
WITHOUT_JAX, JAX_COMPAT = ("base", "graph", "plan"), "base.jax_compat"
#: Why a package is imported inside a function.
OPTIONAL = {
    "IPython": "extra",
    "arviz": "extra",
    "blackjax": "extra",
    "graphviz": "extra",
    "ipywidgets": "extra",
    "iree": "extra",
    "nutpie": "extra",
    "numba": "extra",
    "numpyro": "extra",
    "pymc": "extra",
    "pymc_extras": "extra",
    "rich": "extra",
    "safetensors": "extra",
    "zarr": "extra",
    # What few graphs need, and the milliseconds that its import adds to that of this package.
    "jax.experimental.sparse": "120 ms",
    "scipy.interpolate": "490 ms",
    "scipy.sparse": "150 ms",
    "pytensor.link.jax.dispatch": "its import sets jax_enable_x64 for the whole process",
}


def module_name(path: Path) -> str:
    """Return the dotted name of a file within the package, ``"plan.model"``."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").rstrip(".")


SOURCES = {module_name(path): path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}


@cache
def imports(source: str) -> list[tuple[str, bool]]:
    """Return the dotted name of each thing that a module imports, and whether a function imports it."""
    tree = ast.parse(source)
    in_functions = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for inner in ast.walk(outer)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in in_functions) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(f"{node.module}.{alias.name}", id(node) in in_functions) for alias in node.names]
    return found


def own_imports(module: str) -> set[str]:
    """Return the modules of the package that a module imports."""
    found = set()
    for name, _ in imports(SOURCES[module]):
        head, _, inner = name.partition(".")
        if head == PACKAGE:
            found.add(inner if inner in SOURCES else inner.rpartition(".")[0])
    return found - {module}


IMPORTS = {module: own_imports(module) for module in SOURCES}


def reached(module: str) -> set[str]:
    """Return a module and all modules of the package that its import imports."""
    found, stack = set(), [module]
    while stack:
        if (current := stack.pop()) not in found:
            found.add(current)
            stack += IMPORTS[current]
    return found


def room(module: str) -> str:
    return module.partition(".")[0]


INSIDE = sorted(module for module in SOURCES if module and module not in (*FOR_OLD_PICKLES, COMMAND_LINE))


@pytest.mark.parametrize("module", INSIDE)
def test_a_room_imports_rooms_before_it(module):
    """Also by way of others."""
    later = {found for found in reached(module) if ROOMS.index(room(found)) > ROOMS.index(room(module))}
    assert not later


@pytest.mark.parametrize("module", [m for m in INSIDE if room(m) in WITHOUT_JAX and m != JAX_COMPAT])
def test_what_is_decided_before_lowering_is_decided_without_jax(module):
    """Neither a module nor what it imports uses JAX."""
    users = {
        found
        for found in reached(module)
        if any(name.partition(".")[0] in ("jax", "jaxlib") for name, _ in imports(SOURCES[found]))
    }
    assert not users


def test_the_import_loads_the_compiler_alone():
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {PACKAGE}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    names = [name.split(".") for name in done.stdout.split()]
    assert {name[1] for name in names if name[0] == PACKAGE and name[1:]} == set(ROOMS[: ROOMS.index("artifacts")])
    assert {name[1] for name in names if name[0] == "jaxpr_artifact" and name[1:]} == {"first_use", "threads"}


def in_stub(package: ModuleType) -> dict[str, str | None]:
    """Return the names that type checkers find in a package, and the modules that define them."""
    tree = ast.parse(Path(str(package.__file__)).with_suffix(".pyi").read_text(encoding="utf-8"))
    return {
        alias.asname or alias.name: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_names_of_the_files_that_are_imported_on_first_use():
    stub = in_stub(jaxpr_artifact)
    assert stub == jaxpr_artifact._MODULE_OF
    assert sorted(stub) == sorted(jaxpr_artifact.__all__) == sorted(jaxpr_artifact._MODULE_OF)
    assert all(hasattr(jaxpr_artifact, name) for name in stub)


def test_names_that_are_imported_on_first_use():
    """The stub has the public names, and names the modules that the table names."""
    stub = in_stub(pytensor_jaxpr_linker)
    assert {*stub, "JAXPR"} == {*pytensor_jaxpr_linker.__all__, "__version__", "pymc"}
    on_first_use = pytensor_jaxpr_linker._MODULE_OF
    assert {name: stub[name] for name in on_first_use} == on_first_use
    assert all(hasattr(pytensor_jaxpr_linker, name) for name in pytensor_jaxpr_linker.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'exlpain'"):
        pytensor_jaxpr_linker.exlpain  # noqa: B018


def test_names_of_the_half_for_pymc_that_are_imported_on_first_use():
    ours = pytest.importorskip("pytensor_jaxpr_linker.pymc")
    stub = in_stub(ours)
    assert sorted(stub) == sorted(ours.__all__)
    assert {name: stub[name] for name in ours._LATER} == ours._LATER
    assert all(hasattr(ours, name) for name in ours.__all__)


def test_no_circle_among_modules():
    try:
        TopologicalSorter(IMPORTS).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("module", INSIDE)
def test_functions_import_optional_packages_only(module):
    found = {name for name, in_function in imports(SOURCES[module]) if in_function}
    assert not {name for name in found if not any(f"{name}.".startswith(f"{package}.") for package in OPTIONAL)}


def test_no_room_but_the_listed_ones():
    """No flat modules but for old pickles and the command line: whatever is added has a room."""
    assert {room(module) for module in SOURCES if module} == {*ROOMS, *FOR_OLD_PICKLES, COMMAND_LINE}


@pytest.mark.parametrize("module", INSIDE)
def test_length_of_a_module(module):
    assert len(SOURCES[module].splitlines()) <= 400
