"""What watches a graph hears of the same changes while a `GraphEvents` tells of them."""

from __future__ import annotations

import pytensor.tensor as pt
import pytest
from pytensor.graph.features import Feature
from pytensor.graph.fg import FunctionGraph

from pytensor_jaxpr_linker.frontend.graph_features import GraphEvents, counted_events


class Diary(Feature):
    """Notes what it hears, and attaches another one at the first new node."""

    def __init__(self, child: Diary | None = None):
        self.heard, self.child = [], child

    def on_import(self, fgraph, node, reason):
        """Note a new node."""
        self.heard.append(("new", str(node.op), reason))
        if self.child is not None:
            child, self.child = self.child, None
            fgraph.attach_feature(child)

    def on_prune(self, fgraph, node, reason):
        """Note a node that is gone."""
        self.heard.append(("gone", str(node.op), reason))

    def on_change_input(self, fgraph, node, i, old, new, reason=None):
        """Note a new operand."""
        self.heard.append(("operand", i, reason))


def graph() -> FunctionGraph:
    x = pt.dvector("x")
    return FunctionGraph([x], [pt.sin(pt.exp(x))])


def change(fgraph: FunctionGraph) -> None:
    """Replace the exponential by two nodes, and then these by none."""
    x, exp = fgraph.inputs[0], fgraph.outputs[0].owner.inputs[0]
    fgraph.replace(exp, pt.tanh(pt.cos(x)), reason="first")
    fgraph.replace(fgraph.outputs[0].owner.inputs[0], x, reason="second")


def test_the_same_is_heard():
    diaries = []
    for as_pytensor in (True, False):
        fgraph, diary, child = graph(), Diary(), Diary()
        diary.child = child
        fgraph.attach_feature(diary)
        if as_pytensor:
            change(fgraph)
        else:
            with counted_events(fgraph):
                change(fgraph)
        diaries.append((diary.heard, child.heard))
    assert diaries[0] == diaries[1]
    assert ("new", "Tanh", "first") in diaries[1][0]
    assert ("gone", "Cos", "second") in diaries[1][1]


def test_a_feature_that_is_gone_hears_nothing():
    fgraph, diary = graph(), Diary()
    fgraph.attach_feature(diary)
    with counted_events(fgraph):
        fgraph.replace(fgraph.outputs[0].owner.inputs[0], pt.tanh(fgraph.inputs[0]))
        fgraph.remove_feature(diary)
        count = len(diary.heard)
        assert count
        fgraph.replace(fgraph.outputs[0].owner.inputs[0], pt.cos(fgraph.inputs[0]))
    assert len(diary.heard) == count


def test_a_callback_of_the_instance_is_called():
    """Methods that a class inherits do nothing; one that an instance was given does something."""
    fgraph, feature, heard = graph(), Feature(), []
    feature.on_import = lambda fgraph, node, reason: heard.append(str(node.op))
    fgraph.attach_feature(feature)
    with counted_events(fgraph):
        fgraph.replace(fgraph.outputs[0].owner.inputs[0], pt.tanh(fgraph.inputs[0]))
    assert heard == ["Tanh"]


def test_changes_are_counted_and_nodes_are_in_order():
    fgraph = graph()
    with counted_events(fgraph) as events:
        assert events.changes == 0
        assert [str(node.op) for node in events.nodes()] == ["Exp", "Sin"]
        assert events.nodes() is events.nodes()
        fgraph.replace(fgraph.outputs[0].owner.inputs[0], pt.tanh(fgraph.inputs[0]))
        assert events.changes == 2  # a new node, a new operand
        assert [str(node.op) for node in events.nodes()] == ["Tanh", "Sin"]


def test_pytensor_tells_again_afterwards():
    fgraph = graph()
    with pytest.raises(ValueError, match="stop"), counted_events(fgraph) as events:
        assert isinstance(fgraph.execute_callbacks, GraphEvents)
        with counted_events(fgraph) as inner:
            assert inner is events
        assert fgraph.execute_callbacks is events
        raise ValueError("stop")
    assert "execute_callbacks" not in vars(fgraph)
    assert fgraph.execute_callbacks.__func__ is FunctionGraph.execute_callbacks
