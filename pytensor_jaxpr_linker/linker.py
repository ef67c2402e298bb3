"""`JaxprLinker`: the only module that knows PyTensor's storage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np
from pytensor.compile.rewriting import rewrite_ofg_inner_graph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.link.basic import Container, PerformLinker
from pytensor.link.jax.linker import JAXLinker
from pytensor.link.utils import map_storage
from pytensor.scalar.basic import ScalarType
from pytensor.scan.rewriting.inner_graph import rewrite_scan_inner_graph
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.rewriting.optimize import rewrite_optimize_inner_graph
from pytensor.tensor.type import DenseTensorType

from pytensor_jaxpr_linker import logs, transfer
from pytensor_jaxpr_linker.errors import CannotEmit, variable_name
from pytensor_jaxpr_linker.executor import Executor, raise_if_failed
from pytensor_jaxpr_linker.loops import parent_generator
from pytensor_jaxpr_linker.options import Options, resolve
from pytensor_jaxpr_linker.original import KEEP, remember_original
from pytensor_jaxpr_linker.plan import Plan, describe_plan, host_step
from pytensor_jaxpr_linker.policy import Policy, RunOnHost
from pytensor_jaxpr_linker.program import Program, make_graph, make_plan, pure_function
from pytensor_jaxpr_linker.progress import Progress
from pytensor_jaxpr_linker.stance import current_stance


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

    # Scans keep the states that are read; PyTensor's variant for backends that do not write outputs into given memory.
    required_rewrites: tuple[str, ...] = ("minimum_compile", "lazy_ifelse", "scan_save_mem_no_prealloc", KEEP)
    # XLA owns memory and fusion; BLAS Ops and reused factorizations are shapes that suit other backends.
    incompatible_rewrites: tuple[str, ...] = (
        "cxx_only",
        "BlasOpt",
        "fusion",
        "local_careduce_fusion",
        "scan_reduce_trace_prealloc",
        "inplace",
        "late_inline_OpFromGraph",  # rules for symbolic Ops come first; what has none is inlined by `partition`
        "reuse_decomposition_multiple_solves",
        "scan_split_non_sequence_decomposition_and_solve",
    )

    def __init__(
        self, options: Options | None = None, allow_gc: bool | None = None, schedule: Callable | None = None
    ) -> None:
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
        runner = Runner(fgraph, input_storage, output_storage, self._borrowed(fgraph), self.options)
        thunk = runner.thunk()
        thunk.allow_gc = self.allow_gc  # type: ignore[attr-defined]
        thunk.storage_map = storage_map  # type: ignore[attr-defined]
        inputs = [input_container(v, storage) for v, storage in zip(fgraph.inputs, input_storage, strict=True)]
        outputs = [Container(v, s, readonly=True) for v, s in zip(fgraph.outputs, output_storage, strict=True)]
        return thunk, inputs, outputs, [thunk], nodes

    def _borrowed(self, fgraph: FunctionGraph) -> set[int]:
        """Return the positions of the outputs whose memory the user agreed to share."""
        kept = set(self.no_recycling or ())
        return {i for i, v in enumerate(fgraph.outputs) if v not in kept}

    def __repr__(self) -> str:
        return f"JaxprLinker({self.options})"


def resolve_options(options: Options, fgraph: FunctionGraph) -> Options:
    """Return the options of a function, which its copies have too: what its graph computes keeps them.

    `Function.copy` makes a function of a clone of the graph and of the mode, perhaps in another context. Inputs and constants
    keep nothing: they are the user's own variables.
    """
    tags = [v.tag for v in fgraph.outputs if v.owner is not None]
    found = resolve(next((o for tag in tags if (o := getattr(tag, OPTIONS, None)) is not None), None), options)
    for tag in tags:
        setattr(tag, OPTIONS, found)
    return found


#: The attribute of a variable's tag that holds the options of its function.
OPTIONS = "jaxpr_options"


# PyTensor chooses the rewrites of inner graphs by the linker's class: ours wants what its functional backends get.
for rewrite in (rewrite_ofg_inner_graph, rewrite_scan_inner_graph, rewrite_optimize_inner_graph):
    rewrite.register(JaxprLinker)(rewrite.dispatch(JAXLinker))


class Runner:
    """A graph tied to storage: what is called, and planned anew when a rule finds that it can't emit a node.

    Attributes
    ----------
    plan
        What is done with the graph.
    graph, fallbacks
        What the plan was made of, see `make_plan`.
    seconds
        How long planning took.
    program, executor
        What runs the plan: the graph as one program, or what runs several batches. The other is None.
    call
        Runs the graph on what the storage holds, stores the results and returns them.
    pure
        The graph as a pure JAX function of inputs and shared variables.
    """

    def __init__(
        self,
        fgraph: FunctionGraph,
        inputs: Sequence[list],
        outputs: Sequence[list],
        borrowed: set[int],
        options: Options,
    ):
        self._policy = Policy(options, fgraph.inputs, getattr(fgraph, "name", None))
        started = perf_counter()
        with self._policy.progress.stage("inlining", len(fgraph.apply_nodes)):
            self.graph = make_graph(fgraph, options.allow_traced_leaves)
        self.seconds = perf_counter() - started
        self.fallbacks: dict[Apply, CannotEmit] = {}
        self._io = storage_of(fgraph, inputs, outputs)
        self._convert = result_converters(fgraph, borrowed, options)
        self._host_call: Callable[[], list] | None = None
        self.program: Program | None = None
        self.executor: Executor | None = None
        self.call: Callable[[], list]
        self.pure: Callable[..., Any]
        self.prepare()

    def prepare(self) -> None:
        """Plan, and build what can be built before a call."""
        policy, nodes = self._policy, len(self.graph.nodes)
        options, progress = policy.options, policy.progress
        try:
            started = perf_counter()
            with progress.stage("partitioning", nodes):
                self.plan = make_plan(self.graph, self.fallbacks, options.allow_traced_leaves)
            self.seconds += perf_counter() - started
            if logs.plan.isEnabledFor(logging.DEBUG):
                logs.plan.debug("%s", describe_plan(self.plan))
            if not self.plan.is_one_program:
                policy.report_breaks(self.plan.breaks)
                self.program, self.executor = None, Executor(self.plan, policy)
                self.call = make_executor_call(self.executor, self._io, self._convert)
                self.pure = self.single_program
            else:
                program = Program(
                    self.plan.regions[0], checked=options.checks, capacity=options.specializations, policy=policy
                )
                if current_stance.get() != "force_host":
                    with progress.stage("lowering", nodes):
                        program.build_ahead()
                self.call = make_program_call(program, self._io, self._convert, progress)
                self.pure = pure_function(program.unchecked())
                self.program, self.executor = program, None
        except CannotEmit as error:
            self.plan_again(error)

    @property
    def programs(self) -> list[Program]:
        """The programs of the plan's regions, in order."""
        if self.executor is not None:
            return self.executor.programs
        assert self.program is not None
        return [self.program]

    def host_call(self) -> list:
        """Run the whole graph by PyTensor's own Python implementations."""
        if self._host_call is None:
            inputs, outputs, nodes = self.graph
            results = [v for v in dict.fromkeys(outputs) if v.owner is not None]
            plan = Plan([host_step(nodes, results)], [], inputs, outputs)
            self._host_call = make_executor_call(Executor(plan, self._policy), self._io, self._convert)
        return self._host_call()

    def single_program(self, *_args: Any) -> Program:
        """Return the graph as one program, or raise what `Plan.single_region` raises."""
        return self.program or Program(self.plan.single_region())

    def plan_again(self, error: CannotEmit) -> None:
        """Take into account what a rule found."""
        assert error.node is not None and error.node not in self.fallbacks, error
        self.fallbacks[error.node] = error
        self.prepare()

    def thunk(self) -> Callable[[], list]:
        """Return the function that PyTensor calls."""

        progress, chosen = self._policy.progress, current_stance.get

        def thunk() -> list:
            try:
                if chosen() != "force_host":
                    return self.call()
            except RunOnHost:
                pass
            except CannotEmit as error:
                self.plan_again(error)
                return thunk()
            except BaseException:
                progress.end()
                raise
            return self.host_call()

        thunk.runner = self  # type: ignore[attr-defined]
        thunk.jit_fn = lambda *args: self.pure(*args)  # type: ignore[attr-defined]
        return thunk


def make_program_call(
    program: Program, io: Storage, convert: Sequence[Callable[[Any], Any]], progress: Progress
) -> Callable[[], list]:
    """Return the function that runs one program on what the storage holds, and stores and returns the results.

    Nothing is stored before everything has succeeded: on an error shared variables and generators keep their values.
    """
    inputs, outputs, shared, generators = io.inputs, io.outputs, io.shared, io.generators
    count = len(outputs)
    only = None if program.static_positions else program.specialize(())
    constants = program.constants
    enable_x64 = jax.enable_x64

    # The hot path: what a function does not have costs one test each.
    def call() -> list:
        args = [cell[0] for cell in inputs]
        for i in shared:
            args[i] = shared_device_array(inputs[i])
        if generators:
            successors = take_keys(args, generators)
        with enable_x64(True):
            specialization = only or program.specialize(args)
            if constants:
                args += program.device_constants()
            results = specialization.call(*args)
        if progress.active:
            progress.end()
        if len(results) > count:
            raise_if_failed(specialization, results[count], args)
        values = [to_value(result) for to_value, result in zip(convert, results)]  # noqa: B905
        if generators:
            for i, generator in successors.items():
                values[i] = generator
        for cell, value in zip(outputs, values):  # noqa: B905
            cell[0] = value
        return values

    return call


def make_executor_call(executor: Executor, io: Storage, convert: Sequence[Callable[[Any], Any]]) -> Callable[[], list]:
    """Return the function that runs a plan of several batches, as `make_program_call` does."""

    def call() -> list:
        args = [cell[0] for cell in io.inputs]
        for i in io.shared:
            args[i] = shared_device_array(io.inputs[i])
        values = [to_value(result) for to_value, result in zip(convert, executor(args), strict=True)]
        for cell, value in zip(io.outputs, values, strict=True):
            cell[0] = value
        return values

    return call


def shared_device_array(cell: list) -> Any:
    """Return the device's copy of a shared variable's value, uploading it the first time it is seen."""
    array = transfer.device_array(cell[0])
    if array is None and isinstance(cell[0], np.ndarray) and cell[0].size:
        with jax.enable_x64(True):
            cell[0] = transfer.upload(cell[0])
        array = transfer.device_array(cell[0])
    return cell[0] if array is None else array


def take_keys(args: list, generators: dict[int, dict[int, int]]) -> dict[int, Any]:
    """Replace the generators among `args` by keys; return the generator that each generator output becomes."""
    successors = {}
    for i, wanted in generators.items():
        generator = args[i]
        args[i] = transfer.key_of(generator)[0]
        for output, draws in wanted.items():
            if isinstance(generator, np.random.Generator):  # else it is a key, and so is its successor
                successors[output] = transfer.key_of(generator, draws)[1]
    return successors


class Storage(NamedTuple):
    """The cells that hold a function's values.

    Attributes
    ----------
    inputs, outputs
        One list of length 1 for each input and output.
    shared
        Positions of the inputs that are shared arrays.
    generators
        For each input that is a generator, the outputs that are its successors and how many draws they are ahead.
    """

    inputs: Sequence[list]
    outputs: Sequence[list]
    shared: tuple[int, ...]
    generators: dict[int, dict[int, int]]


def storage_of(fgraph: FunctionGraph, inputs: Sequence[list], outputs: Sequence[list]) -> Storage:
    """Return the storage of a graph's inputs and outputs by what kind of value each holds."""
    shared = tuple(
        i for i, v in enumerate(fgraph.inputs) if isinstance(v, SharedVariable) and isinstance(v.type, DenseTensorType)
    )
    generators: dict[int, dict[int, int]] = {
        i: {} for i, v in enumerate(fgraph.inputs) if isinstance(v.type, RandomType)
    }
    for i, v in enumerate(fgraph.outputs):
        if isinstance(v.type, RandomType):
            source, draws = generator_source(v)
            if source in fgraph.inputs:
                generators[fgraph.inputs.index(source)][i] = draws
    return Storage(inputs, outputs, shared, generators)


def generator_source(variable: Variable) -> tuple[Variable, int]:
    """Return the generator that `variable` descends from, and by how many random variables."""
    draws = 0
    while variable.owner is not None:
        draws += 1
        variable = parent_generator(variable)
    return variable, draws


def result_converters(fgraph: FunctionGraph, borrowed: set[int], options: Options) -> list[Callable[[Any], Any]]:
    """Return what makes each output's value of the array that XLA returned."""
    updates = getattr(fgraph, "update_mapping", None) or {}

    def converter(i: int, variable: Variable) -> Callable[[Any], Any]:
        if isinstance(variable.type, RandomType):
            return lambda key: key
        if not isinstance(variable.type, DenseTensorType | ScalarType):
            return lambda value: value
        if i in updates:
            return lambda array: transfer.mirror(transfer.on_device(array))
        if options.results == "jax":
            return transfer.on_device
        if isinstance(variable.type, ScalarType):
            return lambda array: np.asarray(array)[()]
        return transfer.read_only if i in borrowed else np.array

    return [converter(i, v) for i, v in enumerate(fgraph.outputs)]


def input_container(variable: Variable, storage: list) -> Container:
    """Return the container by which `Function` checks and stores an input; that of a tensor takes JAX arrays too."""
    container = Container(variable, storage)
    if isinstance(variable.type, DenseTensorType) and not isinstance(variable, SharedVariable):
        container.type = transfer.DeviceTensorType(variable.type, variable_name(variable))
    return container
