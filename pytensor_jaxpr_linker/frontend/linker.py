"""`JaxprLinker`, which PyTensor asks for a thunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytensor.graph.fg import FunctionGraph
from pytensor.link.basic import PerformLinker
from pytensor.link.utils import map_storage

from pytensor_jaxpr_linker.base.options import Options, resolve
from pytensor_jaxpr_linker.frontend.added_rewrites import ADDED_REWRITES
from pytensor_jaxpr_linker.frontend.kept_graphs import KEEP, REWRITE_CACHE, remember_original
from pytensor_jaxpr_linker.frontend.runner import Runner
from pytensor_jaxpr_linker.frontend.storage import containers, storage_of
from pytensor_jaxpr_linker.graph.loops import REDUCED_TRACES


class JaxprLinker(PerformLinker):
    """A PyTensor linker that compiles a graph with XLA, through a Jaxpr that is built without tracing.

    Parameters
    ----------
    options : Options, optional
        How to compile and call. Other options are looked up when a function is compiled, see `Options`.
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
        REWRITE_CACHE,
        *(name for _, name, _ in ADDED_REWRITES),
    )
    # XLA owns memory and fusion; BLAS Ops and reused factorizations suit other backends.
    incompatible_rewrites: tuple[str, ...] = (
        "cxx_only",
        "BlasOpt",
        "fusion",
        "local_careduce_fusion",
        "scan_reduce_trace_prealloc",
        "scan_save_mem_no_prealloc",  # `REDUCED_TRACES` is the same for the loops where it is right
        "inplace",
        "late_inline_OpFromGraph",  # rules for symbolic Ops come first; `partition` inlines Ops without one
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
        inputs, outputs, storage_map = map_storage(fgraph, nodes, input_storage, output_storage, storage_map)
        runner = Runner(fgraph, self._borrowed(fgraph), self.options)
        thunk = runner.thunk(storage_of(fgraph, inputs, outputs))
        thunk.allow_gc, thunk.storage_map = self.allow_gc, storage_map  # type: ignore[attr-defined]
        return thunk, *containers(fgraph, inputs, outputs), [thunk], nodes

    def _borrowed(self, fgraph: FunctionGraph) -> set[int]:
        """Return the positions of the outputs whose memory the user agreed to share.

        PyTensor does not say so of an output that is an input, such as the old value of a shared variable that is
        updated.
        """
        kept = set(self.no_recycling or ())
        return {i for i, v in enumerate(fgraph.outputs) if v not in kept and v.owner is not None}

    def __repr__(self) -> str:
        return f"JaxprLinker({self.options})"


def resolve_options(options: Options, fgraph: FunctionGraph) -> Options:
    """Return the options of a function, and keep them for its copies, in the tags of computed outputs.

    `Function.copy` makes a function of a clone of the graph and of the mode, perhaps in another context. Tags of inputs
    and constants stay as they are: these are the user's own variables.
    """
    tags = [v.tag for v in fgraph.outputs if v.owner is not None]
    found = resolve(next((o for tag in tags if (o := getattr(tag, OPTIONS, None)) is not None), None), options)
    for tag in tags:
        setattr(tag, OPTIONS, found)
    return found


#: The attribute of a variable's tag that holds the options of its function.
OPTIONS = "jaxpr_options"
