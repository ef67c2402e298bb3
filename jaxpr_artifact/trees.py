"""Trees of arrays, or of objects that stand for arrays, and `TreeDescription`: the form of a tree, as JSON has it.

Nodes are dicts, sequences, named tuples, dataclasses, and other nodes that JAX knows.
"""

from __future__ import annotations

import copy
import keyword
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, NamedTuple

import jax

from jaxpr_artifact.header import Misfit


class Level(NamedTuple):
    """A node of a tree: the names of its children, the children, and a function that rebuilds it with others."""

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

    def rebuild(values: Sequence[Any]) -> Any:
        found = copy.copy(node)  # without its own checks: values may stand for others
        for name, value in zip(names, values, strict=True):
            object.__setattr__(found, name, value)
        return found

    return Level(names, [getattr(node, name) for name in names], rebuild)


def dotted(*parts: str) -> str:
    """Return the name of a part: ``layers.0.w``."""
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
    """Yield name, declared leaf and given value of each leaf of a declared tree; a TypeError if the trees differ.

    Only names count: a dict may stand for a named tuple. A value for a declared leaf may be a tree.
    """
    wanted = level(declared)
    if wanted is None:
        yield name, declared, given
        return
    found = level(given)
    known = dict(zip(found.names, found.children, strict=True)) if found else {}
    if found is None or known.keys() != set(wanted.names):
        what = f"has {', '.join(found.names) or 'nothing'}" if found else f"is {type(given).__name__}"
        raise TypeError(f"{name} is a tree of {', '.join(wanted.names) or 'nothing'}, and the given value {what}.")
    for part, child in zip(wanted.names, wanted.children, strict=True):
        yield from leaves_like(child, known[part], dotted(name, part))


@dataclass(frozen=True)
class TreeDescription:
    """A node of a tree. A child that is None is an array.

    The kinds "dict", "list", "tuple" and "none" are Python's. A "record" has names for its parts: a named tuple, a
    dataclass, or another node; `name` is the name of its class, otherwise empty.
    """

    kind: str
    name: str
    names: tuple[str, ...]
    children: tuple[TreeDescription | None, ...]


def described_tree(tree: Any) -> TreeDescription | None:
    """Return the form of a tree, or None for an array."""
    inner = level(tree)
    if inner is None:
        return None
    is_record = hasattr(tree, "_fields") and isinstance(tree, tuple)
    kind = next((k for k, cls in KINDS.items() if isinstance(tree, cls) and not is_record), "record")
    name = type(tree).__name__ if kind == "record" else ""
    return TreeDescription(kind, name, tuple(inner.names), tuple(map(described_tree, inner.children)))


#: The kinds of nodes that are Python's.
KINDS: dict[str, type] = {"none": NoneType, "dict": Mapping, "list": list, "tuple": tuple}


def tree_like(given: TreeDescription | None, leaves: Iterator[Any]) -> Any:
    """Return a tree of this form with these leaves. Its records are named tuples."""
    if given is None:
        return next(leaves)
    children = [tree_like(child, leaves) for child in given.children]
    if given.kind == "none":
        return None
    if given.kind in ("list", "tuple"):
        return children if given.kind == "list" else tuple(children)
    if given.kind == "record" and (record := record_class(given.name, given.names)) is not None:
        return record(*children)
    return dict(zip(given.names, children, strict=True))


@cache
def record_class(name: str, names: tuple[str, ...]) -> type | None:
    """Return a class of named tuples, or None if Python has no fields of these names."""
    fits = all(n.isidentifier() and not keyword.iskeyword(n) for n in (name, *names))
    if not fits or any(n.startswith("_") for n in names):
        return None
    return namedtuple(name, names)


def count_leaves(given: TreeDescription | None) -> int:
    """Return the number of arrays in a tree, or raise a `Misfit`."""
    if given is None:
        return 1
    if given.kind not in (*KINDS, "record") or (given.kind == "none" and given.names):
        raise Misfit(f"a tree is a {given.kind!r:.80}")
    if len(given.names) != len(given.children) or len(set(given.names)) != len(given.names):
        raise Misfit("a tree has not one name for each child")
    return sum(map(count_leaves, given.children))
