"""Functions of a module, as users call them: each call reads the module's state, and leaves it the next values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pytensor_jaxpr_linker.artifacts.module.functions import ModuleFunction
from pytensor_jaxpr_linker.artifacts.module.sources import shape_key
from pytensor_jaxpr_linker.artifacts.module.state import Values
from pytensor_jaxpr_linker.base.jax_compat import with_x64_restored


class PublicFunction:
    """A function of one instance of a module. `explain`, `make_jaxpr` and `stages` take it.

    Parameters
    ----------
    module
        The name of the module.
    function
        The compiled function.
    names
        The globals of its state, in the order of ``function.state``.
    values
        The values of the instance's globals.
    seen
        The shapes of arguments in the latest calls: this writes them.
    """

    def __init__(
        self,
        module: str,
        function: ModuleFunction,
        names: Sequence[str],
        values: Values,
        seen: dict[str, tuple[int, ...]],
    ):
        self._module, self._function, self._names, self._values, self._seen = module, function, names, values, seen
        self._updates = {name: s.update for name, s in zip(names, function.state, strict=True) if s.update is not None}
        self.source = function.target
        self.__name__ = self.__qualname__ = function.name
        self.__signature__ = function.__signature__
        self.__doc__ = f"Return {', '.join(function.results) or 'nothing'}."

    @with_x64_restored
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        function, values = self._function, self._values
        arrays = function.arrays(args, kwargs)
        self._seen.update(
            {shape_key(function, leaf): np.shape(x) for leaf, x in zip(function.leaves, arrays, strict=True)}
        )
        if not self._updates:
            return function.returned(self._run(arrays))
        with values.turn:
            results = self._run(arrays)
            returned = function.returned(results)
            values.replace({name: results[i].block_until_ready() for name, i in self._updates.items()})
        return returned

    def _run(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the results of the program for the state as it is now."""
        known = self._values.snapshot()
        return self._function.run(arrays, [known[name] for name in self._names])

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} is part of a module: copy or pickle the module, and take the function of that.")

    def __repr__(self) -> str:
        return f"<function {self.__name__}{self.__signature__} of module {self._module}>"
