"""`explain`: what mode JAXPR makes of a graph, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, starmap
from typing import Any, Literal

import jax
from pytensor.graph.basic import Apply, Variable

from jaxpr_artifact import LoadedFunction
from pytensor_jaxpr_linker.artifacts.writing import PLATFORMS
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
from pytensor_jaxpr_linker.report import model
from pytensor_jaxpr_linker.report.devices import collectives_of, describe_transfers, on_platform, placed_arrays
from pytensor_jaxpr_linker.report.explanation import Explanation
from pytensor_jaxpr_linker.report.hints import constant_text, expression, find_rewrite, try_changes
from pytensor_jaxpr_linker.report.nodes import (
    GRADIENT_BY,
    NodeNumbers,
    Provenance,
    Texts,
    batch_nodes,
    describe_nodes,
    gradient_roles,
    number_nodes,
)
from pytensor_jaxpr_linker.report.stages import RegionStages, Stages, examples_of, stages_of
from pytensor_jaxpr_linker.run.call import error_text
from pytensor_jaxpr_linker.run.program import Program, rules_in_force
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
    """Explain how mode JAXPR runs a graph: its regions and host steps, why there are several, and what to change.

    Nothing is run or compiled, except with `args`, and where an input lies on a mesh: then the regions are compiled,
    and the explanation has the place of each array and the collectives of XLA's programs.

    Parameters
    ----------
    f : pytensor.compile.executor.Function, Variable, sequence of Variable, or others
        A function compiled with mode JAXPR, also by a PyMC model (`compile_logp`, `logp_dlogp_function`); the outputs
        of a graph; the result of `as_jax_function`, `logdensity` or `load`; or a PyMC model, for its log density and
        gradient. The nodes of a loaded function are the names in its operations.
    inputs : sequence of Variable, optional
        The inputs of the graph, by default all its variables without a value.
    mode : Mode or str
        The mode of the graph, with its rewrites and options.
    args : sequence or dict, optional
        Example arguments, for which the HTML page shows Jaxpr equations and StableHLO, by default from the last call. A
        function of several regions is run on them; its shared variables stay as they are.
    passes : bool
        Whether to run the passes once more: over the graph, over the Jaxpr of each region whose shapes are known, and
        over its program for calls on a CPU. The explanation then has the number of nodes or equations before and after
        each pass, its time, and the graph or Jaxpr after it.
    platform : {"cpu", "cuda", "rocm", "tpu"}, optional
        Also list the nodes and operations without a lowering on this platform: they run on the host there, or JAX
        refuses them. No such device is needed.

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
            platforms = ", ".join(f.header.platforms)
            raise ValueError(f"This function was exported for {platforms}: explain what it was made of.")
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
    explanation = report(runner.graph, runner.plan, runner.fallbacks, runner.programs, found.seconds, view, provenance)
    explanation = with_devices(explanation, found, given, view)
    transfers = describe_transfers(found, given, view.known_regions())
    explanation = replace(explanation, transfers=transfers, no_gradient=target.no_gradient)
    if platform is not None:
        if platform not in PLATFORMS:
            raise ValueError(f"platform is one of {', '.join(map(repr, PLATFORMS))}, not {platform!r}.")
        explanation = replace(explanation, platform=on_platform(found, view.known_regions(), platform))
    return replace(explanation, passes=tuple(describe_passes(explanation, view))) if passes else explanation


def example_arguments(args: Any) -> Sequence[Any]:
    """Return the example arguments as a sequence; a dict of all arguments is its one element."""
    if args is None or isinstance(args, Mapping):
        return [args] if args else ()
    if not isinstance(args, Sequence) or isinstance(args, str):
        raise TypeError(f"explain takes example arguments in a list or a dict: args=[x], not {args!r:.80}.")
    return args


def with_devices(explanation: Explanation, found: Compiled, given: Sequence[Any], view: Stages) -> Explanation:
    """Return an explanation with the places of arrays and the collectives, if an input is on a mesh."""
    values = [*given, *found.stored[len(given) :]]
    if not (placed := placed_arrays(found, values)):
        return explanation
    known = view.known_regions()
    if found.runner.program is not None and None in known:
        with suppress(TypeError):  # an argument is missing, and the function was not called
            known = examples_of(found, given)
    pairs = zip(explanation.regions, known, strict=True)
    collectives = [c for batch, region in pairs if region is not None for c in collectives_of(region, batch.title)]
    return replace(explanation, placed=placed, collectives=tuple(collectives))


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
    """Return the explanation of a plan; `programs` has a program for each region, or none."""
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
    inputs = tuple([model.PassedValue(texts.name(v), texts.type(v)) for v in graph.inputs])
    outputs = tuple([describe_result(v, index.get(v.owner), nodes, texts) for v in graph.outputs])
    return Explanation(nodes, batches, breaks, changes, seconds, inputs=inputs, outputs=outputs, stages=view)


def describe_result(v: Variable, i: int | None, nodes: Sequence[model.Node], texts: Texts) -> model.Result:
    """Return the description of an output of node `i`; a gradient without a name is called after its variable."""
    gradient = nodes[i].role if i is not None and nodes[i].role.startswith(GRADIENT_BY) else ""
    return model.Result(v.name or gradient or texts.name(v), texts.type(v), i)


def describe_passes(explanation: Explanation, view: Stages) -> Iterator[model.PassReport]:
    """Yield a report on each pass over the graph, and over the Jaxprs of the regions whose shapes are known."""
    yield from map(partial(describe_pass, "graph"), view.graph_passes)
    for batch, region in zip(explanation.regions, view.known_regions(), strict=True):
        # A rule may find that it can't emit a node for these shapes: the region will be cut when the function is
        # called.
        with suppress(CannotEmit):
            if region is not None:
                yield from map(partial(describe_pass, batch.title), region.passes)
                yield from map(partial(describe_pass, f"calls of {batch.title}"), passes_of_calls(region))


def passes_of_calls(region: RegionStages) -> list[PassRecord]:
    """Return the records of the passes over a region's program for calls. Only programs for CPUs have such passes."""
    if not CPU(region):
        return []
    with record_passes() as runs, jax.enable_x64(True):
        for_calls(region.jaxpr, into_first=False)
    return runs[-1]


def describe_pass(subject: str, record: PassRecord) -> model.PassReport:
    """Return the report on a pass."""
    text = record.show() if record.changed else ""
    return model.PassReport(subject, record.name, record.before, record.after, record.changed, record.seconds, text)


def describe_batch(
    i: int, batch: Region | HostStep, index: Mapping[Apply, int], texts: Texts, program: Program | None
) -> model.Batch:
    """Return the report on a batch."""
    nodes = tuple([index[node] for node in batch_nodes(batch)])
    inputs, outputs = (
        tuple([model.PassedValue(texts.name(v), texts.type(v)) for v in vs]) for vs in (batch.inputs, batch.outputs)
    )
    if isinstance(batch, HostStep):
        return model.Batch(i, "host", nodes, inputs, outputs)
    guards = [model.Guard("value", expression(v)) for v in batch.demanded]
    guards += [model.Guard("shape", expression(v)) for v in batch.inputs if None in getattr(v.type, "shape", ())]
    known: list[tuple[Specialization, Padding | None]] = []
    if program is not None:
        known += [(s, None) for s in program.specializations]
        if (padded := program.padded) is not None:
            known += [(s, padded.padding) for s in padded.program.specializations]
    checks = dict.fromkeys(
        error_text(check) + ("" if check.node is None else f" in {describe_node(check.node)}")
        for s, _ in known
        for lowered in s.lowered.values()
        for check in lowered.checks
    )
    static, reports = map(expression, batch.static_inputs), chain.from_iterable(starmap(describe_specialization, known))
    return model.Batch(i, "region", nodes, inputs, outputs, tuple(guards), tuple(static), tuple(checks), tuple(reports))


def describe_specialization(s: Specialization, padding: Padding | None) -> list[model.SpecializationReport]:
    """Return the report on each program of a specialization, perhaps of a padded region."""
    static = {expression(v): constant_text(value) for v, value in s.static.items()}
    reports = []
    for (key, mesh), lowered in list(s.lowered.items()):
        shapes = tuple(f"{dtype}[{','.join(map(str, shape))}]" for shape, dtype in key)
        padded = "" if padding is None else padding.text_for([shape for shape, _ in key])
        equations, seconds = len(lowered.jaxpr.eqns), dict(s.seconds[key, mesh])
        reports.append(model.SpecializationReport(shapes, static, equations, seconds, padded))
    return reports


def describe_breaks(
    graph: Graph, plan: Plan, fallbacks: Mapping[Apply, CannotEmit], index: NodeNumbers, places: NodeNumbers
) -> tuple[tuple[model.BreakReport, ...], tuple[model.Change, ...]]:
    """Return the reports on the breaks of a plan, and on changes that would leave fewer batches."""
    if not plan.breaks:
        return (), ()
    host_steps: dict[int, list[int]] = {}
    for i, b in enumerate(plan.breaks):
        if b.variable is None and b.node in places:
            host_steps.setdefault(places[b.node], []).append(i)
    trials = try_changes(graph, plan.breaks, host_steps, len(plan.batches), rules_in_force(), fallbacks)
    breaks = tuple(explain_break(b, index, graph.readers, trials.alone.get(i)) for i, b in enumerate(plan.breaks))
    changes = []
    for what, members, left in trials.changes:
        first = breaks[members[0]]
        rewritten = f" ({first.before} -> {first.after})" if len(members) == 1 and first.after else ""
        changes.append(model.Change(what + rewritten, members, left))
    return breaks, tuple(changes)


def explain_break(
    b: Break, index: Mapping[Apply, int], readers: Mapping[Variable, Sequence[Apply]], left: int | None
) -> model.BreakReport:
    """Return the report on a break."""
    before, after = find_rewrite(b, readers) or ("", "")
    variable, line = "" if b.variable is None else expression(b.variable), source_line(b.node)
    return model.BreakReport(
        *b.code, b.code.documentation, str(b.reason), index[b.node], variable, line, before, after, left
    )


#: The origin of an operation, in the name of its location: the Op, and in brackets the user's name of the result.
LOCATED = re.compile(r'^#loc\d+ = loc\("(?:[^"]*/)?eval_jaxpr/([^/"]+)/', re.MULTILINE)
NAMED = re.compile(r"(.+?)\[([^\]]*)\]")


def explain_loaded(loaded: LoadedFunction) -> Explanation:
    """Return the explanation of a function in a file: one region, with each node that its operations name."""
    header = loaded.header
    names = dict.fromkeys(LOCATED.findall(loaded.stablehlo))
    parts = [named.groups() if (named := NAMED.fullmatch(name)) else (name, "") for name in names]
    nodes = tuple([model.Node(i, op, name, "", (), "", 0, False, False, "") for i, (op, name) in enumerate(parts)])
    inputs = passed_values([*header.arguments, *header.state])
    outputs = passed_values([*header.outputs, *(s for s in header.state if s.output is not None)])
    open_shapes = [a.name for a in header.arguments if any(isinstance(n, str) for n in a.shape)]
    guards = tuple([model.Guard("shape", name) for name in open_shapes])
    checks = tuple([f"{c.type}: {c.message}" + (f" in {c.node}" if c.node else "") for c in header.checks])
    region = model.Batch(0, "region", tuple(range(len(nodes))), inputs, outputs, guards, checks=checks)
    return Explanation(nodes, (region,), (), (), {})


def passed_values(arrays: Sequence[Any]) -> tuple[model.PassedValue, ...]:
    """Return the arrays of a header with their dtypes and shapes."""
    pairs = [(a, getattr(a, "symbolic", None) or a.shape) for a in arrays]
    return tuple([model.PassedValue(a.name, f"{a.dtype}[{', '.join(map(str, shape))}]") for a, shape in pairs])
