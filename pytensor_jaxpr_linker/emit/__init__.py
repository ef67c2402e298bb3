"""Emission rules, one module a family, named as PyTensor names the modules of its Ops. Importing them registers them."""

from pytensor_jaxpr_linker.emit import (  # noqa: F401
    blockwise,
    conditional,
    elemwise,
    extra_ops,
    lanes,
    linalg,
    math,
    pymc_math,
    random,
    scalar_basic,
    scalar_math,
    scalar_primitives,
    scan,
    shape,
    signal,
    sparse,
    subtensor,
    tensor_basic,
)
