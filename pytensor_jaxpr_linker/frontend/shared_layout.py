"""Which shared matrices lie on the device in column-major order, and what happens if another function needs them in rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph

from pytensor_jaxpr_linker.base import marks
from pytensor_jaxpr_linker.base.passes import Pass
from pytensor_jaxpr_linker.graph.column_major import gains, lay_inputs
from pytensor_jaxpr_linker.jaxpr.conditions import CPU
from pytensor_jaxpr_linker.run.transfer import buffer_of


class InRows(Exception):
    """A function wants a shared matrix in column-major order, and another function has put it on the device in rows, or an update has."""


def shared_pass(fgraph: FunctionGraph) -> Pass:
    """Return the pass that lets a graph take the transposes of shared matrices that are faster in column-major order."""
    updated = set((getattr(fgraph, "update_mapping", None) or {}).values())
    candidates = [i for i, v in enumerate(fgraph.inputs) if i not in updated and may_lie_in_columns(v)]
    run = partial(lay_inputs, candidates=candidates)
    return Pass("column-major inputs", run, when=(lambda _: bool(candidates), CPU))


def may_lie_in_columns(variable: Variable) -> bool:
    """Tell whether an input is a shared matrix that nobody has put on a device in rows, nor marked."""
    if not isinstance(variable, SharedVariable):
        return False
    if marks.is_static(variable) or marks.is_dynamic(variable) or marks.dynamic_axes(variable):
        return False
    value = variable.container.storage[0]
    buffer = buffer_of(value)
    return gains(value) and (buffer is None or buffer.is_column_major)


def transposed(values: Sequence[Any], positions: Collection[int]) -> list:
    """Return the values of inputs, or their shapes and dtypes, with the transposes of those at some positions."""
    return [transposed_value(x) if i in positions else x for i, x in enumerate(values)] if positions else [*values]


def transposed_value(matrix: Any) -> Any:
    """Return the transpose of a matrix, or its shape and dtype."""
    if isinstance(matrix, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(matrix.shape[::-1], matrix.dtype)
    return np.asarray(matrix).T
