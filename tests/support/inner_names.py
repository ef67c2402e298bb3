"""The inner names of PyTensor, JAX, PyMC and BlackJAX that this package uses, as its syntax trees have them."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
OURS = ("pytensor_jaxpr_linker", "jaxpr_artifact")
THEIRS = ("pytensor", "jax", "jaxlib", "pymc", "blackjax")

#: Modules that have public names, and whose packages promise nothing for other packages. All below them is inner, too.
INNER = (
    *("jax._src", "jax.core", "jax.extend", "jax.interpreters", "jax.experimental", "jax.custom_derivatives", "jaxlib"),
    *("pytensor.assumptions", "pytensor.compile.aliasing", "pytensor.compile.executor", "pytensor.compile.maker"),
    *("pytensor.compile.rewriting", "pytensor.conditional", "pytensor.graph.rewriting.basic", "pytensor.ifelse"),
    *("pytensor.graph.rewriting.db", "pytensor.link.basic", "pytensor.link.jax", "pytensor.link.utils"),
    *("pytensor.scan.rewriting", "pytensor.tensor.rewriting", "pytensor.tensor.random.utils"),
    *("pymc.backends", "pymc.distributions.distribution", "pymc.initial_point", "pymc.logprob", "pymc.model.fgraph"),
    *("pymc.pytensorf", "pymc.sampling", "pymc.stats", "pymc.step_methods", "pymc.util"),
    *("blackjax.adaptation", "blackjax.diagnostics", "blackjax.mcmc", "blackjax.smc"),
)
#: Modules whose names are too many for a row each: one row is for all.
WHOLE = ("jax.extend.core.primitives", "jax.extend.mlir.ir", "jax.extend.mlir.dialects")
#: Modules that are used as a whole.
ALONE = ("pytensor.assumptions.core",)
#: Private names that both this package and another one define. Uses of the other's are not by `self`.
BOTH = {"_features", "_fn", "_names"}
#: This package's private attributes that a function or another class of it uses.
OF_FRIENDS = {
    *("_call", "_ctx", "_differentiable", "_for_jax", "_lock", "_mutable_leaves", "_only", "_outputs", "_shorter"),
    *("_source_info", "_specializations", "_surroundings"),
}
#: Private names of Python and IREE, and texts that only look like names: ends of names, and keys of this package.
NO_NAMES = {
    *("_asdict", "_replace", "_fields", "_getframe", "_abc_impl", "_thread", "_mlir_libs", "_fun", "_logprob"),
    *("_p", "_vjp", "_length", "_indices", "_size_in_bytes", "_others", "_padded", "_Module__"),
}
#: Attributes that this package sets on objects of its own, or on others as their users do.
NOT_REPLACED = {
    *("__doc__", "__name__", "__qualname__", "accepted", "allow_unregistered_dialects", "arg_names", "args"),
    *("arguments", "artifact", "buffers", "build_derivative", "checked", "chosen", "code", "compute", "consts"),
    *("constvars", "donated", "done", "draw", "dropped", "eqns", "folder", "have_started", "in_order_given", "index"),
    *("invars", "is_registered", "justify", "lazy", "least", "mode", "modules", "name", "names", "node", "outputs"),
    *("padded", "programs", "python_tracer_level", "recompiles", "remedy", "results", "runner", "seconds"),
    *("sharding", "shortened", "storage", "streamed", "trace", "value", "whole", "within", "writeable", "_fun", "_fn"),
}


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each module, by its path."""
    paths = [path for package in OURS for path in sorted((ROOT / package).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def is_private(name: str) -> bool:
    """Return whether a name begins with one underscore."""
    return re.fullmatch(r"_[A-Za-z]\w*", name) is not None


@cache
def own_names() -> set[str]:
    """Return the names that these packages define: functions, classes, variables, attributes and slots."""
    found = set()
    for tree in trees().values():
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    found.add(name)
                case ast.Name(id=name, ctx=ast.Store()):
                    found.add(name)
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    found.add(name)
                case ast.Assign(targets=[ast.Name(id="__slots__")], value=value):
                    found |= {x.value for x in ast.walk(value) if isinstance(x, ast.Constant)}
    return found


def imported(tree: ast.Module) -> dict[str, str]:
    """Return what each imported name of a module stands for, if another package has it."""
    found = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    first = alias.name.partition(".")[0]
                    found[alias.asname or first] = alias.name if alias.asname else first
            case ast.ImportFrom(module=str(module), names=names):
                found |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in names}
    return {name: full for name, full in found.items() if full.partition(".")[0] in THEIRS}


def dotted(node: ast.AST) -> str:
    """Return the text of a chain of names, such as ``a.b.c``, else nothing."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr) if before := dotted(value):
            return f"{before}.{attr}"
    return ""


def shortened(full: str) -> str:
    """Return the name that has the row: of a module of `WHOLE`, or what follows the last module, without attributes."""
    if whole := [module for module in WHOLE if f"{full}.".startswith(f"{module}.")]:
        return whole[0]
    parts = full.split(".")
    for n in range(2, len(parts)):
        before, private = ".".join(parts[:n]), any(map(is_private, parts[n:]))
        if before not in modules_on_the_way() and not private:
            return before
    return full


@cache
def modules_on_the_way() -> set[str]:
    """Return the modules of other packages that are imported here, and those above them."""
    found = set()
    for tree in trees().values():
        for full in imported(tree).values():
            parts = full.split(".")
            found |= {name for n in range(1, len(parts) + 1) if is_module(name := ".".join(parts[:n]))}
        for node in ast.walk(tree):  # modules that the installed version may lack
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in THEIRS:
                parts = node.module.split(".")
                found |= {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
    return found


@cache
def is_module(name: str) -> bool:
    """Return whether a name is one of a module."""
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # what is before the last dot is no package
        return False


def is_inner(full: str) -> bool:
    """Return whether a name is one that its package promises nothing for."""
    return any(f"{full}.".startswith(f"{module}.") for module in INNER) or any(map(is_private, full.split(".")))


def inner_names(tree: ast.Module) -> Iterator[str]:
    """Yield the full inner names that a module imports, or reaches through what it imports."""
    names = imported(tree)
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=aliases) if module.partition(".")[0] in THEIRS:
                yield from (full for alias in aliases if is_inner(full := f"{module}.{alias.name}"))
            case ast.Attribute() if text := dotted(node):
                first, _, rest = text.partition(".")
                if first in names and is_inner(full := f"{names[first]}.{rest}"):
                    yield full


def private_attributes(tree: ast.Module) -> Iterator[str]:
    """Yield the private names, without their owner, by which a module reaches into objects of other packages."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr=name) if is_private(name):
                is_own = name in own_names() and (name not in BOTH or ast.unparse(value) == "self")
                if not is_own and name not in NO_NAMES:
                    yield name
            case ast.Constant(value=str(name)) if is_private(name):
                if name not in own_names() | NO_NAMES:
                    yield name


def set_attributes(tree: ast.Module) -> Iterator[str]:
    """Yield the attributes of other objects than `self` and `cls` that a module sets, and properties it replaces."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr=name, ctx=ast.Store()) if ast.unparse(value) not in ("self", "cls"):
                yield name
            case ast.Call(func=ast.Name(id="change_property"), args=[ast.Constant(value=str(name)), *_]):
                yield name


def room_of(path: str) -> str:
    """Return the room of a module, or its package."""
    package, *rest = path.split("/")
    return rest[0] if package == OURS[0] and len(rest) > 1 else package


def by_room(names_of: Callable[[ast.Module], Iterator[str]]) -> dict[str, set[str]]:
    """Return the rooms that use each name that `names_of` finds in their modules."""
    found = defaultdict(set)
    for path, tree in trees().items():
        for name in names_of(tree):
            found[name].add(room_of(path))
    return dict(found)


@cache
def used() -> dict[str, set[str]]:
    """Return the rooms that use each inner name. Attributes of objects have their own name only."""
    modules = modules_on_the_way() - {*WHOLE, *ALONE}
    found = {name: rooms for name, rooms in by_room(shortened_names).items() if name not in modules}
    known = {name.rpartition(".")[2] for name in found} | replaced().keys()
    return found | {name: rooms for name, rooms in by_room(private_attributes).items() if name not in known}


def shortened_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names of `inner_names` as rows have them."""
    yield from map(shortened, inner_names(tree))


@cache
def replaced() -> dict[str, set[str]]:
    """Return the rooms that set each attribute of objects of other packages, which is not for their users to set."""
    own = {name for name in own_names() if is_private(name)}
    return {name: rooms for name, rooms in by_room(set_attributes).items() if name not in NOT_REPLACED | own}


def resolved(full: str) -> Any:
    """Return what a dotted name stands for in the installed packages. A function may have its package's name."""
    parts = full.split(".")
    n = max(n for n in range(1, len(parts) + 1) if is_module(".".join(parts[:n])))
    found: Any = importlib.import_module(".".join(parts[:n]))
    for part in parts[n:]:
        found = getattr(found, part)
    return found
