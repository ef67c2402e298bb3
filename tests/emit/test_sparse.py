"""The Ops of `pytensor.sparse`: on arrays where these say everything, on the host where it has to find the entries."""

from __future__ import annotations

import pydoc
import subprocess
import sys

import jax
import numpy as np
import pytensor
import pytensor.sparse as ps
import pytensor.tensor as pt
import pytest
import scipy.sparse
from helpers import FULLGRAPH, compare_grad
from pytensor.graph.op import Op
from pytensor.sparse.linalg import block_diag

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.graph.sparse.lowering import LOWERINGS

FORMATS = pytest.mark.parametrize("fmt", ["csr", "csc"])
VARIANTS = pytest.mark.parametrize(("fmt", "dtype"), [("csr", "float32"), ("csc", "float64")])
OTHER = {"csr": "csc", "csc": "csr"}
rng = np.random.default_rng(0)


def test_lowerings_are_of_ops_of_pytensor():
    names = [key for key in LOWERINGS if isinstance(key, str)]
    assert len(names) > 40
    assert [name for name in names if not issubclass(pydoc.locate(name), Op)] == []


def test_pytensor_imports_sparse_matrices_when_they_are_used():
    """They take 150 ms, which this package does not add to its own import."""
    program = "import sys, pytensor_jaxpr_linker; assert not {'scipy.sparse', 'pytensor.sparse'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def random_matrix(fmt, n=4, m=5, dtype="float64"):
    """Return a matrix with an explicit zero, an empty row and an empty column."""
    dense = rng.normal(size=(n, m)) * (rng.random((n, m)) < 0.6)
    dense[1] = dense[:, 2] = 0
    dense[0, 0] = dense[3, 4 % m] = 0.5
    x = scipy.sparse.csr_matrix(dense).astype(dtype).asformat(fmt)
    x.data[0] = 0
    return x


def same(want, got):
    """Check value, dtype and, of sparse matrices, format and the number of entries."""
    if scipy.sparse.issparse(want):
        assert type(got) is type(want)
        assert got.nnz == want.nnz
        assert got.indices.dtype == got.indptr.dtype == np.int32
        want, got = want.toarray(), got.toarray()
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4 if want.dtype == "float32" else 1e-7, atol=1e-6)


def compare(inputs, outputs, values):
    """Compare mode JAXPR's outputs with FAST_COMPILE's, also on the host, and check for breaks."""
    want = pytensor.function(inputs, outputs, mode="FAST_COMPILE", on_unused_input="ignore")(*values)
    f = pytensor.function(inputs, outputs, mode="JAXPR", on_unused_input="ignore")
    for a, b in zip(want, f(*values), strict=True):
        same(a, b)
    with pjl.stance("force_host"):
        for a, b in zip(want, f(*values), strict=True):
            same(a, b)
    assert not f.vm.runner.plan.breaks


@VARIANTS
def test_products(fmt, dtype):
    x, y = ps.matrix(fmt, "x", dtype=dtype), ps.matrix(OTHER[fmt], "y", dtype=dtype)
    d, v, w, z = (
        pt.matrix("d", dtype=dtype),
        pt.vector("v", dtype="float64"),
        pt.vector("w", dtype=dtype),
        pt.dmatrix("z"),
    )
    outputs = [
        ps.dot(x, d),
        ps.dot(x, v),
        ps.dot(w, x),
        ps.dot(d.T, x.T),
        ps.dot(x, y.T),
        ps.structured_dot(x, d),
        ps.structured_dot(d.T, y.T),
        ps.true_dot(x, d),
        ps.usmm(pt.constant(2.0), x, d, z),
        ps.sampling_dot(pt.cast(z, dtype), d, x),
        ps.sp_sum(x),
        ps.sp_sum(x, axis=0),
        ps.sp_sum(x, axis=1),
        ps.dot(ps.csr_from_dense(d).T, y.T),
    ]
    sizes = (5, 3), 5, 4, (4, 3)
    dense = [rng.normal(size=n).astype(u.type.dtype) for n, u in zip(sizes, (d, v, w, z), strict=True)]
    compare(
        [x, y, d, v, w, z], outputs, [random_matrix(fmt, dtype=dtype), random_matrix(OTHER[fmt], dtype=dtype), *dense]
    )


@VARIANTS
def test_entries(fmt, dtype):
    x, y = ps.matrix(fmt, "x", dtype=dtype), ps.matrix(fmt, "y", dtype=dtype)
    o, z = ps.matrix(OTHER[fmt], "o", dtype=dtype), pt.matrix("z", dtype=dtype)
    v, w = pt.vector("v", dtype=dtype), pt.vector("w", dtype=dtype)
    outputs = [
        ps.dense_from_sparse(x),
        ps.SparseFromDense(fmt)(pt.maximum(z, 0)),
        x.T,
        ps.col_scale(x, v),
        ps.row_scale(x, w),
        ps.multiply(x, z),
        ps.multiply(x, pt.constant(2, dtype=dtype)),
        ps.multiply(x, y),
        ps.multiply(x, o),
        ps.multiply(x, ps.structured_exp(x)),
        x + y,
        x + o,
        x - x,
        x + z,
        ps.structured_add_s_v(x, v),
        ps.add_s_s_data(x, ps.structured_exp(x)),
        ps.structured_exp(x),
        ps.structured_maximum(x, 0.5),
        ps.cast(x, "float64"),
        ps.cast(x, "int8"),
        ps.remove0(x),
        ps.clean(x),
        ps.dense_from_sparse(ps.multiply(x, v)),
        *ps.csm_properties(x),
        x.shape,
        x.shape[0] + 1,
    ]
    outputs += [getattr(ps, name)(x, z) for name in ("eq", "neq", "lt", "gt", "le", "ge")]
    values = [random_matrix(f, dtype=dtype) for f in (fmt, fmt, OTHER[fmt])]
    values += [rng.normal(size=n).astype(dtype) for n in ((4, 5), 5, 4)]
    compare([x, y, o, z, v, w], outputs, values)


@FORMATS
def test_parts_and_stacks(fmt):
    x, o, z = ps.matrix(fmt, "x", dtype="float64"), ps.matrix(OTHER[fmt], "o", dtype="float64"), pt.dmatrix("z")
    i, v, s = pt.lscalar("i"), pt.dvector("v"), ps.matrix(fmt, "s", dtype="float64")
    stacked = ps.vstack([x[1:3], o, x], format=fmt)
    outputs = [
        x[1:3, :4],
        ps.dense_from_sparse(x[-3:, i:]),
        ps.dense_from_sparse(x[::2]),
        ps.sp_sum(x[1:3], axis=0),
        ps.sp_sum(x[:, 1:3]),
        ps.dot(v, x[1:3]),
        ps.get_item_scalar(x, [i, i + 1]),
        x[-1, -1],
        ps.get_item_2lists(x, [0, 1, -1, 3], [1, 0, 4, i]),
        ps.hstack([x, o, x], format=fmt),
        ps.vstack([x, o, x], format=fmt),
        ps.dense_from_sparse(stacked),
        ps.structured_exp(ps.vstack([x, o], format=fmt)),
        block_diag(x, z, format=fmt),
        ps.dense_from_sparse(block_diag(x[1:], o, format=fmt)),
        ps.construct_sparse_from_list(pt.zeros((6, 5)), z, pt.constant(np.array([5, 1, 0, 3]))),
        ps.diag(s),
        ps.square_diagonal(v),
        ps.dense_from_sparse(ps.CSM(fmt)(v, [1, 0], [0, 1, 1, 2], [3, 3])),
    ]
    values = [
        random_matrix(fmt),
        random_matrix(OTHER[fmt]),
        rng.normal(size=(4, 5)),
        1,
        [2.0, 3.0],
        random_matrix(fmt, 4, 4),
    ]
    compare([x, o, z, i, v, s], outputs, values)


@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")  # in the reference
@VARIANTS
def test_two_matrices(fmt, dtype):
    x, y, g = ps.matrix(fmt, "x", dtype=dtype), ps.matrix(fmt, "y", dtype=dtype), pt.dvector("g")
    values = [random_matrix(fmt, dtype=dtype), random_matrix(fmt, dtype=dtype), rng.normal(size=4)]
    values[1].data[:3] = values[0].data[:3]
    outputs = [getattr(ps, name)(x, y) for name in ("eq", "neq", "lt", "gt", "le", "ge")]
    outputs += [ps.lt(x + y, y), ps.neq(x, x)]
    if dtype == "float64":  # PyTensor's are of this dtype whatever they should be
        outputs += [
            ps.basic.get_item_2lists_grad(x, [0, 1, -1, 0], [1, 2, 3, 1], g),
            ps.basic.get_item_list_grad(x, [2, 0, 1, -2], y),
        ]
    compare([x, y, g], outputs, values)


@VARIANTS
def test_entries_at_constant_places(fmt, dtype):
    v, w = pt.vector("v", dtype=dtype), pt.vector("w", dtype=dtype)
    first, second, other = random_matrix(fmt, dtype=dtype), random_matrix(fmt, dtype=dtype), random_matrix(OTHER[fmt])
    x, y = (
        ps.CSM(fmt)(data, value.indices, value.indptr, list(value.shape)) for data, value in ((v, first), (w, second))
    )
    z = ps.as_sparse_variable(other.astype(dtype))
    rows = ps.get_item_list(x, [2, 0, -1, 2]) if fmt == "csr" else ps.get_item_list(x, [3])
    outputs = [
        ps.structured_dot(x, y.T),
        ps.true_dot(x, y.T),
        ps.structured_dot(x, z.T),
        ps.dot(x, y.T),
        ps.structured_dot(x[:0], y.T),
        rows,
        ps.structured_exp(rows),
        ps.dense_from_sparse(rows),
        ps.get_item_list(x, pt.zeros(0, dtype="int64")),
    ]
    compare([v, w], outputs, [first.data, second.data])


@FORMATS
def test_gradients(fmt):
    x, y = ps.matrix(fmt, "x", dtype="float64"), ps.matrix(fmt, "y", dtype="float64")
    d, v, w, z = pt.dmatrix("d"), pt.dvector("v"), pt.dvector("w"), pt.dmatrix("z")

    def square(matrix):
        return (ps.dense_from_sparse(matrix) ** 2).sum()

    pattern = ([1, 0, 2, 1, 3], [0, 1, 3, 3, 5], [4, 4])
    costs = [
        (ps.dot(x, d).sum(), [x, d]),
        ((ps.structured_dot(x, d) ** 2).sum(), [x, d]),
        (square(x), [x]),
        (square(ps.col_scale(x, v)), [x, v]),
        (square(ps.row_scale(x, w)), [x, w]),
        ((ps.sp_sum(x, axis=0, sparse_grad=True) ** 2).sum(), [x]),
        (ps.sp_sum(ps.structured_exp(x), sparse_grad=True), [x]),
        (ps.sp_sum(ps.multiply(x, z), sparse_grad=True), [x, z]),
        (square(ps.CSM(fmt)(v, *pattern)), [v]),
        ((ps.structured_dot(ps.CSM(fmt)(v, *pattern), z) ** 2).sum(), [v, z]),
        (square(ps.hstack([x, y])), [x, y]),
        (square(x.T) + square(ps.multiply(x, pt.sum(w))), [x, w]),
    ]
    outputs = [g for cost, wrt in costs for g in pytensor.grad(cost, wrt)]
    values = [random_matrix(fmt), random_matrix(fmt), *(rng.normal(size=n) for n in ((5, 3), 5, 4, (4, 5)))]
    compare([x, y, d, v, w, z], outputs, values)


@VARIANTS
def test_a_constant_matrix_is_part_of_the_program(fmt, dtype):
    c = ps.as_sparse_variable(random_matrix(fmt, dtype=dtype))
    d, w, z = pt.matrix("d", dtype=dtype), pt.vector("w", dtype=dtype), pt.matrix("z", dtype=dtype)
    values = [rng.normal(size=n).astype(dtype) for n in ((5, 3), 4, (4, 5))]
    scaled = ps.multiply(ps.row_scale(c, w), z)
    out = pt.concatenate(
        [
            ps.structured_dot(c, d).ravel(),
            ps.dot(w, c),
            ps.sp_sum(scaled, axis=0, sparse_grad=True),
            ps.structured_dot(scaled, d).ravel(),
        ]
    )
    f = pytensor.function([d, w, z], out, mode=FULLGRAPH)
    same(pytensor.function([d, w, z], out, mode="FAST_COMPILE")(*values), f(*values))
    compare_grad([d, w, z], out, values, rtol=1e-3 if dtype == "float32" else 1e-6, atol=1e-5)
    compare([d, w, z], [ps.dot(c + c, d), ps.dot(ps.remove0(c), d), scaled, c.T], values)


def test_jax_differentiates_with_respect_to_the_entries():
    v, d = pt.dvector("v"), pt.dmatrix("d")
    out = ps.structured_dot(ps.CSR(v, [1, 0, 2, 1, 3], [0, 1, 3, 3, 5], [4, 4]), d)
    compare_grad([v, d], out, [rng.normal(size=5), rng.normal(size=(4, 2))])


def test_shared_matrix():
    x, v = pytensor.shared(random_matrix("csr"), name="x"), pt.dvector("v")
    before = x.get_value().toarray()
    f = pytensor.function([v], ps.dot(x, v), updates=[(x, ps.structured_exp(x))], mode="JAXPR")
    for _ in range(2):
        want = x.get_value() @ np.ones(5)
        np.testing.assert_allclose(f(np.ones(5)), want)
    assert x.get_value().data.flags.writeable
    x.set_value(scipy.sparse.csr_matrix(before[:, :2]))
    np.testing.assert_allclose(f(np.ones(2)), before[:, :2].sum(1))
    with jax.enable_x64(True):
        (result,) = pjl.as_jax_function([v], [ps.dot(x, v)])(np.ones(2))
    np.testing.assert_allclose(result, x.get_value() @ np.ones(2))


def test_a_result_is_not_its_operand():
    x = ps.csr_matrix("x", dtype="float64")
    value = random_matrix("csr")
    before = value.toarray()
    result = pytensor.function([x], x.T, mode="JAXPR")(value)
    result.data[:] = 7
    result.indices[:] = 0
    np.testing.assert_array_equal(value.toarray(), before)


@FORMATS
def test_odd_matrices(fmt):
    x, d = ps.matrix(fmt, "x", dtype="float64"), pt.dmatrix("d")
    make = type(random_matrix(fmt))
    outputs = [
        ps.dot(x, d),
        ps.dot(d.T, x.T),
        ps.dense_from_sparse(x),
        x.T,
        ps.sp_sum(x, axis=0),
        ps.sp_sum(x),
        ps.structured_exp(x),
        ps.ensure_sorted_indices(x),
        ps.dense_from_sparse(ps.multiply(x, x.T.T)),
        ps.dense_from_sparse(x + x),
        x + x,
    ]
    f = pytensor.function([x, d], outputs, mode="JAXPR")
    reference = pytensor.function([x, d], outputs, mode="FAST_COMPILE")
    unsorted = make((np.arange(1.0, 6), [2, 0, 1, 2, 0], [0, 2, 2, 5]), (3, 3))
    repeated = make((np.arange(1.0, 6), [2, 2, 1, 0, 1], [0, 2, 2, 5]), (3, 3))
    for value in (unsorted, make((3, 3)), make((0, 3)), make((3, 0)), random_matrix(fmt, 4, 3)):
        arguments = value, np.ones((value.shape[1], 2))
        for want, got in zip(reference(*arguments), f(*arguments), strict=True):
            same(want, got)
    for want, got in zip(reference(repeated, np.ones((3, 2)))[:6], f(repeated, np.ones((3, 2)))[:6], strict=True):
        same(want, got)


@pytest.mark.filterwarnings("ignore:Casting complex values")  # SciPy's, in the reference
@pytest.mark.parametrize("dtype", ["int8", "int32", "complex64"])
def test_other_dtypes(dtype):
    x, d = ps.csc_matrix("x", dtype=dtype), pt.matrix("d", dtype="float32")
    outputs = [ps.dot(x, d), ps.dense_from_sparse(x), ps.multiply(x, x), x + x, ps.cast(x, "complex128"), x.T]
    outputs += [ps.cast(ps.cast(x, "complex64"), "float32")]
    value = scipy.sparse.csc_matrix(np.array([[0, 2, 0], [3, 0, 4]], dtype))
    compare([x, d], outputs, [value, np.ones((3, 2), "float32")])


def test_errors():
    x, d, v = ps.csr_matrix("x", dtype="float64"), pt.dmatrix("d"), pt.dvector("v")
    value = random_matrix("csr")
    for output, error in [
        (ps.dot(x, d), ValueError),
        (ps.multiply(x, d), AssertionError),
        (ps.diag(x), ValueError),
        (ps.col_scale(x.T, v), AssertionError),
        (x[0, 9], IndexError),
        (ps.vstack([x, x.T], format="csr"), ValueError),
        (ps.lt(x, x[1:]), AssertionError),
        (ps.eq(x, x[1:]), AssertionError),
        (ps.dense_from_sparse(ps.CSR(v, [0, 1], [0, 1, 2], [3, 2])), ValueError),
    ]:
        for mode in ("FAST_COMPILE", "JAXPR"):
            f = pytensor.function([x, d, v], output, mode=mode, on_unused_input="ignore")
            with pytest.raises(error):
                f(value, np.ones((4, 4)), np.ones(2))


def test_the_host_finds_entries():
    x, y, d = ps.csr_matrix("x", dtype="float64"), ps.csr_matrix("y", dtype="float64"), pt.dmatrix("d")
    values = [random_matrix("csr"), random_matrix("csr"), rng.normal(size=(5, 3))]
    for output, reason in [
        (ps.structured_dot(x, y.T), "StructuredDot"),
        (ps.true_dot(x, y.T), "TrueDot"),
        (ps.get_item_list(x, [2, 0, 2]), "GetItemList"),
        (ps.structured_exp(x + y), "which entries the matrix has"),
        (ps.sp_sum(ps.structured_exp(ps.csr_from_dense(d * 2))), "which entries the matrix has"),
    ]:
        want = pytensor.function([x, y, d], output, mode="FAST_COMPILE", on_unused_input="ignore")(*values)
        with pytest.warns(pjl.GraphBreakWarning, match=reason):
            f = pytensor.function([x, y, d], output, mode="JAXPR", on_unused_input="ignore")
        same(want, f(*values))


def test_rows_at_an_index_that_is_an_input():
    """How many entries there are is all that a program depends on."""
    value, index = random_matrix("csr"), pt.lvector("index")
    scaled = ps.structured_exp(ps.get_item_list(ps.as_sparse_variable(value), index))
    f = pytensor.function([index], ps.dense_from_sparse(scaled), mode=FULLGRAPH)
    reference = pytensor.function([index], ps.dense_from_sparse(scaled), mode="FAST_COMPILE")
    for rows in ([2, 0, -1, 2], [1], [3, 3]):
        same(reference(rows), f(rows))
    with pytest.raises(IndexError):
        f([9])


def test_a_matrix_is_no_argument_of_a_jax_function():
    x, v = ps.csr_matrix("x", dtype="float64"), pt.dvector("v")
    with pytest.raises(TypeError, match="no array"):
        pjl.as_jax_function([x, v], [ps.dot(x, v)])
    with pytest.raises(TypeError, match="no array"):
        pjl.as_jax_function([v], [ps.square_diagonal(v)])
