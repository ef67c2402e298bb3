"""The target of a question: a compiled function, a function or model of PyMC, a `JaxFunction`, or a graph."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np
from pytensor import config
from pytensor.compile.executor import Function
from pytensor.compile.mode import Mode, get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable, clone
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.type import RandomType

from pytensor_jaxpr_linker.base.array_types import in_order
from pytensor_jaxpr_linker.base.errors import ROLE, variable_name
from pytensor_jaxpr_linker.base.options import resolve
from pytensor_jaxpr_linker.frontend.jax_function import as_argument, check_shape
from pytensor_jaxpr_linker.frontend.kept_graphs import Original, original_of
from pytensor_jaxpr_linker.frontend.linker import JaxprLinker
from pytensor_jaxpr_linker.frontend.pregrad import NO_GRADIENT, value_and_gradient, why_no_gradient
from pytensor_jaxpr_linker.frontend.runner import Runner
from pytensor_jaxpr_linker.frontend.shared_arrays import transposed

ACCEPTED = (
    "a function compiled with mode JAXPR, one that a PyMC model compiled with it (compile_logp, logp_dlogp_function),"
    " what as_jax_function or logdensity returned, a function of a Module, a PyMC model"
)
#: Reports on functions take these, too.
LOADED = ", what load returned"


class Role(NamedTuple):
    """The purpose of a variable of a graph."""

    text: str
    """Such as "log density of y"."""
    traces: Sequence[Any] = ()
    """Tracebacks of the variable that it serves, such as y."""


class Target(NamedTuple):
    """A compiled function, or a graph with its mode, that a user asks about."""

    function: Function | None = None
    inputs: Sequence[Variable] = ()
    outputs: Sequence[Variable] = ()
    mode: Any = "JAXPR"
    is_bare: bool = False
    """Whether the output of a graph was given by itself, not in a list."""
    example: Sequence[Any] = ()
    """Arguments to use where the user gives none."""
    kept: Sequence[Variable] = ()
    """Inputs of a graph that are shared variables, whose values an artifact keeps as its state."""
    no_gradient: str = ""
    """Why the graph of a model lacks the gradient, if it does."""

    def arguments(self, given: Sequence[Any]) -> Sequence[Any]:
        """Return arguments in their order, which a user may give as one dict, as PyMC's functions take them."""
        if len(given) != 1 or not isinstance(given[0], Mapping):
            return given or self.example
        f = self.function
        inputs = self.inputs if f is None else [c.variable for c in f.maker.inputs if not c.shared]
        return [given[0].get(v.name) for v in inputs]


def target_of(given: Any, asker: str, mode: Any = "JAXPR", also: str = "", needs_gradient: bool = True) -> Target:
    """Return the target of a question that is not about a graph.

    A TypeError says what the `asker` takes, ending with `also`. `mode` is for the graph of a model. A model without a
    gradient is its value alone, unless the asker needs the gradient. The attribute ``__instead__`` of a class is the
    advice for objects that nobody can ask about.
    """
    if isinstance(source := getattr(given, "source", None), Target):
        return source
    if (instead := getattr(type(given), "__instead__", None)) is not None:
        raise TypeError(f"{asker} takes no {type(given).__name__}: {instead(given)}")
    pymc = sys.modules.get("pymc")  # else there are no objects of its classes
    if pymc is not None:
        if isinstance(given, pymc.Model):
            return model_target(given, mode, needs_gradient)
        if isinstance(given, pymc.pytensorf.PointFunc):
            given = given.f
        elif isinstance(given, pymc.model.core.ValueGradFunction):
            given = given._pytensor_function
    if is_loaded(given):
        raise TypeError(
            f"{asker} takes no function that load returned: {given.__name__}.jax is a JAX function already, and"
            f" {given.path} its file."
        )
    if not isinstance(given, Function):
        raise TypeError(f"{asker} takes {ACCEPTED}{also}; not {type(given).__name__} ({given!r:.100}).")
    compiled_runner(given)
    return Target(given)


def is_loaded(given: Any) -> bool:
    """Return whether `load` returned this function. Before its module is imported, there are none."""
    loaded = sys.modules.get("jaxpr_artifact.loaded")
    return loaded is not None and isinstance(given, loaded.LoadedFunction)


def graph_target(inputs: Any, outputs: Any, mode: Any, asker: str) -> Target:
    """Return the graph that a user asks about, with no inputs if they are not given."""
    is_bare = isinstance(outputs, Variable)
    given = [outputs] if is_bare else outputs
    for kind, found in (("inputs", inputs), ("outputs", given)):
        if found is not None and not (isinstance(found, list | tuple) and all(isinstance(v, Variable) for v in found)):
            raise TypeError(f"{asker} takes the {kind} of a graph as a list of variables, not {found!r:.100}.")
    return Target(None, inputs or (), given, mode, is_bare)


def model_target(model: Any, mode: Any, needs_gradient: bool) -> Target:
    """Return the log density of a PyMC model and its gradient as a graph, with the rewrite that `pymc.compile` adds."""
    logp, wrt = with_roles(model), list(model.continuous_value_vars)
    gradient: Any = []
    no_gradient = ""
    try:
        logp, gradient = value_and_gradient(logp, wrt)
    except NO_GRADIENT as error:
        no_gradient = why_no_gradient(logp, wrt)
        if needs_gradient or not no_gradient:
            raise NotImplementedError(no_gradient or str(error)) from error
    logp.name = "log density"
    for v, slope in zip(wrt, gradient):  # noqa: B905  # there may be none
        slope.name = f"gradient by {v.name}"
    checks = "local_check_parameter_to_ninf_switch" if model.check_bounds else "local_remove_check_parameter"
    mode, point = get_mode(mode).including(checks), model.initial_point()
    example = [point[v.name] for v in model.value_vars]
    return Target(None, model.value_vars, [logp, *gradient], mode, example=example, no_gradient=no_gradient)


def with_roles(model: Any) -> Variable:
    """Return the log density of a PyMC model. Its variables' traces, which rewrites hand on, name their terms."""
    logp = model.logp()
    inputs = [v for v in graph_inputs([logp]) if not isinstance(v, Constant)]
    (logp,) = clone(inputs, [logp], copy_inputs=False, copy_orphans=False)[1]
    for v, role in term_roles(logp, {value.name: rv for value, rv in model.values_to_rvs.items()}).items():
        v.tag.trace = [[(ROLE, 0, "", role.text)], *(getattr(v.tag, "trace", None) or ()), *role.traces]
    return logp


def term_roles(logp: Any, random_variables: Mapping[str, Variable]) -> dict[Variable, Role]:
    """Return the roles of variables that only one term of a log density needs; values name `random_variables`."""
    sums = [logp] if logp.owner is None or not isinstance(logp.owner.op, Elemwise) else logp.owner.inputs
    found: dict[Apply, Role] = {}
    for i, term in enumerate(sums):
        named = term if term.name or term.owner is None else term.owner.inputs[0]
        value = (named.name or f"term {i}").removesuffix("_logprob")
        rv = random_variables.get(value)
        traces = getattr(getattr(rv, "tag", None), "trace", ())
        role = Role(f"log density of {value if rv is None else rv.name}", traces)
        stack = [term]
        while stack:
            node = stack.pop().owner
            if node is None or found.get(node) in (role, SEVERAL):
                continue
            found[node] = role = SEVERAL if node in found else role
            stack += node.inputs
    return {v: role for node, role in found.items() if role != SEVERAL for v in node.outputs}


#: In place of the role of a node that several terms need.
SEVERAL = Role("several")


def compiled_runner(f: Function) -> Runner:
    """Return the runner of a compiled function, or raise a TypeError if its mode is another one."""
    runner = getattr(getattr(f, "vm", None), "runner", None)
    if runner is None:
        raise TypeError(f"{f} was not compiled with mode JAXPR: use pytensor.function(..., mode='JAXPR').")
    return runner


class Compiled(NamedTuple):
    """A target with its runner."""

    fgraph: FunctionGraph
    """The graph after PyTensor's rewrites."""
    runner: Runner
    stored: list[Any]
    """The stored values of its inputs, None for an input without one."""
    seconds: dict[str, float]
    """How long the stages before a call took."""
    original: Original | None
    """The graph before PyTensor's rewrites, if it was kept."""

    def examples(self, args: Sequence[Any]) -> list[Any]:
        """Return a value, or shape and dtype, of each input of the runner's graph, for example arguments.

        Raises
        ------
        TypeError
            If there are more than inputs, one is missing, or does not fit its input.
        """
        if len(args) > len(self.fgraph.inputs):
            names = ", ".join(map(variable_name, self.fgraph.inputs)) or "nothing"
            raise TypeError(f"There are {len(args)} examples, and the function takes {names}.")
        counts = {} if self.runner.program is None else self.runner.program.key_counts
        given = [*args, *self.stored[len(args) :]]
        pairs = enumerate(zip(self.fgraph.inputs, given, strict=True))
        values = [example_value(v, x, counts.get(i, 1)) for i, (v, x) in pairs]
        return transposed(values, self.runner.column_major)


def rewrite(fgraph: FunctionGraph, mode: Mode) -> None:
    """Rewrite a graph by a mode, as `pytensor.function` does: new nodes have no traceback unless the user wants one."""
    with config.change_flags(traceback__limit=config.traceback__compile_limit):
        mode.optimizer.rewrite(fgraph)


def compiled(target: Target) -> Compiled:
    """Return a target with its runner; for a graph, with the runner of a function that is compiled from it."""
    if (f := target.function) is not None:
        runner = compiled_runner(f)
        profile: Any = f.profile
        seconds = {"rewrite": profile.rewriting_time} if profile else {}
        stored = [c.storage[0] for c in f.input_storage]
        return Compiled(f.maker.fgraph, runner, stored, seconds | {"plan": runner.seconds}, original_of(f.maker.fgraph))
    started = perf_counter()
    roots = [v for v in graph_inputs(target.outputs) if not isinstance(v, Constant)]
    given = list(target.inputs)
    inputs = [*given, *(v for v in roots if v not in given)]
    fgraph = FunctionGraph(inputs, list(target.outputs), clone=True)
    mode = get_mode(target.mode)
    rewrite(fgraph, mode)
    rewriting = perf_counter() - started
    for v, asked in zip(fgraph.outputs, target.outputs, strict=True):
        if v.owner is not None:
            v.name = v.name or asked.name  # rewrites replaced the variable that had it
    options = resolve(mode.linker.options if isinstance(mode.linker, JaxprLinker) else None)
    runner = Runner(fgraph, set(), replace(options, on_break="ignore"))  # reports list breaks themselves
    stored = [v.get_value(borrow=True) if isinstance(v, SharedVariable) else None for v in fgraph.inputs]
    seconds = {"rewrite": rewriting, "plan": runner.seconds}
    return Compiled(fgraph, runner, stored, seconds, Original(inputs, list(target.outputs)))


def example_value(variable: Any, value: Any, key_count: int) -> Any:
    """Return a value, or shape and dtype, of one input, in the dtype that it declares, as a call would take it."""
    if value is None:
        shape = getattr(variable.type, "shape", (None,))
        if None in shape:
            raise TypeError(f"An example of the input {variable_name(variable)} is needed: its shape is not declared.")
        return jax.ShapeDtypeStruct(shape, np.dtype(variable.type.dtype))
    is_generator = isinstance(variable.type, RandomType)
    found = as_argument(variable, value, key_count) if is_generator else example_array(variable, value)
    check_shape(variable, found.shape)
    return found


def example_array(variable: Any, value: Any) -> Any:
    """Return an array, or shape and dtype, in the dtype that an input declares."""
    dtype = np.dtype(variable.type.dtype)
    is_array = isinstance(value, jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.generic)
    given = value if is_array else np.asarray(in_order(variable.type, value))
    if given.dtype == dtype:
        return given
    if given.dtype.kind in "OSU":
        return np.asarray(value, dtype)  # raises: these are no numbers
    with jax.enable_x64(True), np.errstate(invalid="ignore"):
        if np.can_cast(given.dtype, dtype, "same_kind"):
            if isinstance(given, jax.ShapeDtypeStruct):
                return jax.ShapeDtypeStruct(given.shape, dtype, sharding=given.sharding)
            return given.astype(dtype)
        if not is_array and given.dtype.kind in "iuf" and np.array_equal(cast := given.astype(dtype), given):
            return cast  # 2.0 for an integer
    raise TypeError(
        f"The input {variable_name(variable)} is a {variable.type}, and its example has dtype {given.dtype}."
    )
