"""Slices with lengths that differ from step to step of a loop, or are known at run time only: one program for all."""

from __future__ import annotations

import warnings

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import FULLGRAPH, compare, compare_error
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytensor.tensor.shape import Shape_i

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.graph.lanes.equal_lengths import END, are_equal
from pytensor_jaxpr_linker.graph.lanes.ops import ShiftLanes, SliceBounds, only_output

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

x, w, m, i, j = pt.dvector("x"), pt.dvector("w"), pt.dmatrix("m"), pt.lscalar("i"), pt.lscalar("j")
X, W = np.array([1.5, -0.5, 2.0, 0.25, 3.0]), np.array([0.5, 2.0, -1.0, 1.0, 0.75])
M = np.arange(20.0).reshape(5, 4) / 7

#: What a step computes of a number from 1 to 4, two vectors of 5 elements and a matrix of 5 rows.
STEPS = {
    "sum": lambda k, x, w, m: x[:k].sum(),
    "rest": lambda k, x, w, m: pt.exp(x[k:]).prod() + x[-k:].sum() - x[:-k].sum(),
    "window": lambda k, x, w, m: x[pt.maximum(k - 2, 0) : k].mean(),
    "no elements": lambda k, x, w, m: pt.prod(x[k:k]) + x[:k][5:].sum(),
    "two arrays": lambda k, x, w, m: (x[:k] * w[:k]).sum(),
    "two places": lambda k, x, w, m: (x[:k] - w[5 - k :]).max(),
    "convolution": lambda k, x, w, m: (x[:k] * w[:k][::-1]).sum(),
    "backwards": lambda k, x, w, m: (x[k:0:-1] * w[1 : k + 1]).sum() + (x[k - 1 :: -1] * w[:k]).sum(),
    "backwards to the first": lambda k, x, w, m: x[-1 : k - 5 : -1].sum() + x[: k - 1 : -1].sum(),
    "dot": lambda k, x, w, m: pt.dot(x[:k], w[:k]) + x[:k] @ x[:k],
    "rows": lambda k, x, w, m: x[:k] @ m[:k] + m[k, :k].sum(),
    "outer": lambda k, x, w, m: m[:k].T @ m[:k],
    "first and last": lambda k, x, w, m: x[:k][0] + x[k:][-1] * x[:k][-1] + x[:k][-k],
    "differences": lambda k, x, w, m: (pt.diff(x[: k + 1]) ** 2).sum() + (x[: k + 1][1:] * x[: k + 1][:-1]).sum(),
    "variance": lambda k, x, w, m: x[: k + 1].var() + x[:k].shape[0],
    "softmax": lambda k, x, w, m: (pt.special.softmax(x[:k]) * w[:k]).sum() + pt.special.log_softmax(x[k:])[0],
    "logsumexp": lambda k, x, w, m: pt.logsumexp(x[:k]) + pt.logaddexp(x[:k], w[:k]).sum(),
    "attention": lambda k, x, w, m: pt.special.softmax(m[:k] @ m[k - 1]) @ m[:k],
    "cumsum": lambda k, x, w, m: pt.cumsum(x[k:])[-1] * pt.cumprod(x[:k])[0] + pt.cumsum(m[:, :k], axis=0).sum(),
    "writing": lambda k, x, w, m: pt.set_subtensor(w[:k], x[:k] * 2)[k:].inc(x[k:]).sum() + w[:k][0].inc(1.0).sum(),
    "writing backwards": lambda k, x, w, m: pt.set_subtensor(w[k - 1 :: -1], x[:k] ** 2) @ x,
    "writing to part": lambda k, x, w, m: (x[:k][:1].set(w[:k][-1:]) ** 2).sum() + (x[:k][::-1].inc(w[:k]) ** 3).sum(),
    "columns": lambda k, x, w, m: m[[0, 2]][:, :k].sum() + pt.exp(m[:, :k])[np.array([1, 1])].sum(),
}  # fmt: skip


def loop(step, steps=4):
    """Return the results of a step for 1, 2 ... `steps`."""
    k = pt.arange(1, steps + 1)
    return pytensor.scan(step, sequences=[k], non_sequences=[x, w, m], strict=True, return_updates=False)


@pytest.mark.parametrize("name", STEPS)
def test_lengths_that_differ_from_step_to_step(name):
    out = loop(STEPS[name])
    gradients = pytensor.grad(pt.sin(out).sum(), [x, w, m], disconnected_inputs="ignore")
    pytensor.function([x, w, m], [out, *gradients], mode=FULLGRAPH, on_unused_input="ignore")
    compare([x, w, m], [out, *gradients], [X, W, M])


@pytest.mark.parametrize("name", STEPS)
def test_lengths_known_at_run_time(name):
    """The same slices without a loop, for a number that the program computes."""
    k = pt.exp(x[0]).astype("int64")
    out = STEPS[name](k, x, w, m)
    f = pytensor.function([x, w, m], out, mode=FULLGRAPH, on_unused_input="ignore")
    reference = pytensor.function([x, w, m], out, mode="FAST_COMPILE", on_unused_input="ignore")
    for n in range(1, 5):
        value = np.array([np.log(n + 0.5), *X[1:]])
        np.testing.assert_allclose(f(value, W, M), reference(value, W, M))
    assert len(f.vm.runner.program._specializations) == 1


def test_position_of_the_largest():
    out = loop(lambda k, x, w, m: pt.argmax(-x[k:]) * 10 + pt.argmax(x[:k]) + pt.argmax(m[:, :k], axis=0).sum())
    pytensor.function([x, w, m], out, mode=FULLGRAPH, on_unused_input="ignore")
    compare([x, w, m], out, [X, W, M])
    lowest = loop(lambda k, x, w, m: pt.argmax(x[k:]))
    compare([x, w, m], lowest, [np.full(5, -np.inf), W, M])
    compare_error([x, i], pt.argmax(x[x[0].astype("int64") :]), [np.array([3.0, 1.0]), 0], match="argmax of an empty")


def test_state_that_grows_by_its_past():
    """The renewal equation of an epidemic: the infections of a day are a sum over earlier days, weighted by age."""
    out = pytensor.scan(
        lambda day, infected, w: pt.set_subtensor(infected[day], (infected[:day] * w[day - 1 :: -1]).sum()),
        sequences=[pt.arange(1, 5)],
        outputs_info=[pt.zeros(5)[0].set(x[0])],
        non_sequences=[w],
        strict=True,
        return_updates=False,
    )[-1]
    gradients = pytensor.grad(out.sum(), [x, w])
    pytensor.function([x, w], [out, *gradients], mode=FULLGRAPH, on_unused_input="ignore")
    compare([x, w], [out, *gradients], [X, W])


@settings(max_examples=25, deadline=None)
@given(st.integers(-7, 7), st.integers(-7, 7), st.integers(-7, 7))
def test_slices_of_slices(a, b, c):
    k = [v + pt.isnan(x[0]).astype("int64") for v in (i, j, pt.constant(c))]
    part = x[k[0] : k[1]]
    outputs = [part[k[2] :].sum(), part[: k[2]].sum(), (part[::-1][k[2] :] ** 2).sum(), x[k[0] : k[1] : -1].sum()]
    outputs += [x[k[2] :: -1].sum(), x[: k[2] : -1].sum(), x[k[0] : k[1] : -1].inc(1.0), (part * part[::-1]).sum()]
    pytensor.function([x, i, j], outputs, mode=FULLGRAPH, on_unused_input="ignore")
    compare([x, i, j], outputs, [X, a, b])


def test_lengths_that_do_not_match():
    k = x[0].astype("int64")
    for out in (x[:k] * w[: k + 1], pt.dot(x[:k], w[: k + 1]), pt.set_subtensor(w[:k], x[: k + 2])):
        pytensor.function([x, w], out.sum(), mode=FULLGRAPH, on_unused_input="ignore")
        compare_error([x, w], out.sum(), [np.array([2.0, 1.0, 3.0, 5.0]), W])
    compare([x, w], pt.set_subtensor(w[:k], x[:1]).sum(), [np.array([2.0, 1.0, 3.0]), W])
    one = pt.set_subtensor(w[: k + 1], x[k - 1 : k])  # NumPy repeats a single element
    pytensor.function([x, w], one, mode=FULLGRAPH, on_unused_input="ignore")
    compare([x, w], one, [np.array([2.0, 1.0, 3.0]), W])


def test_values_of_unknown_length_are_written_to_a_slice_of_a_slice():
    k = x[0].astype("int64")
    out = (pt.set_subtensor(x[:k][1:], w) ** 2).sum()
    pytensor.function([x, w], out, mode=FULLGRAPH)
    compare([x, w], out, [np.array([3.0, 1.0, 4.0, 5.0]), W[:2]])
    compare([x, w], out, [np.array([3.0, 1.0, 4.0, 5.0]), W[:1]])
    compare_error([x, w], out, [np.array([3.0, 1.0, 4.0, 5.0]), W[:3]], match="could not be broadcast")


@pytest.mark.parametrize("position", [2, -3])
def test_index_outside_of_a_slice(position):
    k = x[0].astype("int64")
    compare_error([x], pt.cumsum(x[:k])[position], [np.array([2.0, 1.0, 3.0, 5.0])])
    compare_error([x], pt.cumsum(x[:k])[position].inc(1.0).sum(), [np.array([2.0, 1.0, 3.0, 5.0])])


@pytest.mark.parametrize("name", ["convolution", "differences", "attention", "softmax", "writing", "cumsum"])
def test_transformations(name):
    """`jax.grad` by the rules of JAX, and a batch, agree with PyTensor's gradient."""
    with jax.enable_x64(True):
        fn = pjl.as_jax_function([x, w, m], loop(STEPS[name]).sum(), gradient="jax")
        expected = pjl.as_jax_function([x, w, m], loop(STEPS[name]).sum())
        for argument in range(2):
            got = jax.grad(fn, argument)(X, W, M)
            np.testing.assert_allclose(got, jax.grad(expected, argument)(X, W, M), atol=1e-12)
        batch = np.stack([X, 2 * X])
        np.testing.assert_allclose(jax.vmap(lambda x: fn(x, W, M))(batch), [fn(v, W, M) for v in batch])


def test_float32_and_integers():
    xs, xi = pt.fvector("xs"), pt.ivector("xi")
    k = pt.arange(1, 5)
    step = lambda k, x: (x[:k] * x[:k][::-1]).sum() + pt.cumsum(x[k:]).max()  # noqa: E731
    for v, value in ((xs, X.astype("float32")), (xi, np.array([3, 1, -4, 1, 5], "int32"))):
        out = pytensor.scan(step, sequences=[k], non_sequences=[v], strict=True, return_updates=False)
        pytensor.function([v], out, mode=FULLGRAPH, on_unused_input="ignore")
        compare([v], out, [value], rtol=1e-5)


def test_one_graph_whose_number_varies_in_one_loop_only():
    """PyTensor takes the inner graphs of both loops for equal."""
    step = lambda v, k: pt.ones(k).sum() * v  # noqa: E731
    steps = {"strict": True, "return_updates": False}
    same = pytensor.scan(lambda v, k: step(v, k), sequences=[x], non_sequences=[i], **steps)
    differs = pytensor.scan(lambda v, k: step(v, k), sequences=[x, pt.arange(5) * i], **steps)
    for outputs in ([same], [differs], [same, differs], [differs, same]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pjl.GraphBreakWarning)
            compare([x, i], outputs, [X, 3])


def test_slice_of_a_slice_backwards():
    """A slice that is not kept as lanes goes to the host as a length."""
    k = x[0].astype("int64")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pjl.GraphBreakWarning)
        compare([x, i], [x[:k][i::-1], x[:k][::2], x[:k][i::-1].set(0.0), m[:k, :k].sum()][:3], [X * 2, 1])


def test_deep_numbers():
    """A number that takes many operations is followed some way only."""
    k = x[0].astype("int64")
    for _ in range(1500):
        k = pt.maximum(k, 1) * 1 + pt.minimum(k, 0)
    gradient = pytensor.grad((pt.cumsum(x[:k])[-1]) ** 2, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pjl.GraphBreakWarning)
        compare([x], gradient, [X * 2])


def test_a_length_without_a_bound_is_a_break():
    """How many elements ``arange(k)`` has is known by nothing outside of the loop."""
    out = loop(lambda k, x, w, m: pt.arange(k * x[0].astype("int64")).sum())
    with pytest.raises(pjl.GraphBreakError, match=r"in the loop.*numbers that are known only when the program runs"):
        pytensor.function([x, w, m], out, mode=FULLGRAPH, on_unused_input="ignore")


def test_equal_lengths():
    n, fixed = only_output(Shape_i(0), x), only_output(Shape_i(0), pt.vector(shape=(100,)))
    zero = pt.constant(0)

    def length(start, stop, n):
        return SliceBounds().make_node(start, stop, n).outputs[1]

    def formula(n):
        return pt.switch(pt.lt(i, 0), pt.maximum(i + n, 0), pt.minimum(i, n))

    assert are_equal(length(zero, i, n), formula(n))
    assert are_equal(length(zero, i, fixed), formula(100))
    assert are_equal(length(i, pt.constant(END), n), n - length(zero, i, n))
    assert are_equal(length(zero, i - 1, n), pt.switch(pt.lt(i, 1), pt.maximum(i - 1 + n, 0), pt.minimum(i - 1, n)))


def test_lengths_that_are_not_equal():
    """Also where they differ for numbers only that are far from 0, or for one number, or by what isn't followed."""
    n, other, fixed = (
        only_output(Shape_i(0), x),
        only_output(Shape_i(0), w),
        only_output(Shape_i(0), pt.vector(shape=(100,))),
    )
    positive = pt.maximum(i, 0)
    length = SliceBounds().make_node(pt.constant(0), positive, n).outputs[1]
    in_fixed = SliceBounds().make_node(pt.constant(0), positive, fixed).outputs[1]
    k = pt.lscalar("k")
    different = [
        *((length, v) for v in (positive, n, other, pt.minimum(positive, other), pt.minimum(i, n))),
        (length, pt.switch(pt.gt(i, 1000), 0, length)),
        (length, pt.switch(pt.eq(i, 3), 0, length)),
        (length, pt.switch(pt.lt(i + 4 + 4 + 4 + 4, 0), 1, length)),
        (length, pt.switch(pt.gt(i * i, 500), 0, length)),
        (length, pt.minimum(length, 16 * k)),
        (length, pt.switch(pt.gt(k, 0), pt.minimum(length, sum([k] * 15, k)), length)),
        (length, pt.minimum(length, 100)),
        (n, pt.cast(pt.cast(n, "int8"), "int64")),
        (in_fixed, positive),
        (in_fixed, pt.minimum(positive, 99)),
    ]
    for a, b in different:
        assert not are_equal(a, b), (a, b)


def test_a_length_with_a_distant_bound():
    """Two lengths that are equal for small numbers only are two lengths."""
    part = x[: x.argmax()]
    integers = [x[i].astype("int64") for i in range(13)]
    n = pt.minimum(part.shape[0], pt.add(*integers))
    for k in integers:
        n = pt.switch(pt.gt(k, 0), n, part.shape[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pjl.GraphBreakWarning)
        compare([x], pt.cumsum(pt.full((n,), part.sum())).sum(), [np.linspace(1, 1.9, 40)])


FORMULAS = st.recursive(
    st.sampled_from(["a", "b", "n", "m"]) | st.integers(-3, 3) | st.sampled_from([70, END]),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["add", "sub", "maximum", "minimum"]), inner, inner),
        st.tuples(st.just("neg"), inner),
        st.tuples(st.just("mul"), inner, st.integers(-2, 3)),
        st.tuples(st.just("where"), st.sampled_from(["lt", "le", "gt", "ge", "eq", "neq"]), inner, inner, inner, inner),
    ),
    max_leaves=7,
)


def graph_of(formula, atoms):
    """Return a formula as a graph."""
    match formula:
        case str() | int():
            return atoms[formula] if formula in atoms else pt.constant(formula, dtype="int64")
        case "where", kind, a, b, c, d:
            a, b, c, d = (graph_of(v, atoms) for v in (a, b, c, d))
            return pt.switch(getattr(pt, kind)(a, b), c, d)
        case kind, *operands:
            return getattr(pt, kind)(*(graph_of(v, atoms) for v in operands))


#: The functions of NumPy that do what PyTensor's do.
IN_NUMPY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "neq": np.not_equal,
}


def numbers_of(formula, atoms):
    """Return what a formula is for integers of any size, as an array of objects."""
    match formula:
        case str() | int():
            found = atoms.get(formula, formula)
        case "where", kind, a, b, c, d:
            a, b, c, d = (numbers_of(v, atoms) for v in (a, b, c, d))
            found = np.where(IN_NUMPY[kind](a, b).astype(bool), c, d)
        case kind, *operands:
            found = IN_NUMPY[kind](*(numbers_of(v, atoms) for v in operands))
    return np.asarray(found, object)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(FORMULAS, FORMULAS, st.booleans())
def test_formulas_that_are_proved_to_be_equal(formula, other, is_related):
    """A proved equality holds for all numbers, and the ways in which PyTensor writes a length are proved."""
    integers, lengths = [-(2**40), -70, -5, -2, -1, 0, 1, 2, 3, 69, 70, 2**40], [0, 1, 2, 3, 4, 69, 70, 2**40]
    values = dict(zip("abnm", np.meshgrid(integers, integers, lengths, lengths, indexing="ij"), strict=True))
    values = {name: v.ravel().astype(object) for name, v in values.items()}
    atoms = {
        "a": pt.lscalar("a"),
        "b": pt.lscalar("b"),
        "n": only_output(Shape_i(0), x),
        "m": only_output(Shape_i(0), w),
    }
    if is_related:  # equal wherever both are, or where the second is larger
        other = ("maximum", formula, other)
    one, two = graph_of(formula, atoms), graph_of(other, atoms)
    if are_equal(one, two):
        assert np.array_equal(*np.broadcast_arrays(numbers_of(formula, values), numbers_of(other, values)))
    assert are_equal(graph_of(("sub", ("add", formula, "a"), "a"), atoms), one)
    bounded = ("where", "lt", formula, "n", formula, "n")
    assert are_equal(graph_of(bounded, atoms), graph_of(("minimum", formula, "n"), atoms))


@pytest.mark.parametrize("shift", [-7, -2, 0, 1, 9])
@pytest.mark.parametrize("n", [0, 3, 5, 8])
def test_shifted_lanes(shift, n):
    outputs = [only_output(ShiftLanes(0), x, i, pt.constant(n)), only_output(ShiftLanes(1), m, i, pt.constant(n))]
    compare([x, m, i], outputs, [X, M, shift])
    compare([x, m, i], outputs, [X[:0], M[:, :0], shift])
