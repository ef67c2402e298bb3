"""Random graphs over the rule families, with random shapes (none, too), dtypes, edge values, masks, host steps and bad input,
against PyTensor's own Python implementations: value, dtype, and the type of what is raised.

``RANDOM_GRAPHS=10000 pytest tests/whole/test_random_graphs.py`` looks at more of them; ``--hypothesis-show-statistics`` tells how
many graphs have which Op. Small graphs have many kinds of Ops; large ones have arrays around the sizes from which XLA takes
other kernels, tasks for several cores, and its library, see docs/notes/xla-library.md.
"""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import HealthCheck, event, given, note, seed, settings
from large_graphs import is_narrow, large_graphs
from pytensor.compile.mode import Mode
from pytensor.graph.traversal import applys_between
from random_graphs import graphs, reversed_on_host

import pytensor_jaxpr_linker as pjl

REFERENCE = Mode("py", "fast_compile")
#: PyTensor's rewrites remove nodes that would have raised: for these the reference is what its own mode makes of them.
REWRITTEN = Mode("py", "fast_run")
GRAPHS = int(os.environ.get("RANDOM_GRAPHS", "160"))
SHARDS = 8


def run(mode, inputs, outputs, values):
    """Return the results, or what was raised."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")(*values)
    except Exception as error:
        return error


# PyTensor raises the recursion limit when it needs to; hypothesis remarks on it.
@pytest.mark.filterwarnings("ignore:The recursion limit")
@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_graphs(shard):
    """The same graphs in each run, so that a change of the code is what changes the result."""
    checks = settings(
        max_examples=GRAPHS // SHARDS, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )(given(graphs())(check_graph))
    seed(shard)(checks)()


def check_graph(graph):
    """Compare what mode JAXPR makes of a graph with what PyTensor does."""
    inputs, outputs, values = graph
    for v in outputs:
        note(pytensor.printing.debugprint(v, file="str"))
    note(repr(values))
    for op in {type(node.op).__name__ for node in applys_between(inputs, outputs)}:
        event(op)
    want, got = run(REFERENCE, inputs, outputs, values), run("JAXPR", inputs, outputs, values)
    if isinstance(want, Exception) != isinstance(got, Exception):
        want = run(REWRITTEN, inputs, outputs, values)
    if isinstance(want, Exception) or isinstance(got, Exception):
        assert isinstance(want, Exception) and isinstance(got, Exception), (want, got)
        # A graph with several errors raises any of them: one that follows from shapes is found before the program runs,
        # a failed assertion or an index out of bounds when it has run.
        if isinstance(want, AssertionError):
            return
        raised = {type(e) for v in outputs if isinstance(e := run(REFERENCE, inputs, [v], values), Exception)}
        raised |= {type(want)} | ({ValueError} if isinstance(want, IndexError) else set())
        assert type(got) in raised, (want, got)
        return
    for variable, expected, result in zip(outputs, want, got, strict=True):
        assert result.dtype == expected.dtype  # of a cumsum of small integers NumPy's, whatever the node declares
        assert result.shape == expected.shape
        narrow = not {"float32", "float16", "complex64"}.isdisjoint([variable.dtype, *(v.dtype for v in inputs)])
        np.testing.assert_allclose(result, expected, rtol=1e-4 if narrow else 1e-8, atol=1e-6 if narrow else 1e-10)


@pytest.mark.filterwarnings("ignore:The recursion limit")
@pytest.mark.parametrize("shard", range(SHARDS))
def test_large_random_graphs(shard):
    checks = settings(
        max_examples=max(GRAPHS // SHARDS, 1), deadline=None, suppress_health_check=list(HealthCheck), database=None
    )(given(large_graphs())(check_large_graph))
    seed(shard)(checks)()


def check_large_graph(g):
    """Compare results with PyTensor's, to a part of the largest term or of the sum of all terms."""
    for v in g.outputs:
        note(pytensor.printing.debugprint(v, file="str"))
    note(repr([(x.name, x.dtype, value.shape) for x, value in zip(g.inputs, g.values, strict=True)]))
    for op in {type(node.op).__name__ for node in applys_between(g.inputs, g.outputs)}:
        event(op)
    count = len(g.outputs)
    both = run(REFERENCE, g.inputs, [*g.outputs, *g.scales], g.values)
    got = run("JAXPR", g.inputs, g.outputs, g.values)
    assert not isinstance(both, Exception) and not isinstance(got, Exception), (both, got)
    narrow = is_narrow(g.outputs)
    for i, (variable, want, scale, result) in enumerate(zip(g.outputs, both[:count], both[count:], got, strict=True)):
        assert result.dtype == variable.dtype and result.shape == want.shape
        is_same = are_close(result, want, scale, narrow)
        if not is_same.all():  # PyTensor's rewrites take an infinite factor out of a sum
            is_same |= are_close(result, run(REWRITTEN, g.inputs, g.outputs, g.values)[i], scale, narrow)
        assert np.all(is_same), (variable, result[~is_same][:5], want[~is_same][:5])


def are_close(result, want, scale, narrow):
    """Return whether each element is right to a part of `scale`, and of itself."""
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(result.astype("f8") - want)
        bound = (1e-5 if narrow else 1e-12) * np.maximum(scale, 1) + (1e-4 if narrow else 1e-9) * np.abs(want)
    is_same = (result == want) | (np.isnan(result) & np.isnan(want)) | (difference <= bound)
    return np.asarray(is_same | (~np.isfinite(scale) & (np.isnan(result) == np.isnan(want))))


def test_functions_of_the_test_are_what_they_say():
    """An Op without a rule is in the pool, so that host steps are."""
    x = pt.dvector("x")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pjl.GraphBreakWarning)
        f = pytensor.function([x], reversed_on_host(x * 2) + 1, mode="JAXPR")
    assert len(f.vm.runner.plan.batches) == 3
