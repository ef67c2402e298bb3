"""Equal constants and nodes are merged as by PyTensor's `MergeOptimizer`."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.sparse
import pytensor.tensor as pt
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import MergeOptimizer
from pytensor.scalar import float64
from pytensor.scalar.basic import ScalarConstant
from pytensor.tensor.basic import MakeVector

from pytensor_jaxpr_linker.frontend.graph_features import EqualParts, Merge, signature_of
from pytensor_jaxpr_linker.frontend.rewriters import without_measurements

DTYPES = ("bool", "int8", "int64", "uint8", "uint64", "float16", "float32", "float64", "complex64", "complex128")
#: Values that are merged or not for a reason: signs of zero, NaN, infinity, the smallest and large ones. PyTensor warns
#: of sums that overflow.
SPECIAL = (0.0, -0.0, 1.0, np.nan, np.inf, -np.inf, 4e307, 5e-324)
SHAPES = ((), (1,), (1, 1), (2,), (0,), (2, 2))


@st.composite
def constants(draw):
    """Draw an array of few different values, so that equal ones are found."""
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(SHAPES))
    few = st.sampled_from(SPECIAL if np.dtype(dtype).kind in "fc" else (0, 1))
    with np.errstate(all="ignore"):
        return draw(arrays("float64", shape, elements=few)).astype(dtype)


@given(st.lists(constants(), min_size=2, max_size=6))
def test_signatures_are_those_of_pytensor(values):
    """Each pair is equal or not as PyTensor has it, also where one signature is ours and the other one PyTensor's."""
    ours, theirs = [], []
    for value in values:
        c = pt.constant(value, dtype=value.dtype)
        ours.append(signature_of(c))
        theirs.append(c.merge_signature())
    for a, x in zip(ours, theirs, strict=True):
        assert hash(a) == hash(x)
        for b, y in zip(ours, theirs, strict=True):
            assert (a == b) == (a == y) == (x == b) == (x == y)


def merged(outputs: list, optimizer: MergeOptimizer) -> str:
    """Return a graph after equal parts are merged, as text that says which variables are one."""
    fgraph = FunctionGraph(outputs=outputs, clone=True)
    optimizer.rewrite(fgraph)
    return pytensor.dprint(fgraph, file="str", print_type=True)


def shared_graphs() -> dict:
    """Return outputs with equal parts, by their names."""
    x, y = pt.dvector("x"), pt.dmatrix("y")
    nan, sparse = np.array([np.nan, 1.0]), scipy.sparse.csr_matrix(np.eye(2))
    return {
        "numbers": [pt.exp(x) + np.float64(2), pt.exp(x) + np.float32(2), pt.exp(x) + np.array([2.0])],
        "arrays": [x + np.ones(3), x + np.ones(3), x + np.arange(3), x + np.arange(3.0), x[np.arange(3)]],
        "not a number": [x + nan, x + nan.copy(), x + np.nan, x + np.float64("nan"), x + nan[::-1]],
        "no inputs": [MakeVector(dtype)() for dtype in ("int64", "int64", "float64")],
        "the same input twice": [x * x, x * x, x + x, pt.dot(x, x)],
        "one by one": [pt.log(pt.exp(x) + 1).sum() / 2, pt.log(1 + pt.exp(x)).sum() * 0.5, pt.log(pt.exp(x) + 1)],
        "two results": [*pt.linalg.slogdet(y), *pt.linalg.slogdet(y)],
        "sparse": [pytensor.sparse.dot(pytensor.sparse.as_sparse(m), y) for m in (sparse, sparse.copy())],
        "scalars": [
            pt.tensor_from_scalar(pytensor.scalar.add(ScalarConstant(float64, v), 1.0)) for v in (2.0, 2.0, 3.0)
        ],
    }


@pytest.mark.parametrize("name", shared_graphs())
def test_the_graph_is_the_same(name):
    outputs, theirs = shared_graphs()[name], MergeOptimizer()
    ours = without_measurements(theirs)
    assert type(ours) is Merge
    assert merged(outputs, ours) == merged(outputs, theirs)


def test_what_is_gone_is_not_merged_with():
    """A constant whose last reader was pruned is unknown, and so is the node."""
    x = pt.dvector("x")
    fgraph = FunctionGraph([x], [pt.exp(x + 2.0)], clone=False)
    Merge().add_requirements(fgraph)
    Merge().add_requirements(fgraph)
    assert sum(isinstance(f, EqualParts) for f in fgraph._features) == 1
    fgraph.replace(fgraph.outputs[0], pt.cos(x))
    assert len(fgraph.merge_feature.nodes_seen) == 1
    fgraph.replace(fgraph.outputs[0], pt.sin(x + 2.0), import_missing=True)
    Merge().apply(fgraph)
    assert [str(node.op) for node in fgraph.toposort()] == ["ExpandDims{axis=0}", "Add", "Sin"]
