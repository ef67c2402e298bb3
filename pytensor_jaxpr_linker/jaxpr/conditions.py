"""Conditions under which passes run: ``Pass("products", ..., when=(CPU,))``. A rule asks, too: ``CPU(b)``."""

from __future__ import annotations

from typing import Any

from pytensor_jaxpr_linker.base.jax_compat import target_platforms
from pytensor_jaxpr_linker.jaxpr.builder import JaxprBuilder


def CPU(_: Any) -> bool:
    """Programs are lowered for CPUs alone, so what was measured on CPUs applies."""
    return set(target_platforms()) == {"cpu"}


def ALSO_CPU(_: Any) -> bool:
    """CPUs are among the platforms that programs are lowered for."""
    return "cpu" in target_platforms()


def OUTERMOST(b: JaxprBuilder) -> bool:
    """The Jaxpr is no body of a loop, branch or function."""
    return not b.is_inner


def PLAIN(b: JaxprBuilder) -> bool:
    """JAX does not differentiate the Jaxpr."""
    return not b.differentiable


def DIFFERENTIATED(b: JaxprBuilder) -> bool:
    """JAX differentiates the Jaxpr."""
    return b.differentiable


def UNTRANSFORMED(b: JaxprBuilder) -> bool:
    """JAX does not transform the Jaxpr, nor divide its arrays over devices."""
    return not b.for_jax
