"""Texts of Ops, types and constants: equal texts mean equal values.

A text holds all that a value consists of: its class, and each of its attributes. A value that no text can hold, such as
a function of the user's, has none, and a graph with it is not kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import Enum
from functools import cache
from hashlib import sha256
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FrozenFunctionGraph
from pytensor.graph.op import io_connection_pattern
from pytensor.graph.utils import Scratchpad
from pytensor.misc.frozendict import frozendict
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

from pytensor_jaxpr_linker.base.interpreter import identity

#: The packages whose classes and functions a text may name: `environment` looks at their files.
OF_PYTENSOR = ("pytensor", "pymc", "pymc_extras", "pytensor_jaxpr_linker")
#: Packages whose versions describe them.
RELEASES = ("builtins", "numpy", "scipy")
#: Where SciPy has its sparse matrices of compressed rows and columns, the only ones that PyTensor's constants are.
SPARSE = ("scipy.sparse._csr", "scipy.sparse._csc")
#: Where SciPy has its splines, which Ops of PyMC hold.
SPLINES = "scipy.interpolate._fitpack2"
#: Attributes that are computed from the others when they are first needed.
COMPUTED = frozenset({"__doc__", "__oplist_tags", "_fn", "_inner_shape_frozen", "_inner_shape_template"})
COMPUTED |= {"_frozen_lop", "_frozen_rop", "_lop_op_cache", "_rop_op_cache"}  # of gradients
#: Hashing this many bytes takes as long as a small graph. With more bytes PyTensor's rewrites take longer, too, but
#: less so.
MOST_HASHED_BYTES = 2**24


class NotDescribed(Exception):
    """A value has no text."""


def once[A, R](function: Callable[[A], R]) -> Callable[[A], R]:
    """Return a function that remembers its results. The types of `cache` refuse classes as arguments."""
    return cache(function)


class Descriptions:
    """Describes values. Ops, types and graphs inside Ops have numbers: their places in `texts`, without repetition."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}
        self._known: dict[int, tuple[Any, int]] = {}
        self._tensor_types: dict[tuple, TensorType] = {}
        self._bytes = 0

    def number(self, value: Any) -> int:
        """Return the number of an Op, a type, or any object with attributes."""
        if type(value) is TensorType:  # most values, and most of them equal
            value = self._tensor_types.setdefault(
                (value.dtype, value.shape, value.name, value.filter_checks_isfinite), value
            )
        found = self._known.get(identity(value))
        if found is None:
            text = f"{self.name(type(value))} {self.state(value)!r}"
            number = self._numbers.setdefault(text, len(self.texts))
            if number == len(self.texts):
                self.texts.append(text)
            found = self._known[identity(value)] = value, number
        return found[1]

    def name(self, value: Any) -> Any:
        """Return the name of a class or function."""
        return name_of(value)

    def state(self, value: Any) -> Any:
        """Return the content of an object."""
        cls = type(value)
        if (names := names_of(cls)) is not None:
            return [self(getattr(value, name)) for name in names]
        if cls is FrozenFunctionGraph:
            return self.graph(value)
        if not is_plain(cls):
            raise NotDescribed(f"{value!r:.100}")
        state = value.__getstate__()
        if "_connection_pattern" in (state or ()):
            state = state | {"_connection_pattern": given_pattern(value)}
        if isinstance(state, dict):
            return [(k, self(v)) for k, v in state.items() if k not in COMPUTED]
        return self(state)

    def graph(self, graph: FrozenFunctionGraph) -> Any:
        """Return the content of the graph inside an Op."""
        numbers: dict[Variable, Any] = {v: i for i, v in enumerate(graph.inputs)}
        nodes = []
        for node in graph.toposort():
            operands = [self.atom(v, numbers) for v in node.inputs]
            for v in node.outputs:
                numbers[v] = len(numbers)
            nodes.append((self.number(node.op), operands, [self.number(v.type) for v in node.outputs]))
        return [self.number(v.type) for v in graph.inputs], nodes, [self.atom(v, numbers) for v in graph.outputs]

    def atom(self, variable: Variable, numbers: dict[Variable, Any]) -> Any:
        """Return the number of a variable of an inner graph, or the content of a constant."""
        if (found := numbers.get(variable)) is not None:
            return found
        if not isinstance(variable, Constant):
            raise NotDescribed(f"{variable} is not a variable of the graph")
        return self.constant(variable)

    def constant(self, constant: Any) -> Any:
        """Return the content of a constant."""
        return "constant", type(constant).__qualname__, self.number(constant.type), self(constant.data)

    def __call__(self, value: Any) -> Any:
        """Return a value's form in a text: tuples, lists, strings, numbers."""
        return describer(type(value))(self, value)

    def array(self, value: np.ndarray) -> Any:
        """Return the form of an array."""
        self._bytes += value.nbytes
        if value.dtype.hasobject or value.dtype.names or self._bytes > MOST_HASHED_BYTES:
            raise NotDescribed(f"an array of {value.nbytes} bytes and dtype {value.dtype}")
        held = sha256(np.ascontiguousarray(value)).hexdigest() if value.nbytes > 64 else value.tobytes().hex()
        return "array", value.dtype.str, value.shape, held


def described_items(describe: Descriptions, value: Any) -> Any:
    """Describe a tuple or a list."""
    if type(value) is tuple and OWN_TEXTS.issuperset(map(type, value)):
        return "tuple", value
    return describe.name(type(value)), [describe(x) for x in value]


@once
def describer(cls: type) -> Callable[[Descriptions, Any], Any]:
    """Return the function that describes the values of a class."""
    if (found := BY_CLASS.get(cls)) is not None:
        return found
    if cls.__module__ in SPARSE:
        return lambda describe, x: (describe.name(cls), x.shape, *map(describe, (x.data, x.indices, x.indptr)))
    return next(describe for base, describe in BY_BASE if issubclass(cls, base))


def given_pattern(op: Any) -> Any:
    """Return the connection pattern that an Op was given, or None: then PyTensor computes it when it is needed."""
    pattern = op._connection_pattern
    return None if pattern is None or pattern == io_connection_pattern(op.inner_inputs, op.inner_outputs) else pattern


@once
def names_of(cls: type) -> tuple[str, ...] | None:
    """Return the names of the attributes that PyTensor compares, and that so determine an Op, if it compares any."""
    derives = cls.__eq__.__qualname__ == "MetaType.__new__.<locals>.__eq__"
    return OWN_NAMES.get(cls) or (cls.__props__ if derives else None)  # type: ignore[attr-defined]


@once
def is_plain(cls: type) -> bool:
    """Return whether values consist of their attributes: all bases are in Python, and none is a part of a graph."""
    return all(
        c not in (Variable, Apply, Scratchpad)
        and (
            c is object or c.__module__ == SPLINES or c.__module__.partition(".")[0] in (*OF_PYTENSOR, "abc", "typing")
        )
        for c in cls.__mro__
    )


@once
def name_of(value: Any) -> str:
    """Return the name of a class or function of a known package, under which it can be found."""
    module, name = value.__module__ or "builtins", value.__qualname__
    if module.partition(".")[0] not in (*OF_PYTENSOR, *RELEASES):
        raise NotDescribed(f"{name} of {module}")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not value:
        raise NotDescribed(f"{name} of {module} is not to be found there")
    return f"{module}.{name}"


#: The attributes that the values of some classes consist of: all else follows from them.
OWN_NAMES: dict[Any, tuple[str, ...]] = {
    TensorType: ("dtype", "shape", "name", "filter_checks_isfinite"),
    Elemwise: ("scalar_op", "inplace_pattern", "name", "nfunc_spec", "openmp"),
}
#: Classes of values that are texts of themselves.
OWN_TEXTS: frozenset[type] = frozenset({bool, int, float, complex, str, bytes, type(None), type(...)})
#: The functions that describe a value of exactly this class.
BY_CLASS: dict[type, Callable[[Descriptions, Any], Any]] = {
    **dict.fromkeys(OWN_TEXTS, lambda _, x: x),
    **dict.fromkeys((list, tuple), described_items),
    **dict.fromkeys(
        (dict, frozendict), lambda describe, x: (describe.name(type(x)), [(*map(describe, kv),) for kv in x.items()])
    ),
    **dict.fromkeys(
        (set, frozenset), lambda describe, x: (describe.name(type(x)), sorted(repr(describe(v)) for v in x))
    ),
    np.ndarray: Descriptions.array,
    slice: lambda describe, x: ("slice", *map(describe, (x.start, x.stop, x.step))),
    **dict.fromkeys((FunctionType, BuiltinFunctionType, np.ufunc), lambda describe, x: ("name", describe.name(x))),
}
#: The functions that describe a value of a class derived from this one, in order.
BY_BASE: list[tuple[Any, Callable[[Descriptions, Any], Any]]] = [
    (type, lambda describe, x: ("name", describe.name(x))),
    (np.generic, lambda describe, x: ("scalar", describe(np.asarray(x)))),
    (np.dtype, lambda describe, x: ("dtype", describe(np.empty(0, x)))),
    (Enum, lambda describe, x: (describe.name(type(x)), x.name)),
    (tuple, described_items),
    (object, lambda describe, x: ("object", describe.number(x))),
]
