"""Linear algebra: decompositions, solves, functions of matrices."""

from pytensor_jaxpr_linker.emit.linalg import (  # noqa: F401
    constructors,
    decomposition,
    inverse,
    linear_control,
    lstsq,
    products,
    solvers,
    summary,
    tridiagonal,
)
