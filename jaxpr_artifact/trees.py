"""Trees of arrays, or of what stands for them: dicts, sequences, named tuples, dataclasses, and what else JAX knows as a tree."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import jax


class Level(NamedTuple):
    """A node of a tree: the names of its children, the children, and what makes a node like it of others."""

    names: list[str]
    children: list[Any]
    rebuild: Callable[[Sequence[Any]], Any]


def level(node: Any) -> Level | None:
    """Return a node as names and children, or None for a leaf. A dataclass need not be registered with JAX."""
    pairs, treedef = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    if [path for path, _ in pairs] != [()]:
        names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in pairs]
        return Level(names, [child for _, child in pairs], lambda found: jax.tree_util.tree_unflatten(treedef, found))
    if not is_dataclass(node) or isinstance(node, type):
        return None
    names = [f.name for f in fields(node)]
    return Level(names, [getattr(node, name) for name in names], lambda found: with_fields(node, names, found))


def with_fields(node: Any, names: Sequence[str], values: Sequence[Any]) -> Any:
    """Return a copy of a dataclass with these values, whatever its own checks say of them: they may stand for others."""
    found = copy.copy(node)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(found, name, value)
    return found


def dotted(*parts: str) -> str:
    """Return the name of what is inside something: ``layers.0.w``."""
    return ".".join(part for part in parts if part)


def leaves_of(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield name and value of each leaf."""
    inner = level(tree)
    if inner is None:
        yield name, tree
    else:
        for part, child in zip(inner.names, inner.children, strict=True):
            yield from leaves_of(child, dotted(name, part))


def with_leaves(tree: Any, values: Iterator[Any]) -> Any:
    """Return a tree with other leaves, taken in order."""
    inner = level(tree)
    return next(values) if inner is None else inner.rebuild([with_leaves(child, values) for child in inner.children])


def leaves_like(declared: Any, given: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, declared leaf and given value of each leaf of a declared tree.

    Only names count: a dict may stand for a named tuple. What is declared as one leaf is not looked into.

    Raises
    ------
    TypeError
        If the trees differ.
    """
    wanted = level(declared)
    if wanted is None:
        yield name, declared, given
        return
    found = level(given)
    known = dict(zip(found.names, found.children, strict=True)) if found else {}
    if found is None or known.keys() != set(wanted.names):
        what = f"has {', '.join(found.names) or 'nothing'}" if found else f"is {type(given).__name__}"
        raise TypeError(f"{name} is a tree of {', '.join(wanted.names) or 'nothing'}, and what is given {what}.")
    for part, child in zip(wanted.names, wanted.children, strict=True):
        yield from leaves_like(child, known[part], dotted(name, part))
