"""The functions that users call, other than `pytensor.function`, and mode JAXPR in place of PyTensor's mode JAX."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Literal

import jax
import pytensor.compile
from pytensor.compile import mode as modes
from pytensor.compile.executor import Function
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.traversal import graph_inputs
from pytensor.link.jax.linker import JAXLinker

from pytensor_jaxpr_linker.base.contexts import named_context
from pytensor_jaxpr_linker.base.options import resolve
from pytensor_jaxpr_linker.frontend import targets
from pytensor_jaxpr_linker.frontend.function import JaxprMode
from pytensor_jaxpr_linker.frontend.jax_function import JaxFunction, SharedConstants
from pytensor_jaxpr_linker.frontend.kept_graphs import Original, copy_of, original_of
from pytensor_jaxpr_linker.frontend.linker import JaxprLinker
from pytensor_jaxpr_linker.frontend.pytensor_gradient import with_pytensor_gradient
from pytensor_jaxpr_linker.graph.facts import may_be_static
from pytensor_jaxpr_linker.jaxpr.lower import lower_region
from pytensor_jaxpr_linker.plan.model import LargeConstants
from pytensor_jaxpr_linker.run.call import with_checkify
from pytensor_jaxpr_linker.run.program import Program, make_graph, make_plan, rules_in_force, static_value


def as_jax_function(
    inputs: Any,
    outputs: Variable | Sequence[Variable] | None = None,
    mode: Any = "JAXPR",
    *,
    gradient: Literal["pytensor", "jax"] = "pytensor",
    checks: Literal["skip", "checkify"] = "skip",
) -> JaxFunction:
    """Return a pure JAX function, to `jit`, `grad`, `vmap`, `scan` or export.

    Parameters
    ----------
    inputs : sequence of Variable, pytensor.compile.executor.Function, or others
        The inputs of a graph. Without `outputs`: a function compiled with mode JAXPR, by PyTensor or a PyMC model; a
        PyMC model (its log density and gradient); or the result of `as_jax_function`, for another `gradient` or
        `checks`.
    outputs : Variable or sequence of Variable
        The outputs of the graph. Shared variables in it enter with the values that they have now.
    mode : Mode or str
        Whose rewrites the graph gets.
    gradient : {"pytensor", "jax"}
        How JAX differentiates the function. With "pytensor" its derivative is the `pytensor.grad` of the graph in its
        canonical and stable form, in which `zero_grad`, `grad_clip`, overrides and the like hold; it works in reverse
        mode, to any order. With "jax" each equation has JAX's own derivative, in forward mode too (`jax.jvp`,
        `jax.jacfwd`, `jax.hessian`).
    checks : {"skip", "checkify"}
        How run-time checks are handled, which can't raise inside JAX transformations. With "skip" an index out of
        bounds reads NaN (the largest negative integer), and the conditions of `Assert`, `CheckAndRaise` and the like
        are assumed. With "checkify" each is a `jax.experimental.checkify.check`: `checkify.checkify` of the returned
        function, or of a caller of it, gives the error with the results. Without a `checkify` around it, JAX refuses to
        stage the function.

    Returns
    -------
    JaxFunction
        Called with one array for each input. For a graph it returns the same as `pytensor.function`: the output itself
        if it was not given in a list, else a list. For a compiled function it returns a list, of the outputs and then
        the updates; the shared variables follow the inputs as arguments. A random generator is a JAX key
        (``jax.random.key`` or its ``uint32[2]`` data), and the next generator a key of the same kind. Large constants
        are its attribute `constants`: inside a ``jax.jit`` of yours pass them as an argument, see `JaxFunction`.

    Raises
    ------
    GraphBreakError
        If the graph can't be one XLA program.
    TypeError
        If `inputs` is none of these, or a function of another mode.
    ValueError
        If `gradient` or `checks` is none of its values.

    Examples
    --------
    >>> import jax, pytensor.tensor as pt
    >>> import pytensor_jaxpr_linker as pjl
    >>> x = pt.vector("x", dtype="float64")
    >>> fn = pjl.as_jax_function([x], (x**2).sum())
    >>> with jax.enable_x64(True):
    ...     jax.grad(fn)(jax.numpy.arange(3.0))
    Array([0., 2., 4.], dtype=float64)
    """
    if gradient not in ("pytensor", "jax"):
        raise ValueError(f'gradient is "pytensor" or "jax", not {gradient!r}.')
    if checks not in ("skip", "checkify"):
        raise ValueError(f'checks is "skip" or "checkify", not {checks!r}.')
    asker, also = "as_jax_function", ", or the inputs and the outputs of a graph"
    if outputs is None:
        target = targets.target_of(inputs, asker, mode, also)
    else:
        target = targets.graph_target(inputs, outputs, mode, asker)
    program, original, mode = single_program(target)
    return make_jax_function(program, original, mode, gradient, checks == "checkify", target=target._replace(kept=()))


def single_program(target: targets.Target) -> tuple[Program, Original, Any]:
    """Return a target as one program, its graph before rewrites, and its mode."""
    if (f := target.function) is not None:
        fgraph = f.maker.fgraph
        original = original_of(fgraph) or copy_of(fgraph.inputs, fgraph.outputs)
        return targets.compiled_runner(f).single_program(), original, f.maker.mode
    original = with_constants(target.inputs, target.outputs)
    return graph_program(original, target.mode), original, target.mode


def make_jax_function(
    program: Program,
    original: Original,
    mode: Any,
    gradient: str,
    checked: bool = False,
    shared: SharedConstants | None = None,
    target: targets.Target | None = None,
) -> JaxFunction:
    """Return a program as a JAX function; for a derivative, `shared` are the constants of the original function."""
    program, fn, constants = differentiable_function(program, original, mode, gradient, checked, shared)
    return JaxFunction(program, with_checkify(program, fn) if checked else fn, constants, target)


def differentiable_function(
    program: Program, original: Original, mode: Any, gradient: str, checked: bool, shared: SharedConstants | None = None
) -> tuple[Program, Callable[..., list], SharedConstants]:
    """Return a program, the function of its inputs and then of constants, with its derivative, and the constants.

    If `checked`, the function returns the check code after the outputs, if there are checks.
    """
    program = program.as_pure(checked=checked, differentiable=gradient == "jax")
    constants = shared or SharedConstants(program)
    fn = constants.function_of(program)

    def build(inputs: list[Variable], outputs: list[Variable]) -> Callable[..., list]:
        graph, count = with_constants(inputs, outputs), len(inputs)
        derivative = make_jax_function(graph_program(graph, mode), graph, mode, gradient, shared=constants)
        return lambda *args: derivative.results(args[:count], args[count:])

    if gradient == "pytensor":
        static = [i for i, v in enumerate(program.inputs) if i in program.static_positions or may_be_static(v)]
        fn, build_all = with_pytensor_gradient(fn, original, static, build, checked)
        if shared is None:
            constants.build_derivative = build_all
    return program, fn, constants


def make_jaxpr(f: Any, *args: Any) -> Any:
    """Return the Jaxpr that a compiled function runs, for the shapes and static values of example arguments.

    Parameters
    ----------
    f : pytensor.compile.executor.Function, or others
        A function compiled with mode JAXPR, or any other argument of `explain`, except outputs of a graph.
    *args
        Its arguments, or a dict of them. Only shapes, dtypes, and the values of inputs that determine shapes matter.
        May be left out where the graph declares every shape, and for a PyMC model.

    Returns
    -------
    jax.extend.core.Jaxpr
        A closed Jaxpr of the inputs and then the shared variables, of a matrix in column-major order the transpose. Its
        print names the PyTensor node, and the user's variable, behind each equation.

    Examples
    --------
    >>> import pytensor, pytensor.tensor as pt
    >>> import pytensor_jaxpr_linker as pjl
    >>> x = pt.vector("x", dtype="float64")
    >>> y = pt.exp(x)
    >>> y.name = "y"
    >>> pjl.make_jaxpr(pytensor.function([x], y, mode="JAXPR"), [1.0, 2.0])
    { lambda ; a:f64[2]. let b:f64[2] = exp a in (b,) } # [Exp[y]]
    """
    if targets.is_loaded(f):
        return f.trace(*args).jaxpr
    target = targets.target_of(f, "make_jaxpr", also=targets.LOADED)
    found = targets.compiled(target)
    program = found.runner.program or found.runner.single_program()
    with jax.enable_x64(True):
        values = found.examples(target.arguments(args))
        static = {program.inputs[i]: static_value(program.inputs[i], values[i]) for i in program.static_positions}
        region = program.region._replace(constants=LargeConstants([], {}))
        return lower_region(region, values, static, checked=False, name=program.name).jaxpr


def raise_deferred(f: Function) -> None:
    """Wait for the calls of a function so far, and raise the exception of the first run-time check that failed in them.

    Each exception is raised once. Without ``Options(checks="defer")`` there is nothing to raise.

    Parameters
    ----------
    f : pytensor.compile.executor.Function
        A function compiled with mode JAXPR.

    Examples
    --------
    >>> import pytensor, pytensor.tensor as pt
    >>> import pytensor_jaxpr_linker as pjl
    >>> x, i = pt.vector("x", dtype="float64"), pt.lscalar("i")
    >>> with pjl.options(checks="defer"):
    ...     f = pytensor.function([x, i], x[i], mode="JAXPR")
    >>> result = f([1.0, 2.0], 5)
    >>> try:
    ...     pjl.raise_deferred(f)
    ... except IndexError as error:
    ...     print(error)
    index is out of bounds for axis 0 with size 2
    """
    deferred = targets.compiled_runner(f).deferred
    if deferred is not None:
        deferred.raise_failed()


def with_constants(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Original:
    """Return a graph that ends at its inputs, in which all other shared variables are constants."""
    shared = [v for v in graph_inputs(outputs) if isinstance(v, SharedVariable) and v not in inputs]
    constants: Any = {v: v.type.constant_type(type=v.type, data=v.get_value()) for v in shared}
    outputs = graph_replace(outputs, constants, strict=False) if constants else list(outputs)
    if any(v.owner is not None for v in inputs):
        return copy_of(inputs, outputs)
    return Original(list(inputs), list(outputs))


def graph_program(graph: Original, mode: Any) -> Program:
    """Rewrite a graph and return its program."""
    fgraph = FunctionGraph(*graph, clone=True)
    targets.rewrite(fgraph, modes.get_mode(mode))
    return rewritten_program(fgraph, resolve(getattr(modes.get_mode(mode).linker, "options", None)).allow_traced_leaves)


def rewritten_program(fgraph: FunctionGraph, traced_leaves: bool) -> Program:
    """Return the program of a graph that has been rewritten."""
    rules = rules_in_force(traced_leaves)
    plan = make_plan(make_graph(fgraph, rules), rules)
    return Program(plan.single_region(), checked=False)


class JaxprLinkerForJax(JaxprLinker, JAXLinker):  # type: ignore[misc]  # tuples of other lengths
    """A `JaxprLinker` that is a `JAXLinker` for `isinstance`, by which PyMC chooses."""


@named_context
def in_place_of_jax() -> Iterator[None]:
    """Use mode JAXPR wherever PyTensor's mode JAX is asked for, inside a ``with`` block.

    It is for libraries that have mode JAX written in their code: nutpie with ``backend="jax"``, PyMC with NumPyro and
    BlackJAX, pymc-extras. The names ``"JAX"`` and ``"JAXPR"`` of modes, ``"jax"`` of linkers,
    `pytensor.compile.mode.JAX`, and `jax_funcify` of a whole graph (`pymc.sampling.jax.get_jaxified_graph`) give mode
    JAXPR; the linker is a `JAXLinker` for `isinstance`. Functions that were compiled inside keep their mode after the
    block.

    Notes
    -----
    PyTensor's registries belong to the process, and libraries compile in threads of their own, so the replacement holds
    in all threads while a block is open in any. Blocks may be nested, and overlap in several threads: the end of the
    last one, also by an error, restores the names as they were before the first. Other processes are not concerned, but
    a function that is sent there keeps its mode.

    The libraries rely on ``jax_enable_x64``, which PyTensor sets by ``floatX`` when its JAX backend is imported.
    Entering the block imports it.

    A graph that is not one XLA program runs with host steps where PyTensor's function is called, and raises a
    `GraphBreakError` where a JAX function is asked for.

    Examples
    --------
    ::

        with pjl.in_place_of_jax():
            compiled = nutpie.compile_pymc_model(model, backend="jax")
        trace = nutpie.sample(compiled)
    """
    user = object()
    try:
        with _lock:
            if not _users:
                replace_names(_undo)
            _users.add(user)
        yield
    finally:
        with _lock:
            _users.discard(user)
            if not _users:
                _undo.close()


#: The open blocks, and the functions that restore the names when the last one ends.
_users: set[object] = set()
_undo = ExitStack()
_lock = threading.Lock()


def replace_names(undo: ExitStack) -> None:
    """Put mode JAXPR under the names of mode JAX, and push functions that restore them on a stack."""
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

    def funcify(fgraph: FunctionGraph, node: Any = None, **kwargs: Any) -> Callable[..., Any]:
        if node is not None or kwargs:  # PyTensor's own `JAXLinker` asks
            return pytensors(fgraph, node=node, **kwargs)
        program = rewritten_program(fgraph, resolve().allow_traced_leaves)
        constants = SharedConstants(program)
        call = JaxFunction(program, constants.function_of(program), constants)
        return lambda *args: tuple(call(*args))

    undo.callback(jax_funcify.register, FunctionGraph, pytensors)
    jax_funcify.register(FunctionGraph, funcify)
