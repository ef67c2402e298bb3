"""A function as a program for IREE: MLIR with a description of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.mlir import ir

from jaxpr_artifact.container import canonical
from jaxpr_artifact.header import Header
from jaxpr_artifact.iree_program import ATTRIBUTE, FIRST_STATE, MAIN
from pytensor_jaxpr_linker.artifacts.lowering import line_of_names, without_source_paths
from pytensor_jaxpr_linker.artifacts.shapes import Input, has_symbols
from pytensor_jaxpr_linker.artifacts.writing import Exportable, header_of, stored, versions_now
from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import DEAD_CODE, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.portable.for_iree import FOR_IREE
from pytensor_jaxpr_linker.jaxpr.portable.rewrite import NotPortableError, portable


def iree_text(given: Exportable, target: str) -> str:
    """Return a function as MLIR text, with a description of it.

    Raises
    ------
    TypeError
        If a length is not known.
    NotPortableError
        If IREE has no form of an operation, and nothing stands for it.
    """
    kept = [*given.state, *given.constants]
    check_fixed_lengths([*given.arguments, *[k.input for k in kept]])
    with jax.enable_x64(True), without_source_paths():
        jaxpr = jaxpr_with_constants(given)
        try:
            text = jax_compat.lower_to_mlir(for_iree(jaxpr), given.name, "cpu")
        except NotPortableError as error:
            raise NotPortableError([r._replace(line=user_line_of(r.names, given)) for r in error.refused]) from None
        first = jax_compat.lower_to_mlir(constant_jaxpr([k.value for k in given.state]), FIRST_STATE, "cpu")
    header = header_of(
        given,
        jaxpr.out_avals,
        state=tuple(stored(k, FIRST_STATE) for k in given.state),
        constants=(),
        constraints=(),
        platforms=(),
        programs={},
        versions=versions_now(IREE="iree-base-compiler"),
        target=target,
    )
    return described_module(text, first if given.state else None, header)


def jaxpr_with_constants(given: Exportable) -> Any:
    """Return the closed Jaxpr of a function of its arguments and state; the constants are part of it.

    That of a graph is assembled. JAX traces a function of its own around one: what makes the keys of predictions.
    """
    values = [k.value for k in given.constants]
    if given.jaxpr is None:
        avals = [x.aval for x in given.arguments] + [k.input.aval for k in given.state]
        return jax.make_jaxpr(lambda *args: tuple(given.fn(*args, *values)))(*avals)
    jaxpr = given.jaxpr()
    b = JaxprBuilder(given.name, passes=(DEAD_CODE,))
    inputs = [b.input(x.aval.shape, x.aval.dtype) for x in [*given.arguments, *[k.input for k in given.state]]]
    return b.build(prims.closed_call(b, jaxpr, [*inputs, *[b.constant(value) for value in values]]))


def user_line_of(names: str, given: Exportable) -> str:
    """Return the line of the user's program that made an operation with these names."""
    return line_of_names(names, given.places)


def for_iree(jaxpr: Any) -> Any:
    """Return a closed Jaxpr in operations that IREE has and computes well."""
    return portable(portable(jaxpr), FOR_IREE)


def check_fixed_lengths(inputs: Sequence[Input]) -> None:
    """Raise a TypeError if a length is a symbol."""
    open_ = [x for x in inputs if has_symbols([x])]
    if open_:
        shapes = "; ".join(f"{x.name}: ({', '.join(map(str, x.aval.shape))})" for x in open_)
        raise TypeError(
            f"A program for IREE has fixed lengths, and these are open: {shapes}. Say them by dims={{{open_[0].name!r}: ...}} with"
            " numbers, or by examples."
        )


def constant_jaxpr(values: Sequence[np.ndarray]) -> Any:
    """Return a Jaxpr without inputs that returns arrays."""
    b = JaxprBuilder(FIRST_STATE)
    return b.build([prims.copy(b, b.constant(value)) for value in values])


def described_module(program: bytes, first_state: bytes | None, header: Header) -> str:
    """Return a module as text, with a second function and the description. Locations in the text name PyTensor's nodes."""
    context = jax_compat.new_mlir_context()
    context.allow_unregistered_dialects = True
    with context, ir.Location.unknown():
        module = ir.Module.parse(program)
        main = ir.SymbolTable(module.operation)[MAIN]
        text = ir.StringAttr.get(canonical(header.as_json()).decode("ascii"))
        main.attributes["iree.reflection"] = ir.DictAttr.get({ATTRIBUTE: text})
        if first_state is not None:
            other = ir.Module.parse(first_state)  # it owns the function until that is moved
            (function,) = other.body.operations
            ir.SymbolTable.set_symbol_name(function, FIRST_STATE)
            module.body.append(function)
        return str(module.operation.get_asm(enable_debug_info=True))
