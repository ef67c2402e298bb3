"""`JaxFunction`: a program as a pure JAX function, which checks and converts the arguments that a user gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from pytensor.graph.basic import Variable

from pytensor_jaxpr_linker.base.array_types import in_order, unmasked
from pytensor_jaxpr_linker.base.errors import CannotEmit, refused_by_rule, variable_name
from pytensor_jaxpr_linker.base.jax_compat import with_x64_restored
from pytensor_jaxpr_linker.base.random_keys import keys_of
from pytensor_jaxpr_linker.base.words import counted
from pytensor_jaxpr_linker.run.call import find_generators
from pytensor_jaxpr_linker.run.fork import process
from pytensor_jaxpr_linker.run.program import Program
from pytensor_jaxpr_linker.run.shared_constants import SharedConstants


class JaxFunction:
    """What `as_jax_function` returns: call it with one array for each input.

    NumPy arrays, numbers, typed keys and tracers are arguments, too. What it returns for a typed key is a typed key.

    Attributes
    ----------
    constants
        The large constants of the function and its derivatives, as JAX arrays. A ``jax.jit`` around the function has a copy of them
        in its program, unless they are among its arguments: ``jax.jit(lambda x, c: fn(x, constants=c))(x, fn.constants)``.
    source
        The `Target` that `as_jax_function` was asked for, or None for a derivative.
    """

    def __init__(
        self,
        program: Program,
        fn: Callable[..., list],
        shared: SharedConstants,
        source: Any = None,
    ):
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
        """Return the outputs: a list, or the one output that was asked for by itself.

        Parameters
        ----------
        *args
            One array for each input.
        constants
            Arrays instead of those of the attribute `constants`, of their shapes and dtypes.
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
        names = ", ".join(variable_name(v) for v in inputs)
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
    """Return an argument as an array.

    A Python number or sequence gets the declared dtype, a typed key becomes its data, a generator gives `key_count` keys.
    """
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
