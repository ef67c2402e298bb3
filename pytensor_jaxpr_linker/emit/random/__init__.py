"""Random variables: the common `sampler`, samplers, and one row a distribution (`continuous`, `discrete`, ...)."""

from pytensor_jaxpr_linker.emit.random import choice, continuous, discrete, multivariate, sampler  # noqa: F401
