"""Special functions, as formulas with PyTensor's derivatives (`derivative`). docs/special-functions.md states how exact each is."""

from pytensor_jaxpr_linker.emit.scalar_math import (  # noqa: F401
    bessel,
    erf_functions,
    gamma_functions,
    hypergeometric,
    incomplete_beta,
    incomplete_gamma,
)
