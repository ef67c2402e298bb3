"""A name that modules define at their top level has one meaning in the package."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytensor_jaxpr_linker

PACKAGE = Path(pytensor_jaxpr_linker.__file__).parent

#: Names that several modules define on purpose, and why.
ALLOWED = {
    "CPU": "IREE's target, and the condition of passes",
    "MASS_MATRICES": "each module of a kernel of NUTS lists its forms by this name",
    "MODULE": "the module of PyMC whose classes a file has rules for",
    "PASSES": "a list of passes: over graphs, and over Jaxprs",
    "shard": "`shard` is for shared variables, and `pymc.shard` for models",
    "make_kernel": "each module of a kernel makes it by this function",
    "INPUTS": "each module of a kernel lists the arguments that are inputs of programs",
    **dict.fromkeys(
        [
            "ceil",
            "cos",
            "cosh",
            "erf",
            "erf_inv",
            "erfc",
            "exp",
            "exp2",
            "expm1",
            "floor",
            "is_finite",
            "log",
            "log1p",
            "polygamma",
            "round_even",
            "sign",
            "sin",
            "sinh",
            "sqrt",
            "zeta",
        ],
        "`prims` assembles one equation, and the other module computes the same function of a `Value` or a scalar",
    ),
}


def defined(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module defines at its top level."""
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.TypeAlias(name=ast.Name(id=name)):
                yield name


def test_a_name_is_defined_in_one_module_or_has_a_reason():
    modules = defaultdict(set)
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in defined(ast.parse(path.read_text())):
            if not name.startswith("__"):
                modules[name].add(path.relative_to(PACKAGE).as_posix())
    several = {name: sorted(paths) for name, paths in modules.items() if len(paths) > 1}
    unexpected = {name: paths for name, paths in several.items() if name not in ALLOWED}
    assert not unexpected, f"rename all but one, or add the name to ALLOWED with a reason: {unexpected}"
    assert not ALLOWED.keys() - several.keys(), "remove these names from ALLOWED: one module defines each"
