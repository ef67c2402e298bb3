"""`Module`: functions that share state, on the host and as MLIR."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxpr_artifact.module_state import ModuleState
from pytensor_jaxpr_linker.artifacts.iree.targets import CompileTarget
from pytensor_jaxpr_linker.artifacts.lowering import PLATFORMS
from pytensor_jaxpr_linker.artifacts.mlir.build import lower_for
from pytensor_jaxpr_linker.artifacts.mlir.compiled_module import lower_for_iree, write_compiled
from pytensor_jaxpr_linker.artifacts.mlir.mlir_module import INLINE_BYTES, MlirModule
from pytensor_jaxpr_linker.artifacts.mlir.source import ModuleSource
from pytensor_jaxpr_linker.artifacts.module import declarations
from pytensor_jaxpr_linker.artifacts.module.assembly import (
    Assembly,
    assembly_of,
    attributes_of_functions,
    check_attributes,
    is_function,
)
from pytensor_jaxpr_linker.artifacts.module.declarations import StateDeclaration
from pytensor_jaxpr_linker.artifacts.module.public_function import PublicFunction
from pytensor_jaxpr_linker.artifacts.module.sources import source_of
from pytensor_jaxpr_linker.artifacts.module.state import Values


class Module:
    """Functions that share state, to be called here and to leave Python together.

    A subclass names shared variables, which become the state of the module, and functions, which `public` and `private` declare. Or
    ``Module(name, functions={"step": f})`` makes a module of compiled functions, and ``Module(f)`` of one.

    Parameters
    ----------
    name : str or function
        What the module is called, by default the name of the class in snake_case. Or its only function.
    functions : dict from str
        Functions compiled with mode JAXPR, what `public` and `private` return, or what else `as_jax_function` takes by itself.

    Notes
    -----
    An instance has values of its own: those that the shared variables have when it is made. Its functions compute what
    `pytensor.function` computes, one call after the other, and change nothing outside. State is constant unless a function updates it, or
    `Module.state` says otherwise, and keeps its shape. On an error all state keeps its values. A random generator is a key that functions
    split, so draws are those of `as_jax_function`: other numbers than those of a function that advances a NumPy generator.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt
    >>> import pytensor_jaxpr_linker as pjl
    >>> weights = pytensor.shared(np.zeros(2), name="weights")
    >>> x, y = pt.dmatrix("x"), pt.dvector("y")
    >>> loss = ((y - x @ weights) ** 2).mean()
    >>> class Model(pjl.Module):
    ...     w = weights
    ...     predict = pjl.public([x], x @ weights)
    ...     step = pjl.public([x, y], loss, updates={weights: weights - 0.1 * pt.grad(loss, weights)})
    >>> m = Model()
    >>> m.step([[1.0, 0.0], [0.0, 1.0]], [1.0, 2.0])
    array(2.5)
    >>> m.w.get_value()
    array([0.1, 0.2])
    """

    __name: str
    __attributes: dict[str, Any]
    __class_assembly: Assembly | None
    __assembly: Assembly
    __values: Values

    def __init_subclass__(cls, name: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__name = (
            name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__.removesuffix("Module")).lower() or "module"
        )
        found = {key: x for c in reversed(cls.__mro__) if c not in Module.__mro__ for key, x in vars(c).items()}
        cls.__attributes = {key: x for key, x in found.items() if not key.startswith(("__", "_Module__"))}
        cls.__class_assembly = None
        parts = [key for key, x in cls.__attributes.items() if is_function(x) or is_state(key, x)]
        check_attributes(parts, RESERVED)
        check_attributes([cls.__name], ())

    def __init__(self, name: Any = None, functions: Mapping[str, Any] | None = None):
        if type(self) is not Module:
            if name is not None or functions is not None:
                raise TypeError(f"{type(self).__name__}() takes no arguments: its class says what it has.")
            cls = type(self)
            assembly = cls.__class_assembly = cls.__class_assembly or assembly_of(cls.__attributes, RESERVED)
            name = cls.__name
        else:
            if functions is None:
                functions = {getattr(name, "name", None) or "main": name}
                name = next(iter(functions))
            check_attributes(functions, RESERVED)
            check_attributes([name], ())
            assembly = assembly_of(attributes_of_functions(functions), RESERVED)
        self.__name, self.__assembly, self.__values = name, assembly, Values(assembly.globals)
        self.__seen: dict[str, tuple[int, ...]] = {}  # the shapes of arguments in the latest calls
        for attribute, tree in assembly.state.items():
            vars(self)[attribute] = ModuleState(attribute, tree, self.__values)
        for function in assembly.functions.values():
            names = assembly.places[function.name]
            vars(self)[function.name] = PublicFunction(name, function, names, self.__values, self.__seen)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(vars(self).get(name), ModuleState):
            raise AttributeError(f"{name} is state of the module: m.{name}.set_value(...) sets it.")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        functions = [f"{f.name}{f.__signature__}" for f in self.__assembly.functions.values()]
        state = [repr(x) for x in vars(self).values() if isinstance(x, ModuleState)]
        return f"<module {self.__name}: {', '.join([*functions, *state])}>"

    def mlir(self, *, inline_bytes: int | None = INLINE_BYTES, platform: str = "cpu") -> MlirModule:
        """Return the module as MLIR, with the values that its state has now.

        Parameters
        ----------
        inline_bytes : int or None
            Arrays of more bytes than this, state and constants, become parameters in a file beside the module. With None the module holds
            all. (Arrays of complex numbers it always holds.)
        platform : {"cpu", "cuda", "rocm", "tpu", "iree"}
            For which platform JAX lowers primitives: "cpu" calls LAPACK for a Cholesky factor, which only JAX has. "iree" takes operations
            that IREE has, and computes well, for those that it lacks, as `save` does for ``.vmfb`` files.

        Returns
        -------
        MlirModule
            The module, as text and as bytecode, with its parameters and what describes it.

        Raises
        ------
        TypeError
            If the shape of an argument is not known, see `public`, or depends on the value of one.
        NotImplementedError
            If JAX can't lower a function for the platform, or IREE lacks an operation that nothing stands for.

        Examples
        --------
        >>> import pytensor, pytensor.tensor as pt
        >>> import pytensor_jaxpr_linker as pjl
        >>> x = pt.tensor("x", dtype="float64", shape=(3,))
        >>> f = pytensor.function([x], pt.exp(x), mode="JAXPR", name="growth")
        >>> print(pjl.Module(f).mlir().pure_text())
        module @growth {
          func.func public @growth(%arg0: tensor<3xf64>) -> tensor<3xf64> {
            %0 = stablehlo.exponential %arg0 : tensor<3xf64>
            return %0 : tensor<3xf64>
          }
        }
        <BLANKLINE>
        """
        if platform not in (known := (*PLATFORMS, "iree")):
            raise ValueError(f"platform is one of {', '.join(map(repr, known))}, not {platform!r}.")
        lower = lower_for_iree if platform == "iree" else lower_for(platform)
        return MlirModule(self.__source(inline_bytes), lower, inline_bytes)

    def save(
        self,
        path: str | os.PathLike,
        *,
        target: CompileTarget = "host",
        parameters: str | os.PathLike | None = None,
        inline_bytes: int | None = INLINE_BYTES,
    ) -> None:
        """Write the module into a file, with the values that its state has now. One that is there is replaced, when all has succeeded.

        Parameters
        ----------
        path : str or os.PathLike
            A file that ends with ``.vmfb``, which IREE compiles, or with ``.mlir`` or ``.mlirbc``, see `MlirModule.save`.
        target : {"host", "x86-64", "aarch64", "cuda"}, or sequence of str
            What IREE compiles a ``.vmfb`` file for; a sequence is flags of ``iree-compile``.
        parameters : str or os.PathLike
            The file of large arrays, by default beside the module: ``.irpa`` for ``.vmfb``, else ``.safetensors``.
        inline_bytes : int or None
            Arrays of more bytes than this go there, see `mlir`.

        Raises
        ------
        IreeError
            If IREE's compiler refuses the module, or crashes.
        NotImplementedError
            If IREE lacks an operation that nothing stands for.
        ImportError
            If a package is missing that this needs. The message says which.
        TypeError, ValueError
            What `mlir` raises.
        """
        if Path(path).suffix == ".vmfb":
            write_compiled(path, self.__source(inline_bytes), target, inline_bytes, parameters)
        elif target != "host":
            raise TypeError(f"target={target!r} is for files that IREE compiles, whose names end in .vmfb.")
        else:
            self.mlir(inline_bytes=inline_bytes).save(path, parameters)

    def __source(self, inline_bytes: int | None) -> ModuleSource:
        """Return the module as what MLIR is made of."""
        return source_of(self.__name, self.__assembly, self.__values.snapshot(), self.__seen, inline_bytes)

    @staticmethod
    def like(value: Any, name: str = "") -> Any:
        return declarations.like(value, name)

    @staticmethod
    def state(tree: Any, mutable: bool) -> Any:
        """Declare state, and whether it may change: by updates, by `ModuleState.set_value`, and by the setter of a compiled module.

        Parameters
        ----------
        tree : shared variable, or tree of them
            The state.
        mutable : bool
            Whether it may change. Without this declaration, it may if a function updates it.

        Examples
        --------
        >>> import pytensor, pytensor.tensor as pt
        >>> import pytensor_jaxpr_linker as pjl
        >>> scale, x = pytensor.shared(2.0, name="scale"), pt.dscalar("x")
        >>> class Scaled(pjl.Module):
        ...     factor = pjl.Module.state(scale, mutable=True)
        ...     scaled = pjl.public([x], scale * x)
        >>> m = Scaled()
        >>> m.factor.set_value(5.0)
        >>> m.scaled(2.0)
        array(10.)
        """
        return StateDeclaration(tree, mutable)

    like.__doc__ = declarations.like.__doc__


def is_state(name: str, given: Any) -> bool:
    """Tell whether an attribute is state, or raise a TypeError if it is meant to be and can't."""
    tree = given.tree if isinstance(given, StateDeclaration) else given
    return declarations.state_leaves(name, tree) is not None


#: What parts of a module can't be called.
RESERVED = [name for name in vars(Module) if not name.startswith("_")]
