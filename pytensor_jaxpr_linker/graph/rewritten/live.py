"""Texts of values as they are now, in this process: every value has one, and it changes with whatever changes in place.

A value without a text in `Descriptions` is told by its identity and by its content: attributes, items, and the
variables that a function reads.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
from pytensor.compile.executor import Function
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import AbstractFunctionGraph
from pytensor.graph.traversal import toposort

from pytensor_jaxpr_linker.base.interpreter import identity
from pytensor_jaxpr_linker.graph.rewritten import describe
from pytensor_jaxpr_linker.graph.rewritten.flat import OF_VALUES, tags_of

#: Modules of the standard library whose objects hold threads, files and each other.
OPAQUE = frozenset({"asyncio", "concurrent", "io", "logging", "multiprocessing", "threading", "_thread", "weakref"})
#: Tags that PyTensor's rewrites write into the user's variables, as they do names into constants: no rewrite reads
#: them.
WRITTEN = OF_VALUES | {"values_eq_approx"}
#: Attributes of classes that say nothing about their instances.
OF_CLASSES = frozenset({"__dict__", "__weakref__", "__doc__", "__annotations__", "__abstractmethods__", "_abc_impl"})


class LiveDescriptions(describe.Descriptions):
    """Describes values for this process, as long as it lives: it keeps the values that it tells by identity."""

    def __init__(self) -> None:
        super().__init__()
        self._variables: dict[Variable, int] = {}

    def digest(self, value: Any) -> str:
        """Return a digest of a value."""
        return sha256("\n".join([repr(self(value)), *self.texts]).encode()).hexdigest()

    def __call__(self, value: Any) -> Any:
        """Return a value's form in a text."""
        if type(value) in describe.OWN_TEXTS:
            return value
        if isinstance(value, Variable):
            return "variable", self.variable(value)
        if isinstance(value, list | Mapping | FunctionType):  # which may hold itself
            return "object", self.number(value)
        if isinstance(value, np.ndarray):
            return self.array(value)
        return describe.describer(type(value))(self, value)

    def name(self, value: Any) -> Any:
        """Return the name of a class or function of PyTensor and the like, or the number of any other."""
        with suppress(describe.NotDescribed):
            return describe.name_of(value)
        return self.number(value)

    def number(self, value: Any) -> int:
        """Return the number of an object. It has one before it is described, for it may hold itself."""
        found = self._known.get(identity(value))
        if found is None:
            found = self._known[identity(value)] = value, len(self.texts)
            self.texts.append("")
            self.texts[found[1]] = f"{self.name(type(value))} {self.state(value)!r}"
        return found[1]

    def state(self, value: Any) -> Any:
        """Return the content of an object."""
        if package_of(type(value)) in describe.OF_PYTENSOR:
            with suppress(describe.NotDescribed):
                return super().state(value)
        if isinstance(value, list):
            return [self(x) for x in value]
        if isinstance(value, Mapping):
            return self.attributes(value), [(self(k), self(v)) for k, v in list(value.items())]
        return identity(value), self.contents(value)

    def contents(self, value: Any) -> Any:
        """Return the content of an object that has a text in this process only."""
        if isinstance(value, FunctionType):
            return self.function(value)
        if isinstance(value, type):
            return [self(x) for x in value.__bases__] + self.items(vars(value), OF_CLASSES) if is_users(value) else None
        if isinstance(value, AbstractFunctionGraph):
            return [self(v) for v in (*value.inputs, *value.outputs)]
        if package_of(type(value)) in OPAQUE or isinstance(value, CodeType | Function | ModuleType):
            return None
        found = [self.attributes(value)]
        if isinstance(value, MethodType):
            found += [self(value.__func__), self(value.__self__)]
        elif isinstance(value, partial):
            found += [self(x) for x in (value.func, value.args, value.keywords)]
        elif isinstance(value, property):
            found += [self(value.fget)]
        elif hasattr(type(value), "__array__"):
            found += [self.array(np.asarray(value))]
        wrapped = (getattr(value, name, None) for name in ("__wrapped__", "__func__"))
        return found + [self(x) for x in wrapped if callable(x)]

    def function(self, function: FunctionType) -> Any:
        """Return the values that a function reads: defaults, captured variables, and globals if it is the user's."""
        cells = [cell.cell_contents for cell in function.__closure__ or () if not is_empty(cell)]
        read = names_in(function.__code__) if is_users(function) else ()
        found = {name: function.__globals__[name] for name in read if name in function.__globals__}
        parts = (function.__defaults__, function.__kwdefaults__, cells, vars(function))
        return identity(function.__code__), [self(x) for x in parts], self.items(found)

    def attributes(self, value: Any) -> list:
        """Return the forms of the attributes of an object."""
        slots = [
            (name, slot)
            for cls in type(value).__mro__
            for name, slot in vars(cls).items()
            if isinstance(slot, MemberDescriptorType) and is_users(cls)
        ]
        held = {name: slot.__get__(value) for name, slot in slots if hasattr(value, name)}
        return self.items({**held, **getattr(value, "__dict__", {})}, describe.COMPUTED)

    def items(self, held: Mapping[str, Any], without: Iterable[str] = ()) -> list:
        """Return the forms of named values."""
        return [(name, self(x)) for name, x in list(held.items()) if name not in without]

    def array(self, value: np.ndarray) -> Any:
        """Return the form of an array of any size and dtype."""
        if value.dtype.hasobject:
            return "array", value.shape, [self(x) for x in value.ravel().tolist()]
        held = sha256(np.ascontiguousarray(value)).hexdigest() if value.nbytes > 64 else value.tobytes().hex()
        more = [] if type(value) is np.ndarray else self.attributes(value)
        return "array", str(value.dtype.descr), value.shape, held, more

    def atom(self, variable: Variable, numbers: dict[Variable, Any]) -> Any:
        """Return the number of a variable of an inner graph, or the form of any other one."""
        return numbers[variable] if variable in numbers else self(variable)

    def variable(self, variable: Variable) -> int:
        """Return the number of a variable, whose text says how it is computed."""
        for node in toposort([variable], blockers=self._variables):
            op, operands = self.number(node.op), [self.leaf(v) for v in node.inputs]
            for i, v in enumerate(node.outputs):
                self.add(v, op, operands, i)
        return self.leaf(variable)

    def leaf(self, variable: Variable) -> int:
        """Return the number of a variable that has one, or that nothing computes."""
        if variable not in self._variables:
            self.add(variable, self(variable.data) if isinstance(variable, Constant) else identity(variable))
        return self._variables[variable]

    def add(self, variable: Variable, *source: Any) -> None:
        """Give a variable a number and a text, which says where it comes from."""
        self._variables[variable] = len(self.texts)
        self.texts.append("")
        tags = {k: x for k, x in tags_of(variable).items() if k not in WRITTEN}
        name = None if isinstance(variable, Constant) else variable.name
        about = name, self.number(variable.type), self(tags) if tags else None
        self.texts[self._variables[variable]] = repr((source, about))


def package_of(value: Any) -> str:
    """Return the package of a class or function."""
    return str(value.__module__).partition(".")[0]


def is_users(value: Any) -> bool:
    """Return whether a class or function is neither Python's nor of an installed package."""
    return package_of(value) not in describe.OF_PYTENSOR and is_own_module(str(value.__module__))


@describe.once
def is_own_module(name: str) -> bool:
    """Return whether a module is neither Python's nor of an installed package."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None or file is None:
        return module is None or name == "__main__"
    return not any(Path(file).is_relative_to(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib"))


def is_empty(cell: Any) -> bool:
    """Return whether a captured variable has no value yet."""
    try:
        return cell.cell_contents is cell
    except ValueError:
        return True


def names_in(code: CodeType) -> list[str]:
    """Return the names that a function, and the functions inside it, may read from globals."""
    inner = [name for x in code.co_consts if isinstance(x, CodeType) for name in names_in(x)]
    return list(dict.fromkeys([*code.co_names, *inner]))
