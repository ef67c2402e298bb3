"""Runs a plan of several batches: programs on the device, host steps between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import jax
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import toposort

from pytensor_jaxpr_linker.plan.model import Plan, Region, host_step
from pytensor_jaxpr_linker.run.call import ProgramCall, find_generators, take_keys
from pytensor_jaxpr_linker.run.checks import DeferredChecks
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
        self._constants = [v.data if isinstance(v, Constant) else None for v in slots]
        counts = Counter(plan.outputs)
        #: The slot of each output, and whether its value must be copied: it is an input, or another output as well.
        self._results = [(slots[v], slots[v] < len(plan.inputs) or counts[v] > 1) for v in plan.outputs]
        self._plan = plan
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
        self._dead_after = last_uses(self.stages, {slot for slot, _ in self._results})
        self._calls = [stage.call for stage in self.stages]
        if policy.options.donate:
            self._donate(self._dead_after)

    def call(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the plan on a list of values. If a stage fails, nothing outside is changed."""
        return self._run(inputs, self._calls)

    def _run(self, inputs: Sequence[Any], calls: Sequence[Callable[[list], list | None]]) -> list[Any]:
        """Run the plan with these calls of its stages; each result is in memory of its own, as XLA returns results."""
        values = self._constants.copy()
        values[: len(inputs)] = inputs
        for stage, call, dead in zip(self.stages, calls, self._dead_after):  # noqa: B905
            args = [values[slot] for slot in stage.inputs]
            results = call(args)
            if results is None:
                results = stage.call_on_host(args)  # type: ignore[union-attr]
            for slot, result in zip(stage.outputs, results):  # noqa: B905
                values[slot] = result
            del args, results
            for slot in dead:
                values[slot] = None
        return [own(values[slot]) if is_shared else values[slot] for slot, is_shared in self._results]

    def counted(self, sizes: CallSizes) -> Callable[[list], list]:
        """Return `call`, for one call, which adds to `sizes` what the batches make."""
        pairs = zip(self.stages, self._plan.batches, strict=True)
        calls = [
            sizes.of_region(s.program, s.call) if isinstance(s, RegionStage) else sizes.of_host(b.outputs, s.call)
            for s, b in pairs
        ]
        return partial(self._run, calls=calls)

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
        found = []

        def watched(stage: RegionStage) -> Callable[[list], list | None]:
            def call(args: list) -> list | None:
                found.append(stage.example([*args]))
                return stage.call(args)

            return call

        self._run(inputs, [watched(s) if isinstance(s, RegionStage) else s.call for s in self.stages])
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
