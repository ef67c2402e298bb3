"""Products of sparse matrices, in each of the forms that they are lowered to."""

from __future__ import annotations

import jax
import numpy as np
import pytensor
import pytensor.sparse as ps
import pytensor.tensor as pt
import pytest
import scipy.sparse
from helpers import FULLGRAPH, compare_grad

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.emit import sparse
from pytensor_jaxpr_linker.graph.sparse import products
from pytensor_jaxpr_linker.graph.sparse.ops import CompressedDot, ListDot, PaddedDot, SampledDot

rng = np.random.default_rng(0)


def matrix(counts, columns=12, dtype="float64"):
    """Return a CSR matrix with so many entries in each row."""
    indices = np.concatenate([np.sort(rng.permutation(columns)[:n]) for n in counts] + [[]]).astype("int32")
    data = rng.integers(1, 9, len(indices)).astype(dtype)
    return scipy.sparse.csr_matrix((data, indices, np.cumsum([0, *counts])), (len(counts), columns))


def op_types(f):
    """Return the Ops of a function's regions."""
    return {type(step.node.op) for region in f.vm.runner.plan.regions for step in region.steps}


def check(inputs, outputs, values, *expected):
    """Compare with FAST_COMPILE, on the device and on the host, and check which Ops the products became."""
    f = pytensor.function(inputs, outputs, mode="JAXPR")
    want = pytensor.function(inputs, outputs, mode="FAST_COMPILE")(*values)
    with pjl.stance("force_host"):
        on_host = f(*values)
    for a, b, c in zip(want, f(*values), on_host, strict=True):
        assert a.dtype == b.dtype == c.dtype
        np.testing.assert_allclose(b, a, rtol=1e-5 if a.dtype == "float32" else 1e-10)
        np.testing.assert_allclose(c, a, rtol=1e-5 if a.dtype == "float32" else 1e-10)
    assert op_types(f) & {CompressedDot, ListDot, PaddedDot, SampledDot} == set(expected)


@pytest.mark.parametrize("fmt", ["csr", "csc"])
def test_a_constant_times_a_vector_is_padded_rows(fmt, monkeypatch):
    x, w, data = pt.dvector("x"), pt.dvector("w"), pt.dvector("data")
    values = [matrix([]), matrix([0, 0]), matrix([3, 1, 0, 12, 5]), matrix([40, 3, 0, 17], 50)]
    values = [v.asformat(fmt) for v in values]
    constants = [ps.as_sparse_variable(v) for v in values]
    outputs = [ps.dot(c, x[: c.data.shape[1]]) for c in constants]
    outputs += [ps.dot(w[: c.data.shape[0]], c) for c in constants]
    outputs += [ps.dot(ps.CSM(fmt)(data[: v.nnz], v.indices, v.indptr, list(v.shape)), x[: v.shape[1]]) for v in values]
    outputs += [ps.structured_dot(constants[2], x[:12, None])]
    numbers = [rng.normal(size=n) for n in (50, 5, 60)]
    check([x, w, data], outputs, numbers, PaddedDot, ListDot)
    monkeypatch.setattr(products, "SCATTER_START", 0)  # so that long rows are cut off
    check([x, w, data], outputs, numbers, PaddedDot, ListDot)


def test_width_of_padded_rows():
    assert products.padded_width(np.array([], "int32")) == 0
    assert products.padded_width(np.array([3, 5, 0])) == 5
    assert products.padded_width(np.full(100, 17)) == 24
    skewed = np.r_[np.full(100_000, 3), 5000]
    assert products.padded_width(skewed) == 3
    assert products.padded_width(skewed[-9:]) == 5000


def test_padding_meets_no_number():
    c = ps.as_sparse_variable(matrix([3, 1, 0, 12, 5]))
    x = pt.dvector("x")
    for value in (np.inf, np.nan):
        numbers = np.ones(12)
        numbers[[0, -1]] = value
        want = c.data @ numbers
        np.testing.assert_array_equal(pytensor.function([x], ps.dot(c, x), mode="JAXPR")(numbers), want)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int32"])
def test_a_matrix_of_several_columns(dtype):
    a, y = ps.csr_matrix("a", dtype=dtype), pt.matrix("y", dtype=dtype)
    value = matrix([3, 1, 0, 12, 5], dtype=dtype)
    outputs = [ps.dot(a, y), ps.dot(ps.as_sparse_variable(value.tocsc()), y), ps.dot(y.T, a.T)]
    for columns in (1, 4, 7, 0):
        check([a, y], outputs, [value, rng.integers(1, 9, (12, columns)).astype(dtype)], CompressedDot)


def test_other_dtypes_and_formats_are_lists():
    a, y = ps.csc_matrix("a", dtype="int8"), pt.matrix("y", dtype="int8")
    value = matrix([3, 1, 0, 2, 5], dtype="int8").tocsc()
    check([a, y], [ps.dot(a, y)], [value, np.ones((12, 3), "int8")], ListDot)


def test_large_products_are_scattered_in_chunks(monkeypatch):
    monkeypatch.setattr(sparse, "LARGE_PRODUCT", 0)
    monkeypatch.setattr(sparse, "ENTRIES_AT_ONCE", 8)
    a, y = ps.csc_matrix("a", dtype="float64"), pt.dmatrix("y")
    check([a, y], [ps.dot(a, y)], [matrix([3, 1, 0, 12, 5]).tocsc(), rng.normal(size=(12, 3))], ListDot)


@pytest.mark.parametrize("k", [0, 1, 5, 21])
def test_sampled_products(k):
    p, x, y = ps.csr_matrix("p", dtype="float64"), pt.dmatrix("x"), pt.dmatrix("y")
    values = [matrix([3, 1, 0, 12, 5]), rng.normal(size=(5, k)), rng.normal(size=(12, k))]
    check([p, x, y], [ps.dense_from_sparse(ps.sampling_dot(x, y, p))], values, SampledDot)


def test_derivatives():
    value = matrix([3, 1, 0, 12, 17], 20)
    data, x, y = pt.dvector("data"), pt.dvector("x"), pt.dmatrix("y")
    a = ps.CSR(data, value.indices, value.indptr, list(value.shape))
    p = ps.as_sparse_variable(value)
    numbers = [value.data, rng.normal(size=20), rng.normal(size=(20, 3))]
    out = pt.concatenate([ps.structured_dot(a, x[:, None])[:, 0], ps.dot(p, x), ps.structured_dot(a, y).ravel()])
    compare_grad([data, x, y], out, numbers, rtol=1e-9)


def test_derivative_of_sampled_products():
    value = matrix([3, 1, 0, 12, 17], 20)
    x, y = pt.dmatrix("x"), pt.dmatrix("y")
    out = ps.dense_from_sparse(ps.sampling_dot(x, y, ps.as_sparse_variable(value)))
    with jax.enable_x64(True):
        fn = pjl.as_jax_function([x, y], [out**2], gradient="jax")
        gradient = jax.grad(lambda x, y: fn(x, y)[0].sum(), (0, 1))
        numbers = [rng.normal(size=(2, n, 19)) for n in (5, 20)]
        for i, (got_x, got_y) in enumerate(zip(*jax.vmap(gradient)(*numbers), strict=True)):
            weights = 2 * value.toarray() ** 2 * (numbers[0][i] @ numbers[1][i].T)
            np.testing.assert_allclose(got_x, weights @ numbers[1][i])
            np.testing.assert_allclose(got_y, weights.T @ numbers[0][i])


def test_export():
    """Eigen's product is a custom call that JAX gives no guarantee of; for symbolic dimensions there are none."""
    y = pt.dmatrix("y")
    value = matrix([3, 1, 0, 12, 5])
    with jax.enable_x64(True):
        fn = jax.jit(pjl.as_jax_function([y], ps.dot(ps.as_sparse_variable(value), y)))
        allowed = [jax.export.DisabledSafetyCheck.custom_call("cpu_csr_sparse_dense_ffi")]
        for shape in ((12, 4), jax.export.symbolic_shape("12, n")):
            exported = jax.export.export(fn, disabled_checks=allowed)(jax.ShapeDtypeStruct(shape, "float64"))
            np.testing.assert_allclose(exported.call(np.ones((12, 4))), value @ np.ones((12, 4)))


def test_indices_out_of_bounds_read_nothing():
    data, indices, y = pt.dvector("data"), pt.ivector("indices"), pt.dmatrix("y")
    out = ps.dot(ps.CSR(data, indices, [0, 1, 2], [2, 3]), y)
    f = pytensor.function([data, indices, y], out, mode=FULLGRAPH)
    assert np.isfinite(f(np.ones(2), np.array([0, 2**30], "int32"), np.ones((3, 4)))).all()
