"""`JaxprFunction`, a PyTensor function for any number of threads, its mode, and their registration."""

from __future__ import annotations

import atexit
import copyreg
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import compress
from operator import call
from typing import Any, Literal

from pytensor.compile.executor import Function
from pytensor.compile.mode import Mode, optdb, predefined_linkers, predefined_modes, register_linker, register_mode
from pytensor.compile.rewriting import rewrite_ofg_inner_graph
from pytensor.graph.rewriting.basic import dfs_rewriter
from pytensor.link.jax.linker import JAXLinker
from pytensor.scan.rewriting.inner_graph import rewrite_scan_inner_graph
from pytensor.tensor.rewriting.optimize import rewrite_optimize_inner_graph

from pytensor_jaxpr_linker.base.errors import variable_name
from pytensor_jaxpr_linker.base.jax_compat import set_thread_x64, thread_x64, with_x64_restored
from pytensor_jaxpr_linker.base.logs import LOGS_VARIABLE, show_logs
from pytensor_jaxpr_linker.base.options import Options
from pytensor_jaxpr_linker.base.pytensor_compat import accept_as_config_mode, set_function_class, set_rewriter
from pytensor_jaxpr_linker.base.words import counted
from pytensor_jaxpr_linker.frontend.added_rewrites import ADDED_REWRITES, STABILIZING, STABLE_LOGARITHMS
from pytensor_jaxpr_linker.frontend.kept_graphs import KEEPING_REWRITES
from pytensor_jaxpr_linker.frontend.linker import JaxprLinker
from pytensor_jaxpr_linker.frontend.rewriters import without_measurements
from pytensor_jaxpr_linker.frontend.shared_arrays import register_constructors
from pytensor_jaxpr_linker.frontend.storage import containers
from pytensor_jaxpr_linker.graph.loops import REDUCED_TRACES, reduce_trace
from pytensor_jaxpr_linker.run.codegen import Declared, as_declared
from pytensor_jaxpr_linker.run.placement import DeviceTensorType


class JaxprFunction(Function):
    """A compiled function that any number of threads may call at the same time.

    A call that updates nothing, and whose arguments are all given and as declared, hands them to the program. Every
    other call is one of `Function`, which raises the errors of arguments, and stores arguments in its one set of cells
    for the thunk. A call that finds the cells in use takes another set: a `Function` around the same programs, which is
    kept for later calls. Calls that update the same shared variable run one after the other, also of different
    functions; all others run at the same time.
    """

    __slots__ = (
        "__weakref__",
        "_as_declared",
        "_count",
        "_declared",
        "_is_direct",
        "_names",
        "_places",
        "_short",
        "_spare",
        "_unused",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unused = threading.Lock()  # held while the cells of this object are in use
        self._spare: list[Function] = []
        inputs: list[Any] = self.input_storage
        given = [c for c in inputs if not c.implicit]
        self._declared = list(map(declared, given))
        self._as_declared = as_declared(self._declared)
        self._count = len(given)
        self._names = [c.name for c in given]
        names = enumerate(self._names)
        self._places = {name: i for i, name in names if name is not None and self._names.count(name) == 1}
        is_simple = given == inputs[: len(given)] and all(c.required for c in given)
        can_compute = getattr(self.vm, "compute", None) is not None
        self._is_direct = is_simple and can_compute and not self._potential_aliased_input_groups
        self._short: Callable[[Sequence[Any]], list | None] | None = None  # made when the first call has ended

    def __repr__(self) -> str:
        names = ", ".join(variable_name(c.variable) for c in self.maker.inputs if not c.implicit)
        outputs = self.maker.outputs
        count = 1 if not isinstance(outputs, list | tuple) else len(outputs)
        return f"<function of mode JAXPR of ({names}) with {counted(count, 'output')}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the results for the arguments, as `Function` does, with this object's cells if nobody uses them."""
        vm: Any = self.vm
        values = self._in_order(args, kwargs) if kwargs else args
        short, outputs = self._short, None
        if not self.profile and vm.allow_gc:
            if short is not None:
                outputs = short(values)
            if outputs is None and self._is_direct and len(values) == self._count:
                outputs = self._computed(values)
            if outputs is not None:
                return outputs[0] if self.unpack_single else None if self.return_none else outputs
        outside = thread_x64()
        held: list[bool] = []
        releases = map(call, compress((self._unused.release,), held))
        try:
            held.extend(map(self._unused.acquire, (False,)))  # one call of C: Ctrl-C comes before it or after it
            if held[0]:
                return super().__call__(*args, **kwargs)
        except BaseException:
            set_thread_x64(outside)
            raise
        finally:
            any(releases)
        return self._call_beside(*args, **kwargs)

    @with_x64_restored
    def _computed(self, values: Sequence[Any]) -> list | None:
        """Return the outputs, or None if `Function` has to raise the error of an argument."""
        vm: Any = self.vm
        try:
            given = [*values] if self.trust_input else self._as_declared(values)
        except Exception:
            return None
        outputs = self._short(given) if self._short is not None else None
        if outputs is None:
            outputs = vm.compute(given)
        if self._short is None and vm.shortened is not None:
            self._short = vm.shortened(self._declared)
        return outputs

    def _in_order(self, args: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        """Return the values of all arguments in order; too many if a name is unknown or an argument comes twice."""
        if not args and len(named) == self._count == len(self._places):
            with suppress(KeyError):
                return [named[name] for name in self._names]
        values = dict(enumerate(args)) | {self._places.get(name, -1): value for name, value in named.items()}
        is_clear = -1 not in values and len(values) == len(args) + len(named)
        return [values[i] for i in sorted(values)] if is_clear else [None] * (self._count + 1)

    @with_x64_restored
    def _call_beside(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with cells that nobody uses."""
        try:
            function = self._spare.pop()
        except IndexError:
            function = self._with_own_cells()
        function.trust_input, function.profile = self.trust_input, self.profile
        try:
            return function(*args, **kwargs)
        finally:
            self._spare.append(function)

    def _with_own_cells(self) -> Function:
        """Return a function around the same programs with cells of its own, except for shared variables."""
        vm: Any = self.vm
        given = [[None] if own else c.storage for c, own in zip(self.input_storage, self.maker.required, strict=True)]
        storage = vm.storage.with_inputs(given)
        thunk = vm.runner.thunk(storage)
        thunk.allow_gc, thunk.storage_map = vm.allow_gc, vm.storage_map
        inputs, outputs = containers(self.maker.fgraph, storage.inputs, storage.outputs)
        maker, unpack, nothing = self.maker, self.unpack_single, self.return_none
        return Function(thunk, inputs, outputs, self.outputs, unpack, nothing, maker, name=self.name)


def declared(container: Any) -> Declared:
    """Return which arrays an input takes as they are, and the function that converts any other value, or raises."""
    type_ = container.type
    convert = partial(type_.filter, strict=container.strict, allow_downcast=container.allow_downcast)
    is_tensor = isinstance(type_, DeviceTensorType)
    return Declared(type_.numpy_dtype, type_.type.shape, convert) if is_tensor else Declared(None, (), convert)


copyreg.pickle(JaxprFunction, copyreg.dispatch_table[Function])


class JaxprMode(Mode):
    """Mode ``"JAXPR"`` with options or rewrites of one's own.

    Parameters
    ----------
    linker : JaxprLinker, optional
        The linker, if it is not ``JaxprLinker(Options(**named))``.
    optimizer : str, RewriteDatabaseQuery or GraphRewriter
        PyTensor's rewrites, as for `pytensor.compile.mode.Mode`.
    db : RewriteDatabase, optional
        As for `pytensor.compile.mode.Mode`.
    **named
        Parameters of `Options`.

    Examples
    --------
    >>> import pytensor, pytensor.tensor as pt
    >>> import pytensor_jaxpr_linker as pjl
    >>> x = pt.vector("x", dtype="float64")
    >>> pytensor.function([x], x.sum(), mode=pjl.JaxprMode(on_break="raise"))([1.0, 2.0])
    array(3.)
    """

    def __init__(
        self,
        linker: JaxprLinker | Literal["jaxpr"] | None = None,
        optimizer: Any = "fast_run",
        db: Any = None,
        **named: Any,
    ) -> None:
        super().__init__(chosen_linker(linker, named), optimizer, db)

    def __repr__(self) -> str:
        return f"JaxprMode({self.linker})"

    __str__ = __repr__  # PyTensor's lists each rewrite


def chosen_linker(linker: Any, named: Mapping[str, Any]) -> JaxprLinker:
    """Return the given linker of a mode, or make one of named options."""
    if linker is None or linker == "jaxpr":
        return JaxprLinker(Options(**named))
    if not isinstance(linker, JaxprLinker):
        raise TypeError(
            f"JaxprMode takes a JaxprLinker, not {linker!r}. Name options, as in JaxprMode(results='jax'), or make the"
            " linker of an Options object: JaxprMode(JaxprLinker(options)). For another linker, use"
            " pytensor.compile.mode.Mode."
        )
    if named:
        options = ", ".join(f"{name}={value!r}" for name, value in named.items())
        raise TypeError(
            "JaxprMode takes a linker, which has its options, or names of options, not both. Give"
            f" {', '.join(named)} to the linker: JaxprLinker(Options({options}))."
        )
    return linker


#: All rewrites of graphs, by their positions among PyTensor's; the linker asks for them by name or tag.
OPTDB_REWRITES: tuple[tuple, ...] = (
    *KEEPING_REWRITES,
    *ADDED_REWRITES,
    (1.612, REDUCED_TRACES, dfs_rewriter(reduce_trace, ignore_newtrees=True)),  # where PyTensor has its own
)
#: The modules that older pickles name, and the modules that have their classes now.
OLD_MODULES = {
    "frontend.in_place_of_jax": "frontend.as_jax_function",
    "frontend.merging": "frontend.graph_features",
    "frontend.original_graph": "frontend.kept_graphs",
    "frontend.shared_placement": "frontend.shared_arrays",
    "run.transfer": "run.placement",
}


def register(mode: Mode) -> None:
    """Register the linker "jaxpr", its functions, `mode` as "JAXPR", rewrites and constructors; a reload adds none."""
    if path := show_logs(os.environ.get(LOGS_VARIABLE, "")):
        atexit.register(lambda: sys.modules[__package__.partition(".")[0]].session_report().save(path))
    if "jaxpr" not in predefined_linkers:
        register_linker("jaxpr", JaxprLinker())
    if "JAXPR" not in predefined_modes:
        register_mode("JAXPR", mode)
        accept_as_config_mode("JAXPR")
    set_function_class(JaxprLinker, JaxprFunction)
    set_rewriter(JaxprLinker, without_measurements)
    for position, name, rewrite, *tags in OPTDB_REWRITES:
        if name not in optdb:
            optdb.register(name, rewrite, *tags, position=position)
    stabilize = optdb["stabilize"]
    for name, rewriter in STABILIZING.items():
        if name not in stabilize:
            stabilize.register(name, rewriter, STABLE_LOGARITHMS, use_db_name_as_tag=False)
    register_constructors()
    package = __package__.partition(".")[0]
    sys.modules |= {f"{package}.{old}": sys.modules[f"{package}.{new}"] for old, new in OLD_MODULES.items()}
    # PyTensor chooses the rewrites of inner graphs by the linker's class: ours wants the same as functional backends.
    for of_inner_graph in (rewrite_ofg_inner_graph, rewrite_scan_inner_graph, rewrite_optimize_inner_graph):
        of_inner_graph.register(JaxprLinker)(of_inner_graph.dispatch(JAXLinker))
