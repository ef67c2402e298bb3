"""A region compiled for one tuple of static values, once for each tuple of shapes."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import jax
import numpy as np
from pytensor.graph.basic import Variable

from pytensor_jaxpr_linker.base import jax_compat, logs
from pytensor_jaxpr_linker.jaxpr.lower import Lowered, lower_region
from pytensor_jaxpr_linker.plan.model import Region
from pytensor_jaxpr_linker.run import timing
from pytensor_jaxpr_linker.run.packing import Packed, Packing
from pytensor_jaxpr_linker.run.recompiles import Admit, OnHost, Pad, Recompiles, Refuse, describe, spell


class NotAdmitted(Exception):
    """Ends a trace of `jax.jit`, so that nothing is compiled: `Program.run` does what was decided instead.

    Only the traced function learns that `jax.jit` has no program, so a call that compiles nothing pays nothing for the decision.
    To know it before, by the shapes and dtypes of the arguments, took 5 to 10 % of a short call.
    """

    def __init__(self, decision: Pad | OnHost):
        super().__init__(decision)
        self.decision = decision


class Specialization:
    """A region for one tuple of static values, compiled once for each tuple of avals by `jax.jit`. Its parameters are those of `Program`.

    Attributes
    ----------
    call : Callable
        The jitted function of the region's inputs and large constants. Returns the outputs, then the check code if there
        are checks.
    static
        The values of what the region demands.
    recompiles
        Decides before each compilation; None admits all.
    lowered
        The Jaxprs so far, by the shapes and dtypes of what the program takes.
    seconds
        For each of them how long its stages took: "lower", and "trace", "stablehlo" and "xla" once it was called.
    packed
        The cache of `make_packer`.
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
    ):
        self.region, self.static, self.checked, self.name = region, static, checked, name
        self._differentiable = differentiable
        self._capacity, self.recompiles = capacity, recompiles
        self._lock = threading.RLock()
        self.packed: dict[tuple, Packed | None] = {}
        self._clear()

    def _clear(self) -> None:
        """Drop all programs: `jax.jit` keeps them as long as the function lives."""
        self.lowered: dict[tuple, Lowered] = {}
        self.seconds: dict[tuple, dict[str, float]] = {}
        self._admitted: set[tuple] = set()
        self._donating: dict[tuple, Any] = {}
        self.packed.clear()
        self.call = self.jitted()

    def donating(self, args: Sequence[Any], positions: Sequence[int]) -> Any:
        """Return the function to call instead of `call`, so that the results may take the memory of the arrays at `positions`."""
        key = aval_key(args)
        found = self._donating.get(key)
        if found is None:
            usable = usable_for(self._admit(args).jaxpr.out_avals, args, positions)
            found = self._donating[key] = self.jitted(usable) if usable else self.call
        return found

    def jitted(self, donated: tuple[int, ...] = (), packing: Packing | None = None) -> Any:
        """Return a jitted function without programs, of packed arguments if `packing` says how."""

        def call(*given: Any) -> list:
            args = given if packing is None else packing.unpack(given[0], given[1:])
            key = aval_key(args)
            was_lowered = key in self.lowered
            lowered = self._admit(args)
            seconds = self.seconds.get(key, {})  # another thread may have cleared it
            timing.record_stages_of(self.name, seconds, 0.0 if was_lowered else seconds.get("lower", 0.0))
            return jax_compat.call_jaxpr(lowered.jaxpr, *args)

        call.__name__ = call.__qualname__ = self.name
        return jax.jit(call, donate_argnums=donated)

    def _admit(self, avals: Sequence[Any]) -> Lowered:
        """Return the Jaxpr that XLA is about to compile.

        Raises
        ------
        NotAdmitted
            If something else is done instead.
        RecompileError, GraphBreakError
            If the options or the stance forbid it.
        """
        key, recompiles = aval_key(avals), self.recompiles
        with self._lock:  # threads that come with new shapes at the same time are one recompilation
            if recompiles is None or key in self._admitted:
                return self.lower(avals)
            decision = recompiles.decide(self.static, avals)
            if isinstance(decision, Refuse):
                raise decision.error
            if not isinstance(decision, Admit):
                raise NotAdmitted(decision)
            recompiles.progress.begin(f"lowering {self.name}", len(self.region.steps))
            lowered = self.lower(avals)
            recompiles.record(self.static, avals)
            self._admitted.add(key)
        if logs.hlo.isEnabledFor(logging.DEBUG):
            structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
            text = jax.jit(lambda *args: jax_compat.call_jaxpr(lowered.jaxpr, *args)).lower(*structs).as_text()
            logs.hlo.debug("%s\n%s", self.name, text)
        recompiles.progress.begin(f"compiling {self.name} with XLA", len(self.region.steps))
        return lowered

    def holds(self, args: Sequence[Any]) -> bool:
        """Tell whether it has been compiled for these shapes, or may be."""
        return aval_key(args) in self._admitted

    def lower(self, avals: Sequence[Any]) -> Lowered:
        """Return the Jaxpr for these avals (or values)."""
        key = aval_key(avals)
        found = self.lowered.get(key)
        if found is None:
            started = perf_counter()
            found = lower_region(self.region, avals, self.static, self.checked, self.name, self._differentiable)
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
    """Return the key of the Jaxpr for avals, or values."""
    return tuple((tuple(a.shape), np.dtype(a.dtype)) for a in avals)


def usable_for(results: Sequence[Any], args: Sequence[Any], positions: Sequence[int]) -> tuple[int, ...]:
    """Return the positions of `args` whose memory a result can take: each has shape and dtype of a result of its own."""
    free = Counter(aval_key(results))
    found = []
    for i in positions:
        (key,) = aval_key([args[i]])
        if free[key]:
            free[key] -= 1
            found.append(i)
    return tuple(found)
