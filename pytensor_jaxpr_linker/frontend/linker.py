"""`JaxprLinker`, which PyTensor asks for a thunk, and `Runner`, which runs a graph."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.link.basic import PerformLinker
from pytensor.link.utils import map_storage

from pytensor_jaxpr_linker.base import logs
from pytensor_jaxpr_linker.base.errors import CannotEmit, refused_by_rule, variable_name
from pytensor_jaxpr_linker.base.options import Options, resolve
from pytensor_jaxpr_linker.base.platforms import given_platforms
from pytensor_jaxpr_linker.base.stance import current_stance
from pytensor_jaxpr_linker.frontend.early_folding import EARLY_FOLDING
from pytensor_jaxpr_linker.frontend.jax_function import check_count
from pytensor_jaxpr_linker.frontend.logsumexp_gradient import FIXED_MAXIMA, PLAIN_RATIOS
from pytensor_jaxpr_linker.frontend.original_graph import KEEP, remember_original
from pytensor_jaxpr_linker.frontend.rewrite_cache import REWRITE_CACHE
from pytensor_jaxpr_linker.frontend.storage import (
    SharedArrays,
    Storage,
    containers,
    in_turn,
    result_converters,
    storage_of,
)
from pytensor_jaxpr_linker.graph.scan_trace import REDUCED_TRACES
from pytensor_jaxpr_linker.plan.model import Plan, describe_plan, host_step
from pytensor_jaxpr_linker.run.call import program_call
from pytensor_jaxpr_linker.run.checks import DeferredChecks
from pytensor_jaxpr_linker.run.codegen import Declared, short_call
from pytensor_jaxpr_linker.run.cpu_client import device_for
from pytensor_jaxpr_linker.run.executor import Executor
from pytensor_jaxpr_linker.run.fork import process
from pytensor_jaxpr_linker.run.placement import check_one_mesh
from pytensor_jaxpr_linker.run.plans import make_graph, make_plan, rules_in_force
from pytensor_jaxpr_linker.run.program import Program, pure_function
from pytensor_jaxpr_linker.run.recompiles import Policy
from pytensor_jaxpr_linker.run.transfer_count import CallSizes, current_count, open_counts, transfers_of


class JaxprLinker(PerformLinker):
    """A PyTensor linker that compiles a graph with XLA, through a Jaxpr that is built without tracing.

    Parameters
    ----------
    options : Options, optional
        How to compile and call. What it does not name is looked up when a function is compiled, see `Options`.
    allow_gc, schedule
        As for PyTensor's other linkers.

    Examples
    --------
    >>> import pytensor, pytensor.tensor as pt
    >>> from pytensor.compile.mode import Mode
    >>> from pytensor_jaxpr_linker import JaxprLinker
    >>> x = pt.vector("x", dtype="float64")
    >>> pytensor.function([x], x.sum(), mode=Mode(linker=JaxprLinker()))([1.0, 2.0])
    array(3.)
    """

    required_rewrites: tuple[str, ...] = (
        "minimum_compile",
        "lazy_ifelse",
        REDUCED_TRACES,
        KEEP,
        EARLY_FOLDING,
        FIXED_MAXIMA,
        PLAIN_RATIOS,
        REWRITE_CACHE,
    )
    # XLA owns memory and fusion; BLAS Ops and reused factorizations are shapes that suit other backends.
    incompatible_rewrites: tuple[str, ...] = (
        "cxx_only",
        "BlasOpt",
        "fusion",
        "local_careduce_fusion",
        "scan_reduce_trace_prealloc",
        "scan_save_mem_no_prealloc",  # `REDUCED_TRACES` is the same for the loops where it is right
        "inplace",
        "late_inline_OpFromGraph",  # rules for symbolic Ops come first; what has none is inlined by `partition`
        "reuse_decomposition_multiple_solves",
        "scan_split_non_sequence_decomposition_and_solve",
        # They hide shapes in an Op that nothing can evaluate; modes made for mode JAX have them.
        "jax_shape_parameter_as_tuple",
        "jax_size_parameter_as_tuple",
    )

    def __init__(
        self, options: Options | None = None, allow_gc: bool | None = None, schedule: Callable | None = None
    ) -> None:
        if not isinstance(options, Options | None):
            raise TypeError(f"JaxprLinker takes an Options object, such as Options(results='jax'), not {options!r}.")
        super().__init__(allow_gc=allow_gc, schedule=schedule)
        self.options = options or Options()

    def accept(self, fgraph: FunctionGraph, no_recycling: Any = None, profile: Any = None) -> JaxprLinker:
        """Return a linker that is tied to `fgraph`: this one if it is free, else a copy with its options."""
        if self.fgraph is not None and self.fgraph is not fgraph:
            return type(self)(self.options, allow_gc=self.allow_gc).accept(fgraph, no_recycling, profile)
        self.options = resolve_options(self.options, fgraph)
        remember_original(fgraph)
        return super().accept(fgraph, no_recycling, profile)  # type: ignore[return-value]

    def make_all(self, input_storage: Any = None, output_storage: Any = None, storage_map: Any = None) -> tuple:
        """Compile the graph and return its thunk and containers, as `Linker.make_all` asks."""
        fgraph = self.fgraph
        assert fgraph is not None, "accept() comes first"
        nodes = self.schedule(fgraph)
        input_storage, output_storage, storage_map = map_storage(
            fgraph, nodes, input_storage, output_storage, storage_map
        )
        runner = Runner(fgraph, self._borrowed(fgraph), self.options)
        thunk = runner.thunk(storage_of(fgraph, input_storage, output_storage))
        thunk.allow_gc, thunk.storage_map = self.allow_gc, storage_map  # type: ignore[attr-defined]
        return thunk, *containers(fgraph, input_storage, output_storage), [thunk], nodes

    def _borrowed(self, fgraph: FunctionGraph) -> set[int]:
        """Return the positions of the outputs whose memory the user agreed to share."""
        kept = set(self.no_recycling or ())
        return {i for i, v in enumerate(fgraph.outputs) if v not in kept}

    def __repr__(self) -> str:
        return f"JaxprLinker({self.options})"


def resolve_options(options: Options, fgraph: FunctionGraph) -> Options:
    """Return the options of a function, and keep them in the tags of the variables that its graph computes, for its copies.

    `Function.copy` makes a function of a clone of the graph and of the mode, perhaps in another context. Tags of inputs and constants
    stay as they are: these are the user's own variables.
    """
    tags = [v.tag for v in fgraph.outputs if v.owner is not None]
    found = resolve(next((o for tag in tags if (o := getattr(tag, OPTIONS, None)) is not None), None), options)
    for tag in tags:
        setattr(tag, OPTIONS, found)
    return found


#: The attribute of a variable's tag that holds the options of its function.
OPTIONS = "jaxpr_options"


class Runner:
    """A graph, ready to be called on values, and planned anew when a rule finds that it can't emit a node.

    Attributes
    ----------
    plan
        The plan of the graph.
    graph, fallbacks
        The arguments of `make_plan`.
    updates
        The input that each output becomes the value of, by their positions.
    seconds
        How long planning took.
    program, executor
        What runs the plan: the graph as one program, or an executor of several batches. The other is None.
    call
        Runs the graph on a list of values, shared arrays on the device, and returns the list of results, or None if the host
        has to. Any number of threads may call it.
    deferred
        The checks of earlier calls, if calls do not wait for theirs.
    pure
        The graph as a pure JAX function of inputs and shared variables.
    """

    def __init__(self, fgraph: FunctionGraph, borrowed: set[int], options: Options):
        process.check()
        self.options = options
        self._policy = Policy(options, fgraph.inputs, getattr(fgraph, "name", None))
        started = perf_counter()
        with self._policy.progress.stage("inlining", len(fgraph.apply_nodes)):
            self._rules = rules_in_force(options.allow_traced_leaves)
            self.graph = make_graph(fgraph, self._rules)
        self.seconds = perf_counter() - started
        self.fallbacks: dict[Apply, CannotEmit] = {}
        self.updates: dict[int, int] = getattr(fgraph, "update_mapping", None) or {}
        self._converters = result_converters(fgraph, borrowed, options)
        self._on_host: Callable[[list], list] | None = None
        # NumPy arrays are waited for as it is, so a call knows how the one before it ended.
        wait = options.results == "numpy"
        self.deferred = DeferredChecks(wait) if options.checks == "defer" else None
        self._planning = threading.RLock()
        self.program: Program | None = None
        self.executor: Executor | None = None
        self.call: Callable[[list], list | None]
        self.pure: Callable[..., Any]
        self.prepare()

    def prepare(self) -> None:
        """Plan, and build what can be built before a call."""
        policy, nodes = self._policy, len(self.graph.nodes)
        options, progress = policy.options, policy.progress
        try:
            started = perf_counter()
            with progress.stage("partitioning", nodes):
                self.plan = make_plan(self.graph, self._rules, self.fallbacks)
            self.seconds += perf_counter() - started
            if logs.plan.isEnabledFor(logging.DEBUG):
                logs.plan.debug("%s", describe_plan(self.plan))
            if not self.plan.is_one_program:
                policy.report_breaks(self.plan.breaks)
                self.program, self.executor = None, Executor(self.plan, policy, self.deferred)
                self.pure = self.single_program
                self.call = self._converted(self.executor.call)
            else:
                program = Program(
                    self.plan.regions[0],
                    checked=options.checks != "skip",
                    capacity=options.specializations,
                    policy=policy,
                )
                if current_stance.get() != "force_host":
                    with progress.stage("lowering", nodes):
                        program.build_ahead()
                self.program, self.executor = program, None
                self.pure = pure_function(program.as_pure())
                self.call = program_call(program, policy, deferred=self.deferred, converters=self._converters)
        except CannotEmit as error:
            self._fall_back(error)

    @property
    def programs(self) -> list[Program]:
        """The programs of the plan's regions, in order."""
        if self.executor is not None:
            return self.executor.programs
        assert self.program is not None
        return [self.program]

    def host_call(self, args: list) -> list:
        """Run the whole graph by PyTensor's own Python implementations."""
        if self._on_host is None:
            inputs, outputs, nodes = self.graph
            results = [v for v in dict.fromkeys(outputs) if v.owner is not None]
            plan = Plan([host_step(nodes, results)], [], inputs, outputs)
            self._on_host = self._converted(Executor(plan, self._policy).call)
        return self._on_host(args)

    def _converted(self, call: Callable[[list], list]) -> Callable[[list], list]:
        """Return the call of an executor whose results are the user's values."""
        converters = self._converters
        return lambda args: [convert(x) for convert, x in zip(converters, call(args), strict=True)]

    def _counted(self, call: Callable[[list], list | None], args: list) -> list | None:
        """Return the results of a call, and count what it moves if this thread counts."""
        count, plan, executor = current_count(), self.plan, self.executor
        if count is None or call is not self.call:
            return call(args)
        sizes = CallSizes(plan, args)
        if executor is not None:
            call = self._converted(executor.counted(sizes))
        else:
            call = sizes.of_region(self.programs[0], call)
        if (results := call([*args])) is not None:
            count.add(transfers_of(plan, self.programs, self.updates, self.options.results, sizes))
        return results

    def single_program(self, *_args: Any) -> Program:
        """Return the graph as one program, or raise what `Plan.single_region` raises."""
        plan = self.plan
        if self.program is None and given_platforms():  # on which nodes that run on the host here may have a rule
            plan = make_plan(self.graph, self._rules, self.fallbacks)
        return self.program or Program(plan.single_region())

    def plan_again(self, error: CannotEmit, failed: Callable[[list], list | None]) -> None:
        """Plan again after a rule could not emit a node in the call `failed`, unless another thread has done so."""
        with self._planning:
            if self.call is failed:
                self._fall_back(error)

    def _fall_back(self, error: CannotEmit) -> None:
        """Plan again, with the node that a rule can't emit on the host."""
        assert error.node is not None and error.node not in self.fallbacks, error
        self.fallbacks[error.node] = error
        self.prepare()

    def _shortened(self, storage: Storage, inputs: Sequence[Declared]) -> Callable[[Sequence[Any]], list | None] | None:
        """Return the `short_call` for arguments that are the first inputs, or None if a call does more than that."""
        calls = getattr(self.call, "calls", None)
        if calls is None or any(declared.dtype is None for declared in inputs):
            return None
        shared = {i: storage.inputs[i] for i in self.call.shared}  # type: ignore[attr-defined]
        arrays = SharedArrays([*shared.values()], self.options)
        return short_call(inputs, shared, len(storage.inputs), calls, arrays)

    def thunk(self, storage: Storage) -> Callable[[], list]:
        """Return the function that PyTensor calls, on these cells.

        It stores results when everything has succeeded: after an error shared variables and generators have their old values. Only deferred
        checks are tested later.
        """
        outputs, updates, is_shared, unread = storage.outputs, storage.updates, storage.is_shared, storage.unread
        given_cells = [] if is_shared else storage.inputs[: len(storage.inputs) - len(unread)]
        progress, chosen, options = self._policy.progress, current_stance.get, self.options
        deferred = self.deferred

        def compute(given: list) -> list:
            """Return the values of the outputs, for values of the first inputs; the other inputs have theirs in cells."""
            if process.has_no_threads:
                process.check()
            if deferred is not None:
                deferred.raise_known()
            try:
                call = self.call if chosen() != "force_host" else self.host_call
                if is_shared:
                    values = storage.read(given, device_for(options))
                else:
                    values = [*given, *[cell[0] for cell in unread]] if unread else given
                results = self._counted(call, values) if open_counts else call(values)
            except CannotEmit as error:
                self.plan_again(error, call)
                return compute(given)
            except ValueError:  # JAX's, if devices differ, names no variable
                progress.end()
                values = storage.read(given, device_for(options)) if is_shared else given
                check_one_mesh(list(map(variable_name, self.graph.inputs)), values)
                raise
            except BaseException:
                progress.end()
                raise
            return self.host_call(storage.read(given, device_for(options))) if results is None else results

        def thunk() -> list:
            values = compute([cell[0] for cell in given_cells])
            for cell, value in zip(outputs, values):  # noqa: B905
                cell[0] = value
            if updates:
                storage.update(values)
            return values

        run: Any = in_turn(thunk, storage.turns)
        run.runner, run.storage = self, storage
        run.compute = None if updates else compute  # for calls that need no cells
        run.shortened = None if updates or deferred is not None else partial(self._shortened, storage)
        run.need_update_inputs = False  # since it does so itself, in its turn
        run.jit_fn = jit_function(self)
        return run


def jit_function(runner: Runner) -> Callable[..., tuple]:
    """Return a function that other libraries use like the jitted function of a `JAXLinker`.

    It takes the inputs and then the shared variables, returns a tuple of the outputs and updates, works inside JAX's
    transformations, and has the attribute `_fun`, by which nutpie reaches what is inside a `jax.jit`.
    """

    def call(*args: Any) -> tuple:
        process.check()
        check_count(runner.graph.inputs, args)
        try:
            return tuple(runner.pure(*args))
        except CannotEmit as error:
            raise refused_by_rule(error) from None

    call._fun = call  # type: ignore[attr-defined]
    return call
