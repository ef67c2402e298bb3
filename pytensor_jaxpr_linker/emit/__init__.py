"""Emission rules, one module a family, named as PyTensor names the modules of its Ops. Importing them registers them."""

from pytensor_jaxpr_linker.emit import (  # noqa: F401
    arithmetic,
    bessel,
    bessel_modified,
    elemwise,
    erf_functions,
    gamma_functions,
    incomplete_beta,
    incomplete_gamma,
    inner_graph,
    linalg,
    math,
    owens_t,
    random,
    scalar_loop,
    scan,
    shape,
    sizes,
    special,
    subtensor,
    tensor_basic,
)
