"""The graph of a log density for a mesh: constants along observations are data, and reductions over them are sums.

XLA adds up the sums of all devices in one all-reduce for each dtype. So the parts of sums of float32 numbers meet in
float32.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import count
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import zero_grad
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.tensor.math import All, Sum

from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.elemwise import emit_CAReduce
from pytensor_jaxpr_linker.emit.scalar import numpy_astype
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.pymc.mesh.axes import Dims, dims_of_axes


def density_for_mesh(model: pm.Model, divided: Collection[str]) -> tuple[Variable, dict[str, Dims]]:
    """Return a model's log density for a mesh, and the dims of its shared data by name.

    The arrays with one of the dims `divided` are shared variables. Where a parameter is invalid the log density is
    -inf, or NaN.
    """
    density = model.logp()
    dims = dims_of_arrays(model, density, divided)
    lifted = lifted_constants(model, density, dims, divided)
    names = {str(lifted.get(v, v).name): own for v, own in dims.items() if v in lifted or isinstance(v, SharedVariable)}
    # Nodes are made anew: the constants declare their lengths, which data do not.
    (density,) = clone_replace([density], lifted, rebuild_strict=False)
    density, conditions = without_conditions(density)
    if conditions and model.check_bounds:
        # A sum of its own: XLA merges the sums over observations of one program into one all-reduce, unless one needs
        # another's result, but no other reduction with them. PyMC's checks are over as many numbers as there are
        # observations, and decide on each term.
        dtype = density.type.dtype
        failed = pt.gt(pt.add(pt.zeros((), dtype), *(failures(c, dtype) for c in conditions)), 0)
        density += zero_grad(pt.switch(failed, np.array(-np.inf, dtype), np.array(0, dtype)))
    return density, names


def dims_of_arrays(model: pm.Model, density: Variable, divided: Collection[str]) -> dict[Variable, Dims]:
    """Return the dims of the arrays that a log density reads, shared variables and constants.

    An axis has the dim that the model says, else the dim of the axes with which it is lined up: in ``y - x @ slope``
    the rows of `x` have the dim of `y`.
    """
    named: dict[Variable, Dims] = {v: model.named_vars_to_dims.get(str(v.name), ()) for v in model.data_vars}
    for value, name in observed_values(model, density).items():
        named[value] = named.get(value) or model.named_vars_to_dims.get(name, ())
    dims_of = dims_of_axes([density], named, divided)
    read = [v for v in graph_inputs([density]) if is_tensor(v.type) and isinstance(v, SharedVariable | Constant)]
    return {v: named.get(v) or dims_of(v) for v in read}


def observed_values(model: pm.Model, density: Variable) -> dict[Variable, str]:
    """Return the names of the variables with observations, by their values in a log density.

    PyMC makes one of equal constants there, so several variables may have one value.
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
    """Return a shared variable for each constant with one of the dims `divided`.

    Observed values have the name of their variable.
    """
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
    """Return the number of places where a condition of the form ``all([all(x), all(y), ...])`` does not hold.

    It has the dtype of the sums with which XLA may add it up.
    """
    parts = [v for v in ancestors([condition]) if v.owner is not None and isinstance(v.owner.op, All)]
    innermost = [v for v in parts if not any(u in parts for u in ancestors(v.owner.inputs))]
    counted = [pt.eq(v.owner.inputs[0], 0) for v in innermost] or [pt.eq(condition, 0)]
    return pt.add(pt.zeros((), dtype), *(pt.sum(x.astype(dtype)) for x in counted))


class SumOfParts(Sum):
    """A sum in two steps: of equal parts in the accumulator's dtype, and of these sums in the dtype of the result."""

    __props__ = (*Sum.__props__, "parts")  # type: ignore[assignment]

    def __init__(self, parts: int, **options: Any):
        super().__init__(**options)
        self.parts = parts


@emits(SumOfParts)
def emit_SumOfParts(op: Any, node: Any, b: Any, x: Any) -> Any:
    """Sum the parts of the longest axis, then the sums, if the length can be divided."""
    shape, dtype = x.aval.shape, node.outputs[0].type.dtype
    axes = range(len(shape)) if op.axis is None else op.axis
    longest = max(axes, key=shape.__getitem__, default=None)
    if longest is None or shape[longest] % op.parts or not shape[longest]:
        return emit_CAReduce(op, node, b, x)
    x = numpy_astype(b, x, op.acc_dtype)
    x = prims.reshape(b, x, (*shape[:longest], op.parts, shape[longest] // op.parts, *shape[longest + 1 :]))
    sums = prims.reduce_sum(b, x, [i + (i >= longest) for i in axes])
    return prims.reduce_sum(b, numpy_astype(b, sums, dtype), [longest - sum(i < longest for i in axes)])


def with_sums_of_parts(mode: Mode, parts: int) -> Mode:
    """Return a mode whose last rewrite divides the sums that accumulate float32 numbers in float64.

    A sum of all numbers in float32 would lose digits: a million terms have an error of up to 1e-4. The rounding of a
    few partial sums is the rounding of the result.
    """

    @node_rewriter([Sum])
    def divide(_fgraph: Any, node: Any) -> list[Any] | None:
        op = node.op
        if type(op) is not Sum or (op.acc_dtype, node.outputs[0].type.dtype) != ("float64", "float32"):
            return None
        return [SumOfParts(parts, axis=op.axis, dtype="float32", acc_dtype="float64")(node.inputs[0])]

    return mode.register((dfs_rewriter(divide), AFTER_ALL_OTHERS))


#: The position of the rewrite; PyTensor's are below 200.
AFTER_ALL_OTHERS = 1000.0
