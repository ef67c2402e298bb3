"""A region as XLA programs: one for each tuple of input avals and static values."""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from time import perf_counter
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import AbstractFunctionGraph

from pytensor_jaxpr_linker import _compat, logs, marks, registry, timing
from pytensor_jaxpr_linker.constants import find_large_constants
from pytensor_jaxpr_linker.emit import traced_leaf
from pytensor_jaxpr_linker.emit.random import KEY_DTYPE, KEY_SHAPE
from pytensor_jaxpr_linker.errors import CannotEmit, RuntimeTracerError, variable_name
from pytensor_jaxpr_linker.inline import Graph, inline
from pytensor_jaxpr_linker.lower import Lowered, lower_region
from pytensor_jaxpr_linker.partition import partition
from pytensor_jaxpr_linker.plan import Plan, Region
from pytensor_jaxpr_linker.policy import Policy, Recompiles, describe, spell
from pytensor_jaxpr_linker.static import StaticValues

#: How many calls a program remembers the key of.
MOST_KEYS = 1024


def rule_for(node: Apply) -> registry.Rule | None:
    """Return the emission rule of a node, or that of a traced leaf if a third party registered its Op with JAX mode."""
    return registry.find_rule(node.op) or traced_leaf.leaf_rule(node)


def make_graph(fgraph: AbstractFunctionGraph, traced_leaves: bool = True) -> Graph:
    """Return a rewritten graph as `make_plan` takes it."""
    with traced_leaf.allow(traced_leaves):
        return inline(fgraph, rule_for)


def make_plan(
    graph: Graph, fallbacks: Mapping[Apply, CannotEmit] = MappingProxyType({}), traced_leaves: bool = True
) -> Plan:
    """Return the plan of a graph with the rules that are registered, see `partition`."""
    with traced_leaf.allow(traced_leaves):
        plan = partition(graph, rule_for, fallbacks)
    if not any(map(marks.is_static, graph.inputs)):
        return plan
    batches = [with_marked_inputs(batch) if isinstance(batch, Region) else batch for batch in plan.batches]
    return plan._replace(batches=batches)


def with_marked_inputs(region: Region) -> Region:
    """Return a region whose specializations depend on the values of the inputs that are marked static, too."""
    marked = [v for v in region.inputs if marks.is_static(v)]
    static = {*region.static_inputs, *marked}
    return region._replace(
        static_inputs=[v for v in region.inputs if v in static],
        demanded=list(dict.fromkeys([*region.demanded, *marked])),
    )


class Specialization:
    """A region for one tuple of static values, compiled once for each tuple of avals by `jax.jit`.

    Parameters
    ----------
    region, name, checked, capacity
        See `Program`.
    static
        The values of what the region demands.
    recompiles
        Is asked before each compilation, if it is not None.

    Attributes
    ----------
    call : Callable
        The jitted function of the region's inputs and large constants. Returns the outputs, then the check code if there
        are checks.
    region, static, checked, name
        What was lowered, and how.
    lowered
        The Jaxprs so far, by the shapes and dtypes of what the program takes.
    seconds
        For each of them how long its stages took: "lower", and "trace", "stablehlo" and "xla" once it was called.
    """

    def __init__(
        self,
        region: Region,
        static: dict[Variable, Any],
        checked: bool,
        name: str,
        capacity: int,
        recompiles: Recompiles | None = None,
    ):
        self.region, self.static, self.checked, self.name = region, static, checked, name
        self._capacity, self.recompiles = capacity, recompiles
        self._clear()

    def _clear(self) -> None:
        """Drop all programs: `jax.jit` keeps them as long as the function lives."""
        self.lowered: dict[tuple, Lowered] = {}
        self.seconds: dict[tuple, dict[str, float]] = {}
        self._admitted: set[tuple] = set()
        self._donating: dict[tuple, Any] = {}
        self.call = self._jitted()

    def donating(self, args: Sequence[Any], positions: Sequence[int]) -> Any:
        """Return what to call instead of `call` so that the results may take the memory of the arrays at `positions`."""
        key = aval_key(args)
        found = self._donating.get(key)
        if found is None:
            usable = usable_for(self._admit(args).jaxpr.out_avals, args, positions)
            found = self._donating[key] = self._jitted(usable) if usable else self.call
        return found

    def _jitted(self, donated: tuple[int, ...] = ()) -> Any:
        """Return a jitted function without programs."""

        def call(*args: Any) -> list:
            lowered = self._admit(args)
            timing.record_stages_of(self.name, self.seconds[aval_key(args)])
            return _compat.call_jaxpr(lowered.jaxpr, *args)

        call.__name__ = call.__qualname__ = self.name
        return jax.jit(call, donate_argnums=donated)

    def _admit(self, avals: Sequence[Any]) -> Lowered:
        """Return the Jaxpr that XLA is about to compile, if it may."""
        key, nodes = aval_key(avals), len(self.region.steps)
        recompiles = self.recompiles
        if recompiles is None or key in self._admitted:
            return self.lower(avals)
        recompiles.admit(self.static, avals)
        recompiles.progress.begin(f"lowering {self.name}", nodes)
        lowered = self.lower(avals)
        recompiles.record(self.static, avals)
        self._admitted.add(key)
        if logs.hlo.isEnabledFor(logging.DEBUG):
            structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
            text = jax.jit(lambda *args: _compat.call_jaxpr(lowered.jaxpr, *args)).lower(*structs).as_text()
            logs.hlo.debug("%s\n%s", self.name, text)
        recompiles.progress.begin(f"compiling {self.name} with XLA", nodes)
        return lowered

    def lower(self, avals: Sequence[Any]) -> Lowered:
        """Return the Jaxpr for these avals (or values)."""
        key = aval_key(avals)
        found = self.lowered.get(key)
        if found is None:
            started = perf_counter()
            found = lower_region(self.region, avals, self.static, self.checked, self.name)
            seconds = {"lower": perf_counter() - started}
            if len(self.lowered) >= self._capacity:
                self._clear()
            self.lowered[key], self.seconds[key] = found, seconds
            if logs.jaxpr.isEnabledFor(logging.DEBUG):
                logs.jaxpr.debug("%s\n%s", self.name, found.jaxpr)
            if logs.guards.isEnabledFor(logging.DEBUG):
                logs.guards.debug("%s is for %s", self.name, spell(describe(self.region, self.static, avals)))
        return found


def aval_key(avals: Sequence[Any]) -> tuple:
    """Return by what a specialization finds the Jaxpr for avals, or values."""
    return tuple((tuple(a.shape), np.dtype(a.dtype)) for a in avals)


def usable_for(results: Sequence[Any], args: Sequence[Any], positions: Sequence[int]) -> tuple[int, ...]:
    """Return those of the positions of `args` whose arrays have the shape and dtype of one of the results each."""
    free = Counter(aval_key(results))
    found = []
    for i in positions:
        (key,) = aval_key([args[i]])
        if free[key]:
            free[key] -= 1
            found.append(i)
    return tuple(found)


class Program:
    """A region, ready to be called on arrays.

    Parameters
    ----------
    region
        What `partition` made.
    name
        What the program is called in HLO and profiles.
    checked
        Whether run-time checks become one more output.
    capacity
        How many specializations on static values are kept, and how many on shapes for each of them.
    policy
        Is asked before each compilation, if it is not None.
    """

    def __init__(
        self,
        region: Region,
        name: str = "pytensor_function",
        checked: bool = True,
        capacity: int = 64,
        policy: Policy | None = None,
    ):
        self.name, self.checked, self._capacity = name, checked, capacity
        self.recompiles = None if policy is None else Recompiles(region, name, policy)
        self.inputs, self.outputs = region.inputs, region.outputs
        self.region = region._replace(constants=find_large_constants(constant_operands(region)))
        self.constants = self.region.constants.arrays
        self._on_device: list[jax.Array] = []  # shared with the unchecked copy: each constant is uploaded once
        self.static_positions = tuple(i for i, v in enumerate(region.inputs) if v in region.static_inputs)
        self._specializations: OrderedDict[tuple, Specialization] = OrderedDict()
        self._keys: dict[tuple, tuple] = {}
        self._lock = threading.Lock()

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
            key = self._demand(roots, args)
            if len(self._keys) >= MOST_KEYS:
                self._keys.clear()
            self._keys[call] = key
        return self._specialization(key)

    def _demand(self, roots: Sequence[np.ndarray], args: Sequence[Any]) -> tuple:
        """Return the key that belongs to the values of the static inputs and the shapes of all."""
        values = dict(zip((self.inputs[i] for i in self.static_positions), roots, strict=True))
        shapes = {v: np.shape(x) for v, x in zip(self.inputs, args, strict=False)}
        evaluate = StaticValues(values, shapes.__getitem__)
        demanded = [np.asarray(evaluate(v)) for v in self.region.demanded]
        return tuple((v.shape, v.dtype.str, v.tobytes()) for v in demanded)

    def _specialization(self, key: tuple) -> Specialization:
        """Return the specialization for the values of what the region demands."""
        with self._lock:
            found = self._specializations.get(key)
            if found is None:
                values = [np.frombuffer(data, dtype).reshape(shape) for shape, dtype, data in key]
                static = dict(zip(self.region.demanded, values, strict=True)) if key else {}
                found = Specialization(self.region, static, self.checked, self.name, self._capacity, self.recompiles)
                if self.recompiles is not None and self.recompiles.closed:
                    return found  # its call fails: it must not take the place of one that is compiled
                self._specializations[key] = found
                if len(self._specializations) > self._capacity:
                    self._specializations.popitem(last=False)
            else:
                self._specializations.move_to_end(key)
        return found

    @property
    def specializations(self) -> list[Specialization]:
        """The specializations that are kept, the one that was used last at the end."""
        with self._lock:
            return list(self._specializations.values())

    def build_ahead(self) -> None:
        """Build the Jaxpr now if every shape is declared and no value is needed: errors and costs come early."""
        avals = [declared_aval(v) for v in self.inputs]
        if not self.static_positions and all(a is not None for a in avals):
            self.specialize(()).lower([*avals, *self.constants])

    def device_constants(self) -> list[jax.Array]:
        """Return the large constants as arrays on the device, uploaded once, also inside an outer trace."""
        if len(self._on_device) < len(self.constants):
            with jax.ensure_compile_time_eval(), jax.enable_x64(True):
                self._on_device[:] = [jax.device_put(value) for value in self.constants]
        return self._on_device

    def unchecked(self) -> Program:
        """Return the same program as a pure function: without the output that run-time checks add, without a policy."""
        program = copy(self)
        program.checked, program._specializations, program._lock = False, OrderedDict(), threading.Lock()
        program.recompiles = None
        return program


def constant_operands(region: Region) -> Iterator[Constant]:
    """Yield the constants that the equations of a region read."""
    for step in region.steps:
        for i, v in enumerate(step.node.inputs):
            if isinstance(v, Constant) and i not in step.static:
                yield v


def declared_aval(variable: Variable) -> Any:
    """Return the aval of a variable whose type declares its whole shape, else None."""
    shape = getattr(variable.type, "shape", None)
    if shape is None:
        return jax.ShapeDtypeStruct(KEY_SHAPE, KEY_DTYPE)
    return None if None in shape else jax.ShapeDtypeStruct(shape, np.dtype(variable.type.dtype))


def static_value(variable: Variable, value: Any) -> np.ndarray:
    """Return the value of a static input in its declared dtype."""
    if isinstance(value, jax.core.Tracer):
        raise RuntimeTracerError(
            f"The input {variable_name(variable)} determines a shape, so its value must be known before the program is"
            " compiled, but it is a tracer of an outer JAX transformation (jit, grad, vmap or scan). Close over its value,"
            " or mark it static in the outer transformation (`static_argnums`)."
        )
    return np.asarray(value, variable.type.dtype)


def pure_function(program: Program) -> Callable[..., list]:
    """Return the program as a pure JAX function of its inputs that returns the list of outputs."""
    count = len(program.outputs)

    def jitted_for(specialization: Specialization) -> Callable[..., list]:
        return lambda *args: specialization.call(*args, *program.device_constants())[:count]

    if not program.static_positions:
        only = program.specialize(())
        return jitted_for(only) if program.constants or program.checked else only.call
    return lambda *args: jitted_for(program.specialize(args))(*args)
