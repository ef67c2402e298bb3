"""Runs a plan of several batches: programs on the device, host steps between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import toposort

from pytensor_jaxpr_linker.plan.model import Plan, Region, host_step
from pytensor_jaxpr_linker.run.call import ProgramCall, find_generators, take_keys
from pytensor_jaxpr_linker.run.checks import DeferredChecks
from pytensor_jaxpr_linker.run.codegen import StageCall, call_stages
from pytensor_jaxpr_linker.run.host_steps import HostStage
from pytensor_jaxpr_linker.run.program import Program
from pytensor_jaxpr_linker.run.recompiles import Policy
from pytensor_jaxpr_linker.run.specialization import Specialization
from pytensor_jaxpr_linker.run.transfer_count import CallSizes


class Executor:
    """A plan, ready to be called.

    Values live in slots: JAX's arrays if a region made them, NumPy's if the host did, and generators. What no later batch reads is
    dropped.
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
                name = f"region_{len(self.stages)}"
                checked = policy.options.checks != "skip"
                program = Program(batch, name, checked, policy.options.specializations, policy)
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

    def counted(self, sizes: CallSizes) -> Callable[[list], list]:
        """Return `call`, for one call, which adds to `sizes` what the batches make."""
        pairs = zip(self.stages, self._plan.batches, strict=True)
        return self._call_of(
            [
                sizes.of_region(s.program, s.call) if isinstance(s, RegionStage) else sizes.of_host(b.outputs, s.call)
                for s, b in pairs
            ]
        )

    def _donate(self, dead_after: Sequence[list[int]]) -> None:
        """Let each region have the memory of its inputs that an earlier region made and that nothing reads after it."""
        # The host reads the memory of arrays in place, and what it makes may be a view of them.
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
        """Run the plan, and return the specialization of each region and what it was called with."""
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
        """Return the specialization for the values of the inputs, and what it is called with."""
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
