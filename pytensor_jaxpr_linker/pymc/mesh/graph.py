"""The graph of a log density for a mesh: constants along observations are data, and what is reduced over observations is a sum."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import count
from typing import Any, NamedTuple

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
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.tensor.math import All

from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.pymc.mesh.axes import Dims, dims_of_axes


class MeshDensity(NamedTuple):
    """A model's log density as a graph for a mesh.

    Attributes
    ----------
    graph
        The log density. Where a parameter is invalid it is -inf, or NaN.
    dims
        The dims of its shared data, by name.
    """

    graph: Variable
    dims: dict[str, Dims]


def density_for_mesh(model: pm.Model, divided: Collection[str]) -> MeshDensity:
    """Return a model's log density in which the arrays with one of the dims `divided` are shared variables."""
    density = model.logp()
    dims = dims_of_arrays(model, density, divided)
    lifted = lifted_constants(model, density, dims, divided)
    names = {str(lifted.get(v, v).name): own for v, own in dims.items() if v in lifted or isinstance(v, SharedVariable)}
    # Nodes are made anew: the constants declare their lengths, which data do not.
    (density,) = clone_replace([density], lifted, rebuild_strict=False)
    density, conditions = without_conditions(density)
    if conditions and model.check_bounds:
        # A sum of its own: XLA merges the sums over observations of one program into one all-reduce, unless one needs another's result, but no
        # other reduction with them. PyMC's checks are over as many numbers as there are observations, and decide on each term.
        dtype = density.type.dtype
        failed = pt.gt(pt.add(pt.zeros((), dtype), *(failures(c, dtype) for c in conditions)), 0)
        density += zero_grad(pt.switch(failed, np.array(-np.inf, dtype), np.array(0, dtype)))
    return MeshDensity(density, names)


def dims_of_arrays(model: pm.Model, density: Variable, divided: Collection[str]) -> dict[Variable, Dims]:
    """Return the dims of the arrays that a log density reads, shared variables and constants.

    An axis has the dim that the model says, else that of the axes that it is lined up with: in ``y - x @ slope`` the rows of `x` have the dim of `y`.
    """
    named: dict[Variable, Dims] = {v: model.named_vars_to_dims.get(str(v.name), ()) for v in model.data_vars}
    for value, name in observed_values(model, density).items():
        named[value] = named.get(value) or model.named_vars_to_dims.get(name, ())
    dims_of = dims_of_axes([density], named, divided)
    read = [v for v in graph_inputs([density]) if is_tensor(v.type) and isinstance(v, SharedVariable | Constant)]
    return {v: named.get(v) or dims_of(v) for v in read}


def observed_values(model: pm.Model, density: Variable) -> dict[Variable, str]:
    """Return the names of the variables with observations, by their values in a log density.

    PyMC makes one of equal constants there, so a value may be that of several.
    """
    constants = [v for v in graph_inputs([density]) if isinstance(v, Constant) and is_tensor(v.type)]
    by_value = {v.signature(): v for v in constants}
    found: dict[Variable, str] = {}
    for rv in model.observed_RVs:
        value = model.rvs_to_values[rv]
        if isinstance(value, Constant) and value not in constants:
            value = by_value.get(value.signature(), value)
        found.setdefault(value, str(rv.name))
    return found


def lifted_constants(
    model: pm.Model, density: Variable, dims: Mapping[Variable, Dims], divided: Collection[str]
) -> dict[Variable, Variable]:
    """Return a shared variable for each constant with one of the dims `divided`: observed values have the name of their variable."""
    names = observed_values(model, density)
    constants = [v for v, own in dims.items() if isinstance(v, Constant) and not {*divided}.isdisjoint(own)]
    unnamed = (name for i in count() if (name := f"constant_{i}") not in model.named_vars)
    return {v: pytensor.shared(v.data, name=names.get(v) or next(unnamed)) for v in constants}


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
