"""Random variables: the common `sampler`, samplers, and one row a distribution (`continuous`, `discrete`, ...)."""

from pytensor_jaxpr_linker.emit.random import (  # noqa: F401
    choice,
    continuous,
    discrete,
    multivariate,
    sampler,
)
