"""Special functions, as formulas with PyTensor's derivatives. docs/special-functions.md has their errors."""

from pytensor_jaxpr_linker.emit.scalar_math import (  # noqa: F401
    bessel,
    erf_functions,
    gamma_functions,
    hypergeometric,
    incomplete_beta,
    incomplete_gamma,
)
