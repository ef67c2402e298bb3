"""The plan of a graph by the registered rules, and regions as XLA programs, one for each shapes and static values."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import AbstractFunctionGraph

from jaxpr_artifact.threads import with_x64
from pytensor_jaxpr_linker.base import marks, rules
from pytensor_jaxpr_linker.base.bounded import Bounded
from pytensor_jaxpr_linker.base.errors import CannotEmit, RuntimeTracerError, variable_name
from pytensor_jaxpr_linker.base.passes import Pass
from pytensor_jaxpr_linker.emit import traced_leaf
from pytensor_jaxpr_linker.emit.random.sampler import KEY_DTYPE, KEY_SHAPE
from pytensor_jaxpr_linker.graph.data_layout import is_by_group, lay_constants, reads_gaining_constant, sort_rows
from pytensor_jaxpr_linker.graph.facts import key_counts
from pytensor_jaxpr_linker.graph.prepare import prepare
from pytensor_jaxpr_linker.graph.static_values import StaticValues
from pytensor_jaxpr_linker.graph.walk import Graph
from pytensor_jaxpr_linker.jaxpr.builder import Check
from pytensor_jaxpr_linker.jaxpr.passes import CPU
from pytensor_jaxpr_linker.plan.model import Plan, Region, find_large_constants
from pytensor_jaxpr_linker.plan.padding import Padding, find_padding
from pytensor_jaxpr_linker.plan.partition import Rules, partition
from pytensor_jaxpr_linker.run.placement import copied_to_mesh, place
from pytensor_jaxpr_linker.run.recompiles import NotAdmitted, Policy, Recompiles
from pytensor_jaxpr_linker.run.specialization import Specialization

#: The last passes, over a whole graph with its inner graphs: they take constants of the user in another order. The
#: threads of a GPU do not wait for each other as they add to a group, and its libraries take matrices in any order.
FOR_CPUS = (
    Pass("sorted rows", sort_rows, is_by_group, when=(CPU,)),
    Pass("column-major constants", lay_constants, reads_gaining_constant, when=(CPU,)),
)


def rules_in_force(traced_leaves: bool = True) -> Rules:
    """Return the registered rules and, if `traced_leaves`, rules that trace the JAX functions of other Ops."""

    def find(node: Apply) -> rules.Rule | None:
        return rules.find_rule(node.op) or (traced_leaf.leaf_rule(node) if traced_leaves else None)

    return Rules(find)


def make_graph(fgraph: AbstractFunctionGraph, find_rule: Rules | None = None, more: Sequence[Pass] = ()) -> Graph:
    """Return the graph for `make_plan`, by default for the rules in force. The passes `more` are the last."""
    return prepare(fgraph, find_rule or rules_in_force(), (*FOR_CPUS, *more))


def make_plan(
    graph: Graph, find_rule: Rules | None = None, fallbacks: Mapping[Apply, CannotEmit] = MappingProxyType({})
) -> Plan:
    """Return the plan of a graph, see `partition`, by default for the rules in force."""
    plan = partition(graph, find_rule or rules_in_force(), fallbacks)
    if not any(map(marks.is_static, graph.inputs)):
        return plan
    batches = []
    for batch in plan.batches:
        if isinstance(batch, Region):
            marked = [v for v in batch.inputs if marks.is_static(v)]
            static = [v for v in batch.inputs if v in batch.static_inputs or v in marked]
            batch = batch._replace(static_inputs=static, demanded=list(dict.fromkeys([*batch.demanded, *marked])))
        batches.append(batch)
    return plan._replace(batches=batches)


#: How many specializations a program without a policy keeps, and the keys of how many calls a program remembers.
CAPACITY, MOST_KEYS = 64, 1024

#: A call of a program: its results, the specialization that was called, and the arguments; None if its nodes have to
#: run on the host. A named tuple would take a microsecond.
type Outcome = tuple[list[Any], Specialization, list[Any]] | None


class Program:
    """A region, ready to be called on arrays.

    Parameters
    ----------
    region
        Made by `partition`.
    name
        The name of the program in HLO and profiles.
    checked
        Whether run-time checks become one more output, without a policy, whose options say so.
    policy
        Decides before each compilation; None admits all. Its options say how many specializations on static values are
        kept, and how many on shapes for each of them.
    may_pad
        Whether it may be padded: not if it is already.
    """

    def __init__(
        self,
        region: Region,
        name: str = "pytensor_function",
        checked: bool = True,
        policy: Policy | None = None,
        may_pad: bool = True,
    ):
        self.name, self.checked, self._capacity = name, checked, CAPACITY
        self._differentiable = self._for_jax = False
        self.recompiles = None
        if policy is not None:
            self.checked, self._capacity = policy.options.checks != "skip", policy.options.specializations
            pad = partial(padding_of, region, policy.options.allow_traced_leaves) if may_pad else None
            self.recompiles = Recompiles(region, name, policy, pad)
        self._policy = policy
        #: The program for shapes beyond the limit of the policy, if the region is padded for them.
        self.padded: Padded | None = None
        self.inputs, self.outputs = region.inputs, region.outputs
        self.region = region._replace(constants=find_large_constants(constant_operands(region)))
        self.constants = self.region.constants.arrays
        #: Shared with pure copies: each constant is uploaded once to a device.
        self._on_device: dict[jax.Device | jax.sharding.NamedSharding | None, list[jax.Array]] = {}
        self.static_positions = tuple(i for i, v in enumerate(region.inputs) if v in region.static_inputs)
        counts = key_counts(region.inputs, region.draws)
        #: How many keys the program takes of the generator at a position: one, where nothing is said.
        self.key_counts = {i: counts[v] for i, v in enumerate(region.inputs) if v in counts}
        self._specializations: Bounded[tuple, Specialization] = Bounded(self._capacity)
        self._keys: Bounded[tuple, tuple] = Bounded(MOST_KEYS)
        self._lock = threading.Lock()
        self._only = None if self.static_positions else self.specialize(())

    @with_x64
    def run(self, args: list[Any], donated: Sequence[int] = ()) -> Outcome:
        """Call the program on the values of its inputs. The results may take the memory of the inputs at `donated`."""
        given = len(args)
        found = self._only or self.specialize(args)
        device = None
        if self._policy is not None:
            args, device = place(args, self._policy.options)
        if self.constants:
            args = [*args, *self.constants_beside(args, device)]
        padded = self.padded
        if padded is None or found.holds(args) or not padded.padding.fits(args):
            try:
                return (found.donating(args, donated, device) if donated else found.on(device))(*args), found, args
            except NotAdmitted as other:
                if other.padding is None:
                    return None
                padded = self._padded_by(other.padding)
        try:
            return padded.run(args[:given])
        except CannotEmit as error:  # found while the padded region was lowered: its node is none of the graph's
            assert self.recompiles is not None
            self.padded = None
            self.recompiles.refuse_padding(str(error))
            return self.run(args[:given], donated)

    def _padded_by(self, padding: Padding) -> Padded:
        """Return the padded program, made at the first call that needs it."""
        with self._lock:
            if self.padded is None:
                program = Program(padding.region, f"{self.name}_padded", policy=self._policy, may_pad=False)
                self.padded = Padded(padding, program)
            return self.padded

    def specialize(self, args: Sequence[Any]) -> Specialization:
        """Return the specialization for the values of the static inputs among `args`.

        Raises
        ------
        RuntimeTracerError
            If one of them is a tracer of an outer transformation.
        """
        if not self.static_positions:
            return self._specialization(())
        roots = [static_value(self.inputs[i], args[i]) for i in self.static_positions]
        call = (tuple([v.tobytes() for v in roots]), tuple([np.shape(x) for x in args]))
        key = self._keys.get(call)
        if key is None:
            key = self._keys[call] = self._demand(roots, args)
        return self._specialization(key)

    def _demand(self, roots: Sequence[np.ndarray], args: Sequence[Any]) -> tuple:
        """Return the key of a specialization, for the values of the static inputs and the shapes of all."""
        values = dict(zip((self.inputs[i] for i in self.static_positions), roots, strict=True))
        shapes = {v: np.shape(x) for v, x in zip(self.inputs, args, strict=False)}
        evaluate = StaticValues(values, shapes.__getitem__)
        demanded = [np.asarray(evaluate(v)) for v in self.region.demanded]
        # Symbolic dimensions are objects: their bytes are addresses.
        return tuple((v.shape, v.dtype.str, tuple(v.flat) if v.dtype.hasobject else v.tobytes()) for v in demanded)

    def _specialization(self, key: tuple) -> Specialization:
        """Return the specialization with this key, which holds the values that the region demands."""
        with self._lock:
            found = self._specializations.use(key)
            if found is None:
                values = [
                    (np.frombuffer(x, dtype) if isinstance(x, bytes) else np.array(x, dtype)).reshape(shape)
                    for shape, dtype, x in key
                ]
                static = dict(zip(self.region.demanded, values, strict=True)) if key else {}
                how = (self.checked, self.name, self._capacity, self.recompiles, self._differentiable, self._for_jax)
                found = Specialization(self.region, static, *how)
                if self.recompiles is not None and self.recompiles.closed:
                    return found  # its call fails: it must not take the place of one that is compiled
                self._specializations[key] = found
        return found

    @property
    def specializations(self) -> list[Specialization]:
        """The specializations that are kept, the one that was used last at the end."""
        with self._lock:
            return list(self._specializations.values())

    def checks_of(self, args: Sequence[Any]) -> list[Check]:
        """Return the run-time checks for arguments, or tracers, in the order in which the check code counts them."""
        return self.specialize(args).lower([*args, *self.constants]).checks

    def build_ahead(self) -> None:
        """Build the Jaxpr now if every shape is declared and no value is needed: errors and costs come early."""
        avals = [declared_aval(v, self.key_counts.get(i, 1)) for i, v in enumerate(self.inputs)]
        if not self.static_positions and all(a is not None for a in avals):
            self.specialize(()).lower([*avals, *self.constants])

    def device_constants(self, device: jax.Device | jax.sharding.NamedSharding | None = None) -> list[jax.Array]:
        """Return the large constants on a device, or JAX's default device, uploaded once, also inside a trace."""
        found = self._on_device.get(device)
        if found is None:
            with jax.ensure_compile_time_eval(), jax.enable_x64(True):
                found = self._on_device[device] = [jax.device_put(value, device) for value in self.constants]
        return found

    def constants_beside(self, args: Sequence[Any], device: jax.Device | None) -> list[jax.Array]:
        """Return the large constants on a device, or, if arguments are sharded, on all of theirs."""
        return self.device_constants(copied_to_mesh(args) or device)

    def as_pure(self, checked: bool = False, differentiable: bool = False) -> Program:
        """Return the same program without a policy, for JAX to transform and, if `differentiable`, to differentiate."""
        program = copy(self)
        program.checked, program._differentiable, program._for_jax = checked, differentiable, True
        program._specializations, program._lock = Bounded(self._capacity), threading.Lock()
        program.recompiles = program.padded = None
        program._only = None if program.static_positions else program.specialize(())
        return program


def padding_of(region: Region, traced_leaves: bool, shapes: Sequence[Mapping[Variable, tuple[int, ...]]]) -> Padding:
    """Return how a region is padded, see `find_padding`."""
    rules = rules_in_force(traced_leaves)
    return find_padding(region, shapes, rules, partial(make_plan, find_rule=rules))


class Padded(NamedTuple):
    """How a region is padded, and the program of the padded region."""

    padding: Padding
    program: Program

    def run(self, args: list[Any]) -> Outcome:
        """Call the program on the arguments of the region, and cut the results to their length."""
        if (found := self.program.run(self.padding.pad(args))) is None:
            return None
        results, specialization, padded = found
        return self.padding.cut(results, padded[: len(self.program.inputs)]), specialization, padded


def constant_operands(region: Region) -> Iterator[tuple[Constant, Apply]]:
    """Yield the constants that the equations of a region read, each with a node that reads it."""
    for step in region.steps:
        for i, v in enumerate(step.node.inputs):
            if isinstance(v, Constant) and i not in step.static:
                yield v, step.node


def declared_aval(variable: Variable, key_count: int = 1) -> Any:
    """Return the aval of a variable, or of a generator's keys; None for a type that does not declare its shape."""
    shape = getattr(variable.type, "shape", None)
    if shape is None:
        return jax.ShapeDtypeStruct(KEY_SHAPE if key_count == 1 else (key_count, *KEY_SHAPE), KEY_DTYPE)
    return None if None in shape else jax.ShapeDtypeStruct(shape, np.dtype(variable.type.dtype))


def static_value(variable: Variable, value: Any) -> np.ndarray:
    """Return the value of a static input in its declared dtype."""
    if isinstance(value, jax.core.Tracer):
        raise RuntimeTracerError(
            f"The input {variable_name(variable)} determines a shape, so its value must be known before the program is"
            " compiled, but it is a tracer of an outer JAX transformation (jit, grad, vmap or scan). Close over its"
            " value, or mark it static in the outer transformation (`static_argnums`)."
        )
    return np.asarray(value, variable.type.dtype)


def pure_function(program: Program) -> Callable[..., list]:
    """Return a pure JAX function from the inputs of a program to the list of its outputs, and the check code if any."""

    def jitted_for(specialization: Specialization) -> Callable[..., list]:
        return lambda *args: specialization.call(*args, *program.device_constants())

    if not program.static_positions:
        only = program.specialize(())
        return jitted_for(only) if program.constants else only.call
    return lambda *args: jitted_for(program.specialize(args))(*args)
