"""A region compiled for one tuple of static values, once for each tuple of shapes."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from time import perf_counter
from typing import Any

import jax
import numpy as np
from pytensor.graph.basic import Variable

from pytensor_jaxpr_linker.base import jax_compat, logs
from pytensor_jaxpr_linker.base.bounded import Bounded
from pytensor_jaxpr_linker.base.session import note_build
from pytensor_jaxpr_linker.jaxpr.builder import Check
from pytensor_jaxpr_linker.jaxpr.lower import Lowered, lower_region
from pytensor_jaxpr_linker.jaxpr.optimize.finish import for_calls
from pytensor_jaxpr_linker.plan.model import Region
from pytensor_jaxpr_linker.run import kept_executables
from pytensor_jaxpr_linker.run.kept_executables import place_of_text, text_of_graph
from pytensor_jaxpr_linker.run.packing import PackedProgram, Packing, for_device, packed_program, read_layout
from pytensor_jaxpr_linker.run.recompiles import Recompiles, describe, spell

#: How many packed calls are kept: beyond the recompile limit each call may have shapes of its own.
MOST_SHAPES = 1024


class Specialization:
    """A region for one tuple of static values, compiled once for each tuple of avals by `jax.jit`.

    Attributes
    ----------
    call : Callable
        The jitted function of the region's inputs and large constants, on JAX's default device or where its arguments
        are. Returns the outputs, then the check code if there are checks.
    region, static, checked, name
        The region, its static values, and parameters of `Program`.
    lowered
        The Jaxprs so far, by the shapes and dtypes of the program's arguments.
    seconds
        For each of them how long its stages took: "lower", and "trace", "stablehlo" and "xla" once it was called.
    packed_calls
        The packed calls for NumPy arguments, by their shapes, see `ProgramCall`.
    """

    def __init__(
        self,
        region: Region,
        static: dict[Variable, Any],
        checked: bool,
        name: str,
        capacity: int,
        recompiles: Recompiles | None = None,
        differentiable: bool = False,
        for_jax: bool = False,
    ):
        self.region, self.static, self.checked, self.name = region, static, checked, name
        self._differentiable, self._for_jax = differentiable, for_jax
        self._capacity, self.recompiles = capacity, recompiles
        self._lock = threading.RLock()
        self.packed_calls: Bounded[tuple, Callable[..., list]] = Bounded(MOST_SHAPES)
        self._clear()

    def _clear(self) -> None:
        """Drop all programs: `jax.jit` keeps them as long as the function lives."""
        self.lowered: dict[tuple, Lowered] = {}
        self.seconds: dict[tuple, dict[str, float]] = {}
        self._admitted: set[tuple] = set()
        self._donating: dict[tuple, Any] = {}
        self.packed_calls.clear()
        self._on: dict[jax.Device, Any] = {}
        self.call = self.jitted()

    def on(self, device: jax.Device | None) -> Any:
        """Return `call` for a device: for NumPy arrays, and arrays that are there."""
        if device is None:
            return self.call
        return self._on.get(device) or self._on.setdefault(device, self._with_small_calls(device))

    def _with_small_calls(self, device: jax.Device) -> Any:
        """Return `jitted` for the own device, with small calls unless XLA's compiler has no form of them."""
        small = self.jitted(device=device, small=True)

        def call(*args: Any) -> list:
            try:
                return small(*args)[:-1]
            except jax.errors.JaxRuntimeError:
                if is_compiled(small, args):
                    raise  # an error of the run: another run would repeat its effects
                self._on[device] = self.jitted(device=device)
                return self._on[device](*args)

        return call

    def donating(self, args: Sequence[Any], positions: Sequence[int], device: jax.Device | None = None) -> Any:
        """Return `on(device)` in a form whose results may take the memory of the arrays at `positions`."""
        key = aval_key(args), device
        found = self._donating.get(key)
        if found is None:
            usable = usable_for(self.admit(args).jaxpr.out_avals, args, positions)
            found = self._donating[key] = self.jitted(usable, device) if usable else self.on(device)
        return found

    def jitted(self, donated: tuple[int, ...] = (), device: jax.Device | None = None, small: bool = False) -> Any:
        """Return a jitted function without programs.

        Parameters
        ----------
        donated
            The positions of arguments whose memory the results may take.
        device
            Where it runs. If None, where JAX chooses.
        small
            Whether there are small calls: then the function has a further result, see `with_small_calls`.
        """

        def call(*given: Any) -> list:
            key = lowering_key(given)
            was_lowered = key in self.lowered
            jaxpr = self.admit(given).jaxpr
            seconds = self.seconds.get(key, {})  # another thread may have cleared it
            record_stages_of(self.name, seconds, 0.0 if was_lowered else seconds.get("lower", 0.0))
            if small:
                jaxpr = for_calls(jaxpr, into_first=False).jaxpr
            return jax_compat.call_jaxpr(jaxpr, *given)

        return self._jit(call, device, donate_argnums=donated)

    def packed(
        self,
        avals: Sequence[Any],
        arguments: Packing,
        pack_results: Callable[[Sequence[Any]], Packing],
        device: jax.Device | None,
        how: str,
    ) -> PackedProgram:
        """Return the program for one tuple of avals with packed arguments and results, see `packed_program`.

        `pack_results` returns how results of some avals are packed. A program that an earlier process has kept needs no
        Jaxpr; `how` says what it depends on besides the region and the avals.
        """
        place = None if device is None else place_of_text(partial(self._text, avals, how))
        started = perf_counter()
        if place is not None and (kept := kept_executables.find_programs(place, device)) is not None:
            self.admit(avals, later=True)
            seconds = self.seconds.get(lowering_key(avals), {})  # another thread may have cleared it
            seconds["load"] = perf_counter() - started
            return for_device(read_layout(kept.about), kept.programs[0], device)
        closed = self.admit(avals).jaxpr
        seconds = self.seconds.get(lowering_key(avals), {})

        def jit(jaxpr: Any, **options: Any) -> Any:
            def call(*given: Any) -> list:
                record_stages_of(self.name, seconds, 0.0)
                return jax_compat.call_jaxpr(jaxpr, *given)

            return self._jit(call, device, **options)

        made = packed_program(closed, arguments, pack_results(closed.out_avals), device, jit)
        if place is not None:
            kept_executables.keep_programs(place, [made.call], made.layout.plain())
        return made

    def _text(self, avals: Sequence[Any], how: str) -> str:
        """Return everything that a program depends on, apart from versions, settings and the device."""
        graph = text_of_graph(self.region.inputs, self.region.outputs)
        static = [sorted(step.static) for step in self.region.steps]
        own = self.checked, self._differentiable, self._for_jax, jax_compat.target_platforms()
        return repr((graph, static, lowering_key(avals), own, how))

    def _jit(self, call: Callable[..., list], device: jax.Device | None, **options: Any) -> Any:
        """Return `call` as a jitted function with the name of the program."""
        call.__name__ = call.__qualname__ = self.name
        sharding = None if device is None else jax.sharding.SingleDeviceSharding(device)
        return jax.jit(call, in_shardings=sharding, **options)

    def admit(self, avals: Sequence[Any], later: bool = False) -> Lowered:
        """Return the Jaxpr for avals (or values) that XLA is about to compile, or raise as `Recompiles.check`.

        With `later` there is a program already, and the Jaxpr is built when something reads it.
        """
        key, recompiles = aval_key(avals), self.recompiles
        with self._lock:  # threads that come with new shapes at the same time are one recompilation
            if recompiles is None or key in self._admitted:
                return self.lower(avals, later)
            why = recompiles.check(self.static, avals)
            recompiles.progress.begin(f"lowering {self.name}", len(self.region.steps))
            lowered = self.lower(avals, later, why)
            recompiles.record(self.static, avals)
            self._admitted.add(key)
        if logs.hlo.isEnabledFor(logging.DEBUG):
            structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
            text = jax.jit(lambda *args: jax_compat.call_jaxpr(lowered.jaxpr, *args)).lower(*structs).as_text()
            logs.hlo.debug("%s\n%s", self.name, text)
        recompiles.progress.begin(f"compiling {self.name} with XLA", len(self.region.steps))
        return lowered

    def holds(self, args: Sequence[Any]) -> bool:
        """Return whether it has been compiled for these shapes, or may be."""
        return aval_key(args) in self._admitted

    def lower(self, avals: Sequence[Any], later: bool = False, why: str = "") -> Lowered:
        """Return the Jaxpr for these avals (or values), with `later` one that is built when something reads it.

        The report of the session says `why`.
        """
        key = lowering_key(avals)
        found: Any = self.lowered.get(key)
        if found is None:
            started = perf_counter()
            structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals] if later else avals
            how = (self.checked, self.name, self._differentiable, self._for_jax)
            make = partial(lower_region, self.region, structs, self.static, *how)
            found = LaterLowered(make) if later else make()
            if len(self.lowered) >= self._capacity:
                self._clear()
            seconds = {} if later else {"lower": perf_counter() - started}
            self.lowered[key], self.seconds[key] = found, seconds
            note_build("program", self.name, seconds, later, why)
            if logs.jaxpr.isEnabledFor(logging.DEBUG):
                logs.jaxpr.debug("%s\n%s", self.name, found.jaxpr)
            if logs.guards.isEnabledFor(logging.DEBUG):
                logs.guards.debug("%s is for %s", self.name, spell(describe(self.region, self.static, avals)))
        return found


class LaterLowered:
    """The same as a `Lowered`, but built when something reads it: an earlier process has compiled it."""

    def __init__(self, make: Callable[[], Lowered]):
        self._make = make

    @cached_property
    def _made(self) -> Lowered:
        return self._make()

    @property
    def jaxpr(self) -> Any:
        """The closed Jaxpr."""
        return self._made.jaxpr

    @property
    def checks(self) -> list[Check]:
        """Run-time checks."""
        return self._made.checks


def is_compiled(jitted: Any, args: Sequence[Any]) -> bool:
    """Return whether XLA's compiler takes the program for some arguments."""
    try:
        jitted.lower(*args).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def aval_key(avals: Sequence[Any]) -> tuple:
    """Return the shapes and dtypes of avals, or values."""
    return tuple((tuple(a.shape), np.dtype(a.dtype)) for a in avals)


def lowering_key(avals: Sequence[Any]) -> tuple:
    """Return the key of the Jaxpr for avals, or values: shapes and dtypes, and the mesh on which the caller traces.

    JAX keeps the results of its transformations of a Jaxpr, which name the mesh: it would refuse the same Jaxpr on
    another mesh.
    """
    return aval_key(avals), jax.sharding.get_abstract_mesh()


def usable_for(results: Sequence[Any], args: Sequence[Any], positions: Sequence[int]) -> tuple[int, ...]:
    """Return the positions of `args` whose memory a result can take: each matches another result in shape and dtype."""
    free = Counter(aval_key(results))
    found = []
    for i in positions:
        (key,) = aval_key([args[i]])
        if free[key]:
            free[key] -= 1
            found.append(i)
    return tuple(found)


#: JAX's names and ours of the stages that follow the building of a Jaxpr.
STAGES = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "stablehlo",
    "/jax/core/compile/backend_compile_duration": "xla",
}


class Traced(threading.local):
    """The program that this thread traced last, and where the duration of its stages goes."""

    names: tuple[str, ...] = ()
    seconds: dict[str, float]
    within: float


_traced = Traced()


@cache
def listen() -> None:
    """Have JAX report durations, once in a process."""
    jax.monitoring.register_event_duration_secs_listener(note_duration)


def record_stages_of(name: str, seconds: dict[str, float], within: float) -> None:
    """Write the durations of the next stages of a program to `seconds`, of the trace less `within`."""
    listen()
    _traced.names, _traced.seconds, _traced.within = (name, f"jit({name})"), seconds, within


def note_duration(event: str, duration_secs: float, **details: Any) -> None:
    """Take a duration that JAX reports, if it is one of the program that this thread traced last."""
    stage = STAGES.get(event)
    if stage is not None and details.get("fun_name") in _traced.names:
        _traced.seconds.setdefault(stage, duration_secs - _traced.within if stage == "trace" else duration_secs)
