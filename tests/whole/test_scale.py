"""Planning and explaining take time that grows with the number of nodes, for any shape of graph: instructions are counted."""

import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.fg import FunctionGraph
from pytensor.printing import Print
from pytensor.tensor.basic import alloc

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.plan import schedule
from pytensor_jaxpr_linker.report import hints
from pytensor_jaxpr_linker.report.explain import report
from pytensor_jaxpr_linker.report.nodes import Provenance
from pytensor_jaxpr_linker.run.program import make_graph, make_plan


def chain(count):
    x = pt.dvector("x")
    y = x
    for _ in range(count):
        y = pt.sin(y) + x
    return [x], [y]


def chain_of_breaks(count):
    x = pt.dvector("x")
    y = x
    for i in range(count):
        y = pt.sin(Print(str(i))(y))
    return [x], [y]


def chain_of_counts(count):
    """Each mask selects from what the one before it selected."""
    x = pt.dvector("x")
    y = x
    for i in range(count):
        y = pt.cumsum(y[y > i])
    return [x], [y]


def sums_of_counts(count):
    """Each size follows from the one before it."""
    n = pt.lscalar("n")
    outputs = []
    for _ in range(count):
        n = n + 1
        outputs.append(pt.ones(n) * 2.0)
    inputs = [v for v in pytensor.graph.traversal.graph_inputs(outputs) if v.owner is None and v.name]
    return inputs, outputs


def shapes_of_computed(count):
    """Each size follows from the shape of something computed."""
    x, n = pt.dvector("x"), pt.lscalar("n")
    y = x[:n]
    outputs = []
    for _ in range(count):
        y = pt.concatenate([y, pt.zeros(y.shape[0])])
        outputs.append(pt.ones(y.shape[0] + 1) * 2.0)
    return [x, n], outputs


def side_by_side(count):
    """Many inputs, shared variables and outputs, of which one has a size that the program computes."""
    xs = [pt.dvector(f"x{i}") for i in range(count)]
    shared = [pytensor.shared(np.ones(3)) for _ in xs]
    outputs = [pt.exp(x) * s for x, s in zip(xs, shared, strict=True)]
    outputs = [Print("p")(v) if i % 3 == 0 else v for i, v in enumerate(outputs)]
    return [*xs, *shared], [*outputs, xs[0][xs[0] > 0] * 2.0]


def dynamic_sizes(count):
    """Many nodes that must know what follows from a value that is marked dynamic."""
    n = pjl.mark_dynamic(pt.lscalar("n"))
    m, outputs = n, []
    for _ in range(count):
        m = m + 1
        outputs.append(alloc(2.0, m) * 2.0)
    return [n], outputs


def instructions(f):
    """Return how many instructions Python executes in a call."""
    count = 0

    def count_one(frame, event, arg):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return count_one

    before = sys.gettrace()
    sys.settrace(count_one)
    try:
        f()
    finally:
        sys.settrace(before)
    return count


SHAPES = [chain, chain_of_breaks, chain_of_counts, sums_of_counts, shapes_of_computed, side_by_side, dynamic_sizes]


@pytest.mark.parametrize("shape", SHAPES)
def test_twice_the_nodes_take_twice_the_time(shape, monkeypatch):
    # Up to a fixed amount of time, these look for better plans, and for what changes would bring.
    monkeypatch.setattr(schedule, "MOST_DELAYS", 0)
    monkeypatch.setattr(hints, "MOST_VISITS", 0)
    found = []
    for count in (20, 40):
        fgraph = FunctionGraph(*shape(count), clone=False)

        def plan_and_explain(fgraph=fgraph):
            graph = make_graph(fgraph)
            report(graph, make_plan(graph), {}, [], {}, None, Provenance(graph, None))

        found.append(instructions(plan_and_explain))
    assert found[1] < 2.2 * found[0]
