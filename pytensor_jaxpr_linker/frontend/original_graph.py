"""Keeps graphs as they were before PyTensor's rewrites: they determine the derivatives of their functions.

Rewrites drop what changes no value: `zero_grad` and `grad_clip` are gone when a linker sees a graph. They change the nodes of
the graph in place, so it is copied before the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

from pytensor.graph.basic import Variable, clone
from pytensor.graph.features import Feature
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter

from pytensor_jaxpr_linker.base.interpreter import gc_paused
from pytensor_jaxpr_linker.graph.rewritten.flat import Flat, Rewritten, Tables, rebuilt

#: The name of the rewrite that keeps a copy, and of the attribute of a variable's tag that holds the copy.
KEEP = "jaxpr_keep_original"


class Original(NamedTuple):
    """Inputs and outputs of a graph before rewrites."""

    inputs: list[Variable]
    outputs: list[Variable]


class LazyOriginal:
    """The same as `Original`, built from the tables of the graph when it is first asked for.

    Most functions are never asked, and a copy takes 10 ms.
    """

    def __init__(self, inputs: Sequence[Variable], flat: Flat, tables: Tables):
        self._from = inputs, flat, tables

    @cached_property
    def built(self) -> Original:
        """The graph."""
        inputs, flat, tables = self._from
        copies: list[Any] = [v.clone() for v in inputs]
        return Original(copies, rebuilt(Rewritten(flat, [], [], []), copies, tables))

    @property
    def inputs(self) -> list[Variable]:
        """Copies of the inputs."""
        return self.built.inputs

    @property
    def outputs(self) -> list[Variable]:
        """Copies of the outputs."""
        return self.built.outputs

    def __reduce__(self) -> tuple:
        return Original, tuple(self.built)


@gc_paused()
def copy_of(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Original:
    """Return a copy of the graph between inputs and outputs."""
    return Original(*clone(list(inputs), list(outputs), copy_orphans=False))


class KeptOriginal(Feature):
    """Holds the original of a graph."""

    def __init__(self, original: Original | LazyOriginal):
        self.original = original


class KeepOriginal(GraphRewriter):
    """A rewrite that changes nothing: it keeps a copy of the graph."""

    def add_requirements(self, fgraph: FunctionGraph) -> None:
        """Copy the graph, the first time."""
        if kept_by_feature(fgraph) is None:
            fgraph.attach_feature(KeptOriginal(copy_of(fgraph.inputs, fgraph.outputs)))

    def apply(self, fgraph: FunctionGraph, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""


def kept_by_feature(fgraph: FunctionGraph) -> Original | LazyOriginal | None:
    """Return the original that the rewrite kept."""
    return next((f.original for f in fgraph._features if isinstance(f, KeptOriginal)), None)


def remember_original(fgraph: FunctionGraph) -> None:
    """Note the original in the tags of the graph's outputs: `Function.copy` clones the graph with its tags."""
    original = kept_by_feature(fgraph)
    if original is not None:
        for v in fgraph.outputs:
            if v.owner is not None:
                setattr(v.tag, KEEP, original)


def original_of(fgraph: FunctionGraph) -> Original | None:
    """Return inputs and outputs before the rewrites of a function's graph, or None if nothing kept them.

    `Function.copy` may leave out updates, which are the last outputs.
    """
    for v in fgraph.outputs:
        found = getattr(v.tag, KEEP, None)
        if found is not None:
            return Original(found.inputs, found.outputs[: len(fgraph.outputs)])
    return None
