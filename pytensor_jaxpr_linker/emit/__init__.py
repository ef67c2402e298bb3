"""Emission rules, one module a family, named as PyTensor names the modules of its Ops. Importing them registers them."""

from pytensor_jaxpr_linker.emit import (  # noqa: F401
    arithmetic,
    blockwise,
    constructors,
    decompositions,
    elemwise,
    expm,
    inner_graph,
    least_squares,
    math,
    random,
    scalar_loop,
    scan,
    shape,
    sizes,
    solve,
    special,
    subtensor,
    sylvester,
    tensor_basic,
    tridiagonal,
)
