"""What one call moves between the host and the device: the part of `explain` about transfers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.frontend.targets import Compiled
from pytensor_jaxpr_linker.report.model import TransferReport
from pytensor_jaxpr_linker.report.nodes import Texts
from pytensor_jaxpr_linker.report.stages import RegionStages
from pytensor_jaxpr_linker.run.specialization import lowering_key
from pytensor_jaxpr_linker.run.transfer_count import (
    Held,
    Sizes,
    Transfer,
    array_bytes_of,
    code_bytes,
    declared_bytes,
    held,
    transfers_of,
)


def describe_transfers(
    found: Compiled, args: Sequence[Any], regions: Sequence[RegionStages | None]
) -> tuple[TransferReport, ...]:
    """Return what a call moves, of the sizes that are known; `regions` are those of `args`, if there are any."""
    runner = found.runner
    made: dict[Variable, int | None] = {}
    codes = []
    for program, region in zip(runner.programs, regions, strict=True):
        if region is None:
            codes.append(0)
            continue
        if args:
            _ = region.jaxpr  # builds it, so that its results and checks are known
        made |= bytes_of(program.inputs, region.avals)
        if (lowered := region.specialization.lowered.get(lowering_key(region.avals))) is not None:
            made |= bytes_of(program.outputs, lowered.jaxpr.out_avals)
        codes.append(code_bytes(region.specialization, len(program.outputs)))
    given = [*args, *found.stored[len(args) :]]
    inputs = {v: input_place(v, x, made) for v, x in zip(runner.plan.inputs, given, strict=True)}
    sizes = Sizes(inputs, made, codes)
    moves = transfers_of(runner.plan, runner.programs, runner.updates, runner.options.results, sizes)
    texts = Texts()
    return tuple(report_on(transfer, texts) for transfer in moves)


def bytes_of(variables: Sequence[Variable], avals: Sequence[Any]) -> dict[Variable, int | None]:
    """Return the bytes of variables with these avals; large constants and a check code may follow those."""
    return {v: array_bytes_of(aval) for v, aval in zip(variables, avals, strict=False)}


def input_place(variable: Variable, value: Any, made: dict[Variable, int | None]) -> Held:
    """Return where an input is when a program runs: a shared array is on the device, an argument where the example is, or on the host."""
    found = Held(False, declared_bytes(variable)) if value is None else held(value)
    size = made.get(variable) if found.bytes is None else found.bytes
    return Held(found.on_device or (isinstance(variable, SharedVariable) and is_tensor(variable.type)), size)


def report_on(transfer: Transfer, texts: Texts) -> TransferReport:
    """Return the report on a transfer."""
    name = "" if transfer.variable is None else texts.name(transfer.variable)
    return TransferReport(transfer.direction, transfer.why, name, transfer.bytes)
