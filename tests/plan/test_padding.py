"""Padding beyond the recompile limit or before: the padded axes, the results, and the messages without padding."""

from __future__ import annotations

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytensor.xtensor as px
import pytest
from helpers import Doubled
from pytensor.compile.mode import Mode
from pytensor.conditional import ifelse

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker import JaxprLinker, Options
from pytensor_jaxpr_linker.plan.padding import bucket, pad_axis

rng = np.random.default_rng(7)


def padding(inputs, outputs, limit=1, updates=None, **options):
    """Compile with padding beyond a limit."""
    options = Options(on_recompile_limit="pad", recompile_limit=limit, **options)
    return pytensor.function(inputs, outputs, mode=Mode(JaxprLinker(options), "fast_run"), updates=updates)


def compare_lengths(inputs, outputs, make_values, lengths, limit=1, rtol=1e-9):
    """Check values, dtypes and shapes for many lengths, and that there is one program for each bucket."""
    outputs = outputs if isinstance(outputs, list) else [outputs]
    f = padding(inputs, outputs, limit)
    reference = pytensor.function(inputs, outputs, mode="FAST_COMPILE")
    with pytest.warns(pjl.RecompileWarning, match="called with padded arrays") as caught:
        for n in lengths:
            values = make_values(n)
            for want, got in zip(reference(*values), f(*values), strict=True):
                assert got.dtype == want.dtype and got.shape == want.shape
                np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)
    assert [w.category for w in caught] == [pjl.RecompileWarning]
    shapes = [s for batch in pjl.explain(f).batches for s in batch.specializations]
    assert len([s for s in shapes if not s.padded]) == limit
    assert 0 < len([s for s in shapes if s.padded]) <= len(set(map(bucket, lengths[limit:])))
    return f


def test_buckets():
    assert list(map(bucket, (0, 1, 16, 17, 32, 33))) == [0, 16, 16, 32, 32, 64]
    x = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(pad_axis(x, 0, 5), x[[0, 1, 2, 0, 0]])
    np.testing.assert_array_equal(pad_axis(x, 1, 4), x[:, [0, 1, 0, 0]])
    assert pad_axis(x[:0], 0, 0).shape == (0, 2) and pad_axis(x.astype("int8"), 0, 4).dtype == "int8"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hundred_lengths(dtype):
    data, y = pt.matrix("data", dtype=dtype), pt.vector("y", dtype=dtype)
    beta, scale = pt.vector("beta", dtype=dtype), pt.scalar("scale", dtype=dtype)
    residual = (y - data @ beta) / scale
    cost = (residual**2 / 2 + pt.log(scale)).sum()

    def values(n):
        arrays = rng.normal(size=(n, 3)), rng.normal(size=n), rng.normal(size=3), np.float64(1.5)
        return [np.asarray(v, dtype) for v in arrays]

    outputs = [cost, residual, *pt.grad(cost, [beta, scale, data, y])]
    lengths = rng.permutation(100).tolist()
    f = compare_lengths(
        [data, y, beta, scale], outputs, values, lengths, limit=2, rtol=1e-3 if dtype == "float32" else 1e-9
    )
    assert "padded: axis 0 of 'data', axis 0 of 'y'" in str(pjl.explain(f))
    want = pytensor.function([data, y, beta, scale], cost, mode="FAST_COMPILE")
    with pytest.raises(ValueError) as expected:
        want(*values(5)[:1], *values(6)[1:])
    with pytest.raises(expected.type):  # the lengths differ: the exact program is built, and its error raised
        f(*values(5)[:1], *values(6)[1:])
    with jax.enable_x64(True):  # the function itself is not padded
        fn = pjl.as_jax_function(f)
        gradient = jax.grad(lambda *args: fn(*args)[0], argnums=2)(*values(7))
    assert np.all(np.isfinite(gradient))


def test_vectors():
    x, k = pt.vector("x", dtype="float64"), pt.lscalar("k")
    lag = ((x[1:] - 0.5 * x[:-1]) ** 2).sum()
    outputs = [
        *(pt.exp(x).sum(), x.mean(), x.var(), x.max(), x.min(), pt.log(x).prod(), x * 2, x[::1].sum()),
        *(pt.cumsum(x), pt.cumprod(x), pt.argmax(x), pt.argmin(x), pt.any(x > 1), pt.all(x > 0), x.shape[0]),
        *(pt.logsumexp(x), pt.special.softmax(x), pt.special.log_softmax(x), x[0], x[-1], x[k]),
        *(x[0].inc(x[-1]), x[-1].set(0.0), x[1:].sum() * x[:-1]),
        *(lag, x[1:], pt.diff(x), x[x > 1].sum(), (pt.arange(x.shape[0]) * x).sum(), pt.ones_like(x)),
        *(pt.set_subtensor(x[1:], 3.0), pt.inc_subtensor(x[:-1], x[1:]), pt.set_subtensor(x[1:-1], 2 * x[2:])),
        *pt.grad(lag + pt.log(x[x > 1]).sum() + (pt.special.softmax(x) * x).sum(), [x]),
    ]
    values = lambda n: (rng.uniform(0.1, 3, n), int(rng.integers(-n, n)))  # noqa: E731
    f = compare_lengths([x, k], outputs, values, [5, 3, 16, 17, 4])
    for i in (3, -4):
        with pytest.raises(IndexError):
            f(np.ones(3), i)
    with pytest.raises(ValueError, match="zero-size"):
        f(np.ones(0), 0)


def test_reversed():
    x, m = pt.vector("x", dtype="float64"), pt.matrix("m", dtype="float64")
    outputs = [
        *(x[::-1], x[::-1] * x, (x[1:][::-1] - x[:-1]).sum(), pt.cumsum(x[::-1])[::-1], x[::-1][0], pt.flip(x)[-1]),
        *(m[::-1], m[::-1].T @ m, m[::-1, 0] + m[:, 1], m[:, ::-1], pt.set_subtensor(x[::-1], x), 1 / (1 + x[::-1])),
        *(
            x[:0:-1],
            x[-2::-1] * x[1:],
            x[-2:0:-1].sum(),
            pt.set_subtensor(x[:0:-1], x[1:]),
            x[:0:-1][:-1],
            m[:1:-1, 1:],
        ),
        *pt.grad((x[::-1] * pt.cumsum(x)).sum() + (m[::-1] ** 3 * m).sum(), [x, m]),
    ]
    compare_lengths([x, m], outputs, lambda n: (rng.uniform(size=n), rng.normal(size=(n, 3))), [5, 3, 16, 17, 4])


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "uint8", "bool"])
def test_sorted(dtype):
    x, m = pt.vector("x", dtype=dtype), pt.matrix("m", dtype=dtype)
    y = pt.vector("y", dtype="float64")
    order = pt.argsort(x, stable=True)
    outputs = [
        *(pt.sort(x), order, y[order], pt.sort(x)[-1], pt.sort(m, axis=0), pt.sort(m, axis=1), pt.argsort(m, axis=1)),
        *(pt.cumsum(y[order]), (y[order] * pt.arange(x.shape[0])).sum(), pt.argsort(order)),
        *pt.grad((y[order] * pt.sort(y) ** 3 * pt.arange(x.shape[0])).sum(), [y]),
    ]

    def values(n):
        arrays = [rng.integers(0, 2 if dtype == "bool" else 5, size).astype(dtype) for size in (n, (n, 3))]
        if dtype.startswith("float"):
            arrays[0][::3], arrays[1][0, 0] = np.nan, np.inf  # sorted last
        if dtype == "uint8":
            arrays[0][::2] = 255  # equal to the numbers behind the end
        return *arrays, rng.normal(size=n)

    compare_lengths([x, m, y], outputs, values, [5, 1, 16, 17, 4])


def test_complex_numbers_are_not_sorted_padded():
    z = pt.vector("z", dtype="complex128")
    f = padding([z], pt.sort(z).real)
    with pytest.warns(pjl.RecompileWarning, match="since SortOp.* must know the length itself"):
        for n in (2, 3, 4):
            np.testing.assert_array_equal(f(np.arange(n, 0, -1) * (1 + 1j)), np.arange(1, n + 1))


def test_joined_with_arrays_of_known_lengths():
    x, m = pt.vector("x", dtype="float64"), pt.matrix("m", dtype="float64")
    two = pt.tensor("two", dtype="float64", shape=(2,))
    before, after = pt.concatenate([[1.0], x]), pt.concatenate([x, two])
    both = pt.concatenate([two, x[1:], [3.0], two])
    differences = pt.concatenate([x[:1], pt.diff(x)])  # as long as x
    outputs = [
        *(before, after, both, 1 / before, before.sum(), after.prod(), both.max(), both[1:], both.shape[0], after[-1]),
        *(differences, differences * x, pt.cumsum(differences), before[:-1] - x, before[1:] - x, pt.sort(after)),
        *(pt.concatenate([m, pt.ones((1, 3))]), pt.vertical_stack(m[:1] * 2, m, m[-1:]) @ m[0], both[::-1]),
        *(pt.concatenate([pt.ones(1, "int8"), x]), pt.concatenate([pt.arange(x.shape[0]), [7]])),
        *pt.grad((before**3).sum() + (after * pt.cumsum(after)).sum() + (both**2).prod(), [x, two]),
        *pt.grad((pt.concatenate([m, pt.ones((1, 3))]) ** 3).sum(), [m]),
    ]

    def values(n):
        return rng.uniform(0.5, 1.5, n), rng.normal(size=(n, 3)), rng.uniform(0.5, 1.5, 2)

    compare_lengths([x, m, two], outputs, values, [5, 2, 16, 17, 4])


def test_joined_with_arrays_of_other_lengths():
    x, y = pt.vector("x", dtype="float64"), pt.vector("y", dtype="float64")
    for inputs, output, make in [
        ([x], pt.concatenate([x, pt.ones(1), x]), lambda n: (rng.normal(size=n),)),
        ([x, y], pt.concatenate([x, y]), lambda n: (rng.normal(size=n), rng.normal(size=4))),
    ]:
        f, want = padding(inputs, output), pytensor.function(inputs, output, mode="FAST_COMPILE")
        with pytest.warns(pjl.RecompileWarning, match="since Join.* must know the length itself"):
            for n in (2, 3, 5):
                values = make(n)
                np.testing.assert_array_equal(f(*values), want(*values))


def test_parts_of_known_lengths_at_either_end():
    x, m, k = pt.vector("x", dtype="float64"), pt.matrix("m", dtype="float64"), pt.dscalar("k")
    outputs = [
        *(x[:3], x[-3:], x[1:3] * x[-3:-1], x[:2].sum() * x, x[3:1], m[:2] @ m[-1], m[-2:, 1], x[1:][:2], x[:-1][-2:]),
        *(pt.set_subtensor(x[:3], k), pt.inc_subtensor(x[-2:], [k, 1.0]), pt.set_subtensor(m[-1:, 0], k), m[:, :2]),
        *pt.grad((x[:2] ** 2).sum() * x.sum() + (m[-2:] ** 3).sum() + pt.log(x[-1:] * x).sum(), [x, m]),
    ]
    values = lambda n: (rng.uniform(0.5, 1.5, n), rng.normal(size=(n, 3)), 2.0)  # noqa: E731
    f = compare_lengths([x, m, k], outputs, values, [5, 3, 16, 17, 4])
    assert f(*values(2))[0].shape == (2,)  # too short for the padded program
    with pytest.raises(ValueError, match="broadcast"):
        f(*values(1))


def test_first_elements_of_empty_slices():
    i, mu = pt.lvector("i"), pt.vector("mu", dtype="float64")
    f = padding([i, mu], [mu[i[1:] + 1].sum(), i.sum()])
    with pytest.warns(pjl.RecompileWarning):
        for values in ([4, 0, 1], [4, 3], [4, 0, 1, 2], [4]):  # no lane repeats the 4, whose successor is out of bounds
            total, _ = f(np.array(values), np.arange(5.0))
            assert total == sum(v + 1 for v in values[1:])
    with pytest.raises(IndexError):
        f(np.array([0, 0, 4, 0, 0]), np.arange(5.0))


def test_indices():
    mu, i, y = pt.vector("mu", dtype="float64"), pt.lvector("i"), pt.vector("y", dtype="float64")
    table = pt.matrix("table", dtype="float64")
    cost = ((y - mu[i]) ** 2).sum() + pt.special.log_softmax(table, axis=1)[pt.arange(i.shape[0]), i].sum()
    outputs = [cost, *pt.grad(cost, [mu, y, table]), pt.inc_subtensor(mu[i], 1.0), i.sum(), i.max(), i > 2]

    def values(n):
        return rng.normal(size=4), rng.integers(0, 4, n), rng.normal(size=n), rng.normal(size=(n, 4))

    f = compare_lengths([mu, i, y, table], outputs, values, [3, 5, 1])
    with pytest.raises(IndexError):
        f(np.ones(4), np.array([1, 4]), np.ones(2), np.ones((2, 4)))


def test_named_dimensions():
    x = px.xtensor("x", dims=("a",))
    compare_lengths([x], [px.math.exp(x) + x.mean(), x.sum(), x], lambda n: [np.arange(1.0, n + 1)], range(1, 40))


def test_matrices():
    x = pt.matrix("x", dtype="float64")
    cost = (x[:, 0] * pt.exp(x[:, 1])).sum()
    outputs = [
        *(x.T @ x, x.mean(axis=0), x.sum(axis=1), (x - x.mean(axis=0)).T, pt.logsumexp(x, axis=1)),
        *(pt.concatenate([x, pt.ones((x.shape[0], 1))], axis=1), pt.stack([x[:, 0], x[:, 1]], axis=1)),
        *(pt.argmax(x, axis=1), pt.cumsum(x, axis=1), pt.cumsum(x, axis=0), pt.special.softmax(x, axis=0)),
        *(pt.outer(x[:, 0], x[0]), pt.linalg.cholesky(x[:, :, None] * x[:, None, :] + pt.eye(3))),
        *pt.grad(cost + x.sum(axis=1).prod(), [x]),
    ]
    compare_lengths([x], outputs, lambda n: (rng.normal(size=(n, 3)),), [4, 2, 16])


def test_other_axes_and_several_lengths():
    x, y, z = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64"), pt.vector("z", dtype="float64")
    outputs = [pt.exp(x).sum(axis=1), x @ y, z.sum() * y, z[:-1]]

    def values(n):
        return rng.normal(size=(2, n)), rng.normal(size=n), rng.normal(size=n // 2 + 1)

    f = padding([x, y, z], outputs)
    want = pytensor.function([x, y, z], outputs, mode="FAST_COMPILE")
    with pytest.warns(pjl.RecompileWarning, match="axis 1 of 'x', axis 0 of 'y', axis 0 of 'z'"):
        for n in (3, 5, 8, 40):
            for a, b in zip(f(*values(n)), want(*values(n)), strict=True):
                assert a.shape == b.shape
    v = values(9)
    for a, b in zip(f(*v), want(*v), strict=True):
        np.testing.assert_allclose(a, b)
    assert f.vm.runner.program.recompiles.count == 1


@pytest.mark.parametrize("kind", ["step", "square", "value", "loop"])
def test_falls_back_and_says_so_once(kind):
    x, m, n = pt.vector("x", dtype="float64"), pt.matrix("m", dtype="float64"), pt.lscalar("n")
    inputs, output, values, sentence = {
        "step": ([x], (x * 2)[::2].sum(), lambda k: (np.ones(k),), r"since Subtensor.* must know the length itself"),
        "square": ([m], pt.exp(m).sum(), lambda k: (np.ones((k, k)),), "since two lengths of 'm' change"),
        "value": ([n], pt.arange(n).sum(), lambda k: (k,), "since no length of an input changes"),
        "loop": (
            [x],
            pytensor.scan(lambda v, s: s / 2 + v, [x], pt.zeros(()), return_updates=False)[-1],
            lambda k: (np.ones(k),),
            "since Scan",
        ),
    }[kind]
    f, want = padding(inputs, output, on_break="ignore"), pytensor.function(inputs, output, mode="FAST_COMPILE")
    with pytest.warns(pjl.RecompileWarning, match=sentence) as caught:
        for k in (1, 2, 3):
            np.testing.assert_allclose(f(*values(k)), want(*values(k)))
    assert len(caught) == 1 and (kind != "step" or f"Made at {__file__}" in str(caught[0].message))


def test_one_of_several_regions():
    x, w = pt.vector("x", dtype="float64"), pt.vector("w", dtype="float64")
    chosen = ifelse(w.sum() > 0, w[:2] * 2, w[:3])
    f = padding([x, w], [pt.exp(chosen).sum() * pt.exp(x).sum()], on_break="ignore")
    with pytest.warns(pjl.RecompileWarning, match="region_0.*axis 0 of 'x'"):
        for k in (1, 2, 3, 4):
            np.testing.assert_allclose(f(np.zeros(k), np.zeros(5)), [3 * k])
    assert [program.padded is not None for program in f.vm.runner.programs] == [True, False]


@pytest.mark.parametrize("results", ["numpy", "jax"])
def test_several_regions_and_updates(results):
    x = pt.vector("x", dtype="float64")
    total = pytensor.shared(np.zeros(2), name="total")
    y = pt.exp(Doubled()(pt.exp(x) + pt.log1p(x**2))) + x
    f = padding([x], [y, y.sum()], updates={total: pt.log1p(total) + total}, on_break="ignore", results=results)
    g = padding([], total * 3, updates={total: total * 2}, results=results)
    want = pytensor.function([x], [y, y.sum()], mode="FAST_COMPILE")
    with pytest.warns(pjl.RecompileWarning):
        for n in (2, 3, 5, 6):
            values = rng.uniform(size=n)
            for a, b in zip(f(values), want(values), strict=True):
                assert isinstance(a, jax.Array) == (results == "jax") and a.dtype == b.dtype
                np.testing.assert_allclose(a, b)
    assert [len(batch.specializations) for batch in pjl.explain(f).regions] == [2, 2]
    with pytest.warns(pjl.RecompileWarning, match="axis 0 of 'total'"):
        for n in (2, 3, 4):
            total.set_value(np.arange(1.0, n + 1))
            np.testing.assert_array_equal(g(), 3 * np.arange(1.0, n + 1))
            np.testing.assert_array_equal(total.get_value(), 2 * np.arange(1.0, n + 1))


def test_stance():
    x = pt.vector("x", dtype="float64")
    f = padding([x], pt.exp(x).sum())
    with pytest.warns(pjl.RecompileWarning):
        f(np.zeros(2)), f(np.zeros(3))
    with pjl.stance("fail_on_recompile"):
        assert f(np.zeros(16)) == 16
        with pytest.raises(pjl.RecompileError):
            f(np.zeros(17))
    assert f(np.zeros(17)) == 17
