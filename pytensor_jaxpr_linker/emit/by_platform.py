"""What differs by platform: primitives that JAX has for some only, and results that only some compute as PyTensor does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytensor_jaxpr_linker.base.errors import CannotEmit
from pytensor_jaxpr_linker.base.platforms import GPUS, given_platforms
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.jaxpr.portable.rewrite import portable_inside

#: An emission, from atoms to the atoms of its results.
type EmitResults = Callable[..., Sequence[Atom]]

#: The platforms that JAX has a decomposition for.
ON_CPU, ON_CPU_AND_GPU = ("cpu",), ("cpu", *GPUS)


def emit_one_of(
    b: JaxprBuilder, platforms: Sequence[str], there: EmitResults, elsewhere: EmitResults, operands: Sequence[Atom]
) -> list[Atom]:
    """Emit ``there(b, *operands)`` on some platforms, and ``elsewhere(b, *operands)``, which is right on all, on others.

    If the platforms that the program is lowered for are not given, the program holds both, and the lowering chooses.
    """
    if given := given_platforms():
        return list((there if set(given) <= set(platforms) else elsewhere)(b, *operands))
    branches = []
    for emit in (there, elsewhere):
        child, atoms = b.sub_jaxpr([x.aval for x in operands])
        branches.append(child.build(list(emit(child, *atoms))))
    return prims.platform_cond(b, platforms, branches[0], branches[1], operands)


def emit_by_platform(
    b: JaxprBuilder, emit: EmitResults, operands: Sequence[Atom], platforms: Sequence[str]
) -> list[Atom]:
    """Emit what ``emit(b, *operands)`` does on platforms that JAX has its primitives for, and on others what the portable pass makes of that.

    If the platforms that the program is lowered for are not given, the program holds both, and the lowering chooses. For several that are given,
    of which JAX lacks one, basic operations stand on all.
    """
    given = given_platforms()
    if given and set(given) <= set(platforms):
        return list(emit(b, *operands))
    child, atoms = b.sub_jaxpr([x.aval for x in operands])
    there = child.build(list(emit(child, *atoms)))
    if not all(isinstance(n, int) for x in operands for n in x.aval.shape):
        if given:
            shapes = ", ".join(str(x.aval.shape) for x in operands)
            raise CannotEmit(f"on {' and '.join(given)} it is a loop over rows, whose number has to be known: {shapes}")
        return list(emit(b, *operands))
    elsewhere = portable_inside(b, there)
    if given:  # JAX lowers every branch for all of several platforms
        return prims.closed_call(b, elsewhere, operands)
    return prims.platform_cond(b, platforms, there, elsewhere, operands)
