"""Permutations and choices without replacement: how frequent each order is, dtypes, shapes and errors."""

from itertools import permutations

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.stats as st
from helpers import FULLGRAPH, compare, compare_error
from pytensor.tensor.random.type import random_generator_type

import pytensor_jaxpr_linker as pjl

R = pt.random
DRAWS = 6000


def generator(seed=20240511):
    return pytensor.shared(np.random.default_rng(seed), name="rng")


def repeated(draw, value):
    """Return draws of the Op of `draw` for a batch of DRAWS equal arrays."""
    op, (_, _, _, *params) = draw.owner.op, draw.owner.inputs
    batch = pt.tensor(dtype=value.dtype, shape=(None, *value.shape))
    _, x = op(batch, *params, rng=generator(), return_next_rng=True)
    return pytensor.function([batch], x, mode=FULLGRAPH)(np.broadcast_to(value, (DRAWS, *value.shape)))


def check_frequencies(draws, expected):
    """Compare how often each sequence was drawn with its probability."""
    observed = dict.fromkeys(expected, 0)
    for sequence in draws.tolist():
        observed[tuple(sequence)] += 1
    chances = np.array(list(expected.values()))
    np.testing.assert_allclose(chances.sum(), 1)
    assert st.chisquare(list(observed.values()), chances * DRAWS).pvalue > 1e-4


@pytest.mark.parametrize("dtype", ["int8", "float32", "bool"])
def test_permutations_are_equally_frequent(dtype):
    value = np.arange(2 if dtype == "bool" else 4).astype(dtype)
    draws = repeated(R.permutation(value, rng=generator(), return_next_rng=True)[1], value)
    assert draws.dtype == dtype
    orders = list(permutations(value.tolist()))
    check_frequencies(draws, {order: 1 / len(orders) for order in orders})


@pytest.mark.parametrize("weights", [None, [0.5, 0.3, 0.2, 0.0], [0.97, 0.01, 0.01, 0.01]])
def test_choices_are_successive_draws(weights):
    """The probability of a sequence: each element by its weight among the remaining elements."""
    p = np.full(4, 0.25) if weights is None else np.array(weights)

    def chance(sequence):
        left, product = 1.0, 1.0
        for i in sequence:
            product, left = product * p[i] / left, left - p[i]
        return product

    expected = {s: chance(s) for s in permutations(range(4), 2)}
    given = None if weights is None else p
    draw = R.choice(np.arange(4), size=2, replace=False, p=given, rng=generator(), return_next_rng=True)[1]
    draws = repeated(draw, np.arange(4))
    possible = {s: c for s, c in expected.items() if c > 0}
    check_frequencies(draws, possible)


def test_rows_stay_together():
    rng, a = generator(), pt.tensor3("a", dtype="float32")
    outputs = [
        R.permutation(a, rng=rng, return_next_rng=True)[1],
        R.choice(a, size=(2, 2), replace=False, rng=rng, return_next_rng=True)[1],
        R.choice(a, size=(3,), replace=False, p=np.full(5, 0.2), rng=rng, return_next_rng=True)[1],
        R.choice(a, size=(2, 4), rng=rng, return_next_rng=True)[1],
        R.choice(a, size=(2, 4), p=np.full(5, 0.2), rng=rng, return_next_rng=True)[1],
    ]
    value = np.arange(30, dtype="float32").reshape(5, 3, 2)
    results = pytensor.function([a], outputs, mode=FULLGRAPH)(value)
    for x, shape, count in zip(results, [(5,), (2, 2), (3,), (2, 4), (2, 4)], [5, 4, 3, None, None], strict=True):
        assert x.dtype == "float32"
        assert x.shape == (*shape, 3, 2)
        rows = x.reshape(-1, 3, 2)
        np.testing.assert_array_equal(rows, value[(rows[:, 0, 0] / 6).astype(int)])
        assert count is None or len(np.unique(rows[:, 0, 0])) == count


def test_numbers_below_a_number():
    n = pt.lscalar("n")
    rng = generator()
    outputs = [
        R.permutation(n, rng=rng, return_next_rng=True)[1],
        R.choice(n, size=(2, 3), replace=False, rng=rng, return_next_rng=True)[1],
        R.choice(6, size=(6,), replace=False, p=pt.ones(6) / 6, rng=rng, return_next_rng=True)[1],
    ]
    f = pytensor.function([n], outputs, mode=FULLGRAPH)
    for x, variable in zip(f(6), outputs, strict=True):
        assert x.dtype == variable.type.dtype
        np.testing.assert_array_equal(np.sort(x.ravel()), np.arange(6))
    assert f(7)[0].shape == (7,)


def test_draws_without_choice():
    """Parameters that leave one result: FAST_COMPILE's."""
    rng = generator()
    outputs = [
        R.permutation(0, rng=rng, return_next_rng=True)[1],
        R.permutation(np.zeros((0, 3)), rng=rng, return_next_rng=True)[1],
        R.permutation(np.zeros((3, 0), "int8"), rng=rng, return_next_rng=True)[1],
        R.permutation(np.array([[7, 8, 9]]), rng=rng, return_next_rng=True)[1],
        R.choice(np.array([2.5]), size=(1, 1), replace=False, rng=rng, return_next_rng=True)[1],
        R.choice(np.array([2.5, 3.5]), size=(), replace=False, p=np.array([0, 1.0]), rng=rng, return_next_rng=True)[1],
        R.choice(0, size=(0,), replace=False, rng=rng, return_next_rng=True)[1],
        R.choice(np.arange(3), size=(2, 0), replace=False, rng=rng, return_next_rng=True)[1],
    ]
    compare([], outputs, [])


@pytest.mark.parametrize(
    "n, p, size, match",
    [
        (3, None, 4, "larger sample than population"),
        (0, None, 1, "a cannot be empty"),
        (3, [0.5, 0.5, 0.5], 2, "Probabilities do not sum to 1"),
        (3, [0.5, 0.6, -0.1], 2, "Probabilities are not non-negative"),
        (3, [0.5, np.nan, 0.5], 2, "Probabilities contain NaN"),
        (3, [0.5, 0.5, 0.0], 3, "Fewer non-zero entries in p than size"),
    ],
)
def test_errors(n, p, size, match):
    a, weights = pt.dvector("a"), pt.dvector("p")
    given = None if p is None else weights
    _, x = R.choice(a, size=size, replace=False, p=given, rng=generator(), return_next_rng=True)
    compare_error([a, weights], x, [np.arange(float(n)), np.array(p or [])], match=match)


def test_several_numbers_are_left_to_numpy():
    n = pt.lvector("n")
    _, x = R.permutation(pt.lscalar("m"), rng=generator(), return_next_rng=True)
    node = x.owner.op.make_node(generator(), None, n)
    with pytest.raises(pjl.GraphBreakError, match="it takes several numbers"):
        pytensor.function([n], node.outputs[1], mode=FULLGRAPH)


def test_vmap_over_keys():
    rng, a = random_generator_type("rng"), pt.dvector("a")
    next_rng, x = R.permutation(a, rng=rng, return_next_rng=True)
    _, y = R.choice(a, size=(2,), replace=False, rng=next_rng, return_next_rng=True)
    fn = pjl.as_jax_function([rng, a], [x, y])
    value = np.arange(50.0)
    with jax.enable_x64(True):
        keys = jax.random.key_data(jax.random.split(jax.random.key(0), 4))
        batch = jax.vmap(fn, in_axes=(0, None))(keys, value)
        for one, many in zip(fn(keys[2], value), batch, strict=True):
            np.testing.assert_array_equal(many[2], one)
            assert len({tuple(row) for row in np.asarray(many).tolist()}) == 4
