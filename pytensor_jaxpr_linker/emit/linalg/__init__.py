"""Linear algebra: decompositions, solves, functions of matrices."""

from pytensor_jaxpr_linker.emit.linalg import decomposition, inverse, products, solvers, tridiagonal  # noqa: F401
