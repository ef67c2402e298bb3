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
from pytensor_jaxpr_linker.artifacts.iree import CompileTarget, lower_for_iree, write_module
from pytensor_jaxpr_linker.artifacts.mlir.build import ModuleSource, lower_for
from pytensor_jaxpr_linker.artifacts.mlir.mlir_module import INLINE_BYTES, MlirModule
from pytensor_jaxpr_linker.artifacts.module import declarations
from pytensor_jaxpr_linker.artifacts.module.assembly import (
    Assembly,
    Values,
    assembly_of,
    attributes_of_functions,
    check_attributes,
    is_function,
)
from pytensor_jaxpr_linker.artifacts.module.declarations import StateDeclaration
from pytensor_jaxpr_linker.artifacts.module.functions import ModuleFunction, PublicFunction
from pytensor_jaxpr_linker.artifacts.module.sources import source_of
from pytensor_jaxpr_linker.artifacts.writing import PLATFORMS

#: The shapes of arguments, by function and argument.
type Seen = Mapping[str, tuple[int, ...]]

NOTHING_SEEN: Seen = MappingProxyType({})


class Module:
    """Functions that share state, to be called here and to leave Python together.

    A subclass names shared variables, which become the state of the module, and functions, which `public` and `private`
    declare. Or ``Module(name, functions={"step": f})`` makes a module of compiled functions, and ``Module(f)`` of one.

    Parameters
    ----------
    name : str or function
        The name of the module, by default the name of the class in snake_case. Or its only function.
    functions : dict from str
        Functions compiled with mode JAXPR, declarations of `public` and `private`, or other objects that
        `as_jax_function` takes by themselves.

    Notes
    -----
    An instance has values of its own. They begin as the values that the shared variables have when it is made. Its
    functions compute the same as `pytensor.function`, one call after the other, and change nothing outside. State is
    constant unless a function updates it, or `Module.state` says otherwise, and keeps its shape. On an error all state
    keeps its values. A random generator is a key that functions split. So draws equal the draws of `as_jax_function`,
    and differ from the draws of a function that advances a NumPy generator.

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
        own = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__.removesuffix("Module")).lower()
        cls.__name = name or own or "module"
        found = {key: x for c in reversed(cls.__mro__) if c not in Module.__mro__ for key, x in vars(c).items()}
        cls.__attributes = {key: x for key, x in found.items() if not key.startswith(("__", "_Module__"))}
        parts = [key for key, x in cls.__attributes.items() if is_function(x) or is_state(key, x)]
        check_attributes(parts, RESERVED)
        check_attributes([cls.__name], ())

    def __init__(self, name: Any = None, functions: Mapping[str, Any] | None = None):
        if type(self) is not Module:
            if name is not None or functions is not None:
                raise TypeError(f"{type(self).__name__}() takes no arguments: its class has the functions.")
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
            check_attributes([name], ())
            self.__begin(name, assembly_of(attributes_of_functions(functions, RESERVED), RESERVED))

    def __begin(self, name: str, assembly: Assembly, values: Values | None = None, seen: Seen = NOTHING_SEEN) -> None:
        """Give a new instance its parts, by default with the present values of the shared variables."""
        self.__name, self.__assembly, self.__values = name, assembly, values or Values(assembly.globals)
        self.__seen = dict(seen)  # the shapes of arguments in the latest calls
        for attribute, tree in assembly.state.items():
            vars(self)[attribute] = ModuleState(attribute, tree, self.__values)
        for function in assembly.functions.values():
            names = assembly.places[function.name]
            vars(self)[function.name] = PublicFunction(name, function, names, self.__values, self.__seen)

    def __copy__(self) -> Self:
        """Return another instance, with the present values of this one and the same compiled functions."""
        other = object.__new__(type(self))
        other.__begin(self.__name, self.__assembly, copy.copy(self.__values), self.__seen)
        vars(other).update(self.__added())
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = memo[id(self)] = copy.copy(self)
        vars(other).update(copy.deepcopy(self.__added(), memo))
        return other

    def __reduce__(self) -> tuple:
        """Return a constructor and the present values: of the class, or of the functions, which it compiles again."""
        functions = None
        if type(self) is Module:
            declared = self.__assembly.declared.items()
            functions = {name: x.target.function if isinstance(x, ModuleFunction) else x for name, x in declared}
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
        """Return the objects to ask about in place of a module."""
        functions = ", ".join(f"m.{name}" for name in self.__assembly.functions)
        return f"it has functions to ask about, {functions}. Module.save and Module.mlir write all of them."

    def mlir(self, *, inline_bytes: int | None = INLINE_BYTES, platform: str = "cpu") -> MlirModule:
        """Return the module as MLIR, with the present values of its state.

        Parameters
        ----------
        inline_bytes : int or None
            Arrays of more bytes than this, state and constants, become parameters in a file next to the module. With
            None the module holds all. (It always holds arrays of complex numbers.)
        platform : {"cpu", "cuda", "rocm", "tpu", "iree"}
            The platform for which JAX lowers primitives: "cpu" calls LAPACK for a Cholesky factor, which only JAX has.
            "iree" replaces operations that IREE lacks, or computes badly, by others, as `save` does for ``.vmfb``
            files.

        Returns
        -------
        MlirModule
            The module, as text and as bytecode, with its parameters and its description.

        Raises
        ------
        TypeError
            If the shape of an argument is unknown, see `public`, or depends on the value of one.
        NotImplementedError
            If JAX can't lower a function for the platform, or IREE lacks an operation that nothing replaces.

        Examples
        --------
        >>> import pytensor, pytensor.tensor as pt
        >>> import pytensor_jaxpr_linker as pjl
        >>> x = pt.tensor("x", dtype="float64", shape=(3,))
        >>> f = pytensor.function([x], pt.log1p(x), mode="JAXPR", name="growth")
        >>> print(pjl.Module(f).mlir().pure_text())
        module @growth {
          func.func public @growth(%arg0: tensor<3xf64>) -> tensor<3xf64> {
            %0 = stablehlo.log_plus_one %arg0 : tensor<3xf64>
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
        """Write the module into a file, with the present values of its state.

        An older file is replaced, when everything has succeeded.

        Parameters
        ----------
        path : str or os.PathLike
            A file that ends with ``.vmfb``, which IREE compiles, or with ``.mlir`` or ``.mlirbc``, see
            `MlirModule.save`.
        target : {"host", "x86-64", "aarch64", "cuda"}, or sequence of str
            The target that IREE compiles a ``.vmfb`` file for; a sequence is flags of ``iree-compile``.
        parameters : str or os.PathLike
            The file of large arrays, by default next to the module: ``.irpa`` for ``.vmfb``, otherwise
            ``.safetensors``.
        inline_bytes : int or None
            Arrays of more bytes than this go there, see `mlir`.

        Raises
        ------
        IreeError
            If IREE's compiler refuses the module, or crashes.
        NotImplementedError
            If IREE lacks an operation that nothing replaces.
        ImportError
            If a required package is missing. The message names it.
        TypeError, ValueError
            As in `mlir`.
        """
        if Path(path).suffix == ".vmfb":
            write_module(path, self.__source(inline_bytes), target, inline_bytes, parameters)
        elif target != "host":
            raise TypeError(f"target={target!r} is for files that IREE compiles, whose names end in .vmfb.")
        else:
            self.mlir(inline_bytes=inline_bytes).save(path, parameters)

    def __source(self, inline_bytes: int | None) -> ModuleSource:
        """Return the source of the module's MLIR."""
        return source_of(self.__name, self.__assembly, self.__values.snapshot(), self.__seen, inline_bytes)

    like = staticmethod(declarations.like)

    @staticmethod
    def state(tree: Any, mutable: bool) -> Any:
        """Declare state, and whether updates, `ModuleState.set_value`, and a compiled module's setter may change it.

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


def is_state(name: str, given: Any) -> bool:
    """Return whether an attribute is state, or raise a TypeError if it is meant to be and can't be."""
    tree = given.tree if isinstance(given, StateDeclaration) else given
    return declarations.state_leaves(name, tree) is not None


def restored_module(cls: type[Module], name: str, functions: Mapping[str, Any] | None) -> Module:
    """Return a new instance for a pickle. A class may have parameters, which need no values."""
    module = object.__new__(cls)
    Module.__init__(module, *(() if functions is None else (name, functions)))
    return module


#: The compiled parts of classes that have instances.
ASSEMBLIES: WeakKeyDictionary[type, Assembly] = WeakKeyDictionary()

#: Names that parts of a module can't have.
RESERVED = [name for name in vars(Module) if not name.startswith("_")]
