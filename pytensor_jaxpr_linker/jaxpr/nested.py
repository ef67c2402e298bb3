"""Jaxprs inside a Jaxpr: bodies of loops and branches that read what is around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex
import numpy as np

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder


def nested(
    b: JaxprBuilder, read: Sequence[Atom], given: Sequence[Atom]
) -> tuple[JaxprBuilder, list[Atom], list[Atom], list[Atom]]:
    """Return a builder for an inner Jaxpr, its atoms for `read`, its inputs for `given`, and the captured variables.

    The inner Jaxpr takes the captured variables (those of `read`) first, then one input for each of `given`.
    """
    passed: list[Atom] = list(dict.fromkeys(x for x in read if isinstance(x, jex.Var)))
    child, atoms = b.sub_jaxpr([x.aval for x in (*passed, *given)])
    inner = dict(zip(passed, atoms, strict=False))
    return child, [inner[x] if isinstance(x, jex.Var) else x for x in read], atoms[len(passed) :], passed


def fixed_value(operand: Any) -> np.ndarray | None:
    """Return the value of a static operand or of a literal, or None."""
    if isinstance(operand, np.ndarray | np.generic):
        return np.asarray(operand)
    return np.asarray(operand.val) if isinstance(operand, jex.Literal) else None


def any_of(b: JaxprBuilder, mask: Atom) -> Atom:
    """Emit whether any element is true."""
    return prims.reduce_or(b, mask, range(len(mask.aval.shape))) if mask.aval.shape else mask
