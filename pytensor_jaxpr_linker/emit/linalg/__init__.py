"""Linear algebra: decompositions, solves, functions of matrices."""

from pytensor_jaxpr_linker.emit.linalg import (  # noqa: F401
    constructors,
    decompositions,
    expm,
    least_squares,
    solve,
    sylvester,
    tridiagonal,
)
