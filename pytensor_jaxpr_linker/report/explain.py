"""`explain`: what mode JAXPR makes of a graph, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import jax
from pytensor.graph.basic import Apply, Variable

from jaxpr_artifact import LoadedFunction
from pytensor_jaxpr_linker.artifacts.lowering import PLATFORMS
from pytensor_jaxpr_linker.base.errors import Break, CannotEmit, describe_node, source_line
from pytensor_jaxpr_linker.base.interpreter import gc_paused
from pytensor_jaxpr_linker.base.jax_compat import with_x64_restored
from pytensor_jaxpr_linker.base.passes import PassRecord, record_passes
from pytensor_jaxpr_linker.frontend.targets import LOADED, Compiled, compiled, graph_target, target_of
from pytensor_jaxpr_linker.graph.walk import Graph
from pytensor_jaxpr_linker.jaxpr.optimize.finish import for_calls
from pytensor_jaxpr_linker.jaxpr.passes import CPU
from pytensor_jaxpr_linker.plan.model import HostStep, Plan, Region
from pytensor_jaxpr_linker.plan.padding import Padding
from pytensor_jaxpr_linker.report.devices import collectives_of, on_platform, placed_arrays
from pytensor_jaxpr_linker.report.explain_loaded import explain_loaded
from pytensor_jaxpr_linker.report.explanation import Explanation
from pytensor_jaxpr_linker.report.hints import constant_text, expression, find_rewrite
from pytensor_jaxpr_linker.report.model import (
    Batch,
    BreakReport,
    Change,
    Guard,
    Node,
    PassedValue,
    PassReport,
    Result,
    SpecializationReport,
)
from pytensor_jaxpr_linker.report.nodes import Texts, batch_nodes, describe_nodes, gradient_roles, number_nodes
from pytensor_jaxpr_linker.report.provenance import GRADIENT_BY, Provenance
from pytensor_jaxpr_linker.report.stages import RegionStages, Stages, examples_of, stages_of
from pytensor_jaxpr_linker.report.transfers import describe_transfers
from pytensor_jaxpr_linker.report.whatif import try_changes
from pytensor_jaxpr_linker.run.call import error_text
from pytensor_jaxpr_linker.run.plans import rules_in_force
from pytensor_jaxpr_linker.run.program import Program
from pytensor_jaxpr_linker.run.specialization import Specialization


@with_x64_restored
def explain(
    f: Any,
    inputs: Sequence[Variable] | None = None,
    mode: Any = "JAXPR",
    args: Sequence[Any] | Mapping[str, Any] | None = None,
    passes: bool = False,
    platform: Literal["cpu", "cuda", "rocm", "tpu"] | None = None,
) -> Explanation:
    """Tell what mode JAXPR makes of a graph: its regions and host steps, why there are several, and what to change.

    Nothing is run or compiled, except with `args`, and where an input lies on a mesh: then the explanation says where each array lies, and which
    collectives XLA put into the programs, which are compiled to know them.

    Parameters
    ----------
    f : pytensor.compile.executor.Function, Variable, sequence of Variable, or others
        A function compiled with mode JAXPR, or the outputs of a graph. A function that a PyMC model compiled with it (`compile_logp`,
        `logp_dlogp_function`), what `as_jax_function` or `logdensity` returned, a PyMC model, for its log density and gradient, and what
        `load` read from a file: its nodes are those that its operations name.
    inputs : sequence of Variable, optional
        The inputs of the graph, by default all its variables without a value.
    mode : Mode or str
        That of the graph: its rewrites and options.
    args : sequence or dict, optional
        Example arguments, for which the HTML page shows Jaxpr equations and StableHLO. By default
        they are those of the last call. A function of several regions is run on them; its shared variables stay as they
        are.
    passes : bool
        Whether to run the passes once more: over the graph, over the Jaxpr of each region whose shapes are known, and
        over its program for calls on a CPU. The explanation tells what each did: how many nodes or equations there were
        before and after it, its time, and the graph or Jaxpr after it.
    platform : {"cpu", "cuda", "rocm", "tpu"}, optional
        Tells what has no lowering on this platform, of which no device is needed: it runs on the host there, or JAX refuses it.

    Returns
    -------
    Explanation
        Print it, show it in a notebook, ``save("page.html")`` it, or take it `as_dict`.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> import pytensor_jaxpr_linker as pjl
    >>> x = pt.vector("x", dtype="float64")
    >>> pjl.explain(pt.exp(x).sum()).batches[0].kind
    'region'
    >>> [p.name for p in pjl.explain(x[x > 0].sum(), passes=True).passes if p.changed]
    ['lanes']
    """
    if isinstance(f, LoadedFunction):
        if platform is not None:
            raise ValueError(
                f"This function was exported for {', '.join(f.header.platforms)}: explain what it was made of."
            )
        return explain_loaded(f)
    if isinstance(f, Variable | list | tuple):
        target = graph_target(inputs, f, mode, "explain")
    else:
        target = target_of(f, "explain", mode, f"{LOADED}, or the outputs of a graph", needs_gradient=False)
    found = compiled(target)
    given = target.arguments(example_arguments(args))
    runner = found.runner
    view = stages_of(found, given)
    provenance = Provenance(runner.graph, found.original)
    told = report(runner.graph, runner.plan, runner.fallbacks, runner.programs, found.seconds, view, provenance)
    told = with_devices(told, found, given, view)
    transfers = describe_transfers(found, given, view.known_regions())
    told = replace(told, transfers=transfers, no_gradient=target.no_gradient)
    if platform is not None:
        told = replace(told, platform=on_platform(found, view.known_regions(), check_platform(platform)))
    return replace(told, passes=tuple(describe_passes(told, view))) if passes else told


def example_arguments(args: Any) -> Sequence[Any]:
    """Return the example arguments as a sequence, in which a dict stands for all of them."""
    if args is None or isinstance(args, Mapping):
        return [args] if args else ()
    if not isinstance(args, Sequence) or isinstance(args, str):
        raise TypeError(f"explain takes example arguments in a list or a dict: args=[x], not {args!r:.80}.")
    return args


def with_devices(told: Explanation, found: Compiled, given: Sequence[Any], view: Stages) -> Explanation:
    """Return an explanation with where arrays lie, and the collectives, if an input is on a mesh."""
    values = [*given, *found.stored[len(given) :]]
    if not (placed := placed_arrays(found, values)):
        return told
    known = view.known_regions()
    if found.runner.program is not None and None in known:
        with suppress(TypeError):  # an argument is missing, and the function was not called
            known = examples_of(found, given)
    named = [(region, batch.title) for batch, region in zip(told.regions, known, strict=True) if region is not None]
    collectives = [c for region, title in named for c in collectives_of(region, title)]
    return replace(told, placed=placed, collectives=tuple(collectives))


def check_platform(platform: str) -> str:
    """Return a platform, or raise a ValueError if there is none of this name."""
    if platform not in PLATFORMS:
        raise ValueError(f"platform is one of {', '.join(map(repr, PLATFORMS))}, not {platform!r}.")
    return platform


@gc_paused()
def report(
    graph: Graph,
    plan: Plan,
    fallbacks: Mapping[Apply, CannotEmit],
    programs: Sequence[Program],
    seconds: dict[str, float],
    view: Stages | None,
    provenance: Provenance,
) -> Explanation:
    """Return the explanation of a plan; `programs` are those of its regions, or none."""
    index, places = number_nodes(graph, plan)
    texts = Texts()
    nodes = tuple(describe_nodes(index, places, plan, texts, provenance, gradient_roles(graph)))
    remaining = iter(programs)
    batches = tuple(
        describe_batch(i, batch, index, texts, next(remaining, None) if isinstance(batch, Region) else None)
        for i, batch in enumerate(plan.batches)
    )
    breaks, changes = describe_breaks(graph, plan, fallbacks, index, places)
    if view is not None:
        view.index = index
    inputs = tuple([PassedValue(texts.name(v), texts.type(v)) for v in graph.inputs])
    outputs = tuple([describe_result(v, index.get(v.owner), nodes, texts) for v in graph.outputs])
    return Explanation(nodes, batches, breaks, changes, seconds, inputs=inputs, outputs=outputs, stages=view)


def describe_result(v: Variable, i: int | None, nodes: Sequence[Node], texts: Texts) -> Result:
    """Return the description of an output, which node `i` computes: a gradient without a name is called by what it differentiates by."""
    gradient = nodes[i].role if i is not None and nodes[i].role.startswith(GRADIENT_BY) else ""
    return Result(v.name or gradient or texts.name(v), texts.type(v), i)


def describe_passes(told: Explanation, view: Stages) -> Iterator[PassReport]:
    """Yield a report on each pass over the graph, and over the Jaxprs of the regions whose shapes are known."""
    yield from map(partial(describe_pass, "graph"), view.graph_passes)
    for batch, region in zip(told.regions, view.known_regions(), strict=True):
        # A rule may find that it can't emit a node for these shapes: the region will be cut when the function is called.
        with suppress(CannotEmit):
            if region is not None:
                yield from map(partial(describe_pass, batch.title), region.passes)
                yield from map(partial(describe_pass, f"calls of {batch.title}"), passes_of_calls(region))


def passes_of_calls(region: RegionStages) -> list[PassRecord]:
    """Return what each pass over a region's program for calls did. Only programs for CPUs have such passes."""
    if not CPU(region):
        return []
    with record_passes() as runs, jax.enable_x64(True):
        for_calls(region.jaxpr, into_first=False)
    return runs[-1]


def describe_pass(subject: str, record: PassRecord) -> PassReport:
    """Return the report on a pass."""
    text = record.show() if record.changed else ""
    return PassReport(subject, record.name, record.before, record.after, record.changed, record.seconds, text)


def describe_batch(
    i: int, batch: Region | HostStep, index: Mapping[Apply, int], texts: Texts, program: Program | None
) -> Batch:
    """Return the report on a batch."""
    nodes = tuple([index[node] for node in batch_nodes(batch)])
    inputs, outputs = (
        tuple([PassedValue(texts.name(v), texts.type(v)) for v in vs]) for vs in (batch.inputs, batch.outputs)
    )
    if isinstance(batch, HostStep):
        return Batch(i, "host", nodes, inputs, outputs)
    guards = [Guard("value", expression(v)) for v in batch.demanded]
    guards += [Guard("shape", expression(v)) for v in batch.inputs if None in getattr(v.type, "shape", ())]
    known = [] if program is None else program.specializations
    padded, padding = [], None
    if program is not None and program.padded is not None:
        padded, padding = program.padded.program.specializations, program.padded.padding
    checks: dict[str, None] = {}
    for specialization in (*known, *padded):
        for lowered in specialization.lowered.values():
            for check in lowered.checks:
                at = "" if check.node is None else f" in {describe_node(check.node)}"
                checks[f"{error_text(check)}{at}"] = None
    return Batch(
        i,
        "region",
        nodes,
        inputs,
        outputs,
        tuple(guards),
        tuple(map(expression, batch.static_inputs)),
        tuple(checks),
        (
            *(described for s in known for described in describe_specialization(s)),
            *(described for s in padded for described in describe_specialization(s, padding)),
        ),
    )


def describe_specialization(s: Specialization, padding: Padding | None = None) -> list[SpecializationReport]:
    """Return the report on each program of a specialization, which may be that of a padded region."""
    static = {expression(v): constant_text(value) for v, value in s.static.items()}
    return [
        SpecializationReport(
            tuple(f"{dtype}[{','.join(map(str, shape))}]" for shape, dtype in key),
            static,
            len(lowered.jaxpr.eqns),
            dict(s.seconds[key, mesh]),
            "" if padding is None else padding.text_for([shape for shape, _ in key]),
        )
        for (key, mesh), lowered in list(s.lowered.items())
    ]


def describe_breaks(
    graph: Graph,
    plan: Plan,
    fallbacks: Mapping[Apply, CannotEmit],
    index: Mapping[Apply, int],
    places: Mapping[Apply, int],
) -> tuple[tuple[BreakReport, ...], tuple[Change, ...]]:
    """Return the reports on the breaks of a plan, and what changes would bring."""
    if not plan.breaks:
        return (), ()
    host_steps: dict[int, list[int]] = {}
    for i, b in enumerate(plan.breaks):
        if b.variable is None and b.node in places:
            host_steps.setdefault(places[b.node], []).append(i)
    trials = try_changes(graph, plan.breaks, host_steps, len(plan.batches), rules_in_force(), fallbacks)
    clients = clients_of({b.node for b in plan.breaks}, graph.nodes)
    breaks = tuple(explain_break(b, index, clients, trials.alone.get(i)) for i, b in enumerate(plan.breaks))
    changes = tuple(Change(told_as(what, members, breaks), members, left) for what, members, left in trials.changes)
    return breaks, changes


def explain_break(
    b: Break, index: Mapping[Apply, int], clients: Mapping[Variable, list[Apply]], left: int | None
) -> BreakReport:
    """Return the report on a break."""
    before, after = find_rewrite(b, clients) or ("", "")
    return BreakReport(
        *b.code,
        b.code.documentation,
        str(b.reason),
        index[b.node],
        "" if b.variable is None else expression(b.variable),
        source_line(b.node),
        before,
        after,
        left,
    )


def told_as(what: str, members: tuple[int, ...], breaks: Sequence[BreakReport]) -> str:
    """Return what to do, with the rewritten expression if the change is for one break that has one."""
    b = breaks[members[0]]
    return f"{what} ({b.before} -> {b.after})" if len(members) == 1 and b.after else what


def clients_of(wanted: set[Apply], nodes: Sequence[Apply]) -> dict[Variable, list[Apply]]:
    """Return the readers of each variable that the `wanted` nodes compute."""
    clients: dict[Variable, list[Apply]] = {}
    for node in nodes:
        for v in node.inputs:
            if v.owner in wanted:
                clients.setdefault(v, []).append(node)
    return clients
