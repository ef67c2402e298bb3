"""Runs a plan of several batches: programs on the device, host steps between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import toposort
from pytensor.tensor.random.type import RandomType

from pytensor_jaxpr_linker import transfer
from pytensor_jaxpr_linker.errors import note_node
from pytensor_jaxpr_linker.host import HostStage
from pytensor_jaxpr_linker.loops import parent_generator
from pytensor_jaxpr_linker.plan import Plan, Region, host_step
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
        self._input_count = len(plan.inputs)
        for v in plan.outputs:
            slots.setdefault(v, len(slots))
        self._outputs = [slots[v] for v in plan.outputs]
        self._blank: list[Any] = [None] * (len(slots) - len(plan.inputs))
        for v in plan.outputs:
            if isinstance(v, Constant):
                self._blank[slots[v] - len(plan.inputs)] = v.data
        self.stages: list[RegionStage | HostStage] = []
        for batch in plan.batches:
            inputs, outputs = [slots[v] for v in batch.inputs], [slots[v] for v in batch.outputs]
            if isinstance(batch, Region):
                name = f"region_{len(self.stages)}"
                program = Program(batch, name, policy.options.checks, policy.options.specializations, policy)
                self.stages.append(RegionStage(program, inputs, outputs, policy))
            else:
                self.stages.append(HostStage(batch, inputs, outputs))
        dead_after = last_uses(self.stages, set(self._outputs))
        self._runs = [(stage.run, dead) for stage, dead in zip(self.stages, dead_after, strict=True)]
        if policy.options.donate:
            self._donate(dead_after)

    def _donate(self, dead_after: Sequence[list[int]]) -> None:
        """Let each region have the memory of what an earlier region made and nothing else reads, now or later."""
        # The host reads the memory of arrays in place, and what it makes may be a view of them.
        on_host = {slot for stage in self.stages if isinstance(stage, HostStage) for slot in stage.inputs}
        ours: set[int] = set()
        for stage, dead in zip(self.stages, dead_after, strict=True):
            if isinstance(stage, RegionStage):
                stage.donated = [i for i, slot in enumerate(stage.inputs) if slot in ours and slot in dead]
                ours.update(slot for slot in stage.outputs if slot not in on_host)

    @property
    def programs(self) -> list[Program]:
        """The programs of the regions, in order."""
        return [stage.program for stage in self.stages if isinstance(stage, RegionStage)]

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for the values of the inputs; nothing outside is changed if it fails."""
        env: list[Any] = [*inputs, *self._blank]
        del inputs
        for run, dead in self._runs:
            run(env)
            for slot in dead:
                env[slot] = None
        return [env[slot] for slot in self._outputs]

    def examples(self, inputs: Sequence[Any]) -> list[tuple[Specialization, list[Any]]]:
        """Run, and return for each region the specialization and what it was called with; the outputs are dropped."""
        env: list[Any] = [*inputs, *self._blank]
        found = []
        for stage in self.stages:
            if isinstance(stage, RegionStage):
                args, _ = stage.arguments(env)
                with jax.enable_x64(True):
                    found.append((stage.program.specialize(args), args))
            stage.run(env)
        return found


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

    def arguments(self, env: list[Any]) -> tuple[list[Any], dict[int, Any]]:
        """Return what the program takes from the slots, with a key for each generator, and the generators."""
        args = [env[slot] for slot in self.inputs]
        if not self._generators:
            return args, {}
        generators = {i: args[i] for i in self._generators}
        for i, generator in generators.items():
            args[i] = transfer.key_of(generator)[0]
        return args, generators

    def run(self, env: list[Any]) -> None:
        """Call the program on what the slots hold and store what it returns."""
        try:
            return self._run(env)
        except RunOnHost:
            pass
        self._as_host_stage().run(env)

    def _run(self, env: list[Any]) -> None:
        args, generators = self.arguments(env)
        outputs = self.outputs
        with jax.enable_x64(True):
            donated = self.donated if self.donated and self._donates(args) else ()
            results, specialization, args = self.program.run(args, donated)
        if self._policy.progress.active:
            self._policy.progress.end()
        if len(results) > len(outputs):
            raise_if_failed(specialization, results[len(outputs)], args)
        for slot, result in zip(outputs, results):  # noqa: B905
            env[slot] = result
        for i, (source, draws) in self._successors.items():
            if isinstance(generators[source], np.random.Generator):
                env[outputs[i]] = transfer.key_of(generators[source], draws)[1]

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
                variable = parent_generator(variable)
            if variable in region.inputs:
                found[i] = Successor(region.inputs.index(variable), draws)
    return found
