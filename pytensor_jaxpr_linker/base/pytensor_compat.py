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


__all__ = [
    "INFER_REGISTRIES",
    "IfElse",
    "LazyIfElse",
    "accept_as_config_mode",
    "set_function_class",
    "set_rewriter",
]

#: The tables of the functions by which rewrites infer what a matrix is: diagonal, positive definite. Older releases have fewer.
INFER_REGISTRIES: list[dict[Any, Any]] = [
    getattr(core, name)
    for name in ("ASSUMPTION_INFER_REGISTRY", "CLIENT_INFER_REGISTRY", "CONSTANT_INFER_REGISTRY")
    if hasattr(core, name)
]


def accept_as_config_mode(name: str) -> None:
    """Let ``pytensor.config.mode`` be the name of a registered mode: PyTensor has a list of names there, to which nobody can add."""
    option: Any = type(config).__dict__.get("mode")
    apply = getattr(option, "_apply", None)
    if apply is not None and not hasattr(apply, "accepted"):  # a package that is reloaded finds it done

        def checked(value: Any) -> Any:
            return value if value == checked.accepted else apply(value)  # type: ignore[attr-defined]

        checked.accepted = name  # type: ignore[attr-defined]
        option._apply = checked


def set_rewriter(linker_class: type, rewriter_of: Callable[[GraphRewriter], GraphRewriter]) -> None:
    """Let modes with a linker of this class rewrite graphs by what `rewriter_of` makes of the rewriter of their query, also the graphs inside Ops."""
    of_pytensor: Any = Mode.optimizer  # a property
    if hasattr(of_pytensor.fget, "chosen"):  # a package that is reloaded finds it done
        of_pytensor.fget.chosen = linker_class, rewriter_of
        return

    def optimizer(self: Mode) -> Any:
        found = of_pytensor.fget(self)
        ours, changed = optimizer.chosen  # type: ignore[attr-defined]
        if isinstance(self.linker, ours):
            found._rewriter = changed(found._rewriter)
        return found

    optimizer.chosen = linker_class, rewriter_of  # type: ignore[attr-defined]
    Mode.optimizer = property(optimizer)  # type: ignore[method-assign, assignment]


def set_function_class(linker_class: type, function_class: type[Function]) -> None:
    """Let modes with a linker of this class make functions of that class.

    PyTensor lets a class of modes choose, by `Mode.function_maker`. `pymc.compile` makes a plain `Mode` of the linker and the query of the
    given one. Modes with other linkers, and classes of modes that choose for themselves, stay as they are.
    """
    of_pytensor: Any = Mode.function_maker  # a property
    if hasattr(of_pytensor.fget, "chosen"):  # a package that is reloaded finds it done
        of_pytensor.fget.chosen = linker_class, function_class
        return

    def function_maker(self: Mode) -> Any:
        ours, functions = function_maker.chosen  # type: ignore[attr-defined]
        is_ours = isinstance(self.linker, ours)
        return partial(make_function_maker, functions) if is_ours else of_pytensor.fget(self)

    function_maker.chosen = linker_class, function_class  # type: ignore[attr-defined]
    Mode.function_maker = property(function_maker)  # type: ignore[method-assign, assignment]


def make_function_maker(function_class: type[Function], *args: Any, **kwargs: Any) -> FunctionMaker:
    """Make what makes a function of this class. It rewrites the graph, which makes many objects that stay."""
    make = partial(FunctionMaker, function_class=function_class)
    with gc_paused():  # as a decorator it would be a file that warnings do not skip
        return make(*args, **kwargs)
