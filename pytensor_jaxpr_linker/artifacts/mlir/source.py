"""What MLIR is made of: functions as Jaxprs, and the globals that they read and write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from jaxpr_artifact.module_header import FunctionDescription, NamedTree, StateDescription
from jaxpr_artifact.programs import argument_like
from jaxpr_artifact.tree_description import TreeDescription, described_tree


class GlobalSource(NamedTuple):
    """A global with its first value."""

    name: str
    value: np.ndarray
    is_key: bool = False
    is_mutable: bool = False


class FunctionSource(NamedTuple):
    """A function: its Jaxpr takes the arguments and what it reads, and returns the results, what it writes and the check code."""

    description: FunctionDescription
    jaxpr: Any
    """A closed Jaxpr, or None for a getter or setter."""
    places: Mapping[str, str] = MappingProxyType({})
    """The line of the user's program that made a node, by the name that its operations have."""

    @property
    def name(self) -> str:
        """Its symbol."""
        return self.description.name


class ModuleSource(NamedTuple):
    """A module, to be lowered."""

    name: str
    functions: Sequence[FunctionSource]
    globals: Mapping[str, GlobalSource]
    state: Sequence[StateDescription] = ()


def getter(name: str, read: Sequence[GlobalSource], tree: TreeDescription | None) -> FunctionSource:
    """Return a function that returns globals in this tree."""
    found = tuple(argument_like(g.name, g.value, g.is_key) for g in read)
    return FunctionSource(FunctionDescription(name, "getter", (), found, (), tree, tuple(g.name for g in read)), None)


def setter(name: str, written: Sequence[GlobalSource], given: NamedTree) -> FunctionSource:
    """Return a function that sets globals to the arrays of a tree, and returns nothing."""
    found, names = tuple(argument_like(g.name, g.value, g.is_key) for g in written), tuple(g.name for g in written)
    description = FunctionDescription(name, "setter", found, (), (given,), described_tree(None), writes=names)
    return FunctionSource(description, None)
