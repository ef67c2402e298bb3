"""`Module`: functions that share state, on the host and as MLIR."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self
from weakref import WeakKeyDictionary

from jaxpr_artifact.state import ModuleState
from pytensor_jaxpr_linker.artifacts.iree.compiled import lower_for_iree, write_module
from pytensor_jaxpr_linker.artifacts.iree.targets import CompileTarget
from pytensor_jaxpr_linker.artifacts.lowering import PLATFORMS
from pytensor_jaxpr_linker.artifacts.mlir.build import lower_for
from pytensor_jaxpr_linker.artifacts.mlir.mlir_module import INLINE_BYTES, MlirModule
from pytensor_jaxpr_linker.artifacts.mlir.source import ModuleSource
from pytensor_jaxpr_linker.artifacts.module import declarations
from pytensor_jaxpr_linker.artifacts.module.assembly import (
    Assembly,
    assembly_of,
    attributes_of_functions,
    check_attributes,
    check_functions,
    declared_functions,
    is_function,
)
from pytensor_jaxpr_linker.artifacts.module.declarations import StateDeclaration
from pytensor_jaxpr_linker.artifacts.module.functions import PublicFunction
from pytensor_jaxpr_linker.artifacts.module.sources import source_of
from pytensor_jaxpr_linker.artifacts.module.state import Values

#: The shapes of arguments, by function and argument.
type Seen = Mapping[str, tuple[int, ...]]

NOTHING_SEEN: Seen = MappingProxyType({})


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
    __assembly: Assembly
    __values: Values

    def __init_subclass__(cls, name: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__name = (
            name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__.removesuffix("Module")).lower() or "module"
        )
        found = {key: x for c in reversed(cls.__mro__) if c not in Module.__mro__ for key, x in vars(c).items()}
        cls.__attributes = {key: x for key, x in found.items() if not key.startswith(("__", "_Module__"))}
        parts = [key for key, x in cls.__attributes.items() if is_function(x) or is_state(key, x)]
        check_attributes(parts, RESERVED)
        check_attributes([cls.__name], ())

    def __init__(self, name: Any = None, functions: Mapping[str, Any] | None = None):
        if type(self) is not Module:
            if name is not None or functions is not None:
                raise TypeError(f"{type(self).__name__}() takes no arguments: its class says what it has.")
            cls = type(self)
            if cls not in ASSEMBLIES:
                ASSEMBLIES[cls] = assembly_of(cls.__attributes, RESERVED)
            self.__begin(cls.__name, ASSEMBLIES[cls])
        else:
            if functions is None:
                if name is None or isinstance(name, str):
                    raise TypeError(f'A module has functions: Module({name or "model"!r}, functions={{"step": f}}).')
                functions = {getattr(name, "name", None) or "main": name}
                name = next(iter(functions))
            name = "module" if name is None else name
            check_functions(functions)
            check_attributes(functions, RESERVED)
            check_attributes([name], ())
            self.__begin(name, assembly_of(attributes_of_functions(functions), RESERVED))

    def __begin(self, name: str, assembly: Assembly, values: Values | None = None, seen: Seen = NOTHING_SEEN) -> None:
        """Give a new instance its parts; by default with the values that the shared variables have."""
        self.__name, self.__assembly, self.__values = name, assembly, values or Values(assembly.globals)
        self.__seen = dict(seen)  # the shapes of arguments in the latest calls
        for attribute, tree in assembly.state.items():
            vars(self)[attribute] = ModuleState(attribute, tree, self.__values)
        for function in assembly.functions.values():
            names = assembly.places[function.name]
            vars(self)[function.name] = PublicFunction(name, function, names, self.__values, self.__seen)

    def __copy__(self) -> Self:
        """Return another instance, with the values that this one has now and the same compiled functions."""
        other = object.__new__(type(self))
        other.__begin(self.__name, self.__assembly, copy.copy(self.__values), self.__seen)
        vars(other).update(self.__added())
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = memo[id(self)] = copy.copy(self)
        vars(other).update(copy.deepcopy(self.__added(), memo))
        return other

    def __reduce__(self) -> tuple:
        """Return what makes an instance with the values that this one has now: of its class, or of its functions, which are compiled again."""
        functions = None if type(self) is not Module else declared_functions(self.__assembly)
        state = self.__values.arrays(), dict(self.__seen), self.__added()
        return restored_module, (type(self), self.__name, functions), state

    def __setstate__(self, state: tuple) -> None:
        arrays, seen, added = state
        self.__values.restore(arrays)
        self.__seen.update(seen)
        vars(self).update(added)

    def __added(self) -> dict[str, Any]:
        """Return the attributes that somebody gave the instance."""
        parts = {*self.__assembly.state, *self.__assembly.functions}
        return {key: x for key, x in vars(self).items() if key not in parts and not key.startswith("_Module__")}

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(vars(self).get(name), ModuleState):
            raise AttributeError(f"{name} is state of the module: m.{name}.set_value(...) sets it.")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        functions = [str(f.form) for f in self.__assembly.functions.values()]
        state = [repr(x) for x in vars(self).values() if isinstance(x, ModuleState)]
        return f"<module {self.__name}: {', '.join([*functions, *state])}>"

    def __instead__(self) -> str:
        """Return what to ask about in place of a module."""
        functions = ", ".join(f"m.{name}" for name in self.__assembly.functions)
        return f"it has functions to ask about, {functions}. Module.save and Module.mlir write all of them."

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
            write_module(path, self.__source(inline_bytes), target, inline_bytes, parameters)
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
    """Return whether an attribute is state, or raise a TypeError if it is meant to be and can't."""
    tree = given.tree if isinstance(given, StateDeclaration) else given
    return declarations.state_leaves(name, tree) is not None


def restored_module(cls: type[Module], name: str, functions: Mapping[str, Any] | None) -> Module:
    """Return a new instance of what a pickle names. The parameters that a class may have need no values."""
    module = object.__new__(cls)
    Module.__init__(module, *(() if functions is None else (name, functions)))
    return module


#: The compiled parts of classes that have instances.
ASSEMBLIES: WeakKeyDictionary[type, Assembly] = WeakKeyDictionary()

#: What parts of a module can't be called.
RESERVED = [name for name in vars(Module) if not name.startswith("_")]
