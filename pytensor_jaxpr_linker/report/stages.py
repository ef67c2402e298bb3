"""`stages`: the forms of a compiled function on its way to the processor, from the graph to the optimized HLO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph

from jaxpr_artifact import LoadedFunction
from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.jax_compat import with_x64_restored
from pytensor_jaxpr_linker.base.passes import PassRecord, record_passes
from pytensor_jaxpr_linker.base.words import counted
from pytensor_jaxpr_linker.frontend.shared_arrays import shared_pass
from pytensor_jaxpr_linker.frontend.targets import LOADED, Compiled, compiled, target_of
from pytensor_jaxpr_linker.jaxpr.lower import lower_region
from pytensor_jaxpr_linker.report.loaded_stages import LoadedStages
from pytensor_jaxpr_linker.report.marked import Marks, equation_texts, located_lines
from pytensor_jaxpr_linker.report.measure import profile_of
from pytensor_jaxpr_linker.report.profile import Profile
from pytensor_jaxpr_linker.report.text import list_seconds
from pytensor_jaxpr_linker.run.placement import copied_to_mesh, is_sharded, process
from pytensor_jaxpr_linker.run.program import Program, declared_aval, make_graph, rules_in_force
from pytensor_jaxpr_linker.run.specialization import Specialization, lowering_key


class NodeCode(NamedTuple):
    """The lines of the Jaxpr and of the StableHLO text that belong to one node."""

    jaxpr: list[str]
    stablehlo: list[str]


class Passes(NamedTuple):
    """The records of the passes on the way from the graph to the Jaxprs.

    Attributes
    ----------
    graph
        The graph passes, in order.
    regions
        The Jaxpr passes of each region, in order.
    """

    graph: list[PassRecord]
    regions: list[list[PassRecord]]


class RegionStages:
    """The stages of one region for its static values, shapes and dtypes. Each is made when it is first asked for."""

    def __init__(self, specialization: Specialization, avals: Sequence[Any]):
        self.specialization = specialization
        self.avals = [jax.ShapeDtypeStruct(a.shape, np.dtype(a.dtype), sharding=sharding_on_mesh(a)) for a in avals]

    @property
    def jaxpr(self) -> Any:
        """The Jaxpr."""
        return self.specialization.lower(self.avals).jaxpr

    @cached_property
    def lowered(self) -> Any:
        """JAX's `jax.stages.Lowered`."""
        process.check()
        with jax.enable_x64(True):
            return self.specialization.call.lower(*self.avals)

    @cached_property
    def compiled(self) -> Any:
        """JAX's `jax.stages.Compiled`."""
        with jax.enable_x64(True):
            return self.lowered.compile()

    @property
    def stablehlo(self) -> str:
        """The StableHLO text that XLA gets."""
        return self.lowered.as_text()

    @property
    def hlo(self) -> str:
        """The HLO text after XLA's optimizations."""
        return self.compiled.as_text() or ""

    @cached_property
    def passes(self) -> list[PassRecord]:
        """The records of the Jaxpr passes. The region is lowered once more for them."""
        s = self.specialization
        with record_passes() as runs:
            lower_region(s.region, self.avals, s.static, s.checked, s.name)
        return runs[-1] if runs else []

    @property
    def cost(self) -> dict[str, float]:
        """XLA's estimates: "flops", "bytes accessed" and others."""
        return dict(self.compiled.cost_analysis() or {})

    @property
    def memory(self) -> dict[str, int]:
        """The bytes that XLA needs for arguments, outputs, temporary values and code."""
        found = self.compiled.memory_analysis()
        names = [name for name in dir(found) if name.endswith("_size_in_bytes")]
        return {name.removesuffix("_size_in_bytes"): getattr(found, name) for name in names}

    @property
    def timings(self) -> dict[str, float]:
        """Seconds of the stages: "lower" to a Jaxpr, JAX's "trace" of the call, "stablehlo", "xla".

        They come from the first call with these shapes. Without such a call the region is compiled now.
        """
        seconds = self.specialization.seconds.get(lowering_key(self.avals), {})
        if "xla" not in seconds:
            _ = self.compiled
        return dict(self.specialization.seconds[lowering_key(self.avals)])

    def __repr__(self) -> str:
        return f"<Stages of a {region_line(self)}>"

    def by_node(self, index: Mapping[Apply, int]) -> dict[int, NodeCode]:
        """Return the code of each node, by its number in `index`.

        The region is lowered once more, with the number of its node in the name of each equation.
        """
        process.check()
        jaxpr = Marks(index).lower(self.specialization, self.avals)
        with jax.enable_x64(True):
            lowered = jax.jit(lambda *args: jax_compat.call_jaxpr(jaxpr, *args)).lower(*self.avals)
        found: dict[int, NodeCode] = {}
        for number, text in equation_texts(jaxpr):
            found.setdefault(number, NodeCode([], [])).jaxpr.append(text)
        for number, line in located_lines(lowered.as_text(debug_info=True)):
            found.setdefault(number, NodeCode([], [])).stablehlo.append(line)
        return found


def sharding_on_mesh(value: Any) -> Any:
    """Return the sharding of an array, or aval, on a mesh, else None."""
    return value.sharding if is_sharded(value) or isinstance(value, jax.ShapeDtypeStruct) else None


class Stages:
    """The stages of a function: one entry for each region in `jaxpr`, `stablehlo`, `hlo`, `cost` and `memory`.

    Attributes
    ----------
    regions
        The stages of each region.
    seconds
        The seconds of the stages before the regions: "rewrite" if it is known, "plan".
    """

    def __init__(self, found: Compiled, regions: Sequence[RegionStages | None], args: Sequence[Any] = ()):
        self._fgraph, self._regions, self.seconds = found.fgraph, list(regions), found.seconds
        self._found: Compiled | None = found
        self._args = args
        self._traced_leaves = found.runner.options.allow_traced_leaves
        self.index: dict[Apply, int] = {}  # the numbers that an explanation gives to the nodes

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the compiled function."""
        return {**self.__dict__, "_found": None, "_args": ()}

    def __repr__(self) -> str:
        """Return the known figures, without lowering or compiling anything."""
        count, regions = len(self._fgraph.apply_nodes), [*enumerate(self._regions)]
        head = f"Stages of {counted(count, 'node')} in {counted(len(regions), 'region')}: {list_seconds(self.seconds)}"
        lines = [f"  {i}: {region_line(region)}" for i, region in regions]
        see = "  see .graph, .passes, .jaxpr, .stablehlo, .hlo, .cost, .memory, .timings, .profile()"
        return "\n".join([head, *lines, see])

    @property
    def graph(self) -> FunctionGraph:
        """The graph of the function after PyTensor's rewrites. Do not change it. ``graph.dprint()`` prints it."""
        return self._fgraph

    @cached_property
    def graph_passes(self) -> list[PassRecord]:
        """The records of the graph passes. They run once more for them, which changes nothing."""
        with record_passes() as runs:
            make_graph(self._fgraph, rules_in_force(self._traced_leaves), [shared_pass(self._fgraph)])
        return runs[-1]

    @property
    def passes(self) -> Passes:
        """The records of the passes: name, seconds, and the number of nodes or equations before and after each.

        ``passes.graph`` are the passes over the graph, ``passes.regions`` the passes over the Jaxpr of each region.
        ``show()`` of a record returns the graph, or the Jaxpr, after it as text.
        """
        return Passes(self.graph_passes, [region.passes for region in self.regions])

    @property
    def regions(self) -> list[RegionStages]:
        """The stages of each region.

        Raises
        ------
        TypeError
            If the shapes of one are not known.
        """
        if any(region is None for region in self._regions):
            raise TypeError(
                "The shapes that a region is compiled for are not known: give stages() example arguments, or call the"
                " function first."
            )
        return [region for region in self._regions if region is not None]

    def known_regions(self) -> list[RegionStages | None]:
        """Return the stages of each region, None where its shapes are not known."""
        return self._regions

    @property
    def jaxpr(self) -> list[Any]:
        """The Jaxpr of each region."""
        return [region.jaxpr for region in self.regions]

    @property
    def stablehlo(self) -> list[str]:
        """The StableHLO text of each region."""
        return [region.stablehlo for region in self.regions]

    @property
    def hlo(self) -> list[str]:
        """The optimized HLO text of each region."""
        return [region.hlo for region in self.regions]

    @property
    def cost(self) -> list[dict[str, float]]:
        """XLA's cost analysis of each region."""
        return [region.cost for region in self.regions]

    @property
    def memory(self) -> list[dict[str, int]]:
        """XLA's memory analysis of each region, in bytes."""
        return [region.memory for region in self.regions]

    @property
    def timings(self) -> dict[str, Any]:
        """Seconds of the stages of the function, and under "regions" of the stages of each region."""
        return {**self.seconds, "regions": [region.timings for region in self.regions]}

    def profile(self, calls: int | None = None) -> Profile:
        """Run the function on the example arguments, and measure the time of each part of the graph.

        Each region is compiled once more, to know the nodes of each of XLA's operations, and runs under JAX's profiler;
        host steps are timed. The programs and the device are the same as in calls, but they run operation by operation,
        without the packed arguments and fused small operations that make calls of small functions short. So the profile
        has the time of one call, too.

        Shared variables and random generators stay as they are. Other effects of host steps, such as printing, happen
        several times.

        Parameters
        ----------
        calls
            The number of runs of each region and each host step. By default about 0.3 seconds, at most 100 runs.

        Returns
        -------
        Profile
            Print it, or read its `rows`.

        Raises
        ------
        TypeError
            If the value of an input is not known.
        RuntimeError
            If JAX's profiler is running already.

        Examples
        --------
        >>> import numpy as np, pytensor, pytensor.tensor as pt
        >>> import pytensor_jaxpr_linker as pjl
        >>> x = pt.matrix("x", dtype="float64")
        >>> f = pytensor.function([x], pt.exp(x @ x), mode="JAXPR")
        >>> profile = pjl.stages(f, np.ones((300, 300))).profile()
        >>> sorted({node.op for row in profile.rows for node in row.nodes})
        ['Dot', 'Exp']
        """
        if self._found is None:
            raise TypeError(
                "A copy or pickle of the stages does not hold the function: call stages() again to profile it."
            )
        return profile_of(self._found, self._args, calls)


@with_x64_restored
def stages(f: Any, *args: Any) -> Stages | LoadedStages:
    """Return the stages of a compiled function: graph, passes, Jaxprs, StableHLO, HLO, XLA's analyses, and times.

    Each is made when it is asked for.

    Parameters
    ----------
    f : pytensor.compile.executor.Function, or others
        A function compiled with mode JAXPR, or another argument of `explain`, except outputs of a graph.
    *args
        Example arguments, or a dict of them. Not needed if `f` has been called or its graph declares every shape, nor
        for a PyMC model. A function of several regions is run on them, to know the shapes between the regions; its
        shared variables stay as they are.

    Examples
    --------
    >>> import pytensor, pytensor.tensor as pt
    >>> import pytensor_jaxpr_linker as pjl
    >>> x = pt.vector("x", dtype="float64")
    >>> s = pjl.stages(pytensor.function([x], pt.exp(x).sum(), mode="JAXPR"), [1.0, 2.0])
    >>> s.jaxpr[0].eqns[0].primitive
    exp
    >>> "stablehlo.exponential" in s.stablehlo[0]
    True
    >>> sorted(s.timings)
    ['plan', 'regions']
    >>> [p.name for p in s.passes.graph]  # doctest: +NORMALIZE_WHITESPACE
    ['outer products', 'inline', 'sparse', 'decompose', 'wide counts', 'eager numbers', 'until counts', 'lanes',
    'sorted rows', 'column-major constants', 'column-major inputs']
    """
    if isinstance(f, LoadedFunction):
        return LoadedStages(f, args)
    target = target_of(f, "stages", also=LOADED)
    return stages_of(compiled(target), target.arguments(args))


def region_line(region: RegionStages | None) -> str:
    """Return the known figures of a region in one line."""
    if region is None:
        return "region of unknown shapes: give stages() example arguments, or call the function first"
    specialization, key = region.specialization, lowering_key(region.avals)
    shapes = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in key[0])
    lowered = specialization.lowered.get(key)
    built = "not lowered yet" if lowered is None else counted(len(lowered.jaxpr.eqns), "equation")
    return f"region for ({shapes}): {built}, {list_seconds(specialization.seconds.get(key, {}))}"


def stages_of(found: Compiled, args: Sequence[Any]) -> Stages:
    """Return the stages of a compiled function, for example arguments, if there are any."""
    if args:
        return Stages(found, examples_of(found, args), args)
    return Stages(found, with_shardings(found, [latest(program) for program in found.runner.programs]))


def with_shardings(found: Compiled, regions: Sequence[RegionStages | None]) -> list[RegionStages | None]:
    """Return the stages of regions where stored values lie on a mesh.

    XLA chooses the shardings of a region's results, which the next region takes. So each region but the last is
    compiled.
    """
    places = {v: x.sharding for v, x in zip(found.runner.plan.inputs, found.stored, strict=True) if is_sharded(x)}
    whole = copied_to_mesh(found.stored)
    if not places:
        return list(regions)
    placed: list[RegionStages | None] = []
    for region, program in zip(regions, found.runner.programs, strict=True):
        if region is None:
            placed.append(None)
            continue
        on_mesh = [places.get(v) for v in program.inputs] + [whole] * len(program.constants)
        avals = zip(region.avals, on_mesh, strict=True)
        stages = RegionStages(
            region.specialization, [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s) for a, s in avals]
        )
        placed.append(stages)
        if len(placed) < len(regions):
            places |= dict(zip(program.outputs, stages.compiled.output_shardings, strict=False))
    return placed


def examples_of(found: Compiled, args: Sequence[Any]) -> list[RegionStages | None]:
    """Return the stages of each region for example arguments."""
    runner, values = found.runner, found.examples(args)
    if runner.program is not None:
        program = runner.program
        with jax.enable_x64(True):
            regions = [(program.specialize(values), values)]
    else:
        assert runner.executor is not None
        regions = runner.executor.examples(values)
    return [
        RegionStages(specialization, [*avals, *program.constants])
        for (specialization, avals), program in zip(regions, runner.programs, strict=True)
    ]


def latest(program: Program) -> RegionStages | None:
    """Return the stages of a program for the shapes that it was built for last, or that its variables declare."""
    for specialization in reversed(program.specializations):
        for key, _ in reversed(specialization.lowered):
            return RegionStages(specialization, [jax.ShapeDtypeStruct(*aval) for aval in key])
    avals = [declared_aval(v) for v in program.inputs]
    if program.static_positions or any(a is None for a in avals):
        return None
    return RegionStages(program.specialize(()), [*avals, *program.constants])
