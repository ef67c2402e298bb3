"""`JaxFunction`: a program as a pure JAX function, which shares large constants with its derivatives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from pytensor.graph.basic import Variable

from pytensor_jaxpr_linker.base.array_types import array_key, in_order, unmasked
from pytensor_jaxpr_linker.base.errors import CannotEmit, refused_by_rule, variable_name
from pytensor_jaxpr_linker.base.jax_compat import with_x64_restored
from pytensor_jaxpr_linker.base.random_keys import keys_of
from pytensor_jaxpr_linker.base.words import counted
from pytensor_jaxpr_linker.run.call import find_generators
from pytensor_jaxpr_linker.run.placement import process
from pytensor_jaxpr_linker.run.program import Program, pure_function


class JaxFunction:
    """The function that `as_jax_function` returns: call it with one array for each input.

    NumPy arrays, numbers, typed keys and tracers are arguments, too. For a typed key it returns a typed key.

    Attributes
    ----------
    constants
        The large constants of the function and its derivatives, as JAX arrays. A ``jax.jit`` around the function has a
        copy of them in its program, unless they are among its arguments:
        ``jax.jit(lambda x, c: fn(x, constants=c))(x, fn.constants)``.
    source
        The `Target` that `as_jax_function` was asked for, or None for a derivative.
    """

    def __init__(self, program: Program, fn: Callable[..., list], shared: SharedConstants, source: Any = None):
        self.program, self.source = program, source
        self._fn, self._shared = fn, shared
        self._wide = any(getattr(v.type, "dtype", "") in NARROWED for v in [*program.inputs, *program.outputs])
        self._successors = {i: list(outputs) for i, outputs in find_generators(program.region).items()}
        self.__name__ = self.__qualname__ = program.name

    @property
    def constants(self) -> list[jax.Array]:
        return list(self._shared.collected())

    @with_x64_restored
    def __call__(self, *args: Any, constants: Sequence[Any] | None = None) -> Any:
        """Return the outputs: a list, or the one output of a graph that was not given in a list.

        Parameters
        ----------
        *args
            One array for each input.
        constants
            Arrays instead of the attribute `constants`, of the same shapes and dtypes.
        """
        shared = self._shared.on_device() if constants is None else self._shared.checked(constants)
        results = self.results(args, shared)
        return results[0] if self.source is not None and self.source.is_bare else results

    def results(self, given: Sequence[Any], shared: Sequence[Any]) -> list:
        """Return the list of outputs, for arguments and constants."""
        process.check()
        inputs, counts = self.program.inputs, self.program.key_counts
        check_count(inputs, given)
        args = [as_argument(v, x, counts.get(i, 1)) for i, (v, x) in enumerate(zip(inputs, given, strict=True))]
        for variable, value in zip(inputs, args, strict=True):
            check_shape(variable, value.shape)
        try:
            results = self._with_x64([*args, *shared])
        except CannotEmit as error:
            raise refused_by_rule(error) from None
        for i, outputs in self._successors.items():
            if is_typed_key(given[i]):
                for output in outputs:
                    results[output] = jax.random.wrap_key_data(results[output], impl=jax.random.key_impl(given[i]))
        return results

    def _with_x64(self, args: Sequence[Any]) -> list:
        """Call the function with 64 bits, whatever JAX's setting is."""
        if jax.config.jax_enable_x64:
            return self._fn(*args)
        if self._wide and any(isinstance(a, jax.core.Tracer) for a in args):
            raise TypeError(
                "This graph computes with 64 bits, which JAX does only if told to: call the transformation inside"
                " `with jax.enable_x64(True):`, or set `jax.config.update('jax_enable_x64', True)`."
            )
        with jax.enable_x64(True):
            return self._fn(*args)

    def __repr__(self) -> str:
        names = ", ".join(map(variable_name, self.program.inputs))
        count = len(self.program.outputs)
        return f"<JAX function of ({names}) with {counted(count, 'output')}>"


#: dtypes that JAX narrows unless `jax_enable_x64` is set.
NARROWED = frozenset({"float64", "int64", "uint64", "complex128"})


def check_count(inputs: Sequence[Variable], args: Sequence[Any]) -> None:
    """Raise a TypeError if there is not one argument for each input."""
    if len(args) != len(inputs):
        names = ", ".join(map(variable_name, inputs))
        raise TypeError(f"expected {len(inputs)} arguments ({names}), got {len(args)}")


def check_shape(variable: Variable, shape: tuple) -> None:
    """Raise a TypeError if an argument has another rank, or another size of an axis, than its variable declares."""
    declared = getattr(variable.type, "shape", None)  # a generator has none
    if declared is None or declared == shape:
        return
    if len(declared) != len(shape) or any(n is not None and n != m for n, m in zip(declared, shape, strict=True)):
        raise TypeError(
            f"The input {variable_name(variable)} is a {variable.type}, but its argument has shape {shape}."
        )


def as_argument(variable: Variable, value: Any, key_count: int = 1) -> Any:
    """Return an argument as an array: numbers in the declared dtype, a key's data, `key_count` keys of a generator."""
    if isinstance(value, jax.Array):
        return jax.random.key_data(value) if is_typed_key(value) else value
    if isinstance(value, np.random.Generator):
        return keys_of(value, key_count)
    value = unmasked(in_order(variable.type, value))
    if isinstance(value, np.ndarray | np.generic):
        return value
    return np.asarray(value, getattr(variable.type, "dtype", None))


def is_typed_key(value: Any) -> bool:
    """Return whether a value is a key of `jax.random.key`."""
    return isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


class SharedConstants:
    """The large constants of a program and, once `collected`, of its derivatives, which callers may pass as arguments.

    The functions that `function_of` makes take these constants after their inputs. A derivative may have more
    constants: they stay in its program, and a ``jax.jit`` copies them.
    """

    def __init__(self, program: Program):
        self._program = program
        self.arrays: list[np.ndarray] = list(program.constants)
        self._more: list[jax.Array] = []  # the arrays after the program's
        self._derivatives: list[Program] = []
        self._places: dict[Program, list[int | None]] = {}
        self._is_collected, self._collecting = False, threading.Lock()
        #: Builds the derivative, if it may have constants of its own.
        self.build_derivative: Callable[[], Any] | None = None

    def on_device(self) -> list[jax.Array]:
        """Return the arrays on the device, uploaded once."""
        return [*self._program.device_constants(), *self._more] if self.arrays else []

    def collected(self) -> list[jax.Array]:
        """Build the derivative, and return the arrays on the device, with the derivative's."""
        with self._collecting:
            if self.arrays and not self._is_collected:
                if self.build_derivative is not None:
                    self.build_derivative()
                for array in [x for program in self._derivatives for x in program.constants]:
                    if find(array, self.arrays) is None:
                        with jax.ensure_compile_time_eval(), jax.enable_x64(True):
                            self._more.append(jax.device_put(array))
                        self.arrays.append(array)
                self._places.clear()
                self._is_collected = True
        return self.on_device()

    def checked(self, given: Sequence[Any]) -> list[Any]:
        """Return the arrays that a caller gives instead, or raise a TypeError if their shapes or dtypes differ."""
        wanted = [(x.shape, np.dtype(x.dtype)) for x in self.arrays]
        found = [(np.shape(x), getattr(x, "dtype", None)) for x in given]
        if found != wanted:
            raise TypeError(
                f"constants must be arrays like the function's attribute `constants`, of {wanted}, not {found}."
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
    """Return the position of the same array, or of one equal bit by bit: two graphs fold their own constants."""
    for i, other in enumerate(arrays):
        if array_key(other) == array_key(array):
            return i
    alike = (i for i, x in enumerate(arrays) if x.shape == array.shape and x.dtype == array.dtype)
    return next((i for i in alike if arrays[i].tobytes() == array.tobytes()), None)
