"""The graph of a log density for a mesh: observed arrays are data, and what is reduced over observations is a sum."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import zero_grad
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.graph.traversal import ancestors
from pytensor.tensor.math import All


def density_for_mesh(model: pm.Model, dims: Collection[str]) -> Variable:
    """Return a model's log density in which observed constants with one of the `dims` are shared variables, named after their variable.

    Where a parameter is invalid it is -inf, or NaN.
    """
    observed: dict[Any, Any] = {}
    for rv in model.observed_RVs:
        value = model.rvs_to_values[rv]
        if isinstance(value, Constant) and {*dims} & {*model.named_vars_to_dims.get(rv.name, ())}:
            observed[value] = pytensor.shared(value.data, name=rv.name)
    # Nodes are made anew: the constants declare their lengths, which data do not.
    (density,) = clone_replace([model.logp()], observed, rebuild_strict=False)
    density, conditions = without_conditions(density)
    if not (conditions and model.check_bounds):
        return density
    # A sum of its own: XLA merges the sums over observations of one program into one all-reduce, unless one needs another's result, but no
    # other reduction with them. PyMC's checks are over as many numbers as there are observations, and decide on each term.
    dtype = density.type.dtype
    failed = pt.gt(pt.add(pt.zeros((), dtype), *(failures(c, dtype) for c in conditions)), 0)
    return density + zero_grad(pt.switch(failed, np.array(-np.inf, dtype), np.array(0, dtype)))


def without_conditions(density: Variable) -> tuple[Variable, list[Variable]]:
    """Return a log density without PyMC's checks of parameters that make it ``-inf``, and their conditions."""
    conditions: list[Variable] = []

    @node_rewriter([CheckParameterValue])
    def collect(_fgraph: Any, node: Any) -> list[Variable] | None:
        if not node.op.can_be_replaced_by_ninf:
            return None
        conditions.extend(node.inputs[1:])
        return [node.inputs[0]]

    fgraph = FunctionGraph(outputs=[density], clone=True, copy_inputs=False)
    dfs_rewriter(collect).rewrite(fgraph)
    return fgraph.outputs[0], conditions


def failures(condition: Variable, dtype: str) -> Variable:
    """Return, in the dtype of what it is added up with, in how many places a condition of the form ``all([all(x), all(y), ...])`` does not hold."""
    parts = [v for v in ancestors([condition]) if v.owner is not None and isinstance(v.owner.op, All)]
    innermost = [v for v in parts if not any(u in parts for u in ancestors(v.owner.inputs))]
    counted = [pt.eq(v.owner.inputs[0], 0) for v in innermost] or [pt.eq(condition, 0)]
    return pt.add(pt.zeros((), dtype), *(pt.sum(x.astype(dtype)) for x in counted))


def dims_of_data(model: pm.Model, data: Mapping[str, Any]) -> dict[str, tuple[str | None, ...]]:
    """Return the dims of shared data: their own, else those of the observed variable whose values they are."""
    found = {name: tuple(model.named_vars_to_dims.get(name, ())) for name in data}
    for rv in model.observed_RVs:
        dims = tuple(model.named_vars_to_dims.get(rv.name, ()))
        for v in ancestors([model.rvs_to_values[rv]]):
            name = str(v.name)
            is_value = isinstance(v, SharedVariable) and name in data and v.type.ndim == len(dims)
            if is_value and not found[name]:
                found[name] = dims
    return found
