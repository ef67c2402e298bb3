"""Models that were sampled lately, with their programs, so that the next call compiles nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal

import numpy as np
import pymc as pm
from pymc.distributions.distribution import _support_point
from pymc.logprob.abstract import _icdf, _logccdf, _logcdf, _logprob
from pytensor.graph.traversal import toposort

from pytensor_jaxpr_linker.graph.rewritten.describe import NotDescribed
from pytensor_jaxpr_linker.graph.rewritten.flat import Tables, flatten, text_of
from pytensor_jaxpr_linker.graph.rewritten.live import LiveDescriptions
from pytensor_jaxpr_linker.pymc.arguments import Names, as_names
from pytensor_jaxpr_linker.pymc.functions import initial
from pytensor_jaxpr_linker.pymc.functions.constrained import Constrain
from pytensor_jaxpr_linker.pymc.functions.density import LogDensity
from pytensor_jaxpr_linker.pymc.functions.graph import ModelFunction, model_mode, shared_inputs
from pytensor_jaxpr_linker.pymc.kept_programs import FolderPrograms, KeptPrograms, settings_of, surroundings
from pytensor_jaxpr_linker.run.placement import process

type Gradient = Literal["pytensor", "jax"]

#: The number of models that are kept, with their data.
MOST_MODELS = 4
#: PyMC's functions that are looked up by class of Op while it builds densities and starting points.
BY_OP = (_logprob, _logcdf, _logccdf, _icdf, _support_point)


class ModelState:
    """The state of a model: two are equal unless something other than values of shared variables has changed.

    Changes in place count: of an array, of an attribute of an Op or a transform, of a value that a user's function
    reads.
    """

    def __init__(self, model: pm.Model):
        tables = (model.rvs_to_values, model.rvs_to_transforms, model.rvs_to_initial_values, model.dim_lengths)
        variables = [*model.basic_RVs, *model.potentials, *model.deterministics]
        ops = {type(node.op) for node in toposort([*variables, *model.rvs_to_values.values()])}
        functions = [by_op.dispatch(op) for op in sorted(ops, key=lambda op: op.__qualname__) for by_op in BY_OP]
        self._live = LiveDescriptions()  # holds the objects that the digest knows by identity
        self._digest = self._live.digest([variables, [list(table.items()) for table in tables], functions])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelState) and self._digest == other._digest

    __hash__ = None  # type: ignore[assignment]


class KeptModel:
    """A model in its current state, with its functions and compiled programs.

    Models of equal structure share `programs`: a notebook's cell that is run again makes a new model.
    """

    def __init__(self, model: pm.Model, gradient: Gradient):
        self.model, self.gradient, self.programs = model, gradient, KeptPrograms()
        self._state, self._surroundings = ModelState(model), surroundings(model)
        self._constrain: dict[tuple[str, ...] | None, Constrain] = {}
        self._point_functions: dict[bool, list] = {}
        self._making, self._in_turn = threading.Lock(), threading.Lock()

    def is_of(self, model: pm.Model, gradient: Gradient) -> bool:
        """Return whether this is of a model in its current state, perhaps with other values of shared data."""
        is_same = model is self.model and gradient == self.gradient
        return is_same and surroundings(model) == self._surroundings and ModelState(model) == self._state

    @cached_property
    def graph(self) -> Any:
        """The graph of the log density."""
        return self.model.logp()

    @cached_property
    def nodes(self) -> int:
        """The number of nodes of the graph."""
        return sum(1 for _ in toposort([self.graph]))

    @cached_property
    def _shared(self) -> tuple[dict[str, Any], list[Any]]:
        return shared_inputs(self.model, [self.graph])

    @property
    def data(self) -> dict[str, np.ndarray]:
        """The shared data that the log density depends on, with their current values."""
        return {name: v.get_value(borrow=True) for name, v in self._shared[0].items()}

    @property
    def lengths(self) -> tuple[int, ...]:
        """The current lengths of dims that the log density depends on."""
        return tuple(int(v.get_value()) for v in self._shared[1])

    @cached_property
    def logp(self) -> LogDensity:
        """The log density as a JAX function."""
        return LogDensity(self.model, self.gradient, graph=self.graph)

    @cached_property
    def structure(self) -> str | None:
        """A text that models of equal structure share; None if a part of the model has no text."""
        outputs = [self.graph, *self.model.unobserved_value_vars]
        data, lengths = shared_inputs(self.model, outputs)
        tables = Tables()
        try:
            inputs = [*self.model.value_vars, *data.values(), *lengths]
            text = text_of(flatten(inputs, outputs, tables), inputs, tables)
        except NotDescribed:
            return None
        names = [v.name for v in outputs]
        return sha256(repr([self.gradient, settings_of(self.model), names, text]).encode()).hexdigest()

    def share(self, others: Sequence[KeptModel]) -> None:
        """Take over the programs of a model of equal structure."""
        structure = self.structure  # now, for later models, too: sampling may be the end of this one
        equal = (o for o in others if structure and o.structure == structure and o._surroundings == self._surroundings)
        if twin := next(equal, None):
            self.programs = twin.programs
        else:
            self.programs.folder = FolderPrograms(structure, model_mode(self.model)._optimizer)

    def constrain(self, var_names: Names | None) -> Constrain:
        """Return the function from unconstrained draws to variables."""
        key = None if var_names is None else tuple(as_names(var_names))
        if key not in self._constrain:
            self._constrain[key] = Constrain(self.model, var_names, self.programs, self.gradient)
        return self._constrain[key]

    @cached_property
    def prior(self) -> Callable[[int, int], dict[str, np.ndarray]]:
        """The function from a seed and a number to draws of the prior."""
        return locked(initial.prior_function(self.model), self._in_turn)

    @cached_property
    def terms(self) -> tuple[ModelFunction, ModelFunction]:
        """The logarithms of the prior's density and of the likelihood."""
        model, gradient = self.model, self.gradient
        return ModelFunction(model, [model.varlogp], gradient), ModelFunction(model, [model.datalogp], gradient)

    def starts(self, chains: int, seeds: Sequence[Any], initvals: Any, jitter: bool) -> list[initial.Start]:
        """Return the starting points of chains."""
        initial.check_initvals(self.model, initvals)
        if initvals is not None:
            functions = initial.point_functions(self.model, chains, initvals, jitter)
        else:
            with self._making:
                if jitter not in self._point_functions:
                    (draw,) = initial.point_functions(self.model, 1, None, jitter)
                    self._point_functions[jitter] = [locked(draw, self._in_turn)]
            functions = self._point_functions[jitter] * chains
        starts = [initial.Start(self.model, draw, seed, jitter) for draw, seed in zip(functions, seeds, strict=True)]
        if initvals is not None:
            initial.check_shapes(self.model, [start.point for start in starts])
        return starts


def locked(function: Callable, lock: Any) -> Callable:
    """Return a function that one thread calls at a time: it seeds its generators, and then draws."""

    def call(*args: Any) -> Any:
        with lock:
            return function(*args)

    return call


class KeptModels:
    """The models that were sampled last."""

    def __init__(self) -> None:
        self._kept: list[KeptModel] = []
        self._in_turn = threading.RLock()

    def find(self, model: pm.Model, gradient: Gradient, programs: KeptPrograms | None = None) -> KeptModel:
        """Return a model with its programs, by its identity, else with the programs of a model of equal structure.

        `programs` are from the model that this one is a copy of.
        """
        process.check()
        with self._in_turn:  # also while it is made: two threads that sample one model compile it once
            found = next((k for k in self._kept if k.is_of(model, gradient)), None)
            if found is None:
                found = KeptModel(model, gradient)
                found.share(self._kept)
                found.programs = found.programs if programs is None else programs
            self.keep(found)
        return found

    def drop(self, failed: KeptModel) -> None:
        """Forget a model that could not be sampled: a missing rule may be registered before the next call."""
        with self._in_turn:
            self._kept = [k for k in self._kept if k is not failed]

    def keep(self, used: KeptModel) -> None:
        """Keep a model that is used now, and no older version of it."""
        with self._in_turn:
            others = [k for k in self._kept if k.model is not used.model or k.gradient != used.gradient]
            self._kept = [used, *others][:MOST_MODELS]


KEPT_MODELS = KeptModels()


@contextmanager
def forgotten_if_broken(kept: KeptModel) -> Iterator[None]:
    """Forget a model without a program: a missing rule or gradient may be registered before the next call."""
    try:
        yield
    except NotImplementedError:  # also a GraphBreakError
        KEPT_MODELS.drop(kept)
        raise
