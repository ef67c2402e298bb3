"""Runs a plan of several batches: programs on the device, host steps between them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from functools import cached_property
from typing import Any

import jax
import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.traversal import toposort
from pytensor.link.c.op import COp
from pytensor.scalar.basic import ScalarType
from pytensor.scan.op import Scan

from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.base.errors import describe_node, note_node, variable_name
from pytensor_jaxpr_linker.plan.model import HostStep, Plan, Region, host_step
from pytensor_jaxpr_linker.run.call import DeferredChecks, ProgramCall, find_generators, take_keys
from pytensor_jaxpr_linker.run.codegen import StageCall, call_stages, destroyed_inputs, perform_nodes
from pytensor_jaxpr_linker.run.placement import PartsElsewhere, is_here, to_host
from pytensor_jaxpr_linker.run.program import Program
from pytensor_jaxpr_linker.run.recompiles import Policy
from pytensor_jaxpr_linker.run.specialization import Specialization
from pytensor_jaxpr_linker.run.transfer_count import Sizes


class Executor:
    """A plan, ready to be called.

    Values live in slots: JAX's arrays if a region made them, NumPy's if the host did, and generators. A value is
    dropped after the last batch that reads it.
    """

    def __init__(self, plan: Plan, policy: Policy, deferred: DeferredChecks | None = None):
        passed = [v for batch in plan.batches for v in (*batch.inputs, *batch.outputs)]
        slots = {v: i for i, v in enumerate(dict.fromkeys((*plan.inputs, *passed, *plan.outputs)))}
        self._outputs = [slots[v] for v in plan.outputs]
        constants = {slots[v]: v.data for v in plan.outputs if isinstance(v, Constant)}
        self.stages: list[RegionStage | HostStage] = []
        for batch in plan.batches:
            inputs, outputs = [slots[v] for v in batch.inputs], [slots[v] for v in batch.outputs]
            if isinstance(batch, Region):
                program = Program(batch, f"region_{len(self.stages)}", policy=policy)
                self.stages.append(RegionStage(program, inputs, outputs, policy, deferred))
            else:
                self.stages.append(HostStage(batch, inputs, outputs))
        dead_after = last_uses(self.stages, set(self._outputs))
        self._plan = plan
        self._made = (len(plan.inputs), self._outputs, dead_after, constants, own)
        self.call = self._call_of([s.call for s in self.stages])
        if policy.options.donate:
            self._donate(dead_after)

    def _call_of(self, calls: Sequence[Callable[[list], Any]]) -> Callable[[list], list]:
        """Return the call of the plan with these calls of its stages."""
        made = [
            StageCall(s.inputs, s.outputs, call, s.call_on_host if isinstance(s, RegionStage) else None)
            for s, call in zip(self.stages, calls, strict=True)
        ]
        return call_stages(made, *self._made)

    def counted(self, sizes: Sizes) -> Callable[[list], list]:
        """Return `call`, for one call, which adds the sizes of all results to `sizes`."""
        calls = [
            sizes.of_region(s.program, s.call) if isinstance(s, RegionStage) else sizes.of_host(b.outputs, s.call)
            for s, b in zip(self.stages, self._plan.batches, strict=True)
        ]
        return self._call_of(calls)

    def _donate(self, dead_after: Sequence[list[int]]) -> None:
        """Let each region have the memory of its inputs that an earlier region made and that nothing reads after it."""
        # The host reads the memory of arrays in place, and its results may be views of them.
        on_host = {slot for stage in self.stages if isinstance(stage, HostStage) for slot in stage.inputs}
        ours: set[int] = set()
        for stage, dead in zip(self.stages, dead_after, strict=True):
            if isinstance(stage, RegionStage):
                stage.donated += [i for i, slot in enumerate(stage.inputs) if slot in ours and slot in dead]
                ours.update(slot for slot in stage.outputs if slot not in on_host)

    @property
    def programs(self) -> list[Program]:
        """The programs of the regions, in order."""
        return [stage.program for stage in self.stages if isinstance(stage, RegionStage)]

    def examples(self, inputs: Sequence[Any]) -> list[tuple[Specialization, list[Any]]]:
        """Run the plan, and return the specialization and the arguments of each region."""
        env: dict[int, Any] = dict(enumerate(inputs))
        found = []
        for stage in self.stages:
            args = [env[slot] for slot in stage.inputs]
            if isinstance(stage, RegionStage):
                found.append(stage.example(list(args)))
                results = stage.call(args) or stage.call_on_host(args)
            else:
                results = stage.call(args)
            for slot, result in zip(stage.outputs, results):  # noqa: B905
                env[slot] = result
        return found


def own(value: Any) -> Any:
    """Return a value in memory of its own."""
    return value.copy() if isinstance(value, jax.Array) else value


def last_uses(stages: Sequence[RegionStage | HostStage], kept: set[int]) -> list[list[int]]:
    """Return the slots that nothing reads after each stage."""
    dead: list[list[int]] = []
    seen = set(kept)
    for stage in reversed(stages):
        unseen = [slot for slot in dict.fromkeys((*stage.inputs, *stage.outputs)) if slot not in seen]
        seen.update(unseen)
        dead.append(unseen)
    dead.reverse()
    return dead


class RegionStage:
    """A region's program between slots; its results may take the memory of the inputs at the positions `donated`."""

    def __init__(
        self,
        program: Program,
        inputs: list[int],
        outputs: list[int],
        policy: Policy,
        deferred: DeferredChecks | None = None,
    ):
        self.program, self.inputs, self.outputs = program, inputs, outputs
        self.donated: list[int] = []
        self.call = ProgramCall(program, policy, self.donated, deferred)

    def example(self, args: list[Any]) -> tuple[Specialization, list[Any]]:
        """Return the specialization for the values of the inputs, and its arguments."""
        take_keys(args, find_generators(self.program.region), self.program.key_counts)
        with jax.enable_x64(True):
            return self.program.specialize(args), args

    def call_on_host(self, args: Sequence[Any]) -> list[Any]:
        """Run the region's nodes on the host."""
        values = dict(zip(self.inputs, args, strict=True))
        return self._on_host.call([values[slot] for slot in self._on_host.inputs])

    @cached_property
    def _on_host(self) -> HostStage:
        region = self.program.region
        step = host_step(list(toposort(region.outputs, blockers=region.inputs)), region.outputs)
        slots = dict(zip(region.inputs, self.inputs, strict=True))
        return HostStage(step, [slots[v] for v in step.inputs], self.outputs)


#: Up to this many nodes are run by a function that is made for them: making it takes longer than making thunks.
FEW_HOST_NODES = 32


class HostStage:
    """The nodes of a host step between slots: `call` runs them on a list of inputs and returns the outputs.

    One generated function runs a few nodes that only have a `perform`; thunks run all others. If an Op is lazy, a node
    runs when its result is asked for: a conditional's thunk leaves the branch not taken unevaluated. A node that works
    in place gets a copy, since the order of nodes that PyTensor found for such Ops does not hold here. The error of an
    Op gets a note that names the node.
    """

    def __init__(self, step: HostStep, inputs: list[int], outputs: list[int]):
        self.inputs, self.outputs = inputs, outputs
        is_plain = len(step.nodes) <= FEW_HOST_NODES and all(only_performs(node.op) for node in step.nodes)
        run = perform_nodes(step, host_form, declared_form) if is_plain else Thunks(step).call

        def call(args: list) -> list:
            try:
                return run(args)
            except PartsElsewhere:
                raise parts_elsewhere(step, args) from None

        self.call = call


def parts_elsewhere(step: HostStep, args: Sequence[Any]) -> PartsElsewhere:
    """Return the error about inputs of a host step that are divided among processes."""
    names = ", ".join(variable_name(v) for v, x in zip(step.inputs, args, strict=True) if not is_here(x))
    return PartsElsewhere(
        f"A host step, which begins with {describe_node(step.nodes[0])}, reads {names}, and other processes have parts"
        " of that: give the Op an emission rule, so that it is part of the XLA program, or shard its operand over the"
        " devices of one process."
    )


class Thunks:
    """The nodes of a host step, each with the thunk that its Op makes."""

    def __init__(self, step: HostStep):
        variables = {v: None for node in step.nodes for v in (*node.inputs, *node.outputs)}
        cells: dict[Variable, list[Any]] = {v: [v.data if isinstance(v, Constant) else None] for v in variables}
        self._computed = {v: [isinstance(v, Constant)] for v in variables}
        self._thunks = {node: self._make_thunk(node, cells) for node in step.nodes}
        self._takes = [(cells[v], host_form(v)) for v in step.inputs]
        self._returns = [(cells[v], declared_form(v)) for v in step.outputs]
        self._results = step.outputs
        self._temporary = [v for v in variables if not isinstance(v, Constant)]
        self._temporary_cells = [cells[v] for v in self._temporary]
        self._lock = threading.RLock()  # the cells belong to one call; an Op may call its own function
        self._is_lazy = any(getattr(thunk, "lazy", False) for thunk in self._thunks.values())

    def _make_thunk(self, node: Apply, cells: dict[Variable, list[Any]]) -> Any:
        """Return the thunk of a node on the cells of its variables, or on copies of the inputs that it destroys."""
        own: dict[Variable, list[Any]] = {node.inputs[i]: [None] for i in destroyed_inputs(node)}
        thunk: Any = without_mode(node.op).make_thunk(node, {**cells, **own}, self._computed, [], impl="py")
        return on_copies(thunk, [(cells[v], cell) for v, cell in own.items()]) if own else thunk

    def call(self, args: Sequence[Any]) -> list[Any]:
        """Run the nodes, see `HostStage`."""
        with self._lock:
            outer = [cell[0] for cell in self._temporary_cells]  # None, unless an Op in this step made the call
            try:
                for (cell, as_host), value in zip(self._takes, args):  # noqa: B905
                    cell[0] = as_host(value)
                if self._is_lazy:
                    self._run_needed()
                else:
                    for node, thunk in self._thunks.items():
                        try:
                            thunk()
                        except Exception as error:
                            note_node(error, node)
                            raise
                return [as_declared(cell[0]) for cell, as_declared in self._returns]
            finally:
                for cell, value in zip(self._temporary_cells, outer):  # noqa: B905
                    cell[0] = value

    def _run_needed(self) -> None:
        """Run the nodes that the results need."""
        for v in self._temporary:
            self._computed[v][0] = v.owner not in self._thunks
        stack = list(reversed(self._results))
        while stack:
            if self._computed[stack[-1]][0]:
                stack.pop()
                continue
            node = stack[-1].owner
            assert node is not None
            thunk = self._thunks[node]
            is_lazy = getattr(thunk, "lazy", False)
            missing: Sequence[Variable] = [] if is_lazy else [v for v in node.inputs if not self._computed[v][0]]
            if not missing:
                try:
                    required = thunk()  # a lazy Op returns the positions of the inputs that it needs first
                except Exception as error:
                    note_node(error, node)
                    raise
                missing = [node.inputs[i] for i in required] if is_lazy and required else []
            if missing:
                stack += missing
            else:
                for v in node.outputs:
                    self._computed[v][0] = True


def only_performs(op: Op) -> bool:
    """Return whether the thunk of an Op is a call of its `perform`, which keeps nothing between calls."""
    makers = (type(op).make_thunk, type(op).make_py_thunk)
    return (
        makers[0] in (Op.make_thunk, COp.make_thunk)
        and makers[1] is Op.make_py_thunk
        and not isinstance(op, HasInnerGraph)
    )


def on_copies(thunk: Any, copied: Sequence[tuple[list[Any], list[Any]]]) -> Any:
    """Return a thunk that first copies the value in the first cell of each pair to the second cell."""

    def run() -> Any:
        try:
            for given, own in copied:
                own[0] = deepcopy(given[0])
            return thunk()
        finally:
            for _, own in copied:
                own[0] = None

    run.lazy = getattr(thunk, "lazy", False)  # type: ignore[attr-defined]
    return run


def without_mode(op: Op) -> Op:
    """Return an Op without the user's mode for its inner graph: on the host PyTensor's own VM runs the graph."""
    if not isinstance(op, Scan) or op.mode is None:
        return op
    op = copy(op)
    op.mode, op._fn = None, None
    return op


def host_form(variable: Variable) -> Callable[[Any], Any]:
    """Return the function that converts a value, perhaps a JAX array, to an operand `variable` of PyTensor's Ops."""
    if is_tensor(variable.type):
        return to_host
    return scalar if isinstance(variable.type, ScalarType) else off_device


def off_device(value: Any) -> Any:
    """Return a value of any type, as a NumPy array if it is one of JAX's."""
    return to_host(value) if isinstance(value, jax.Array) else value


def scalar(value: Any) -> Any:
    """Return an array of one number as that number."""
    value = off_device(value)
    return value[()] if isinstance(value, np.ndarray) else value


def declared_form(variable: Variable) -> Callable[[Any], Any]:
    """Return the function that converts the result of a host Op to its type: some return Python numbers for tensors."""
    return np.asarray if is_tensor(variable.type) else unchanged


def unchanged(value: Any) -> Any:
    """Return the value itself."""
    return value
