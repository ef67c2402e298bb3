"""Cumulative sums and products of masks and small integers: NumPy's numbers and dtypes, not the declared dtype."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.conditional.op import ifelse
from pytensor.graph.replace import vectorize_graph

import pytensor_jaxpr_linker as pjl

VALUES = {
    "bool": [True, True, False, True],
    "int8": [100, 100, -3, 7],
    "uint8": [200, 100, 3, 250],
    "int16": [30_000, 30_000, -5, 30_000],
    "uint16": [60_000, 60_000, 3, 1],
    "int32": [2**30, 2**30, 2**30, -1],
    "uint32": [2**31 + 5, 2**31, 7, 1],
    "int64": [2**40, 1, 2, 3],
    "uint64": [2**63, 5, 7, 1],
    "float16": [3.0, 100.0, 0.5, 1.5],
}


def same(results, wants):
    for result, want in zip(results, wants, strict=True):
        want = np.asarray(want)
        assert result.dtype == want.dtype and result.shape == want.shape
        np.testing.assert_array_equal(result, want)


def vector(dtype: str):
    return pt.tensor("x", dtype=dtype, shape=(None,))


@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("how", ["function", "as_jax_function", "exported"])
def test_counts_are_those_of_numpy(dtype, how, tmp_path):
    x, value = pt.tensor("x", dtype=dtype, shape=(None, None)), np.array([VALUES[dtype], VALUES[dtype][::-1]], dtype)
    outputs = [
        *(op(x, axis=axis) for op in (pt.cumsum, pt.cumprod) for axis in (None, 0, 1)),
        pt.cumsum(x[0, 0]),
        pt.cumsum(x[:0], axis=0),
    ]
    if how == "function":
        results = pytensor.function([x], outputs, mode="JAXPR")(value)
    elif how == "as_jax_function":
        results = pjl.as_jax_function([x], outputs)(value)
    else:
        pjl.export([x], outputs, tmp_path / "f.jaxpr")
        results = pjl.load(tmp_path / "f.jaxpr")(value)
    wants = [op(value, axis=axis) for op in (np.cumsum, np.cumprod) for axis in (None, 0, 1)]
    with np.errstate(over="ignore"):
        same(results, [*wants, np.cumsum(value[0, 0]), np.cumsum(value[:0], axis=0)])


def test_ops_that_follow_see_the_counts():
    """What FAST_COMPILE's `perform` methods see; the right numbers are NumPy's."""
    x, value = vector("uint8"), np.array(VALUES["uint8"], "uint8")
    c, n = pt.cumsum(x), np.cumsum(value)
    follow = {
        pt.cast(c, "int64"): n.astype("int64"),
        pt.cast(c, "float64") / 2: n / 2,
        c > 250: n > 250,
        c.sum(): n.sum(),
        pt.cumsum(c): n.cumsum(),
        c[1:][::-1]: n[1:][::-1],
        c.reshape((2, 2)).T: n.reshape(2, 2).T,
        pt.sort(c): np.sort(n),
        c.argmax(): n.argmax(),
        pt.searchsorted(c, 310): np.searchsorted(n, 310),
        pt.arange(1000)[c]: np.arange(1000)[n],
        pt.arange(1000)[c[-1]]: np.arange(1000)[n[-1]],
        pt.zeros(c[-1], dtype="int8").shape[0]: n[-1].astype("int64"),
        pt.repeat(c, 2): np.repeat(n, 2),
        pt.set_subtensor(c[0], 7): np.array([7, *n[1:]], "uint64"),
        pt.unique(c): np.unique(n),
        pt.mean(c): n.mean(),
    }
    results = pytensor.function([x], list(follow), mode=pjl.JaxprMode(on_break="ignore"))(value)
    same(results, follow.values())
    f = pytensor.function([x], list(follow), mode="FAST_COMPILE")
    same(results, f(value))


def test_arithmetic_has_the_declared_dtype():
    """A sum of a count is declared uint8, and is cast to it, in FAST_COMPILE, too."""
    x, value = vector("uint8"), np.array(VALUES["uint8"], "uint8")
    outputs = [pt.cumsum(x) + np.uint8(1), pt.cumsum(x).max(), pt.concatenate([pt.cumsum(x), x])]
    results = pytensor.function([x], outputs, mode="JAXPR")(value)
    same(results, pytensor.function([x], outputs, mode="FAST_COMPILE")(value))
    assert {r.dtype.name for r in results} == {"uint8"}


def test_counts_of_selected_elements():
    """Lanes: the number of elements depends on values."""
    x, value = vector("int8"), np.array([100, -1, 100, 100, -5], "int8")
    outputs = [pt.cumsum(x[x > 0]), pt.cumprod(x[x > 0]), pt.cast(pt.cumsum(x > 0), "int64"), pt.cumsum(x > 0)]
    taken = value[value > 0]
    wants = [np.cumsum(taken), np.cumprod(taken), np.cumsum(value > 0), np.cumsum(value > 0)]
    same(pytensor.function([x], outputs, mode="JAXPR")(value), wants)


def test_counts_inside_other_graphs():
    x, flag, value = vector("bool"), pt.scalar("flag", dtype="bool"), np.array([True] * 5)
    ofg = OpFromGraph([x], [pt.cast(pt.cumsum(x), "int64"), pt.cumsum(x)])(x)
    chosen = ifelse(flag, pt.cumsum(x), x)
    steps = pytensor.scan(
        lambda k, v: pt.cast(pt.cumsum(v), "int64")[k],
        sequences=[pt.arange(5)],
        non_sequences=[x],
        return_updates=False,
    )
    each = vectorize_graph(pt.cumsum(x), {x: pt.stack([x, x])})
    f = pytensor.function([x, flag], [*ofg, chosen, steps, each], mode="JAXPR")
    n = np.cumsum(value)
    same(f(value, True), [n, n, n, n, [n, n]])


def test_a_loop_keeps_counts_in_the_declared_dtype():
    """A loop's arrays have it, in FAST_COMPILE, too."""
    x = vector("int8")
    steps = pytensor.scan(lambda c: pt.cumsum(c), outputs_info=[x], n_steps=3, return_updates=False)
    value, wants = np.array(VALUES["int8"], "int8"), []
    for _ in range(3):
        wants.append(np.cumsum(value if not wants else wants[-1], dtype="int8"))
    same([pytensor.function([x], steps, mode="JAXPR")(value)], [np.array(wants)])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint32"])
def test_an_update_stores_the_counts(dtype):
    """As in FAST_COMPILE, the variable then holds an array of the wide dtype, which other functions read."""
    value = np.array(VALUES[dtype], dtype)
    s = pytensor.shared(value)
    f = pytensor.function([], s, updates={s: pt.cumsum(s)}, mode="JAXPR")
    g = pytensor.function([], [s, pt.cast(s, "float64"), s.sum(), s[1:]], mode="JAXPR")
    for _ in range(3):
        before = value
        value = np.cumsum(value)
        same([f(), s.get_value()], [before, value])
        same(g(), [value, value.astype("float64"), value.sum(), value[1:]])
    value = np.array(VALUES[dtype], dtype)
    s.set_value(value)
    same(g(), [value, value.astype("float64"), value.sum(), value[1:]])
