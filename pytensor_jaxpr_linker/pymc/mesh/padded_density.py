"""A log density whose arrays are padded to lengths that devices can divide. It is exact: no added element counts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
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
from pytensor_jaxpr_linker.frontend.pregrad import value_and_gradient
from pytensor_jaxpr_linker.frontend.targets import Target
from pytensor_jaxpr_linker.plan.padding import Group, NotExact, Padding, Place, pad_axis, padding_for
from pytensor_jaxpr_linker.pymc.functions.graph import ModelFunction
from pytensor_jaxpr_linker.pymc.mesh.axes import Dims
from pytensor_jaxpr_linker.run import placement
from pytensor_jaxpr_linker.run.program import Program, make_plan, pure_function, rules_in_force


class PaddedFunction(ModelFunction):
    """The log density as a function of padded data. Raises `NotExact` if padding would change the result.

    With ``gradient="pytensor"`` one padded program computes the log density and PyTensor's gradient of it. A second
    derivative is JAX's own of that program.

    `dims` has the dims of each array of the shared data. Each padded dim has its length among `lengths`, and is padded
    to the one in `longest`. If nothing must know the lengths before padding, they may change, and are among the data:
    the shared variables `counts`. Else they are constants of the program.
    """

    def __init__(
        self,
        model: pm.Model,
        density: Variable,
        gradient: Literal["pytensor", "jax"],
        dims: Mapping[str, Dims],
        lengths: Mapping[str, int],
        longest: Mapping[str, int],
        mode: Mode,
    ):
        by_pytensor = gradient == "pytensor"
        density, gradients = value_and_gradient(density, model.value_vars) if by_pytensor else (density, [])
        super().__init__(model, [density, *gradients], gradient, mode)
        self._dims, self._lengths_of, self._longest = dims, dict(lengths), dict(longest)
        padding = self._padding()
        self._least = dict(zip(longest, padding.least, strict=True))
        self._region = padding.region
        program = Program(padding.region, self._call.program.name, checked=False).as_pure(
            differentiable=not by_pytensor
        )
        self._call: Any = PaddedCall(program, len(self.value_vars), len(self.data), len(self._lengths), by_pytensor)
        variable = [dim for dim, group in zip(longest, padding.groups, strict=True) if group.only is None]
        if taken := [dim for dim in variable if count_name(dim) in self.data]:
            raise ValueError(
                f"The model has data called {count_name(taken[0])!r}, as the length of the dim {taken[0]!r} is: give"
                " one of them another name."
            )
        self.counts = {count_name(dim): pytensor.shared(np.int64(0), name=count_name(dim)) for dim in variable}
        self.data |= self.counts

    def _padding(self) -> Padding:
        """Return how the program is padded: for any lengths, or, where a node must know them, for the current ones."""
        region, find_rule = self._call.program.region, rules_in_force()
        with suppress(NotExact):
            found = padding_for(region, self._groups(), find_rule, make_plan)
            if all(n <= self._lengths_of[dim] for dim, n in zip(self._longest, found.least, strict=True)):
                return found
        return padding_for(region, self._groups(self._lengths_of), find_rule, make_plan)

    def _groups(self, only: Mapping[str, int] = MappingProxyType({})) -> list[Group]:
        """Return for each padded dim the axes of the data that run along it, and the inputs that are its length."""
        known, first = self.model.dim_lengths, len(self.value_vars)
        lengths = {v: first + len(self.data) + i for i, v in enumerate(self._lengths)}
        return [
            Group(
                [Place(first + i, axis) for i, name in enumerate(self.data) for axis in self._axes(name, dim)],
                longest,
                tuple(i for v, i in lengths.items() if v is known.get(dim)),
                only.get(dim),
            )
            for dim, longest in self._longest.items()
        ]

    def _axes(self, name: str, dim: str) -> list[int]:
        """Return the axes of an array of the data that run along a dim."""
        return [axis for axis, found in enumerate(self._dims.get(name, ())) if found == dim]

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

    def counts_of(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the counts, as data, of the padded dims of arrays before padding.

        An array with parts in other processes is padded already, so its length is unknown. A count that is among the
        data is taken as it is. Arrays that differ in length, or have another length than the program, are a ValueError.
        """
        given = {name: n for name, n in data.items() if name in self.counts}
        wanted = [dim for dim in self._longest if count_name(dim) not in given]
        found = lengths_along(wanted, self._dims, {name: x for name, x in data.items() if placement.is_here(x)})
        for dim, n in found.items():
            longest, least, only = self._longest[dim], self._least[dim], self._lengths_of[dim]
            if count_name(dim) not in self.counts:
                least = longest = only
            if not least <= n <= longest:
                fits = f"{only} and no other number" if least == longest else f"{least} to {longest}"
                raise ValueError(
                    f"The data have {n} elements along the dim {dim!r}, and the log density was made for {fits}: call"
                    " `pytensor_jaxpr_linker.pymc.shard` again."
                )
        counts = {count_name(dim): np.array(n, "int64") for dim, n in found.items()}
        return {name: n for name, n in counts.items() if name in self.counts} | given

    def current_data(self, gather: bool = True) -> dict[str, Any]:
        """Return the values that the shared data have now, before padding."""
        found = super().current_data(gather)
        for name, count in self.counts_of(data_without(found, self.counts)).items():
            if self.counts[name].get_value() != count:
                self.counts[name].set_value(count)
            found[name] = self.counts[name].get_value(borrow=True)
        return found

    def beside_current(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return data with the counts of all arrays: of these data, and of current data that they do not replace."""
        current = data_without(super().current_data(gather=False), self.counts)
        return {**data, **self.counts_of({**current, **data})}

    def pad(self, name: str, value: Any) -> Any:
        """Return an array of shared data, padded."""
        for dim, longest in self._longest.items():
            for axis in self._axes(name, dim):
                if value.shape[axis] == longest:
                    continue
                if not placement.is_here(value):
                    counted = f"; {count_name(dim)} says how many count" if count_name(dim) in self.counts else ""
                    raise ValueError(
                        f"{name!r} has {value.shape[axis]} elements along the dim {dim!r} and parts in other processes:"
                        f" make it {longest} long, its last elements copies of others{counted}."
                    )
                value = pad_axis(np.asarray(value), axis, longest)
        return value


def data_without(data: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return data without some names."""
    return {name: x for name, x in data.items() if name not in names}


def count_name(dim: str) -> str:
    """Return the name that the length of a dim before padding has among the data."""
    return f"{dim}_length"


def lengths_along(
    dims: Collection[str], dims_of: Mapping[str, Sequence[str | None]], arrays: Mapping[str, Any]
) -> dict[str, int]:
    """Return the length that arrays have along each of the `dims` that they have; a ValueError if two differ."""
    first: dict[str, tuple[str, int]] = {}
    for name, array in arrays.items():
        for axis, dim in enumerate(dims_of.get(name, ())):
            if dim is None or dim not in dims:
                continue
            length = np.shape(array)[axis]
            other, known = first.setdefault(dim, (name, length))
            if known != length:
                raise ValueError(
                    f"Along the dim {dim!r} {name!r} has {length} elements and {other!r} {known}: give all arrays with"
                    " this dim, and its coords, new values in one pm.set_data, and make pm.Data of NumPy arrays."
                )
    return {dim: length for dim, (_, length) in first.items()}


class PaddedCall(NamedTuple):
    """Calls a padded program with values, data, counts and lengths of dims, in place of a `JaxFunction`.

    The program takes values, data, lengths of dims, counts. `values`, `data` and `lengths` are how many of them there
    are; with `has_gradient` it returns the gradient, too.
    """

    program: Program
    values: int
    data: int
    lengths: int
    has_gradient: bool

    def __call__(self, *args: Any) -> list[Any]:
        """Return the log density in a list."""
        results = self._results
        density = with_gradient(results) if self.has_gradient else lambda values, rest: results(values, rest)[0]
        with jax.enable_x64(True):
            return [density(list(args[: self.values]), list(args[self.values :]))]

    def _results(self, values: list[Any], rest: list[Any]) -> list[Any]:
        last = len(rest) - self.lengths
        data, counts, lengths = rest[: self.data], rest[self.data : last], rest[last:]
        return pure_function(self.program)(*values, *data, *lengths, *counts)


def with_gradient(run: Callable[..., list[Any]]) -> Any:
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
