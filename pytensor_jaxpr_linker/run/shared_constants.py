"""The large constants of a JAX function, which it shares with its derivatives, and which callers may pass as arguments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from pytensor_jaxpr_linker.base.array_types import array_key
from pytensor_jaxpr_linker.run.program import Program, pure_function


class SharedConstants:
    """The large constants of a program, and, once `collected`, those of its derivatives.

    The functions that `function_of` makes take these constants after their inputs. A derivative may have more constants: they stay in its
    program, and a ``jax.jit`` copies them.
    """

    def __init__(self, program: Program):
        self._program = program
        self.arrays: list[np.ndarray] = list(program.constants)
        self._more: list[jax.Array] = []  # the arrays that follow those of `program`
        self._derivatives: list[Program] = []
        self._places: dict[Program, list[int | None]] = {}
        self._is_collected, self._collecting = False, threading.Lock()
        #: Builds the derivative, if it may have constants of its own.
        self.build_derivative: Callable[[], Any] | None = None

    def on_device(self) -> list[jax.Array]:
        """Return the arrays on the device, uploaded once."""
        return [*self._program.device_constants(), *self._more] if self.arrays else []

    def collected(self) -> list[jax.Array]:
        """Build the derivative, and return the arrays on the device, with those of the derivative."""
        with self._collecting:
            if self.arrays and not self._is_collected:
                if self.build_derivative is not None:
                    self.build_derivative()
                self._add_those_of_derivatives()
                self._is_collected = True
        return self.on_device()

    def _add_those_of_derivatives(self) -> None:
        """Add the constants that are not among the arrays."""
        for array in [x for program in self._derivatives for x in program.constants]:
            if find(array, self.arrays) is None:
                with jax.ensure_compile_time_eval(), jax.enable_x64(True):
                    self._more.append(jax.device_put(array))
                self.arrays.append(array)
        self._places.clear()

    def checked(self, given: Sequence[Any]) -> list[Any]:
        """Return the arrays that a caller gives instead, or raise a TypeError if their shapes or dtypes differ."""
        wanted = [(x.shape, np.dtype(x.dtype)) for x in self.arrays]
        found = [(np.shape(x), getattr(x, "dtype", None)) for x in given]
        if found != wanted:
            raise TypeError(
                f"constants must be arrays like those of the function's attribute `constants`, of {wanted}, not {found}."
            )
        return list(given)

    def places(self, program: Program) -> list[int | None]:
        """Return the position of each constant of a program among the arrays, or None."""
        if program not in self._places:
            self._places[program] = [find(array, self.arrays) for array in program.constants]
        return self._places[program]

    def function_of(self, program: Program) -> Callable[..., list]:
        """Return a program as a function of its inputs and then the arrays."""
        if program is not self._program and program.constants:
            self._derivatives.append(program)
        if not program.constants:
            call, count = pure_function(program), len(program.inputs)
            return (lambda *args: call(*args[:count])) if self.arrays else call

        def call_with_constants(*args: Any) -> list:
            given, shared = args[: len(program.inputs)], args[len(program.inputs) :]
            constants = [
                shared[place] if place is not None and place < len(shared) else program.device_constants()[i]
                for i, place in enumerate(self.places(program))
            ]
            return program.specialize(given).call(*given, *constants)

        return call_with_constants


def find(array: np.ndarray, arrays: Sequence[np.ndarray]) -> int | None:
    """Return the position of the same array, else of one that is equal bit by bit: rewrites of two graphs fold constants of their own."""
    for i, other in enumerate(arrays):
        if array_key(other) == array_key(array):
            return i
    for i, other in enumerate(arrays):
        if other.shape == array.shape and other.dtype == array.dtype and other.tobytes() == array.tobytes():
            return i
    return None
