"""`TreeDescription`: the form of a tree of arrays, as JSON has it."""

from __future__ import annotations

import keyword
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jaxpr_artifact.header import Misfit
from jaxpr_artifact.trees import level


@dataclass(frozen=True)
class TreeDescription:
    """A node of a tree. A child that is None is an array.

    Attributes
    ----------
    kind
        "dict", "list", "tuple" or "none" are Python's. A "record" has names for its parts: a named tuple, a dataclass, or another node.
    name
        What the class of a record is called, else nothing.
    names, children
        The names of the children, and the children.
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
    name = type(tree).__name__ if (kind := kind_of(tree)) == "record" else ""
    return TreeDescription(kind, name, tuple(inner.names), tuple(map(described_tree, inner.children)))


def kind_of(node: Any) -> str:
    """Return the kind of a node."""
    if node is None:
        return "none"
    if isinstance(node, Mapping):
        return "dict"
    if isinstance(node, list):
        return "list"
    return "tuple" if isinstance(node, tuple) and not hasattr(node, "_fields") else "record"


def tree_like(given: TreeDescription | None, leaves: Iterator[Any]) -> Any:
    """Return a tree of this form with these leaves. Its records are named tuples."""
    if given is None:
        return next(leaves)
    children = [tree_like(child, leaves) for child in given.children]
    if given.kind in MAKERS:
        return MAKERS[given.kind](given.names, children)
    record = record_class(given.name, given.names)
    return dict(zip(given.names, children, strict=True)) if record is None else record(*children)


#: What makes a node of names and children.
MAKERS: dict[str, Callable[[Sequence[str], list[Any]], Any]] = {
    "none": lambda names, children: None,
    "dict": lambda names, children: dict(zip(names, children, strict=True)),
    "list": lambda names, children: children,
    "tuple": lambda names, children: tuple(children),
}


@cache
def record_class(name: str, names: tuple[str, ...]) -> type | None:
    """Return a class of named tuples, or None if Python has no fields of these names."""
    fits = all(n.isidentifier() and not keyword.iskeyword(n) for n in (name, *names))
    if not fits or any(n.startswith("_") for n in names):
        return None
    return namedtuple(name, names)


def count_leaves(given: TreeDescription | None) -> int:
    """Return the number of arrays in a tree.

    Raises
    ------
    Misfit
        If it is none.
    """
    if given is None:
        return 1
    if given.kind not in (*MAKERS, "record") or (given.kind == "none" and given.names):
        raise Misfit(f"a tree is a {given.kind!r:.80}")
    if len(given.names) != len(given.children) or len(set(given.names)) != len(given.names):
        raise Misfit("a tree has not one name for each child")
    return sum(map(count_leaves, given.children))
