"""The inputs of what is exported of a model, and their shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.random.type import RandomType

from pytensor_jaxpr_linker.artifacts.shapes import Spec, unique_names


class Shapes:
    """The inputs of an exported function of a model: parameters and shared data, whose shapes follow from the model's dims.

    Parameters
    ----------
    model
        The model.
    outputs
        What is exported.
    parameters, values
        The inputs that are no data, and values of their present shapes.
    """

    def __init__(self, model: pm.Model, outputs: Sequence[Variable], parameters: Sequence[Any], values: Sequence[Any]):
        self._model = model
        self._lengths = {v: dim for dim, v in model.dim_lengths.items()}
        found = [
            v for v in graph_inputs(outputs) if isinstance(v, SharedVariable) and v not in self._lengths and v.name
        ]
        data = sorted({v for v in found if not isinstance(v.type, RandomType)}, key=lambda v: str(v.name))
        self.inputs: list[Any] = [*parameters, *data]
        self.examples: list[np.ndarray] = [np.asarray(x) for x in (*values, *[v.get_value(borrow=True) for v in data])]
        by_value = {v: rv for rv, v in model.rvs_to_values.items()}
        declared = [model.named_vars_to_dims.get(str(by_value.get(v, v).name), ()) for v in self.inputs]
        #: The dims of each input. A transform may change the shape of a parameter: then it has none.
        self._dims = [d if self._fits(d, x) else (None,) * x.ndim for d, x in zip(declared, self.examples, strict=True)]

    def _fits(self, dims: Sequence[str | None], value: np.ndarray) -> bool:
        """Return whether an array has the lengths of dims."""
        lengths = [None if d is None else int(self._model.dim_lengths[d].eval()) for d in dims]
        return len(dims) == value.ndim and all(n in (None, m) for n, m in zip(lengths, value.shape, strict=True))

    def dims(self, symbolic: Sequence[str], given: Mapping[str, Spec] | None) -> dict[str, Spec]:
        """Return the shapes of inputs with a symbolic dim, and those that a user gives."""
        symbols = dict(zip(symbolic, unique_names(symbolic, "dim"), strict=True))
        for dim in symbolic:
            if not any(dim in dims for dims in self._dims):
                known = sorted({d for dims in self._dims for d in dims if d})
                raise ValueError(
                    f"No shared data and no parameter of what is exported has the dim {dim!r}; their dims are {', '.join(known) or 'none'}."
                    " Declare the data as pm.Data(..., dims=...), not as arrays."
                )
        found = {
            str(v.name): [symbols.get(d or "", "_") for d in dims]
            for v, dims in zip(self.inputs, self._dims, strict=True)
            if any(d in symbols for d in dims)
        }
        return {**found, **(given or {})}

    def without_lengths(self, outputs: Sequence[Variable]) -> list[Variable]:
        """Return the outputs, where the length of a dim is that of an input which has it, or the number that it is now."""
        replaced: dict[Any, Any] = {}
        for length, dim in self._lengths.items():
            places = [(v, dims.index(dim)) for v, dims in zip(self.inputs, self._dims, strict=True) if dim in dims]
            if isinstance(length, SharedVariable):
                number = places[0][0].shape[places[0][1]] if places else pt.constant(length.get_value())
                replaced[length] = length.type.filter_variable(number.astype(length.type.dtype))
        return graph_replace(list(outputs), replaced, strict=False) if replaced else list(outputs)
