"""Everything that differs between PyTensor releases. No other module asks for a PyTensor version."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pytensor import config
from pytensor.assumptions import core
from pytensor.compile.executor import Function
from pytensor.compile.maker import FunctionMaker
from pytensor.compile.mode import Mode
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import GraphRewriter

from pytensor_jaxpr_linker.base.interpreter import gc_paused

try:
    from pytensor.conditional.op import IfElse, LazyIfElse
except ModuleNotFoundError:  # older releases have one conditional Op
    from pytensor.ifelse import IfElse  # type: ignore[no-redef]

    class LazyIfElse(Op):  # type: ignore[no-redef]
        """Stands in where PyTensor has none; no graph contains it."""


__all__ = ["INFER_REGISTRIES", "IfElse", "LazyIfElse", "accept_as_config_mode", "set_function_class", "set_rewriter"]

#: The tables of the functions by which rewrites infer properties of a matrix: diagonal, positive definite. Older
#: releases have fewer.
INFER_REGISTRIES: list[dict[Any, Any]] = [
    getattr(core, name)
    for name in ("ASSUMPTION_INFER_REGISTRY", "CLIENT_INFER_REGISTRY", "CONSTANT_INFER_REGISTRY")
    if hasattr(core, name)
]


def accept_as_config_mode(name: str) -> None:
    """Let ``pytensor.config.mode``, to whose list of names nobody can add, be the name of a registered mode."""
    option: Any = type(config).__dict__.get("mode")
    apply = getattr(option, "_apply", None)
    if apply is not None and not hasattr(apply, "accepted"):  # a package that is reloaded finds it done

        def checked(value: Any) -> Any:
            return value if value == checked.accepted else apply(value)  # type: ignore[attr-defined]

        checked.accepted = name  # type: ignore[attr-defined]
        option._apply = checked


def set_rewriter(linker_class: type, rewriter_of: Callable[[GraphRewriter], GraphRewriter]) -> None:
    """Let ``rewriter_of(rewriter of the query)`` rewrite graphs, also inside Ops, in modes with this linker class."""

    def change(optimizer: Any) -> Any:
        optimizer._rewriter = rewriter_of(optimizer._rewriter)
        return optimizer

    change_property("optimizer", linker_class, change)


def set_function_class(linker_class: type, function_class: type[Function]) -> None:
    """Let modes with a linker of this class make functions of that class.

    PyTensor lets a class of modes choose, by `Mode.function_maker`. `pymc.compile` makes a plain `Mode` of the linker
    and the query of the given one. Modes with other linkers, and classes of modes that choose for themselves, stay as
    they are.
    """
    change_property("function_maker", linker_class, lambda _: partial(make_function_maker, function_class))


def change_property(name: str, linker_class: type, change: Callable[[Any], Any]) -> None:
    """Let a property of modes with a linker of this class be ``change(value)``."""
    of_pytensor: Any = getattr(Mode, name)
    if hasattr(of_pytensor.fget, "chosen"):  # a package that is reloaded finds it done
        of_pytensor.fget.chosen = linker_class, change
        return

    def changed(self: Mode) -> Any:
        found = of_pytensor.fget(self)
        ours, chosen = changed.chosen  # type: ignore[attr-defined]
        return chosen(found) if isinstance(self.linker, ours) else found

    changed.chosen = linker_class, change  # type: ignore[attr-defined]
    setattr(Mode, name, property(changed))


def make_function_maker(function_class: type[Function], *args: Any, **kwargs: Any) -> FunctionMaker:
    """Return the maker of a function of this class. It rewrites the graph, which makes many objects that stay."""
    make = partial(FunctionMaker, function_class=function_class)
    with gc_paused():  # as a decorator it would be a file that warnings do not skip
        return make(*args, **kwargs)
