"""What masks select: kept as lanes where only elementwise Ops and reductions follow, compacted elsewhere."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import FULLGRAPH, compare, compare_error, compare_grad, tensor_like
from hypothesis import given, settings
from hypothesis import strategies as st
from pytensor.compile.mode import Mode

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.graph.lanes.ops import Compact, CountedNonzero, FillLanes, WriteLanes

x, y, t = pt.dvector("x"), pt.dvector("y"), pt.dmatrix("t")
mask, mask2 = pt.vector("mask", dtype="bool"), pt.matrix("mask2", dtype="bool")
positive = x[x > 0]
positive.name = "positive"

X = np.array([0.5, -1.0, 2.0, 3.0, -0.2, 4.0])
T = np.arange(12.0).reshape(3, 4) - 4.5
VALUES = {"some": X, "none": -np.abs(X), "all": np.abs(X), "one": -np.arange(-1.0, 5.0), "no_elements": X[:0]}


def compare_whole(inputs, outputs, values, **kwargs):
    """Compare, after checking that the graph is one program."""
    f = pytensor.function(inputs, outputs, mode=FULLGRAPH, on_unused_input="ignore")
    assert len(f.vm.runner.plan.batches) == 1
    return compare(inputs, outputs, values, **kwargs)


# -- one program -------------------------------------------------------------------------------------------------------

REDUCTIONS = {
    "sum": lambda s: pt.log1p(s).sum(),
    "prod": lambda s: s.prod(),
    "prod_without_zeros": lambda s: pt.prod(s - 2.0, no_zeros_in_input=False),
    "all": lambda s: (s > 1).all(),
    "any": lambda s: (s > 3).any(),
    "count": lambda s: s.shape[0],
    "shape": lambda s: s.shape,
    "logsumexp_of_sum": lambda s: pt.log(pt.exp(s).sum() + 1),
    "dot": lambda s: pt.dot(s, pt.exp(-s)),
    "set_in_it": lambda s: pt.set_subtensor(s[s > 1], 7.0).sum(),
    "within": lambda s: pt.exp(s[s > 1]).sum(),
    "stacked": lambda s: (s[:, None] * s[:, None] + s.sum()).sum(),
    "joined": lambda s: pt.stack([s, pt.exp(-s)]).sum(),
    "other_array": lambda s: (s * pt.exp(x)[x > 0]).sum(),
    "positions": lambda s: (x > 0).nonzero()[0].sum(),
    "positions_of_elements": lambda s: (pt.outer(x, x) > 0).nonzero()[1].sum(),
    "sorted_along_another_axis": lambda s: pt.sort(pt.stack([s, pt.exp(-s)]), axis=0)[0].sum(),
    "split_along_another_axis": lambda s: pt.split(pt.stack([s, -s, s + 1]), splits_size=[1, 2], n_splits=2)[1].sum(),
    "of_the_count": lambda s: (pt.zeros(s.shape[0], dtype="float64") + s).sum(),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("build", REDUCTIONS.values(), ids=REDUCTIONS)
def test_reductions(build, value):
    compare_whole([x], build(positive), [value])


@pytest.mark.filterwarnings("ignore:.*divide:RuntimeWarning", "ignore:.*invalid value:RuntimeWarning")
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("reduce", [pt.mean, pt.var, pt.std])
def test_moments(reduce, value):
    compare_whole([x], reduce(positive), [value])


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("value", VALUES, ids=VALUES)
def test_extrema(name, value):
    reduce = getattr(pt, name)
    pytensor.function([x], reduce(positive), mode=FULLGRAPH)
    if value in ("none", "no_elements"):
        compare_error([x], reduce(positive), [VALUES[value]], match="zero-size array to reduction operation")
    else:
        compare_whole([x], [reduce(positive), pt.grad(reduce(positive), x)], [VALUES[value]])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float32", "complex64"])
def test_dtypes(dtype):
    value = np.array([0, 1, 1, 0, 1]).astype(dtype)
    v = tensor_like(value, "v")
    s = v[mask]
    outputs = [s.sum(), pt.set_subtensor(s, 1), pt.inc_subtensor(s, np.ones(1, dtype))]
    outputs += [] if dtype == "bool" else [s.prod(), (s + s).sum()]
    outputs += [] if dtype == "complex64" else [s.max(), s.min()]
    outputs += [pt.bitwise_and(s, s).sum()] if dtype in ("int8", "uint16") else []
    compare_whole([v, mask], outputs, [value, np.array([1, 1, 0, 0, 1], bool)])


def test_bitwise_reductions():
    import pytensor.scalar as ps
    from pytensor.tensor.elemwise import CAReduce

    for dtype in ("int8", "uint8", "bool"):
        value = np.array([5, 7, 13, 2]).astype(dtype)
        v = tensor_like(value, "v")
        outputs = [CAReduce(op)(v[mask]) for op in (ps.and_, ps.or_, ps.xor)]
        compare_whole([v, mask], outputs, [value, np.array([1, 0, 1, 0], bool)])


AXES = {
    "rows": lambda: t[mask],
    "columns": lambda: t.T[:, mask],
    "columns_of_rows": lambda: t.T[1:3, mask],
    "elements": lambda: t[mask2],
    "positions": lambda: t[(t > 1).nonzero()],
    "rows_and_slice": lambda: t[mask, 1:],
}


@pytest.mark.parametrize("build", AXES.values(), ids=AXES)
def test_axes(build):
    s = pt.exp(build())
    axis = 1 if build in (AXES["columns"], AXES["columns_of_rows"]) else 0
    outputs = [s.sum(), s.sum(axis), s.sum(axis=-1).max(), s.mean(), pt.grad((s**2).sum(), t)]
    outputs += [s.max(axis), s.T.sum(), s.shape[0]]
    values = [T, np.array([True, False, True]), T % 2 > 0.7]
    compare_whole([t, mask, mask2], outputs, values)


def test_writes():
    s = t[mask]
    outputs = [pt.set_subtensor(s, 0.0), pt.inc_subtensor(s, t[0]), pt.set_subtensor(s, s**2), pt.inc_subtensor(s, -s)]
    outputs += [pt.set_subtensor(t[mask2], 1.0), pt.inc_subtensor(t[mask2], pt.exp(t[mask2]))]
    outputs += [pt.set_subtensor(t[mask, 1:3], 5.0), pt.inc_subtensor(t.T[:, mask], t.T[:, :1])]
    outputs += [pt.set_subtensor(t[(t > 1).nonzero()], 3.0)]
    compare_whole([t, mask, mask2], outputs, [T, np.array([True, False, True]), T > 0])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_values_of_unknown_length_are_written(count):
    chosen = np.arange(5) < count
    outputs = [pt.set_subtensor(x[mask], y), pt.inc_subtensor(x[mask], y), pt.inc_subtensor(t[:, mask], y)]
    compare_whole([x, t, mask, y], outputs, [X[:5], np.ones((2, 5)), chosen[::-1], np.arange(float(count))])
    compare_whole([x, t, mask, y], outputs, [X[:5], np.ones((2, 5)), chosen, np.array([9.0])])


@pytest.mark.parametrize("length", [0, 2, 4])
@pytest.mark.parametrize("write", [pt.set_subtensor, pt.inc_subtensor])
def test_values_of_another_length(write, length):
    values = [X, np.arange(6) % 2 == 0, np.arange(float(length))]
    compare_error([x, mask, y], write(x[mask], y), values)


def test_regression_on_some_rows():
    residual = y[mask] - t[mask] @ x
    loss = (residual**2).mean()
    values = [T, np.array([True, False, True]), np.arange(3.0), np.cos(np.arange(4.0))]
    compare_whole([t, mask, y, x], [loss, *pt.grad(loss, [x, t, y])], values)


def test_checks_on_what_is_selected():
    from pytensor.raise_op import Assert

    checked = Assert("must be small")(positive, pt.all(positive < 9))
    compare_whole([x], pt.log(checked).sum(), [X])
    f = pytensor.function([x], checked.sum(), mode=FULLGRAPH)
    with pytest.raises(AssertionError, match="must be small"):
        f(X * 9)


MISMATCHES = {
    "lanes": x[mask].sum(),
    "compacted": x[mask],
    "set": pt.set_subtensor(x[mask], 1.0),
    "matrix": t[mask2].sum(),
    "second_axis": t[:, mask].sum(),
    "among_others": t[mask, pt.constant([0])],
}


@pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.GraphBreakWarning")
@pytest.mark.parametrize("output", MISMATCHES.values(), ids=MISMATCHES)
def test_mask_of_another_shape(output):
    values = [X, np.array([True, False]), T, np.ones((3, 3), bool)]
    compare_error([x, mask, t, mask2], output, values, match="boolean index did not match indexed array")


# -- gradients ---------------------------------------------------------------------------------------------------------

GRADIENTS = {
    "log": lambda s: pt.log(s).sum(),
    "sqrt": lambda s: pt.sqrt(s).sum(),
    "mean": lambda s: (s**2).mean(),
    "var": lambda s: s.var(),
    "max": lambda s: pt.exp(s).max(),
    "prod": lambda s: s.prod(),
    "dot": lambda s: pt.dot(s, pt.log(s)),
    "set": lambda s: pt.set_subtensor(s, pt.log(s)),
    "inc": lambda s: pt.inc_subtensor(s, s**2),
    "within": lambda s: pt.log(s[s > 1] - 1).sum(),
}


@pytest.mark.parametrize("build", GRADIENTS.values(), ids=GRADIENTS)
def test_gradients(build):
    compare_whole([x], pt.grad(build(positive).sum(), x), [X])
    compare_grad([x], build(positive), [X])


@pytest.mark.parametrize("build", [GRADIENTS["log"], GRADIENTS["sqrt"], GRADIENTS["set"]])
def test_gradients_where_nothing_is_selected(build):
    compare_grad([x], build(positive), [np.zeros(4)])


# -- counts that cross -------------------------------------------------------------------------------------------------


def compare_split(inputs, outputs, values):
    """Compare, after checking that only the count separates two regions."""
    with pytest.warns(pjl.GraphBreakWarning, match="JX002"):
        f = pytensor.function(inputs, outputs, mode="JAXPR", on_unused_input="ignore")
    assert len(f.vm.runner.plan.batches) == 2 == len(f.vm.runner.plan.regions)
    with pytest.warns(pjl.GraphBreakWarning):
        compare(inputs, outputs, values)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize(
    "build",
    [lambda: positive, lambda: pt.exp(positive), lambda: pt.cumsum(positive), lambda: pt.outer(positive, positive)],
)
def test_selections_that_are_returned(build, value):
    compare_split([x], build(), [value])


def test_selections_of_any_axes():
    chosen = t > 0
    rows, columns = chosen[:, 0], chosen[0]
    outputs = [t[chosen], t[rows], t[:, columns], t[1:, columns], t[rows, 1:3], t[rows, pt.constant([3])]]
    outputs += [t[rows, 1], pt.set_subtensor(t[rows, 1], 9.0), pt.inc_subtensor(t[rows, pt.constant([3])], 1.0)]
    compare_split([t], outputs, [-T])


@pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.GraphBreakWarning")
@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 2), (0,), (2, 0)])
@pytest.mark.parametrize("dtype", ["bool", "int8", "float64", "complex128"])
def test_nonzero(shape, dtype):
    value = (np.arange(np.prod(shape)) % 3).reshape(shape).astype(dtype)
    v = tensor_like(value, "v")
    outputs = [*v.nonzero(), *pt.exp(v).astype(dtype).nonzero()]
    compare([v], outputs, [value])


def test_break_names_the_variable_and_its_line():
    with pytest.raises(pjl.GraphBreakError) as error:
        pytensor.function([x], pt.cumsum(positive), mode=FULLGRAPH)
    (found,) = error.value.breaks
    assert isinstance(found.node.op, Compact)
    assert found.node.outputs[0].name == "positive"
    assert "graph/lanes/test_masks.py" in str(error.value)


def test_mask_that_is_an_input_is_a_key():
    f = pytensor.function([x, mask], x[mask] * 2, mode=FULLGRAPH)
    for chosen in (np.arange(6) < 2, np.arange(6) % 2 == 0, np.arange(6) > 3):
        np.testing.assert_array_equal(f(X, chosen), X[chosen] * 2)
    assert len(f.vm.runner.program._specializations) == 2  # for two and for three elements


def test_values_that_come_from_other_masks():
    outputs = [(positive * y[y > 0]).sum(), pt.set_subtensor(x[x > 0], y[y > 0])]
    with pytest.warns(pjl.GraphBreakWarning):
        compare([x, y], outputs, [X, X[::-1]])


# -- how often is compiled ---------------------------------------------------------------------------------------------


def test_one_compilation_for_a_thousand_counts():
    outputs = [pt.log1p(positive).sum(), positive.mean(), pt.grad(positive.var(), x), pt.set_subtensor(positive, 0.0)]
    f = pytensor.function([x], outputs, mode=FULLGRAPH)
    value = -np.ones(1001)
    for count in range(1000):
        value[count] = 1.0 + count
        got = f(value)
        assert got[1] == pytest.approx(1.0 + count / 2)
    program = f.vm.runner.program
    (specialization,) = program._specializations.values()
    assert len(specialization.lowered) == 1 == len(specialization.packed_calls)


def test_memory_of_counts_is_bounded():
    mode = Mode(pjl.JaxprLinker(pjl.Options(on_break="ignore", specializations=3)), "fast_run")
    f = pytensor.function([x], positive, mode=mode)
    value = -np.ones(8)
    for count in range(8):
        value[count] = 1.0
        assert f(value).shape == (count + 1,)
    assert [len(program._specializations) for program in f.vm.runner.programs] == [1, 3]


# -- the Ops themselves ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [np.array([True, False, True]), np.zeros(3, bool)])
def test_perform(chosen):
    v = pt.lvector("v")
    outputs = [Compact(0)(t, mask, mask.sum()), WriteLanes(0, True, True)(t, t[:1], mask), FillLanes(0)(t, mask)]
    outputs += [WriteLanes(0, False, False)(t, v[:1], mask), CountedNonzero()(mask, mask.sum())]
    compare([t, mask, v], outputs, [T, chosen, np.arange(3)])


def test_selected_numbers_of_an_input_are_known():
    k = pt.lvector("k")
    compare_whole([k], pt.arange(k[k > 1].sum()), [np.array([0, 3, 1, 4])])


# -- any chain of them -------------------------------------------------------------------------------------------------

ELEMENTWISE = [pt.exp, lambda s: s * 2 + 1, lambda s: pt.switch(s > 1, s, -s), lambda s: s - s.sum(), pt.abs, pt.sqr]
FINAL = [pt.sum, pt.prod, pt.all, pt.any, lambda s: s.shape[0], lambda s: (s**2).sum(), lambda s: s]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(["elementwise", "mask", "slice", "set", "inc"]), min_size=1, max_size=5),
    st.lists(st.integers(0, 99), min_size=12, max_size=12),
    st.lists(st.floats(-2, 2, width=16), min_size=0, max_size=6),
)
@pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.GraphBreakWarning", "ignore:overflow")
def test_any_chain(steps, choices, numbers):
    choose = iter(choices)
    s = x
    for step in steps:
        k = next(choose)
        threshold = k % 5 / 2 - 1
        if step == "elementwise":
            s = pt.clip(ELEMENTWISE[k % len(ELEMENTWISE)](s), -3, 3)
        elif step == "mask":
            s = s[s > threshold]
        elif step == "slice":
            s = s[[slice(pt.sum(s > 0), None), slice(None, pt.sum(s > 0)), slice(1, -1), slice(-2, None)][k % 4]]
        elif step == "set":
            s = pt.set_subtensor(s[s < threshold], threshold)
        else:
            s = pt.inc_subtensor(s[s > threshold], s[s > threshold])
    output = FINAL[next(choose) % len(FINAL)](s)
    compare([x], output, [np.array(numbers, "float64")], rtol=1e-6)
