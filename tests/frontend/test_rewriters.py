"""PyTensor's rewrites, applied with less work between them, make the same graphs."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor import config
from pytensor.compile.aliasing import add_supervisor_to_fgraph
from pytensor.compile.io import In
from pytensor.compile.mode import Mode, optdb
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import (
    EquilibriumGraphRewriter,
    GraphRewriter,
    NodeRewriter,
    SequentialGraphRewriter,
    SequentialNodeRewriter,
    WalkingGraphRewriter,
    node_rewriter,
    out2in,
)
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.traversal import graph_inputs
from pytensor.scan.rewriting.db import ScanEquilibriumGraphRewriter
from pytensor.tensor.elemwise import Elemwise

from pytensor_jaxpr_linker.frontend.kept_graphs import REWRITE_CACHE
from pytensor_jaxpr_linker.frontend.linker import JaxprLinker
from pytensor_jaxpr_linker.frontend.rewriters import (
    Equilibrium,
    GraphWalk,
    InTurn,
    RewriteAttempt,
    without_measurements,
)
from tests.frontend.test_kept_graphs import GRAPHS

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

MODE = Mode(linker=JaxprLinker(), optimizer="fast_run").excluding(REWRITE_CACHE)


def rewriter_of_pytensor() -> GraphRewriter:
    """Return the rewriter of the mode as PyTensor makes it."""
    return optdb.query(MODE._optimizer)


def rewritten(inputs, outputs, rewriter) -> FunctionGraph:
    """Return a copy of a graph, rewritten as a function's graph is."""
    shared = [v for v in graph_inputs(outputs) if isinstance(v, SharedVariable)]
    fgraph = FunctionGraph([*inputs, *shared], list(outputs), clone=True)
    add_supervisor_to_fgraph(fgraph, [In(v) for v in fgraph.inputs])
    with config.change_flags(mode=MODE):
        rewriter.rewrite(fgraph)
    return fgraph


def text(fgraph: FunctionGraph) -> list:
    """Return what a graph consists of, names and inner graphs included."""
    nodes = fgraph.toposort()
    numbers = {v: i for i, v in enumerate([*fgraph.inputs, *(v for node in nodes for v in node.outputs)])}

    def operand(v):
        return numbers[v] if v in numbers else (str(v.type), repr(v.data))

    return [
        [
            (str(node.op), [operand(v) for v in node.inputs], [(str(v.type), v.name) for v in node.outputs])
            for node in nodes
        ],
        [operand(v) for v in fgraph.outputs],
    ]


@pytest.mark.parametrize("make", GRAPHS)
def test_the_graph_is_the_same(make):
    inputs, outputs = make()
    expected = rewritten(inputs, outputs, rewriter_of_pytensor())
    assert text(rewritten(inputs, outputs, without_measurements(rewriter_of_pytensor()))) == text(expected)


@pytest.mark.parametrize("name", ["hierarchical", "mixture", "marginal_gp", "hidden_markov", "truncated"])
def test_the_graph_of_a_model_is_the_same(name):
    """A model's log density and gradient: `canonicalize` takes four or five rounds."""
    pytest.importorskip("pymc")
    import pymc_models

    model = pymc_models.MODELS[name]()
    outputs = [model.logp(), model.dlogp()]
    expected = rewritten(model.value_vars, outputs, rewriter_of_pytensor())
    assert text(rewritten(model.value_vars, outputs, without_measurements(rewriter_of_pytensor()))) == text(expected)


def test_modes_with_the_linker_have_them():
    """PyMC makes its own mode of the linker; modes with other linkers stay as they are."""
    ours, theirs = MODE.optimizer, Mode(linker="py", optimizer="fast_run").optimizer
    assert {Equilibrium, GraphWalk} <= set(map(type, ours.data))
    assert any(isinstance(r, ScanEquilibriumGraphRewriter) and isinstance(r, Equilibrium) for r in ours.data)
    assert EquilibriumGraphRewriter in map(type, theirs.data)
    assert not any(isinstance(r, Equilibrium | GraphWalk) for r in theirs.data)


def test_a_rewriter_of_the_users_is_as_it_was():
    """A mode may have a rewriter instead of a query. Other modes may have it, too."""
    once = out2in(again, ignore_newtrees=True)
    last = EquilibriumGraphRewriter([], final_rewriters=[out2in(never)], max_use_ratio=1)
    own = SequentialGraphRewriter(once, last)
    parts, final = list(own.data), list(own.data[1].final_rewriters)
    f = pytensor.function([], pt.exp(pytensor.shared(1.0)), mode=Mode(linker=JaxprLinker(), optimizer=own))
    np.testing.assert_allclose(f(), np.exp(1.0))
    assert list(own.data) == parts
    assert own.data[1].final_rewriters == final
    assert [type(r) for r in (*parts, *final)] == [WalkingGraphRewriter, EquilibriumGraphRewriter, WalkingGraphRewriter]


def test_traces_of_a_variable_in_many_switches():
    """PyTensor triples them with each `switch` between a variable and itself: 3 to the power of 30, a MemoryError."""
    x, conditions = pt.dvector("x"), pt.dvectors(30)
    f = pytensor.function([x, *conditions], sum(pt.switch(c > 0, x, x * 1.0) for c in conditions), mode=MODE)
    np.testing.assert_array_equal(f([1.5], *[[1.0]] * 30), [45.0])


def test_a_class_of_the_users_stays():
    class Own(EquilibriumGraphRewriter):
        """A rewriter of the user's."""

    own = Own([], max_use_ratio=1)
    assert without_measurements(own) is own


def test_pytensor_measures_if_asked_to():
    rewriter = EquilibriumGraphRewriter([], max_use_ratio=1)
    with config.change_flags(profile_optimizer=True):
        assert without_measurements(rewriter) is rewriter
    assert isinstance(without_measurements(rewriter), Equilibrium)


@node_rewriter([Elemwise])
def again(fgraph, node):
    """Replace a node by an equal one."""
    return [node.op(*node.inputs)]


@node_rewriter([Elemwise])
def never(fgraph, node):
    """Leave a node as it is."""


@node_rewriter([pt.tanh])
def fails_on_tanh(fgraph, node):
    """Raise an error."""
    raise ValueError("no such rewrite")


@node_rewriter([Elemwise])
def fails(fgraph, node):
    """Raise an error."""
    raise ValueError("no such rewrite")


def graph():
    x = pt.dvector("x")
    return FunctionGraph([x], [pt.exp(x)])


def test_a_rewrite_without_end_is_stopped(caplog):
    rewriter = without_measurements(EquilibriumGraphRewriter([again], max_use_ratio=3))
    with caplog.at_level(logging.ERROR), config.change_flags(on_opt_error="warn"):
        rewriter.rewrite(graph())
    assert "does not come to an end: again" in caplog.text
    with pytest.raises(AssertionError, match="optdb__max_use_ratio"), config.change_flags(on_opt_error="raise"):
        rewriter.rewrite(graph())


@pytest.mark.parametrize(
    "make",
    [
        lambda callback: EquilibriumGraphRewriter([fails], callback, max_use_ratio=3),
        lambda callback: out2in(fails, failure_callback=callback),
    ],
)
def test_an_error_is_handed_to_the_callback(make):
    heard = []
    fgraph = graph()
    without_measurements(make(lambda *args: heard.append(args))).rewrite(fgraph)
    ((error, _, pairs, rewrite, node),) = heard
    assert (str(error), pairs, rewrite, node) == (
        "no such rewrite",
        [(node.outputs[0], None)],
        fails,
        fgraph.toposort()[0],
    )
    with pytest.raises(ValueError, match="no such rewrite"):
        without_measurements(make(None)).rewrite(graph())


class Witness(NodeRewriter):
    """Notes the nodes that it is tried on, and replaces the exponential of an input by the cosine."""

    def __init__(self):
        self.seen = []

    def transform(self, fgraph, node, enforce_tracks=True):
        """Return the cosine, or False."""
        self.seen.append(str(node.op))
        if str(node.op) == "Exp" and node.inputs[0].owner is None:
            return [pt.cos(node.inputs[0])]
        return False


def test_a_node_is_not_tried_again_before_something_changes():
    x = pt.dvector("x")
    witness = Witness()
    fgraph = FunctionGraph([x], [pt.sin(pt.tanh(pt.exp(x)))])
    without_measurements(EquilibriumGraphRewriter([witness], max_use_ratio=10)).rewrite(fgraph)
    # The second round begins with attempts before the last change of the first; Cos is new. A third finds no change.
    assert witness.seen == ["Sin", "Tanh", "Exp", "Sin", "Tanh", "Cos"]
    assert [str(node.op) for node in fgraph.toposort()] == ["Cos", "Tanh", "Sin"]


@pytest.mark.parametrize(
    "new, changed, of_pytensor, ours",
    [
        (False, False, "Sin Tanh Exp Sin Tanh Cos", "Sin Tanh Exp Sin Tanh Cos"),
        (True, False, "Sin Tanh Exp Cos Sin Tanh Cos", "Sin Tanh Exp Cos Sin Tanh"),
        (True, True, "Sin Tanh Exp Tanh Cos Sin Tanh Cos", "Sin Tanh Exp Tanh Cos Sin"),
    ],
)
def test_new_nodes_and_those_with_new_operands_are_rewritten_if_asked_for(new, changed, of_pytensor, ours):
    """In PyTensor's order, but for the nodes at the end that have been tried on the same graph."""
    x = pt.dvector("x")
    witness = Witness()
    rewriter = EquilibriumGraphRewriter(
        [witness], max_use_ratio=10, ignore_newtrees=not new, tracks_on_change_inputs=changed
    )
    seen, rewritten_graphs = [], set()
    for each in (rewriter, without_measurements(rewriter)):
        fgraph = FunctionGraph([x], [pt.sin(pt.tanh(pt.exp(x)))])
        each.rewrite(fgraph)
        rewritten_graphs.add(str(fgraph))
        seen.append(" ".join(witness.seen))
        witness.seen.clear()
    assert seen == [of_pytensor, ours]
    assert len(rewritten_graphs) == 1


def test_a_rewrite_keeps_its_name():
    fgraph = graph()
    old = fgraph.toposort()[0]

    @node_rewriter([Elemwise])
    def to_sine(fgraph, node):
        return [pt.sin(node.inputs[0])] if str(node.op) == "Exp" else None

    without_measurements(WalkingGraphRewriter(to_sine)).rewrite(fgraph)
    assert old.tag.removed_by == ["to_sine"]
    assert RewriteAttempt(to_sine).name == "to_sine"


@node_rewriter([pt.exp])
def exp_to_cos(fgraph, node):
    """Replace an exponential by a cosine."""
    return [pt.cos(node.inputs[0])]


@node_rewriter([pt.cos])
def cos_to_sin(fgraph, node):
    """Replace a cosine by a sine, by a mapping."""
    return {node.outputs[0]: pt.sin(node.inputs[0])}


@node_rewriter([pt.sin])
def sin_to_operand(fgraph, node):
    """Leave out a sine."""
    return [node.inputs[0]]


@pytest.mark.parametrize(
    "all_of_them, more, expected",
    [(False, [], "Cos.0"), (True, [], "Sin.0"), (False, [sin_to_operand], "Cos.0"), (True, [sin_to_operand], "x")],
)
def test_rewrites_in_turn(all_of_them, more, expected):
    """As PyTensor's: the first one that finds something, or each on what the one before has found."""
    rewrites = [fails_on_tanh, cos_to_sin, exp_to_cos, *more]
    theirs = SequentialNodeRewriter(*rewrites, apply_all_rewrites=all_of_them)
    fgraph = graph()
    (node,) = fgraph.toposort()
    found, ours = theirs.transform(fgraph, node), InTurn(theirs)(fgraph, node)
    values = [[*x.values()] if isinstance(x, dict) else x for x in (found, ours)]
    assert type(found) is type(ours)
    assert [str(v) for (v,) in values] == [expected, expected]
    assert InTurn(theirs)(fgraph, pt.sqrt(fgraph.inputs[0]).owner) is None
    with pytest.raises(ValueError, match="no such rewrite"):
        InTurn(theirs)(fgraph, pt.tanh(fgraph.inputs[0]).owner)


def test_a_walk_visits_tracked_classes_and_those_derived_from_them():
    class Derived(Elemwise):
        """An Op of the user's."""

    seen = []

    @node_rewriter([Elemwise])
    def see(fgraph, node):
        seen.append(type(node.op).__name__)

    x = pt.dvector("x")
    fgraph = FunctionGraph([x], [pt.sum(Derived(pt.exp.scalar_op)(pt.cos(x)))])
    without_measurements(WalkingGraphRewriter(see)).rewrite(fgraph)
    assert sorted(seen) == ["Derived", "Elemwise"]


def test_what_verbose_prints(capsys):
    x = pt.dvector("x")
    with config.change_flags(optimizer_verbose=True):
        pytensor.function([x], pt.log(pt.exp(x)), mode=MODE)
    assert "local_exp_log" in capsys.readouterr().out


def test_a_query_of_the_users():
    x = pt.dvector("x")
    mode = Mode(linker=JaxprLinker(), optimizer=RewriteDatabaseQuery(include=[]))
    with_it, without = (pytensor.function([x], x * 1, mode=m).maker.fgraph for m in (MODE, mode))
    assert "Mul" not in str(with_it.toposort())
    assert "Mul" in str(without.toposort())
