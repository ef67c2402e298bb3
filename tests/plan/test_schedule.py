"""The fewest batches: schedules against all that there are, on small random graphs; and their time on large ones."""

import itertools

import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.type import TensorType

from pytensor_jaxpr_linker.plan import schedule as schedule_module
from pytensor_jaxpr_linker.plan.schedule import schedule

FLOATS = TensorType("float64", (None,))


class Node(Op):
    """A vector, and the one number by which another node may have to know its size."""

    def make_node(self, *inputs):
        return Apply(self, list(inputs), [FLOATS(), pt.lscalar()])

    def perform(self, node, inputs, outputs):
        raise NotImplementedError


@st.composite
def graphs(draw):
    """Nodes in topological order, the nodes on the host, and the static operands of the others."""
    nodes, on_host, static, edges = [], set(), {}, []
    for j in range(draw(st.integers(1, 8))):
        kinds = [draw(st.sampled_from(["none", "none", "data", "static"])) for _ in range(j)]
        is_host = draw(st.booleans())
        used = [(i, kind == "static") for i, kind in enumerate(kinds) if kind != "none"]
        node = Node().make_node(FLOATS(), *(nodes[i].outputs[is_static] for i, is_static in used))
        nodes.append(node)
        if is_host:
            on_host.add(node)
        static[node] = frozenset(1 + k for k, (_, is_static) in enumerate(used) if is_static)
        edges += [(i, j, is_static and not is_host) for i, is_static in used]
    return nodes, on_host, static, edges


def fewest_batches(kinds, edges):
    """Return the length of the shortest sequence of device and host batches that runs all nodes.

    In each batch everything runs that can: doing less in it never helps.
    """
    done = {frozenset()}
    for count in itertools.count():
        if any(len(d) == len(kinds) for d in done):
            return count
        done = {run_batch(kinds, edges, before, side) for before in done for side in (False, True)}
    raise AssertionError


def run_batch(kinds, edges, before, side):
    done = set(before)
    for j, kind in enumerate(kinds):
        # A static operand that the device computed must come from an earlier batch; so must one that the host computed.
        if kind == side and all(i in (before if is_static else done) for i, k, is_static in edges if k == j):
            done.add(j)
    return frozenset(done)


@settings(max_examples=400, deadline=None)
@given(graphs())
def test_batches_are_the_fewest(graph):
    nodes, on_host, static, edges = graph
    inputs = [v for node in nodes for v in node.inputs if v.owner is None]
    found = schedule(inputs, nodes, on_host, static)
    assert found.batch_count == fewest_batches([node in on_host for node in nodes], edges)
    for i, j, is_static in edges:
        gap = found.phase[nodes[j]] - found.phase[nodes[i]]
        assert gap >= is_static
    for node in nodes:
        assert (found.phase[node] % 2 == found.device_parity) == (node not in on_host)


@pytest.mark.parametrize("crossing", [False, True])
def test_each_node_is_looked_at_a_few_times(crossing, monkeypatch):
    """The search ends with a schedule of which the longest chain says that none has fewer batches."""
    nodes = [Node().make_node(FLOATS())]
    for k in range(1, 1000):
        nodes.append(Node().make_node(nodes[-1].outputs[int(crossing and k == 500)]))
    passes, assign = [], schedule_module.assign

    def counted(*args):
        passes.append(args)
        return assign(*args)

    monkeypatch.setattr(schedule_module, "assign", counted)
    static = {node: frozenset({0} if crossing and i == 500 else ()) for i, node in enumerate(nodes)}
    found = schedule_module.schedule(nodes[0].inputs, nodes, set(), static)
    assert found.batch_count == 1 + crossing
    assert len(passes) == 1 + crossing
