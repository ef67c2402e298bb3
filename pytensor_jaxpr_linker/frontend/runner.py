"""`Runner`, which runs a graph, and plans it anew when a rule finds that it can't emit a node."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from functools import cached_property, partial
from time import perf_counter
from typing import Any

from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph

from pytensor_jaxpr_linker.base import logs
from pytensor_jaxpr_linker.base.errors import CannotEmit, refused_by_rule, variable_name
from pytensor_jaxpr_linker.base.options import Options, current_stance, given_platforms
from pytensor_jaxpr_linker.base.session import note_build
from pytensor_jaxpr_linker.base.words import counted
from pytensor_jaxpr_linker.frontend.jax_function import check_count
from pytensor_jaxpr_linker.frontend.shared_arrays import InRows, shared_pass, transposed
from pytensor_jaxpr_linker.frontend.storage import SharedArrays, Storage, in_turn, result_converters, store
from pytensor_jaxpr_linker.graph.walk import Graph
from pytensor_jaxpr_linker.plan.model import Plan, describe_plan, host_step
from pytensor_jaxpr_linker.run.call import DeferredChecks, ProgramCall
from pytensor_jaxpr_linker.run.codegen import Declared, short_call
from pytensor_jaxpr_linker.run.executor import Executor
from pytensor_jaxpr_linker.run.placement import check_one_mesh, device_for, process
from pytensor_jaxpr_linker.run.program import Program, make_graph, make_plan, pure_function, rules_in_force
from pytensor_jaxpr_linker.run.recompiles import Policy
from pytensor_jaxpr_linker.run.transfer_count import Sizes, current_count, held, open_counts, transfers_of


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
        The graph as one program, or an executor of several batches. The other is None.
    in_use
        The function that runs the graph on a list of values, shared arrays on the device, and returns the list of
        results, or None if the host has to run it; and the positions of the shared matrices whose transposes it takes.
        Any number of threads may call it.
    deferred
        The checks of earlier calls, if calls do not wait for theirs.
    pure
        The graph as a pure JAX function of inputs and shared variables.
    """

    def __init__(self, fgraph: FunctionGraph, borrowed: set[int], options: Options):
        self.options = options
        self._policy = Policy(options, fgraph.inputs, getattr(fgraph, "name", None))
        started = perf_counter()
        with self._policy.progress.stage("inlining", len(fgraph.apply_nodes)):
            self._rules = rules_in_force(options.allow_traced_leaves)
            self.graph = make_graph(fgraph, self._rules, [shared_pass(fgraph)])
        self.seconds = perf_counter() - started
        self.fallbacks: dict[Apply, CannotEmit] = {}
        self.updates: dict[int, int] = getattr(fgraph, "update_mapping", None) or {}
        self._fgraph = fgraph
        self._converters = result_converters(fgraph, borrowed, options)
        self._on_host: Callable[[list], list] | None = None
        # NumPy arrays are waited for as it is, so a call knows how the one before it ended.
        wait = options.results == "numpy"
        self.deferred = DeferredChecks(wait) if options.checks == "defer" else None
        self._planning = threading.RLock()
        self.program: Program | None = None
        self.executor: Executor | None = None
        self.in_use: tuple[Callable[[list], list | None], frozenset[int]]
        self.prepare()
        note_build("function", self._policy.name or counted(len(fgraph.apply_nodes), "node"), {"plan": self.seconds})

    def prepare(self) -> None:
        """Plan, and build as much as possible before a call."""
        policy, progress, nodes = self._policy, self._policy.progress, len(self.graph.nodes)
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
                call: Callable[[list], list | None] = self._converted(self.executor.call)
            else:
                program = Program(self.plan.regions[0], policy=policy)
                if current_stance.get() != "force_host":
                    with progress.stage("lowering", nodes):
                        program.build_ahead()
                self.program, self.executor = program, None
                call = ProgramCall(program, policy, deferred=self.deferred, converters=self._converters)
            self._pure: Callable[..., Any] | None = None
            self.in_use = call, self.column_major
        except CannotEmit as error:
            self._fall_back(error)

    @property
    def column_major(self) -> frozenset[int]:
        """The positions of the shared matrices whose transposes `graph` takes."""
        pairs = zip(self._fgraph.inputs, self.graph.inputs, strict=True)
        return frozenset(i for i, (v, taken) in enumerate(pairs) if taken is not v)

    @cached_property
    def _in_rows(self) -> Graph:
        """The graph that takes all matrices in rows."""
        return make_graph(self._fgraph, self._rules) if self.column_major else self.graph

    @property
    def call(self) -> Callable[[list], list | None]:
        """The function that runs the graph, see `in_use`."""
        return self.in_use[0]

    @property
    def pure(self) -> Callable[..., Any]:
        """The graph as a pure JAX function of inputs and shared variables."""
        if self.program is None:
            return self.single_program
        if self._pure is None:
            self._pure = pure_function(self.single_program().as_pure())
        return self._pure

    @property
    def programs(self) -> list[Program]:
        """The programs of the plan's regions, in order."""
        if self.executor is not None:
            return self.executor.programs
        assert self.program is not None
        return [self.program]

    def host_call(self, args: list, column_major: Collection[int]) -> list:
        """Run all by PyTensor's own Python implementations; arguments at `column_major` are transposes of matrices."""
        if self._on_host is None:
            inputs, outputs, nodes = self._in_rows
            results = [v for v in dict.fromkeys(outputs) if v.owner is not None]
            plan = Plan([host_step(nodes, results)], [], inputs, outputs)
            self._on_host = self._converted(Executor(plan, self._policy).call)
        return self._on_host(transposed(args, column_major))

    def _converted(self, call: Callable[[list], list]) -> Callable[[list], list]:
        """Return the call of an executor whose results are the user's values."""
        converters = self._converters
        return lambda args: [convert(x) for convert, x in zip(converters, call(args), strict=True)]

    def _counted(self, call: Callable[[list], list | None], args: list) -> list | None:
        """Return the results of a call, and count its transfers if this thread counts."""
        count, plan, executor = current_count(), self.plan, self.executor
        if count is None or call is not self.call:
            return call(args)
        sizes = Sizes({v: held(x) for v, x in zip(plan.inputs, args, strict=True)})
        if executor is not None:
            call = self._converted(executor.counted(sizes))
        else:
            call = sizes.of_region(self.programs[0], call)
        if (results := call([*args])) is not None:
            count.add(transfers_of(plan, self.programs, self.updates, self.options.results, sizes))
        return results

    def single_program(self, *_args: Any) -> Program:
        """Return the graph as one program that takes all matrices in rows, or raise as `Plan.single_region` does."""
        plan = self.plan
        if self.column_major:
            return Program(make_plan(self._in_rows, self._rules).single_region())
        if self.program is None and given_platforms():  # where nodes that run on the host here may have a rule
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
        try:
            self.prepare()
        except BaseException:  # refused, or interrupted: the next call finds the same
            del self.fallbacks[error.node]
            raise

    def plan_in_rows(self) -> None:
        """Plan again for shared matrices in rows, unless another thread has done so."""
        with self._planning:
            if self.in_use[1]:  # as long as planning has not succeeded
                self.graph, self.fallbacks = self._in_rows, {}
                self.prepare()

    def _shortened(self, storage: Storage, inputs: Sequence[Declared]) -> Callable[[Sequence[Any]], list | None] | None:
        """Return the `short_call` for arguments that are the first inputs, or None before the first packed call."""
        call, column_major = self.in_use
        if not isinstance(call, ProgramCall) or not call.calls or any(declared.dtype is None for declared in inputs):
            return None
        cells = {i: storage.inputs[i] for i in call.shared}
        arrays = SharedArrays(cells, call.shared, self.options, column_major)
        return short_call(inputs, cells, len(storage.inputs), call.calls, arrays)

    def thunk(self, storage: Storage) -> Callable[[], list]:
        """Return the function that PyTensor calls, on these cells.

        It stores results when everything has succeeded: after an error shared variables and generators have their old
        values. Only deferred checks are tested later.
        """
        outputs, updates, is_shared, unread = storage.outputs, storage.updates, storage.is_shared, storage.unread
        given_cells = [] if is_shared else storage.inputs[: len(storage.inputs) - len(unread)]
        progress, chosen, options = self._policy.progress, current_stance.get, self.options
        deferred = self.deferred

        def compute(given: list) -> list:
            """Return the values of the outputs, for values of the first inputs; cells hold the other values."""
            if process.has_no_threads:
                process.check()
            if deferred is not None:
                deferred.raise_known()
            values, (call, column_major) = given, self.in_use
            try:
                if chosen() == "force_host":
                    call = partial(self.host_call, column_major=column_major)
                if is_shared:
                    values = storage.read(given, device_for(options), column_major)
                else:
                    values = [*given, *[cell[0] for cell in unread]] if unread else given
                results = self._counted(call, values) if open_counts else call(values)
            except CannotEmit as error:
                self.plan_again(error, call)
                return compute(given)
            except InRows:
                self.plan_in_rows()
                return compute(given)
            except ValueError:  # JAX's, if devices differ, names no variable
                progress.end()
                check_one_mesh(list(map(variable_name, self.graph.inputs)), values)
                raise
            except BaseException:
                progress.end()
                raise
            return self.host_call(values, column_major) if results is None else results

        def thunk() -> list:
            values = compute([cell[0] for cell in given_cells])
            store(outputs, values)
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
    transformations, and has the attribute `_fun`, by which nutpie reaches the function inside a `jax.jit`.
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
