"""Emission rules, one module a family, named as PyTensor names the modules of its Ops. Importing them registers them."""

from pytensor_jaxpr_linker.emit import (  # noqa: F401
    blockwise,
    elemwise,
    extra_ops,
    fft,
    inner_graph,
    lanes,
    linalg,
    loops,
    math,
    pymc_math,
    random,
    scalar_basic,
    scalar_primitives,
    shape,
    signal,
    sparse,
    sparse_products,
    special,
    subtensor,
    tensor_basic,
)
