"""Parts of a program that XLA's CPU compiler emits as one function."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import compare
from jax import lax
from prim_rows import ROWS, assembled

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.jaxpr.optimize import small_calls
from pytensor_jaxpr_linker.jaxpr.optimize.finish import for_calls
from pytensor_jaxpr_linker.jaxpr.optimize.small_calls import (
    LEAST_IN_KERNEL,
    MOST_IN_KERNEL,
    MOST_RESULTS,
    fits_small_call,
    in_order_of_use,
    split_small,
    with_small_calls,
)
from pytensor_jaxpr_linker.jaxpr.optimize.xla_options import CallProgram, options_of_call, options_of_chain
from pytensor_jaxpr_linker.run.placement import own_device

ATTRIBUTE = 'xla_cpu_small_call="true"'
SMALL_ROWS = [r for r in ROWS if all(map(fits_small_call, assembled(r).eqns))]


def on_own_client(closed):
    """Return the function that runs a closed Jaxpr on the package's CPU client."""
    sharding = jax.sharding.SingleDeviceSharding(own_device())
    return jax.jit(lambda *xs: jax_compat.call_jaxpr(closed, *xs), in_shardings=sharding)


def in_calls(closed):
    """Return a closed Jaxpr with small calls; its last result is their witness."""
    return for_calls(closed, into_first=False).jaxpr


def parts_of(f, *values) -> list[tuple[int, bool]]:
    """Return how many equations each part of a function's Jaxpr has, and whether it is one function."""
    return [(len(part.eqns), part.is_small) for part in split_small(pjl.make_jaxpr(f, *values).eqns)]


@pytest.fixture
def every_size(monkeypatch):
    monkeypatch.setattr(small_calls, "LEAST_EQUATIONS", 1)


@pytest.mark.usefixtures("every_size")
@pytest.mark.parametrize("row", SMALL_ROWS, ids=[r.name for r in SMALL_ROWS])
def test_each_primitive_in_one_function(row):
    """The compiler's process would end at a primitive that its emitter lacks, so each one is compiled here."""
    with jax.enable_x64(True):
        closed = assembled(row)
        parts = on_own_client(in_calls(closed))
        if closed.eqns:
            assert ATTRIBUTE in parts.lower(*row.operands).compile().as_text()
        *results, witness = parts(*row.operands)
        assert (witness.dtype, witness.shape) == (np.float64, ())
        for got, want in zip(results, on_own_client(closed)(*row.operands), strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            eps = np.finfo(want.dtype).eps if want.dtype.kind in "fc" else 0
            np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=4 * eps, atol=0)


def test_primitives_that_stay_alone():
    alone = {r.name for r in ROWS} - {r.name for r in SMALL_ROWS}
    assert {"sort", "scatter", "scatter_add", "fft", "dot_general", "cholesky", "triangular_solve", "svd"} <= alone
    assert alone.isdisjoint({"add", "exp", "reduce_sum", "gather", "scan", "while_loop", "cond", "cumsum", "select"})


@pytest.mark.usefixtures("every_size")
def test_equations_between_others_are_one_part():
    x, i = pt.dvector("x"), np.arange(20) % 3
    y = pt.exp(x) * 2 + 1
    sums = pt.inc_subtensor(pt.log1p(x)[:3][i], pt.sin(y))  # a scatter
    outputs = [(pt.exp(sums) * x[:3] - 1).sum(), pt.cos(y).sum(), pt.sort(y)[0] * 3]
    f = pytensor.function([x], outputs, mode="JAXPR")
    value = np.linspace(0.1, 2, 20)
    assert [small for _, small in parts_of(f, value)] == [True, False, True]
    compare([x], outputs, [value])


@pytest.mark.usefixtures("every_size")
def test_parameters_that_only_the_witness_reads():
    """XLA finds that the results do not depend on them. Each would end the process if nothing read it."""
    b = pjl.JaxprBuilder()
    x = b.input((3,), np.dtype("int64"))
    n = b.input((2, 2), np.dtype("int32"))
    z = b.input((), np.dtype("complex128"))
    zeros = pjl.prims.mul(b, x, b.constant(np.int64(0)))
    same = pjl.prims.sub(b, n, n)
    nothing = pjl.prims.imag(b, pjl.prims.convert(b, pjl.prims.real(b, z), np.complex128))
    closed = b.build([zeros, same, nothing])
    values = np.arange(3), np.ones((2, 2), "int32"), np.array(2 + 1j)
    with jax.enable_x64(True):
        *results, witness = on_own_client(in_calls(closed))(*values)
    assert [np.asarray(r).tolist() for r in results] == [[0, 0, 0], [[0, 0], [0, 0]], 0.0]
    assert np.asarray(witness) == 2


@pytest.mark.parametrize("dtype", ["float64", "float32", "int8", "bool", "complex64"])
def test_the_witness_is_part_of_packed_results(dtype):
    x = pt.vector("x", dtype=dtype)
    outputs = [x[0], x[::-1], pt.concatenate([x[:1], x, x[1:]]), pt.where(pt.neq(x, x[0]), x, x[-1])]
    value = np.arange(4).astype(dtype)
    f = pytensor.function([x], outputs, mode="JAXPR")
    compare([x], outputs, [value])
    f(value)
    (call,) = f.vm.runner.program.specialize(()).packed_calls.values()
    assert len(call.results.pieces) == 4


@pytest.mark.parametrize("also_returned", [False, True])
def test_the_last_call_ends_with_the_witness(also_returned):
    """A kernel of its own for the witness would take XLA 7 ms to compile. A result that is returned twice stays."""

    def function(x):
        y = jnp.concatenate([jnp.exp(x) + 1, jnp.sin(x)])
        return (y, y) if also_returned else (y, x.sum())

    with jax.enable_x64(True):
        closed = jax.make_jaxpr(function)(np.ones(3))
        given, whole = CallProgram(closed), [small_calls.Part([*closed.eqns], True)]
        program = with_small_calls(given, into_first=True, split=lambda eqns: whole).jaxpr
        first, second = map(np.asarray, on_own_client(program)(np.arange(3.0)))
    outside = [eqn.primitive.name for eqn in program.eqns]
    assert ("concatenate" in outside) == also_returned
    expected = [*(np.exp(np.arange(3.0)) + 1), *np.sin(np.arange(3.0))]
    np.testing.assert_allclose(first[:-1], expected)
    np.testing.assert_allclose(second, expected if also_returned else 3.0)
    assert first[-1] == 0  # the first element of x


@pytest.mark.parametrize("n", [40, 1300, 8000])
def test_arrays_that_xla_knows(n):
    """A parameter that is a constant of over 10,000 bytes ends the process: XLA moves it into the call's body."""
    x, k = pt.dscalar("x"), pt.lscalar("k")
    data = np.sin(np.arange(n))
    known = [
        pt.constant(data),
        pt.concatenate([pt.zeros(n - 3), data[:3]]),
        pt.where(pt.eq(k * 0, 0), data, 1.0),
        pt.sort(pt.constant(data)),
        data + k * 0,
        pt.arange(n) + pt.zeros(n),
    ]

    def fold(u, state, x):
        return pt.tanh(state * x + u)

    states = [
        pytensor.scan(fold, sequences=[v], outputs_info=[pt.zeros(())], non_sequences=[x], return_updates=False)[-1]
        for v in known
    ]
    for outputs in (states, [pt.exp(x) * 2 + pt.sin(state * x) for state in states]):
        compare([x, k], outputs, [np.array(0.5), np.array(3)])


@pytest.mark.usefixtures("every_size")
def test_large_arrays_stay_outside():
    x = pt.dvector("x")
    f = pytensor.function([x], [pt.exp(x) * 2 + pt.sin(x) - 3, (pt.cos(x[:4]) * 2 + 1).sum()], mode="JAXPR")
    assert [small for _, small in parts_of(f, np.ones(100))] == [True]
    large = np.ones(small_calls.MOST_BYTES // 8 + 1)
    parts = parts_of(f, large)
    assert not parts[0][1]
    assert sum(n for n, _ in parts) == sum(n for n, _ in parts_of(f, np.ones(100)))
    np.testing.assert_allclose(f(large)[0], np.exp(1) * 2 + np.sin(1) - 3)


def test_empty_arrays_stay_outside():
    x = pt.dvector("x")
    outputs = [pt.exp(x) * 2 + pt.sin(x) - 3, pt.exp(x).sum() * 2 + 1]
    compare([x], outputs, [np.zeros(0)])


def test_loops_over_empty_arrays_stay_outside():
    x = pt.dvector("x")
    states = pytensor.scan(lambda s: pt.tanh(s) * 2 + pt.exp(s) - s, outputs_info=[x], n_steps=3, return_updates=False)
    for n in (0, 2):
        compare([x], [states, states[-1].sum()], [np.ones(n)])


def test_long_programs_are_several_functions(monkeypatch):
    monkeypatch.setattr(small_calls, "MOST_EQUATIONS", 10)
    x = y = pt.dvector("x")
    for i in range(40):
        y = pt.sin(y) + x * i
    f = pytensor.function([x], y, mode="JAXPR")
    value = np.linspace(0, 1, LEAST_IN_KERNEL - 1)
    parts = parts_of(f, value)
    assert len(parts) > 5
    assert max(n for n, _ in parts) == 10
    compare([x], [y], [value])


def chain(x, y, steps: int):
    """Return a chain of elementwise Ops, four a step."""
    for _ in range(steps):
        x = pt.tanh(pt.sin(x) + y) * y
    return x


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size, are_kernels", [(LEAST_IN_KERNEL - 1, False), (LEAST_IN_KERNEL, True), (100, True)])
def test_long_arithmetic_is_several_kernels(size, are_kernels, dtype):
    """Where vectors are long enough; the arguments and the results stay in functions."""
    x, y = (pt.vector(name, dtype=dtype, shape=(size,)) for name in "xy")
    rng = np.random.default_rng(1)
    values = [rng.standard_normal(size).astype(dtype), rng.uniform(0.5, 1.5, size).astype(dtype)]
    f = pytensor.function([x, y], chain(x, y, 80), mode="JAXPR")
    apart = [part for part in split_small(pjl.make_jaxpr(f, *values).eqns) if part.is_apart]
    assert [len(part.eqns) for part in apart] == [MOST_IN_KERNEL] * (80 * 4 // MOST_IN_KERNEL) * are_kernels
    compare([x, y], chain(x, y, 80), values, rtol=1e-5 if dtype == "float32" else 1e-9)


@pytest.mark.parametrize(
    "cores, work, most, length",
    [
        (2, 40_000, 2048, 320),  # a tanh, a sine, a product and a sum of 100 numbers, 80 times: 48,000 operations
        (2, 24_000, 2048, 160),
        (2, 49_000, 2048, MOST_IN_KERNEL),
        (2, 40_000, 300, MOST_IN_KERNEL),
        (1, 40_000, 2048, MOST_IN_KERNEL),
    ],
)
def test_a_kernel_has_as_many_equations_as_two_threads_need(monkeypatch, cores, work, most, length):
    monkeypatch.setattr(small_calls, "usable_cores", lambda: cores)
    monkeypatch.setattr(small_calls, "WORK_FOR_THREADS", work)
    monkeypatch.setattr(small_calls, "MOST_IN_THREADS", most)
    x, y = pt.vector("x", shape=(100,)), pt.vector("y", shape=(100,))
    values = [np.linspace(-1, 1, 100), np.linspace(0.5, 1.5, 100)]
    f = pytensor.function([x, y], chain(x, y, 80), mode="JAXPR")
    apart = [part for part in split_small(pjl.make_jaxpr(f, *values).eqns) if part.is_apart]
    assert [len(part.eqns) for part in apart] == [length] * (320 // length)
    compare([x, y], chain(x, y, 80), values)


def test_arithmetic_with_many_results_is_functions():
    """Each result is a kernel of its own; a gradient reads much that the value is computed from."""
    x, y = (pt.vector(name, shape=(20,)) for name in "xy")
    total = sum(pt.exp(-pt.sqr(x - c) / (1 + pt.sqr(y + c))).sum() for c in np.linspace(0, 1, 30))
    outputs = [total, pt.grad(total, x)]
    values = np.linspace(0.0, 1.0, 20), np.linspace(1.0, 2.0, 20)
    parts = split_small(pjl.make_jaxpr(pytensor.function([x, y], outputs, mode="JAXPR"), *values).eqns)
    read = [{v for eqn in part.eqns for v in eqn.invars if not hasattr(v, "val")} for part in parts]
    results = [
        {v for eqn in part.eqns for v in eqn.outvars}.intersection(set().union(*read[i + 1 :]))
        for i, part in enumerate(parts)
    ]
    assert max(map(len, results)) > MOST_RESULTS
    assert all(
        part.is_small and not part.is_apart
        for part, found in zip(parts, results, strict=True)
        if len(found) > MOST_RESULTS
    )
    compare([x, y], outputs, values)


def test_long_programs_in_order_of_use():
    x = y = pt.dvector("x")
    for i in range(40):
        y = pt.sin(y) + x * i
    eqns = pjl.make_jaxpr(pytensor.function([x], y, mode="JAXPR"), np.ones(5)).eqns
    ordered = in_order_of_use(eqns)
    position = {var: i for i, eqn in enumerate(ordered) for var in eqn.outvars}
    distances = [
        i - position[v] for i, eqn in enumerate(ordered) for v in eqn.invars if not hasattr(v, "val") and v in position
    ]
    assert len(ordered) == len(eqns)
    assert 1 <= min(distances) <= max(distances) <= 2


@pytest.mark.usefixtures("every_size")
def test_long_reductions_read_memory():
    """A barrier stands before a sum of elements that take long to compute, and only there."""
    x = pt.dvector("x")
    f = pytensor.function([x], [pt.log1p(x).sum(), (x * 2).sum(), (pt.exp(x) * x).max()], mode="JAXPR")
    for length, barriers in ((100, 2), (10, 0)):
        closed = in_calls(pjl.make_jaxpr(f, np.ones(length)))
        (call,) = (eqn for eqn in closed.eqns if eqn.primitive.name == "xla_metadata_call")
        names = [eqn.primitive.name for eqn in call.params["jaxpr"].eqns]
        assert names.count("optimization_barrier") == barriers
        compare([x], [pt.log1p(x).sum(), (x * 2).sum(), (pt.exp(x) * x).max()], [np.linspace(0, 1, length)])


def passes_left_out(options) -> set[str]:
    """Return which of XLA's passes options leave out."""
    return set(filter(None, options.get("xla_disable_hlo_passes", "").split(",")))


TWO_STEPS, COPIES, LIBRARY = "tree_reduction_rewriter", "flatten-call-graph", "xla_cpu_experimental_ynn_fusion_type"


@pytest.mark.usefixtures("every_size")
@pytest.mark.parametrize("length", [10, 300, 10_000])
def test_options_follow_the_size_of_reductions(length):
    x = pt.dvector("x")
    sums = [pt.sort(x)[0], pt.exp(x).sum()]
    f = pytensor.function([x], [pt.exp(x).max() * 2 + 1, *sums], mode="JAXPR")
    closed = pjl.make_jaxpr(f, np.ones(length))
    call, chain = options_of_call(in_calls(closed)), options_of_chain(closed)
    # Reductions of up to 1,024 numbers are inside of small calls.
    assert passes_left_out(call) == ({COPIES} if length == 10_000 else {TWO_STEPS, COPIES})
    assert passes_left_out(chain) == (set() if length == 10_000 else {TWO_STEPS})
    library = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT" if length == 10_000 else ""
    assert call[LIBRARY] == chain[LIBRARY] == library
    without_maximum = pjl.make_jaxpr(pytensor.function([x], sums, mode="JAXPR"), np.ones(length))
    assert options_of_chain(without_maximum).get(LIBRARY) == (None if length == 10_000 else "")


def loop(x):
    return pytensor.scan(lambda s: s * 0.5, outputs_info=x, n_steps=3, return_updates=False)[-1]


@pytest.mark.parametrize(
    "function, is_arithmetic",
    [(pt.exp, True), (pt.cumsum, True), (pt.psi, False), (loop, False), (lambda x: x @ pt.outer(x, x), True)],
)
def test_llvm_optimizes_arithmetic_less(function, is_arithmetic):
    x = pt.dvector("x")
    f = pytensor.function([x], function(x) + 1, mode="JAXPR")
    options = options_of_call(in_calls(pjl.make_jaxpr(f, np.ones(20))))
    assert options.get("xla_backend_optimization_level") == (1 if is_arithmetic else None)


@pytest.mark.parametrize("is_inside", [True, False])
def test_options_of_a_chain_leave_out_conditions(is_inside):
    def function(condition, x):
        if is_inside:
            return lax.cond(condition, lambda x: x.max(), lambda x: x[0], x)
        return lax.cond(condition, lambda x: x[1], lambda x: x[0], x) * x.max()

    chain = options_of_chain(jax.make_jaxpr(function)(True, np.ones(10_000)))
    assert passes_left_out(chain) == ({TWO_STEPS} if is_inside else set())
