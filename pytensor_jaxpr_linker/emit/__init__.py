"""Emission rules, one module a family, named after PyTensor's module of the Ops; an import registers them."""

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
