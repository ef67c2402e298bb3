"""Where arrays lie, what moves between host and device, and which operations have no lowering on a platform."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.base.errors import describe_node, variable_name
from pytensor_jaxpr_linker.base.options import for_platforms
from pytensor_jaxpr_linker.frontend.targets import Compiled
from pytensor_jaxpr_linker.report.model import Collective, PlacedArray, PlatformReport, TransferReport
from pytensor_jaxpr_linker.report.nodes import Texts
from pytensor_jaxpr_linker.report.stages import RegionStages
from pytensor_jaxpr_linker.run import placement, transfer_count
from pytensor_jaxpr_linker.run.program import make_plan, rules_in_force
from pytensor_jaxpr_linker.run.specialization import lowering_key
from pytensor_jaxpr_linker.run.transfer_count import Held, declared_bytes, held


def describe_transfers(
    found: Compiled, args: Sequence[Any], regions: Sequence[RegionStages | None]
) -> tuple[TransferReport, ...]:
    """Return the transfers of a call, with known sizes; `regions` are specialized for `args`, if there are any."""
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
        codes.append(transfer_count.code_bytes(region.specialization, len(program.outputs)))
    given = [*args, *found.stored[len(args) :]]
    inputs = {v: input_place(v, x, made) for v, x in zip(runner.plan.inputs, given, strict=True)}
    sizes = transfer_count.Sizes(inputs, made, codes)
    moves = transfer_count.transfers_of(runner.plan, runner.programs, runner.updates, runner.options.results, sizes)
    texts = Texts()
    return tuple(
        TransferReport(t.direction, t.why, "" if t.variable is None else texts.name(t.variable), t.bytes) for t in moves
    )


def bytes_of(variables: Sequence[Variable], avals: Sequence[Any]) -> dict[Variable, int | None]:
    """Return the bytes of variables by their avals, which avals of large constants and a check code may follow."""
    return {v: transfer_count.array_bytes_of(aval) for v, aval in zip(variables, avals, strict=False)}


def input_place(variable: Variable, value: Any, made: dict[Variable, int | None]) -> Held:
    """Return the place of an input of a program: the device for a shared array, the example's place, or the host."""
    found = Held(False, declared_bytes(variable)) if value is None else held(value)
    size = made.get(variable) if found.bytes is None else found.bytes
    return Held(found.on_device or (isinstance(variable, SharedVariable) and is_tensor(variable.type)), size)


#: The operations of XLA in which devices exchange numbers.
OPERATIONS = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter", "collective-broadcast")
COLLECTIVE_LINE = re.compile(rf" = (?P<type>\(.*?\)|\S+) (?P<name>{'|'.join(OPERATIONS)})(?:-start)?\(")
ARRAY = re.compile(r"\b([a-z]+)(\d+)?\[([\d,]*)\]")

#: Notes on a platform, for functions with arrays of 64-bit numbers.
FLOAT64 = {
    "tpu": "float64: a TPU has no such arithmetic. XLA emulates it by pairs of float32, which is slow, has fewer digits"
    " and the range of float32, and lacks decompositions: set pytensor.config.floatX to float32, or use a CPU or a GPU",
    "gpu": "float64: a GPU for data centres has half as many operations a second as for float32,"
    " any other 1/32 to 1/64",
}


def placed_arrays(found: Compiled, values: Sequence[Any]) -> tuple[PlacedArray, ...]:
    """Return the places of the values of inputs, or nothing if no value is on a mesh."""
    if not any(map(placement.is_sharded, values)):
        return ()
    known = [(v, x) for v, x in zip(found.fgraph.inputs, values, strict=True) if hasattr(x, "dtype")]
    return tuple(array_place(variable_name(v), x) for v, x in known)


def array_place(name: str, value: Any) -> PlacedArray:
    """Return the place of an array."""
    size = int(np.prod(np.shape(value))) * np.dtype(value.dtype).itemsize
    if not placement.is_sharded(value):
        return PlacedArray(name, "copied to each device in each call", size, size)
    sharding = value.sharding
    part = int(np.prod(sharding.shard_shape(value.shape))) * np.dtype(value.dtype).itemsize
    spec = getattr(sharding, "spec", ())
    axes = ", ".join(f"axis {i} along {names!r}" for i, names in enumerate(spec) if names is not None)
    layout = f"divided, {axes}" if axes else f"whole on each of {len(sharding.device_set)} devices"
    return PlacedArray(name, layout, size, part)


def collectives_of(region: RegionStages, title: str) -> Iterator[Collective]:
    """Yield the collectives of a region. This compiles it."""
    for line in region.hlo.splitlines():
        if (found := COLLECTIVE_LINE.search(line)) is not None:
            sizes = [array_bytes(*array.groups()) for array in ARRAY.finditer(found["type"])]
            yield Collective(title, found["name"], len(sizes), sum(sizes))


def array_bytes(kind: str, bits: str | None, shape: str) -> int:
    """Return the bytes of an array of HLO, such as ``f64[3,2]``."""
    return int(np.prod([int(n) for n in shape.split(",") if n])) * max(1, int(bits or 8) // 8)


def on_platform(found: Compiled, regions: Sequence[RegionStages | None], platform: str) -> PlatformReport:
    """Return how a function would run on a platform. No such device is needed."""
    runner = found.runner
    rules = rules_in_force(runner.options.allow_traced_leaves)
    with for_platforms([platform]):
        plan = make_plan(runner.graph, rules, runner.fallbacks)
    here = {b.node for b in runner.plan.breaks}
    missing = [f"{describe_node(b.node)} runs on the host: {b.reason}" for b in plan.breaks if b.node not in here]
    unknown = [i for i, region in enumerate(regions) if region is None]
    known = [] if missing else [region for region in regions if region is not None]
    missing += [text for region in known for text in without_lowering(region.jaxpr, platform)]
    notes = [f"region {i}: give example arguments (args=...), so that its operations are known" for i in unknown]
    dtypes = {getattr(v.type, "dtype", "") for node in found.fgraph.apply_nodes for v in (*node.inputs, *node.outputs)}
    kind = "gpu" if platform in ("cuda", "rocm") else platform
    if "float64" in dtypes and kind in FLOAT64:
        notes.append(FLOAT64[kind])
    return PlatformReport(platform, len(plan.batches), (len(known), len(regions)), tuple(missing), tuple(notes))


def without_lowering(jaxpr: Any, platform: str) -> Iterator[str]:
    """Yield the operations of a Jaxpr that JAX can't lower for a platform; each kind is lowered alone."""
    tried: set[Any] = set()
    stack = [jaxpr]
    while stack:
        current = stack.pop()
        for eqn in getattr(current, "jaxpr", current).eqns:
            inner = jax_compat.inner_jaxprs(eqn, platform)
            stack += inner
            key = (eqn.primitive, *(str(v.aval.dtype) for v in eqn.invars))
            if inner or key in tried:
                continue
            tried.add(key)
            if (reason := why_not_lowered(eqn, platform)) is not None:
                names = "/".join(map(str, eqn.source_info.name_stack.stack)) or "?"
                yield f"{eqn.primitive} of {names}: {reason}"


def why_not_lowered(eqn: Any, platform: str) -> str | None:
    """Return why JAX can't lower an equation for a platform, or None."""

    def call(*args: Any) -> Any:
        return eqn.primitive.bind(*args, **eqn.params)

    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    try:
        with jax.enable_x64(True):
            jax.jit(call).trace(*avals).lower(lowering_platforms=(platform,))
    except NotImplementedError as error:
        return str(error).splitlines()[0]
    return None
