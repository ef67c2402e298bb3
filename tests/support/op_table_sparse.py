"""Sample inputs for the Ops of sparse matrices, in programs of unknown lengths: `tests/whole/test_symbolic_ops.py` runs them.

An argument of a JAX function is no sparse matrix, so a matrix is made of its entries, of which there is an unknown number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.sparse as ps
import pytensor.tensor as pt
import scipy.sparse
from op_row import Row
from pytensor.sparse import basic
from pytensor.sparse.linalg import block_diag

#: The lengths of each argument: of a matrix of m rows, n columns and e entries, and of others that may stand beside it.
LENGTHS = {"data": "e", "indices": "e", "pointers": "m+1", "z": "m,n", "d": "n,k", "v": "n", "w": "m"}


def arrays(m: int, n: int, k: int, e: int) -> dict[str, np.ndarray]:
    """Return values of these lengths."""
    rng = np.random.default_rng(m)
    places = np.sort(rng.choice(m * n, e, replace=False))
    x = scipy.sparse.csr_matrix((rng.normal(size=e), np.divmod(places, n)), (m, n))
    shapes = {"z": (m, n), "d": (n, k), "v": (n,), "w": (m,)}
    return {
        "data": x.data,
        "indices": x.indices,
        "pointers": x.indptr,
        **{name: rng.normal(size=shape) for name, shape in shapes.items()},
    }


def sparse_row(name: str, build: Callable[..., Any], names: str = "", is_square: bool = False) -> Row:
    """Return the row of expressions of a matrix, of which the sparse ones are made dense, and of further arguments."""
    arguments = ["data", "indices", "pointers", "v", *(n for n in names if n != "v")]

    def make(data: Any, indices: Any, pointers: Any, v: Any, *others: Any) -> list[Any]:
        x = ps.CSR(data, indices, pointers, pt.stack([pointers.shape[0] - 1, v.shape[0]]))
        results = build(x, *(v,) * ("v" in names), *others)
        results = results if isinstance(results, list | tuple) else [results]
        return [basic.dense_from_sparse(y) if isinstance(y.type, ps.SparseTensorType) else y for y in results]

    samples = [
        arrays(*sizes) for sizes in ([(4, 4, 3, 7), (5, 5, 2, 9)] if is_square else [(4, 5, 3, 7), (5, 4, 2, 9)])
    ]
    values, more = (tuple(sample[a] for a in arguments) for sample in samples)
    lengths = ";".join(LENGTHS[a].replace("m", "n") if is_square else LENGTHS[a] for a in arguments)
    return Row(name, make, values, (more,), lengths=lengths)


#: A matrix of constant places, as those products and comparisons need that find which entries meet.
PLACES = ([1, 0, 2, 1, 3], [0, 1, 3, 3, 5], [4, 4])


def of_constant_places(data: Any) -> list[Any]:
    """Return what a program can compute of two sparse matrices."""
    x, y = (ps.CSR(pt.arange(1.0, 6.0) * s, *PLACES) for s in (data.sum(), data.max()))
    z = ps.CSC(pt.arange(1.0, 6.0) * data.min(), *PLACES)
    compared = [getattr(ps, name)(x, y) for name in ("eq", "neq", "lt", "gt", "le", "ge")]
    products = [ps.structured_dot(x, y), ps.true_dot(x, y), ps.dot(x, y), ps.multiply(x, y)]
    rows = [ps.get_item_list(x, [2, 0]), basic.get_item_list_grad(x, [2, 0], ps.get_item_list(y, [2, 0]))]
    lists = [basic.get_item_2lists_grad(x, [0, 1], [1, 0], data[0] * pt.ones(2)), z]
    return [ps.dense_from_sparse(v) for v in (*compared, *products, *rows, *lists)]


def gradients(x: Any, d: Any, z: Any) -> list[Any]:
    """Return derivatives by the entries of a matrix, and by dense factors."""
    data = x.owner.inputs[0]
    y = ps.CSC(data, *x.owner.inputs[1:3], x.owner.inputs[3][::-1])
    costs = (
        (ps.structured_dot(x, d) ** 2).sum(),
        (ps.structured_dot(y, z) ** 2).sum(),
        (ps.dense_from_sparse(x) ** 2).sum(),
    )
    return [g for cost in costs for g in pytensor.grad(cost, [data, d, z], disconnected_inputs="ignore")]


COMPARED = ("eq", "neq", "lt", "gt", "le", "ge")
ROWS = [
    sparse_row("DenseFromSparse, Transpose, Cast", lambda x: [x, x.T, ps.cast(x, "float32")]),
    sparse_row("Dot", lambda x, v, d, w: [ps.dot(x, d), ps.dot(x, v), ps.dot(w, x), ps.dot(d.T, x.T)], "vdw"),
    sparse_row("StructuredDot, TrueDot", lambda x, d: [ps.structured_dot(x, d), ps.true_dot(x, d)], "d"),
    sparse_row("Usmm", lambda x, d, z: ps.usmm(pt.constant(2.0), x, d, pt.dot(z, d)), "dz"),
    sparse_row("SamplingDot", lambda x, d, z: ps.sampling_dot(pt.dot(z, d), d, x), "dz"),
    sparse_row("SpSum", lambda x: [ps.sp_sum(x), ps.sp_sum(x, axis=0), ps.sp_sum(x, axis=1)]),
    sparse_row("ColScaleCSC, RowScaleCSC", lambda x, v, w: [ps.col_scale(x, v), ps.row_scale(x, w)], "vw"),
    sparse_row("Multiply", lambda x, v, z: [ps.multiply(x, z), ps.multiply(x, v), ps.multiply(x, x)], "vz"),
    sparse_row("Add", lambda x, v, z: [x + x, x + x.T.T, x + z, ps.structured_add_s_v(x, v)], "vz"),
    sparse_row("AddSparseSparseData", lambda x: ps.add_s_s_data(x, ps.structured_exp(x))),
    sparse_row("Remove0, EnsureSortedIndices", lambda x: [ps.remove0(x), ps.clean(x)]),
    sparse_row("CSMProperties", lambda x: [*ps.csm_properties(x), x.shape]),
    sparse_row("Comparisons", lambda x, z: [getattr(ps, name)(x, z) for name in COMPARED], "z"),
    sparse_row("GetItem", lambda x: [x[1:3, :2], x[::2], x[1, 1], ps.get_item_2lists(x, [0, 1], [1, 0])]),
    sparse_row("HStack, VStack", lambda x: [ps.hstack([x, x]), ps.vstack([x, x]), block_diag(x, x)]),
    sparse_row("Diag", lambda x, v: [ps.diag(x), ps.square_diagonal(v)], "v", is_square=True),
    sparse_row(
        "ConstructSparseFromList",
        lambda x, z, w: ps.construct_sparse_from_list(
            pt.zeros((2 * w.shape[0], z.shape[1])), z, pt.arange(w.shape[0]) * 2
        ),
        "zw",
    ),
    sparse_row("SparseFromDense", lambda x, z, d: [ps.csr_from_dense(z), ps.dot(ps.csr_from_dense(z), d)], "zd"),
    sparse_row("Gradients", gradients, "dz"),
    Row("Of constant places", of_constant_places, (np.array([1.0, 2.0, -1.0]),)),
]
