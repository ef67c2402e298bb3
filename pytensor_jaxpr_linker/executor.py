"""Runs a plan of several batches: programs on the device, host steps between them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import toposort
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import TensorType

from pytensor_jaxpr_linker import transfer
from pytensor_jaxpr_linker.errors import note_node
from pytensor_jaxpr_linker.plan import HostStep, Plan, Region, host_step
from pytensor_jaxpr_linker.policy import Policy, RunOnHost
from pytensor_jaxpr_linker.program import Program, Specialization


class Executor:
    """A plan, ready to be called.

    Values live in slots: arrays of JAX's where a region made them, NumPy's where the host did, and generators. What no
    later batch reads is dropped.

    Parameters
    ----------
    plan
        What `partition` made of a graph.
    policy
        That of the function: its options, and what it told the user.
    """

    def __init__(self, plan: Plan, policy: Policy):
        slots: dict[Variable, int] = {}
        for batch in (plan, *plan.batches):
            for v in (*batch.inputs, *(batch.outputs if batch is not plan else ())):
                slots.setdefault(v, len(slots))
        self._size, self._input_count = len(slots), len(plan.inputs)
        self._outputs = [v.data if isinstance(v, Constant) else slots[v] for v in plan.outputs]
        self._constant_outputs = [isinstance(v, Constant) for v in plan.outputs]
        self.stages: list[RegionStage | HostStage] = []
        for batch in plan.batches:
            inputs, outputs = [slots[v] for v in batch.inputs], [slots[v] for v in batch.outputs]
            if isinstance(batch, Region):
                name = f"region_{len(self.stages)}"
                program = Program(batch, name, policy.options.checks, policy.options.specializations, policy)
                self.stages.append(RegionStage(program, inputs, outputs, policy))
            else:
                self.stages.append(HostStage(batch, inputs, outputs))
        self._dead = last_uses(self.stages, {slots[v] for v in plan.outputs if not isinstance(v, Constant)})
        if policy.options.donate:
            self._donate()

    def _donate(self) -> None:
        """Let each region have the memory of what an earlier region made and nothing else reads, now or later."""
        # The host reads the memory of arrays in place, and what it makes may be a view of them.
        on_host = {slot for stage in self.stages if isinstance(stage, HostStage) for slot in stage.inputs}
        ours: set[int] = set()
        for stage, dead in zip(self.stages, self._dead, strict=True):
            if isinstance(stage, RegionStage):
                stage.donated = [i for i, slot in enumerate(stage.inputs) if slot in ours and slot in dead]
                ours.update(slot for slot in stage.outputs if slot not in on_host)

    @property
    def programs(self) -> list[Program]:
        """The programs of the regions, in order."""
        return [stage.program for stage in self.stages if isinstance(stage, RegionStage)]

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for the values of the inputs; nothing outside is changed if it fails."""
        env: list[Any] = [*inputs, *[None] * (self._size - self._input_count)]
        del inputs
        for stage, dead in zip(self.stages, self._dead, strict=True):
            stage.run(env)
            for slot in dead:
                env[slot] = None
        return [
            np.array(x) if is_constant else env[x]
            for x, is_constant in zip(self._outputs, self._constant_outputs, strict=True)
        ]


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


#: Arrays of fewer bytes are not donated: a new one costs less than donating takes, measured on the CPU.
DONATED_BYTES = 2**20


class RegionStage:
    """A region's program between slots.

    Attributes
    ----------
    donated
        The positions of inputs whose memory the results may take.
    """

    def __init__(self, program: Program, inputs: list[int], outputs: list[int], policy: Policy):
        self.program, self.inputs, self.outputs, self._policy = program, inputs, outputs, policy
        self._generators = [i for i, v in enumerate(program.inputs) if isinstance(v.type, RandomType)]
        self._successors = find_successors(program.region)
        self._on_host: HostStage | None = None
        self.donated: list[int] = []

    def run(self, env: list[Any]) -> None:
        """Call the program on what the slots hold and store what it returns."""
        try:
            return self._run(env)
        except RunOnHost:
            pass
        self._as_host_stage().run(env)

    def _run(self, env: list[Any]) -> None:
        args = [env[slot] for slot in self.inputs]
        generators = {i: args[i] for i in self._generators}
        for i, generator in generators.items():
            args[i] = transfer.key_of(generator)[0]
        with jax.enable_x64(True):
            specialization = self.program.specialize(args)
            args += self.program.device_constants()
            call = specialization.donating(args, self.donated) if self._donates(args) else specialization.call
            results = call(*args)
        if self._policy.progress.active:
            self._policy.progress.end()
        if len(results) > len(self.outputs):
            raise_if_failed(specialization, results[len(self.outputs)], args)
        for i, slot in enumerate(self.outputs):
            if i in self._successors:
                source, draws = self._successors[i]
                if isinstance(generators[source], np.random.Generator):
                    env[slot] = transfer.key_of(generators[source], draws)[1]
                    continue
            env[slot] = results[i]

    def _donates(self, args: Sequence[Any]) -> bool:
        """Tell whether it is worth it to donate: not what came from the host, nor little."""
        donated = [args[i] for i in self.donated]
        return all(isinstance(x, jax.Array) for x in donated) and sum(x.nbytes for x in donated) >= DONATED_BYTES

    def _as_host_stage(self) -> HostStage:
        """Return the region as nodes that run on the host, made when it is first asked for."""
        if self._on_host is None:
            region = self.program.region
            step = host_step(list(toposort(region.outputs, blockers=region.inputs)), region.outputs)
            slots = dict(zip(region.inputs, self.inputs, strict=True))
            self._on_host = HostStage(step, [slots[v] for v in step.inputs], self.outputs)
        return self._on_host


class HostStage:
    """Nodes that run on the host between slots, each by the thunk that its Op makes."""

    def __init__(self, step: HostStep, inputs: list[int], outputs: list[int]):
        self.inputs, self.outputs = inputs, outputs
        self._step = step
        variables = {v: None for node in step.nodes for v in (*node.inputs, *node.outputs)}
        cells: dict[Variable, list[Any]] = {v: [v.data if isinstance(v, Constant) else None] for v in variables}
        computed = {v: [isinstance(v, Constant)] for v in variables}
        self._thunks = [(node, node.op.make_thunk(node, cells, computed, [], impl="py")) for node in step.nodes]
        self._is_lazy = any(getattr(thunk, "lazy", False) for _, thunk in self._thunks)
        self._computed = computed
        self._lock = threading.RLock()  # the cells are those of one call
        self._input_cells = [cells[v] for v in step.inputs]
        self._output_cells = [cells[v] for v in step.outputs]
        self._temporary = [cell for v, cell in cells.items() if not isinstance(v, Constant)]

    def run(self, env: list[Any]) -> None:
        """Run the nodes on what the slots hold and store what the last of them return.

        Raises
        ------
        Exception
            What an Op raises, with a note that names the node.
        """
        with self._lock:
            self._run(env)

    def _run(self, env: list[Any]) -> None:
        try:
            for cell, slot, variable in zip(self._input_cells, self.inputs, self._step.inputs, strict=True):
                cell[0] = to_host(env[slot], variable)
            if self._is_lazy:
                self._run_needed()
            else:
                for node, thunk in self._thunks:
                    run_node(node, thunk)
            for cell, slot, variable in zip(self._output_cells, self.outputs, self._step.outputs, strict=True):
                env[slot] = as_declared(cell[0], variable)
        finally:
            for cell in self._temporary:
                cell[0] = None

    def _run_needed(self) -> None:
        """Run the nodes that the outputs need: of a conditional's branches the one that its condition chooses."""
        computed, thunks = self._computed, {id(node): thunk for node, thunk in self._thunks}
        for v, flag in computed.items():
            flag[0] = id(v.owner) not in thunks
        stack = [v.owner for v in reversed(self._step.outputs)]
        while stack:
            node = stack[-1]
            assert node is not None
            thunk = thunks[id(node)]
            missing = []
            if not all(computed[v][0] for v in node.outputs):
                if getattr(thunk, "lazy", False):
                    missing = run_node(node, thunk)
                else:
                    missing = [i for i, v in enumerate(node.inputs) if not computed[v][0]]
                    if not missing:
                        run_node(node, thunk)
                        for v in node.outputs:
                            computed[v][0] = True
            if missing:
                stack += [node.inputs[i].owner for i in missing]
            else:
                stack.pop()


def run_node(node: Apply, thunk: Any) -> Any:
    """Run the thunk of a node; that of a lazy Op returns the positions of the inputs that it needs first."""
    try:
        return thunk()
    except Exception as error:
        note_node(error, node)
        raise


def to_host(value: Any, variable: Variable) -> Any:
    """Return a value as the Ops of PyTensor take it."""
    if isinstance(value, jax.Array):
        value = np.asarray(value)
    return value[()] if isinstance(variable.type, ScalarType) and isinstance(value, np.ndarray) else value


def as_declared(value: Any, variable: Variable) -> Any:
    """Return what a host Op made as an array, if its type is one: some return Python's own numbers."""
    return np.asarray(value) if isinstance(variable.type, TensorType) else value


def raise_if_failed(specialization: Specialization, code: Any, args: Sequence[Any]) -> None:
    """Raise the exception of the first run-time check that failed, if one did."""
    if number := int(code):
        check = specialization.lower(args).checks[number - 1]
        error = check.make_error()
        if check.node is not None:
            note_node(error, check.node)
        raise error


class Successor(NamedTuple):
    """Which input a generator descends from, and how many draws it is ahead of it."""

    source: int
    draws: int


def find_successors(region: Region) -> dict[int, Successor]:
    """Return for each output that is a generator where it comes from."""
    found = {}
    for i, variable in enumerate(region.outputs):
        if isinstance(variable.type, RandomType):
            draws = 0
            while variable not in region.inputs and variable.owner is not None:
                draws += 1
                variable = next(v for v in variable.owner.inputs if isinstance(v.type, RandomType))
            if variable in region.inputs:
                found[i] = Successor(region.inputs.index(variable), draws)
    return found
