"""A log density whose data are padded to lengths that devices can divide: exact, since no element that was added counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import pymc as pm
import pytensor
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

from pytensor_jaxpr_linker.frontend.function import JaxprMode
from pytensor_jaxpr_linker.frontend.linker import JaxprLinker
from pytensor_jaxpr_linker.frontend.targets import Target
from pytensor_jaxpr_linker.plan.padding import Group, NotExact, Place, pad_axis, padding_for
from pytensor_jaxpr_linker.pymc.functions.graph import ModelFunction
from pytensor_jaxpr_linker.run import placement
from pytensor_jaxpr_linker.run.plans import make_plan, rules_in_force
from pytensor_jaxpr_linker.run.program import Program, pure_function


class PaddedFunction(ModelFunction):
    """The log density as a function of padded data.

    With ``gradient="pytensor"`` one padded program computes the log density and its gradient, so there is no second derivative.

    Attributes
    ----------
    counts
        For each padded dim the shared variable of its length before padding. It is one of the data.
    """

    def __init__(
        self,
        model: pm.Model,
        density: Variable,
        gradient: Literal["pytensor", "jax"],
        dims: Mapping[str, tuple[str | None, ...]],
        lengths: Mapping[str, int],
        mode: Mode,
    ):
        by_pytensor = gradient == "pytensor"
        wrt = list(model.value_vars) if by_pytensor else []
        gradients: Any = pytensor.grad(density, wrt, disconnected_inputs="ignore")
        outputs = [density, *gradients]
        super().__init__(model, outputs, gradient, mode)
        self._dims, self._lengths_to = dims, lengths
        data = list(self.data)
        places: dict[str, list[Place]] = {dim: [] for dim in lengths}
        for name, found in dims.items():
            for axis, dim in enumerate(found):
                if dim in lengths:
                    places[str(dim)].append(Place(len(self.value_vars) + data.index(name), axis))
        self.counts = {f"{dim}_length": pytensor.shared(np.int64(0), name=f"{dim}_length") for dim in lengths}
        self.data |= self.counts
        region = self._call.program.region
        groups = [Group(found, lengths[dim]) for dim, found in places.items()]
        try:
            padding = padding_for(region, groups, rules_in_force(), make_plan)
        except NotExact as error:
            raise ValueError(
                f"The mesh does not divide {spell_dims(places)}, and padding would change the result: {error}. Use as many devices as divide it, or"
                " leave out observations."
            ) from None
        program = Program(padding.region, self._call.program.name, checked=False).as_pure(
            differentiable=not by_pytensor
        )
        run = pure_function(program)
        #: The order of the padded program: values, data, lengths of dims, counts.
        first, last = len(self.value_vars) + len(data), len(self.counts)

        def ordered(values: list[Any], rest: list[Any]) -> list[Any]:
            data_and_counts, lengths_of_dims = rest[: first - len(values) + last], rest[first - len(values) + last :]
            given = [
                *values,
                *data_and_counts[: first - len(values)],
                *lengths_of_dims,
                *data_and_counts[first - len(values) :],
            ]
            return run(*given)

        density_of = with_gradient(ordered) if by_pytensor else lambda values, rest: ordered(values, rest)[0]
        self._region = padding.region
        self._call: Any = PaddedCall(density_of, len(self.value_vars), program)

    @property
    def source(self) -> Target:
        """The padded graph, which is not rewritten again, with example arguments in the order of `__call__`."""
        point, data = self.model.initial_point(), self.current_data(gather=False)
        inputs = self._region.inputs
        first, last = len(inputs) - len(self.counts) - len(self._lengths), len(inputs) - len(self.counts)
        ordered = [*inputs[:first], *inputs[last:], *inputs[first:last]]
        example = [*(point[str(v.name)] for v in self.value_vars), *data.values(), *self.current_lengths()]
        return Target(
            None,
            ordered,
            self._region.outputs,
            JaxprMode(JaxprLinker(), RewriteDatabaseQuery(include=[])),
            example=example,
        )

    def counts_of(self, lengths: Mapping[str, int]) -> dict[str, np.ndarray]:
        """Return the counts, as data, for the lengths of dims."""
        return {f"{dim}_length": np.array(n, "int64") for dim, n in lengths.items() if dim in self._lengths_to}

    def current_data(self, gather: bool = True) -> dict[str, Any]:
        """Return the values that the shared data have now, before padding."""
        found = super().current_data(gather)
        lengths = {str(d): np.shape(found[name])[i] for name, dims in self._dims.items() for i, d in enumerate(dims)}
        for name, count in self.counts_of(lengths).items():
            if self.counts[name].get_value() != count:
                self.counts[name].set_value(count)
            found[name] = self.counts[name].get_value(borrow=True)
        return found

    def pad(self, name: str, value: Any) -> Any:
        """Return an array of shared data, padded."""
        for axis, dim in enumerate(self._dims.get(name, ())):
            longest = self._lengths_to.get(str(dim))
            if longest is None or value.shape[axis] == longest:
                continue
            if value.shape[axis] > longest:
                raise ValueError(
                    f"{name!r} has {value.shape[axis]} elements along the dim {dim!r}, and the log density was made for at most {longest}: call"
                    " `pytensor_jaxpr_linker.pymc.shard` again."
                )
            if not placement.is_here(value):
                raise ValueError(
                    f"{name!r} has {value.shape[axis]} elements along the dim {dim!r} and parts in other processes: make it {longest} long, its last"
                    f" elements copies of others; {dim}_length says how many count."
                )
            value = pad_axis(np.asarray(value), axis, longest)
        return value


class PaddedCall(NamedTuple):
    """What is called with values, data, counts and lengths of dims, in the place of a `JaxFunction`.

    Attributes
    ----------
    density
        The log density, of a list of values and a list of the others.
    values
        How many values there are.
    program
        The padded program.
    """

    density: Callable[[list[Any], list[Any]], Any]
    values: int
    program: Program

    def __call__(self, *args: Any) -> list[Any]:
        """Return the log density in a list."""
        with jax.enable_x64(True):
            return [self.density(list(args[: self.values]), list(args[self.values :]))]


def with_gradient(run: Any) -> Any:
    """Return the first result of a function as one whose derivatives by its first argument are the other results."""

    @jax.custom_vjp
    def density(values: list[Any], rest: list[Any]) -> Any:
        return run(values, rest)[0]

    def forward(values: list[Any], rest: list[Any]) -> tuple[Any, list[Any]]:
        found, *gradients = run(values, rest)
        return found, gradients

    def backward(gradients: list[Any], cotangent: Any) -> tuple[list[Any], None]:
        return [cotangent * g for g in gradients], None

    density.defvjp(forward, backward)
    return density


def spell_dims(places: Mapping[str, Any]) -> str:
    """Return the names of dims, for messages."""
    return ", ".join(f"the dim {dim!r}" for dim in places)
