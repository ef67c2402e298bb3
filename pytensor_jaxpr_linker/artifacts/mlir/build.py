"""Builds MLIR modules by the bindings of jaxlib: StableHLO functions, and `ml_program` globals around them.

jaxlib does not know the dialect `ml_program`. Its operations are unregistered here and print in the generic form; the
reader checks them. iree-jax, whose exporter wrote such modules by hand, showed that this works and what IREE takes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func, stablehlo
from jax.interpreters import mlir as jax_mlir

from jaxpr_artifact.descriptions import MODULE_ATTRIBUTE, FunctionDescription, StateDescription
from jaxpr_artifact.header import Argument
from pytensor_jaxpr_linker.base import jax_compat


class GlobalSource(NamedTuple):
    """A global with its first value."""

    name: str
    value: np.ndarray
    is_key: bool = False
    is_mutable: bool = False


class FunctionSource(NamedTuple):
    """A function. Its Jaxpr takes the arguments and the globals that it reads.

    It returns the results, the globals that it writes and the check code.
    """

    description: FunctionDescription
    jaxpr: Any
    """A closed Jaxpr, or None for a getter or setter."""
    places: Mapping[str, str] = MappingProxyType({})
    """The line of the user's program that made a node, by the name of its operations."""

    @property
    def name(self) -> str:
        """Its symbol."""
        return self.description.name


class ModuleSource(NamedTuple):
    """A module, to be lowered."""

    name: str
    functions: Sequence[FunctionSource]
    globals: Mapping[str, GlobalSource]
    state: Sequence[StateDescription] = ()


def new_module(name: str) -> ir.Module:
    """Return an empty module in a context of its own."""
    context = jax_compat.new_mlir_context()
    context.allow_unregistered_dialects = True
    with context, ir.Location.unknown():
        module = ir.Module.create()
        module.operation.attributes["sym_name"] = ir.StringAttr.get(name)
    return module


#: Lowers a Jaxpr to the MLIR bytecode of a module, given the function's name, and the lines of its nodes for errors.
type Lower = Callable[[Any, str, Mapping[str, str]], bytes]


def lower_for(platform: str) -> Lower:
    """Return a function that lowers for a platform as JAX does."""
    return lambda jaxpr, name, _: jax_compat.lower_to_mlir(jaxpr, name, platform)


def pure_module(name: str, lowered: Mapping[str, bytes]) -> ir.Module:
    """Return lowered functions as pure ones: they take the globals that they read, and return the ones they write."""
    module = new_module(name)
    with module.context, ir.Location.unknown():
        for function, bytecode in lowered.items():
            merge(module, function, bytecode)
            ir.SymbolTable.set_visibility(ir.SymbolTable(module.operation)[function], "public")
    return module


def module_with_globals(
    source: ModuleSource, lowered: Mapping[str, bytes], external: Collection[str], description: str | None = None
) -> ir.Module:
    """Return the whole module. The globals `external` have their first values in a file of parameters.

    The first function carries the description, if there is one, in an attribute that IREE keeps for readers.
    """
    module = new_module(source.name)
    with module.context, ir.Location.unknown():
        with ir.InsertionPoint(module.body):
            for value in source.globals.values():
                add_global(value, source.name if value.name in external else None)
            for function in source.functions:
                add_function(function, source.globals)
        if description is not None and source.functions:
            add_description(module, source.functions[0].name, MODULE_ATTRIBUTE, description)
        # Behind their callers: otherwise IREE may initialize a constant before the constants that it depends on.
        for name, bytecode in lowered.items():
            merge(module, body_of(name), bytecode)
    module.operation.verify()
    return module


def add_description(module: ir.Module, function: str, attribute: str, text: str) -> None:
    """Put a text into an attribute of a function that IREE keeps for readers."""
    with module.context:
        found = ir.DictAttr.get({attribute: ir.StringAttr.get(text)})
        ir.SymbolTable(module.operation)[function].attributes["iree.reflection"] = found


def merge(module: ir.Module, name: str, bytecode: bytes) -> None:
    """Add the functions of a lowered Jaxpr to a module, as private ones: `name`, and ``name.other`` for others."""
    found = ir.Module.parse(bytecode)
    for operation in found.body.operations:
        old = ir.StringAttr(operation.attributes["sym_name"]).value
        new = name if old == "main" else f"{name}.{old}"
        ir.SymbolTable.replace_all_symbol_uses(old, new, found.operation)
        ir.SymbolTable.set_symbol_name(operation, new)
        ir.SymbolTable.set_visibility(operation, "private")
    for operation in list(found.body.operations):
        module.body.append(operation)


def add_global(given: GlobalSource, scope: str | None) -> None:
    """Add a global, whose first value is a parameter of the scope if there is one."""
    type_ = type_of(given)
    parameter = f'#flow.parameter.named<"{scope}"::"{given.name}"> : {type_}'
    attributes = {
        "sym_name": ir.StringAttr.get(given.name),
        "sym_visibility": ir.StringAttr.get("private"),
        "type": ir.TypeAttr.get(type_),
        "value": jax_mlir.ir_attribute(given.value) if scope is None else ir.Attribute.parse(parameter),
    }
    if given.is_mutable:
        attributes["is_mutable"] = ir.UnitAttr.get()
    ir.Operation.create("ml_program.global", attributes=attributes)


def body_of(name: str) -> str:
    """Return the name of the private function that computes the results of a public one."""
    return f"{name}.body"


def add_function(given: FunctionSource, known: Mapping[str, GlobalSource]) -> None:
    """Add a public function, which loads globals, calls its body, and stores globals if no check has failed."""
    description = given.description
    reads, writes, has_checks = description.reads, description.writes, bool(description.checks)
    arguments, results = [type_of(a) for a in description.arguments], [type_of(r) for r in description.results]
    function = func.FuncOp(given.name, ir.FunctionType.get(arguments, results))
    function.operation.attributes["sym_visibility"] = ir.StringAttr.get("public")
    with ir.InsertionPoint(function.add_entry_block()):
        taken = list(function.arguments)
        loaded = {name: load(known[name]) for name in (*reads, *(writes if has_checks else ()))}
        if given.jaxpr is None:
            returned, following = [loaded[name] for name in reads], taken
        else:
            count = len(results) - has_checks
            types = [*results[:count], *(type_of(known[name]) for name in writes), *results[count:]]
            operands = [*taken, *(loaded[name] for name in reads)]
            found = list(func.CallOp(types, ir.FlatSymbolRefAttr.get(body_of(given.name)), operands).results)
            returned, following = found[:count], found[count : count + len(writes)]
            if has_checks:
                returned.append(found[-1])
                following = unless_failed(found[-1], following, [loaded[name] for name in writes])
        for name, value in zip(writes, following, strict=True):
            ir.Operation.create("ml_program.global_store", operands=[value], attributes=reference(name))
        func.ReturnOp(returned)


def unless_failed(code: Any, values: Sequence[Any], old: Sequence[Any]) -> list[Any]:
    """Return values if the code of the checks is 0, otherwise the old ones."""
    zero = stablehlo.constant(jax_mlir.ir_attribute(np.array(0, np.int32)))
    is_well = stablehlo.compare(code, zero, stablehlo.ComparisonDirectionAttr.get("EQ"))
    return [stablehlo.select(is_well, value, before) for value, before in zip(values, old, strict=True)]


def load(given: GlobalSource) -> Any:
    """Return the value of a global."""
    types, attributes = [type_of(given)], reference(given.name)
    return ir.Operation.create("ml_program.global_load", results=types, attributes=attributes).result


def reference(name: str) -> dict[str, ir.Attribute]:
    """Return the attributes that name the global of an operation."""
    return {"global": ir.FlatSymbolRefAttr.get(name)}


def type_of(given: Argument | GlobalSource) -> ir.Type:
    """Return the type of an argument, a result or a global."""
    array: Any = given.value if isinstance(given, GlobalSource) else given
    return ir.RankedTensorType.get(list(array.shape), jax_mlir.dtype_to_ir_type(np.dtype(array.dtype)))
