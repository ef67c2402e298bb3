"""Mode JAXPR in place of PyTensor's mode JAX, for libraries that name mode JAX and can't be told otherwise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytensor.compile
from pytensor.compile import mode as modes
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.link.jax.linker import JAXLinker

from pytensor_jaxpr_linker.base.contexts import named_context
from pytensor_jaxpr_linker.base.options import resolve
from pytensor_jaxpr_linker.frontend.as_jax_function import rewritten_program
from pytensor_jaxpr_linker.frontend.function import JaxprMode
from pytensor_jaxpr_linker.frontend.jax_function import JaxFunction, SharedConstants
from pytensor_jaxpr_linker.frontend.linker import JaxprLinker


class JaxprLinkerForJax(JaxprLinker, JAXLinker):  # type: ignore[misc]  # tuples of other lengths
    """A `JaxprLinker` that is a `JAXLinker` for `isinstance`, by which PyMC chooses."""


@named_context
def in_place_of_jax() -> Iterator[None]:
    """Compile what asks for PyTensor's mode JAX with mode JAXPR, inside a ``with`` block.

    It is for libraries that have mode JAX written in their code: nutpie with ``backend="jax"``, PyMC with NumPyro and BlackJAX,
    pymc-extras. The names ``"JAX"`` and ``"JAXPR"`` of modes, ``"jax"`` of linkers, `pytensor.compile.mode.JAX`, and
    `jax_funcify` of a whole graph (`pymc.sampling.jax.get_jaxified_graph`) give mode JAXPR; the linker is a `JAXLinker` for
    `isinstance`. What was compiled inside stays what it is after the block.

    Notes
    -----
    PyTensor's registries belong to the process, and libraries compile in threads of their own, so the replacement holds in all
    threads while a block is open in any. Blocks may be nested, and overlap in several threads: the end of the last one, also by
    an error, restores what was there before the first. Other processes are not concerned, but a function that is sent there
    keeps its mode.

    Those libraries rely on ``jax_enable_x64``, which PyTensor sets by ``floatX`` when its JAX backend is imported. Entering the
    block imports it.

    A graph that is not one XLA program runs with host steps where PyTensor's function is called, and raises a `GraphBreakError`
    where a JAX function is asked for.

    Examples
    --------
    ::

        with pjl.in_place_of_jax():
            compiled = nutpie.compile_pymc_model(model, backend="jax")
        trace = nutpie.sample(compiled)
    """
    user = object()
    try:
        _replacement.enter(user)
        yield
    finally:
        _replacement.leave(user)


class Replacement:
    """Mode JAXPR under the names of mode JAX while a user needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: set[object] = set()
        self._undo = ExitStack()

    def enter(self, user: object) -> None:
        """Add a user; the first one replaces the names."""
        with self._lock:
            if not self._users:
                replace_names(self._undo)
            self._users.add(user)

    def leave(self, user: object) -> None:
        """Take a user away, if it is one; the last one restores the names."""
        with self._lock:
            self._users.discard(user)
            if not self._users:
                self._undo.close()


_replacement = Replacement()


def replace_names(undo: ExitStack) -> None:
    """Put mode JAXPR under the names of mode JAX, and add to a stack what restores them."""
    from pytensor.link.jax.dispatch import jax_funcify  # sets jax_enable_x64, so not with the package

    mode = JaxprMode(JaxprLinkerForJax(), RewriteDatabaseQuery(include=["fast_run"]))
    # PyMC gives nutpie the backend "jax" only for a JAXLinker, so mode "JAXPR" is replaced, too.
    places: list[tuple[Any, str]] = [
        (modes.predefined_modes, "JAX"),
        (modes.predefined_modes, "JAXPR"),
        (vars(modes), "JAX"),
        (vars(pytensor.compile), "JAX"),
        (modes.predefined_linkers, "jax"),
    ]
    for names, name in places:
        undo.callback(names.__setitem__, name, names[name])
        names[name] = mode.linker if names is modes.predefined_linkers else mode
    pytensors = jax_funcify.dispatch(FunctionGraph)
    undo.callback(jax_funcify.register, FunctionGraph, pytensors)
    jax_funcify.register(FunctionGraph, funcify_or(pytensors))


def funcify_or(pytensors: Callable[..., Any]) -> Callable[..., Any]:
    """Return `jax_funcify` of a graph: PyTensor's if its own `JAXLinker` asks, ours for all others."""

    def funcify(fgraph: FunctionGraph, node: Any = None, **kwargs: Any) -> Callable[..., Any]:
        if node is not None or kwargs:
            return pytensors(fgraph, node=node, **kwargs)
        program = rewritten_program(fgraph, resolve().allow_traced_leaves)
        constants = SharedConstants(program)
        call = JaxFunction(program, constants.function_of(program), constants)
        return lambda *args: tuple(call(*args))

    return funcify
