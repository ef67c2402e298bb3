"""Linear algebra: decompositions, solves, functions of matrices."""

from pytensor_jaxpr_linker.emit.linalg import (  # noqa: F401
    decomposition,
    inverse,
    products,
    solvers,
    tridiagonal,
)
