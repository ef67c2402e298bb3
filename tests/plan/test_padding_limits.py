"""Padding up to a longest length, and with `dynamic_shapes`."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker import prims
from pytensor_jaxpr_linker.base.errors import CannotEmit
from tests.plan.test_padding import padding, rng


class Times(Op):
    """Multiplies by a number whose rule must know it."""

    __props__ = ()

    def make_node(self, x, n):
        return Apply(self, [x, n], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(inputs[0] * inputs[1])


@pjl.emits(Times)
def emit_Times(op, node, b, x, n):
    if b.known(n) is None:
        raise CannotEmit("the number is not known")
    return prims.mul(b, x, prims.convert(b, n, "float64"))


def test_rule_that_finds_out_late():
    x = pt.vector("x", dtype="float64")
    f = padding([x], Times()(pt.exp(x).sum(), x.shape[0]))
    with pytest.warns(pjl.RecompileWarning) as caught:
        for n in (1, 2, 3, 4):
            assert f(np.zeros(n)) == n * n
    assert len(caught) == 2 and "can't be padded, since the number is not known" in str(caught[1].message)
    assert f.vm.runner.program.recompiles.count == 4 and not f.vm.runner.fallbacks


def batch_programs(f):
    """Return the reports on the programs of a function."""
    return [s for batch in pjl.explain(f).batches for s in batch.specializations]


def marked(name, axis=0, longest=100, ndim=1):
    return pjl.mark_dynamic(pt.tensor(name, shape=(None,) * ndim, dtype="float64"), axis, longest=longest)


def test_longest_length_is_one_program():
    x, y = marked("x"), marked("y", longest=50)
    outputs = [x.mean(), pt.exp(y), x[1:] - x[:-1], y.sum() * x.max()]
    f = pytensor.function([x, y], outputs, mode="JAXPR")
    reference = pytensor.function([x, y], outputs, mode="FAST_COMPILE")
    for n, m in ((3, 3), (4, 5), (100, 50), (2, 1), (17, 50)):  # the two lengths may differ
        values = rng.normal(size=n), rng.normal(size=m)
        for want, got in zip(reference(*values), f(*values), strict=True):
            np.testing.assert_allclose(got, want)
            assert got.shape == want.shape
    (program,) = batch_programs(f)
    assert program.padded == "axis 0 of 'x' to 100, axis 0 of 'y' to 50"
    assert program.shapes[:2] == ("float64[100]", "float64[50]")


def test_longest_length_of_axes_that_must_agree():
    data, y, beta = marked("data", ndim=2), marked("y"), pt.dvector("beta")
    cost = ((y - data @ beta) ** 2).sum()
    f = pytensor.function([data, y, beta], [cost, *pt.grad(cost, [beta, y])], mode="JAXPR")
    reference = pytensor.function([data, y, beta], [cost, *pt.grad(cost, [beta, y])], mode="FAST_COMPILE")
    for n in (5, 99, 1, 100):
        values = rng.normal(size=(n, 3)), rng.normal(size=n), rng.normal(size=3)
        for want, got in zip(reference(*values), f(*values), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12)
    assert [s.shapes[:2] for s in batch_programs(f)] == [("float64[100,3]", "float64[100]")]
    for n, m in ((4, 5), (1, 5)):
        with pytest.raises(ValueError):
            f(np.ones((n, 3)), np.ones(m), np.ones(3))


def test_longer_than_the_longest_runs_on_the_host():
    x = marked("x", longest=4)
    f = pytensor.function([x], x.sum(), mode="JAXPR")
    with pytest.warns(pjl.GraphBreakWarning, match="the longest that is marked is 4, not 5"):
        assert f(np.ones(5)) == 5
    assert not batch_programs(f)
    assert f(np.ones(4)) == 4 and f(np.ones(2)) == 2
    assert f(np.ones(6)) == 6
    assert [s.shapes for s in batch_programs(f)] == [("float64[4]", "int64[]")]


def test_empty_array_of_a_marked_axis():
    x = marked("x", longest=4)
    f = pytensor.function([x], [x.sum(), x * 2], mode="JAXPR")
    for n in (0, 3, 0):
        total, doubled = f(np.ones(n))
        assert total == n and doubled.shape == (n,)
    assert {s.shapes[0]: s.padded for s in batch_programs(f)} == {
        "float64[0]": "axis 0 of 'x' to 0, since it is empty",
        "float64[4]": "axis 0 of 'x' to 4",
    }


def test_longest_length_that_cannot_be_padded():
    x = marked("x")
    f = pytensor.function([x], x[::2], mode="JAXPR")
    np.testing.assert_array_equal(f([3.0, 1.0]), [3])
    with pytest.warns(pjl.GraphBreakWarning, match="it can't be padded, since Subtensor.* must know the length itself"):
        np.testing.assert_array_equal(f([3.0, 1.0, 2.0]), [3, 2])
    assert len(batch_programs(f)) == 1


def test_longest_length_of_a_shared_variable():
    s = pjl.mark_dynamic(pytensor.shared(np.ones(3), name="s"), 0, longest=8)
    f = pytensor.function([], (s**2).mean(), mode="JAXPR")
    for n in (3, 8, 1):
        s.set_value(np.full(n, 2.0))
        assert f() == 4
    assert len(batch_programs(f)) == 1


def test_one_of_two_marked_axes_is_empty():
    x, y = marked("x", longest=4), marked("y", longest=8)
    f = pytensor.function([x, y], x.sum() + y.sum(), mode="JAXPR")
    assert f(np.ones(0), np.ones(3)) == 3
    assert [(s.shapes[:2], s.padded) for s in batch_programs(f)] == [
        (("float64[0]", "float64[8]"), "axis 0 of 'x' to 0, since it is empty, axis 0 of 'y' to 8")
    ]


def test_longest_length_as_an_integer_of_numpy():
    for longest in (np.int64(4), np.uint8(4)):
        f = pytensor.function([x := marked("x", np.int64(0), longest)], x.sum(), mode="JAXPR")
        assert f(np.ones(3)) == 3
        assert batch_programs(f)[0].padded == "axis 0 of 'x' to 4"


@pytest.mark.parametrize(
    "given",
    [
        {"axis": 0, "longest": 0},
        {"axis": 0, "longest": 2.0},
        {"axis": 0, "longest": True},
        {"axis": 0, "longest": np.float64(3)},
        {"axis": 0, "longest": "3"},
        {"longest": 3},
    ],
)
def test_longest_is_a_length_of_an_axis(given):
    with pytest.raises(ValueError, match="longest is the largest length of an axis"):
        pjl.mark_dynamic(pt.vector(), **given)


def test_dynamic_shapes_pads_from_the_second_length():
    x = pt.dvector("x")
    with pjl.options(dynamic_shapes="pad"):
        f = pytensor.function([x], x.var(), mode="JAXPR")
    reference = pytensor.function([x], x.var(), mode="FAST_COMPILE")
    for n in range(1, 40):  # no warning
        value = rng.normal(size=n)
        np.testing.assert_allclose(f(value), reference(value), atol=1e-15)
    assert sorted((s.shapes[0], s.padded) for s in batch_programs(f)) == [
        ("float64[16]", "axis 0 of 'x'"),
        ("float64[1]", ""),
        ("float64[32]", "axis 0 of 'x'"),
        ("float64[64]", "axis 0 of 'x'"),
    ]


def test_dynamic_shapes_that_cannot_be_padded_warn_once():
    x = pt.dvector("x")
    with pjl.options(dynamic_shapes="pad"):
        f = pytensor.function([x], x[::2], mode="JAXPR")
    f([2.0, 1.0])
    with pytest.warns(pjl.RecompileWarning, match="can't be padded, since Subtensor") as caught:
        for n in (3, 4, 5):
            assert f(np.ones(n)).shape == ((n + 1) // 2,)
    assert len(caught) == 1 and len(batch_programs(f)) == 4


def test_dynamic_shapes_leave_static_values_alone():
    x, n = pt.dvector("x"), pt.lscalar("n")
    with pjl.options(dynamic_shapes="pad"):
        f = pytensor.function([x, n], pt.zeros((n,)) + x.sum(), mode="JAXPR")
    for count in (2, 3):
        assert f(np.ones(3), count).tolist() == [3.0] * count
    assert [s.padded for s in batch_programs(f)] == ["", ""]
