"""The package builds Jaxprs and traces nothing: which names its modules may use."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import pytensor_jaxpr_linker

ROOT = Path(pytensor_jaxpr_linker.__file__).parent
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))
EMITTING = [m for m in MODULES if m.startswith(("emit/", "jaxpr/"))]
#: The one module that traces: for Ops whose algorithm exists in JAX as a function alone.
TRACED = "emit/traced_leaf.py"
NUMERIC = ("jax.numpy", "jax.scipy", "jax.random", "jax.nn")
TRACING = {"make_jaxpr", "jit", "vmap", "grad", "value_and_grad", "vjp", "jvp", "linearize", "eval_shape"}


def names_used(module: str) -> set[str]:
    """Return the dotted names that a module imports or reads, with what its imports stand for spelled out."""
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
    aliases: dict[str, str] = {}
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
            aliases |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
            aliases |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            head, *rest = ast.unparse(node).split(".")
            names.add(".".join([aliases.get(head, head), *rest]))
    return names


def under(names: set[str], *packages: str) -> set[str]:
    """Return the names that are in one of the packages."""
    return {name for name in names if any(name == p or name.startswith(f"{p}.") for p in packages)}


@pytest.mark.parametrize("module", MODULES)
def test_private_jax_is_used_in_one_module(module):
    """`jax._src` is named in ``base/jax_compat.py`` alone."""
    if module != "base/jax_compat.py":
        assert not under(names_used(module), "jax._src")


@pytest.mark.parametrize("module", EMITTING)
def test_emission_uses_no_traced_functions(module):
    """Rules assemble primitives: no function of JAX that is traced, and nothing that traces."""
    if module == TRACED:
        pytest.skip("the module that traces")
    names = names_used(module)
    assert not under(names, *NUMERIC)
    assert not {name for name in under(names, "jax") if name.split(".")[-1] in TRACING}
