"""Emission rules, one module a family, named as PyTensor names the modules of its Ops. Importing them registers them."""

from pytensor_jaxpr_linker.emit import (  # noqa: F401
    arithmetic,
    choice,
    continuous,
    discrete,
    elemwise,
    inner_graph,
    linalg,
    math,
    multivariate,
    pymc_continuous,
    pymc_discrete,
    pymc_multivariate,
    random,
    scalar_loop,
    scan,
    shape,
    sizes,
    special,
    subtensor,
    tensor_basic,
)
