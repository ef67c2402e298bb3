"""Jaxprs inside a Jaxpr: bodies of loops and branches that read what is around them."""

from __future__ import annotations

from collections.abc import Sequence

import jax.extend.core as jex

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder


def nested(
    b: JaxprBuilder, read: Sequence[Atom], given: Sequence[Atom]
) -> tuple[JaxprBuilder, list[Atom], list[Atom], list[Atom]]:
    """Return a builder for a Jaxpr inside this one, and how that sees what it reads and what it is given.

    Its inputs are what comes last, the variables among what it reads, and then one for each of `given`.
    """
    passed: list[Atom] = list(dict.fromkeys(x for x in read if isinstance(x, jex.Var)))
    child, atoms = b.sub_jaxpr([x.aval for x in (*passed, *given)])
    inner = dict(zip(passed, atoms, strict=False))
    return child, [inner[x] if isinstance(x, jex.Var) else x for x in read], atoms[len(passed) :], passed


def any_of(b: JaxprBuilder, mask: Atom) -> Atom:
    """Emit whether any element is true."""
    return prims.reduce_or(b, mask, range(len(mask.aval.shape))) if mask.aval.shape else mask
