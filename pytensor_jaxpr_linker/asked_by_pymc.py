"""What `pymc.sample` is told of the linker of a mode: it asks for its class, and never for more."""

from __future__ import annotations

from types import FrameType

from pytensor.compile.mode import predefined_modes
from pytensor.link.basic import Linker
from pytensor.link.jax.linker import JAXLinker

from pytensor_jaxpr_linker.errors import warn_user
from pytensor_jaxpr_linker.linker import JaxprLinker

#: The samplers to which `pymc.sample` hands on no mode, and what they run instead.
WITHOUT_MODE = {"nutpie": "mode NUMBA", "numpyro": "PyTensor's mode JAX", "blackjax": "PyTensor's mode JAX"}


class IgnoredModeWarning(UserWarning):
    """A library was asked for mode JAXPR and runs something else."""


class JaxprLinkerForJax(JaxprLinker, JAXLinker):  # type: ignore[misc]  # tuples of other lengths
    """`JaxprLinker` for those who ask whether a linker is PyTensor's `JAXLinker`, as PyMC does."""


def linker_for(linker: Linker, asker: FrameType) -> Linker:
    """Return the linker of a mode, as who asks for it should see it.

    PyMC asks in two places whether it is a `JAXLinker`. The first decides whether its processes may be forked: JAX has threads, so
    they may not. The second gives nutpie the backend "jax" or else "numba": so it is one inside `in_place_of_jax`, and none
    outside, where "jax" would be PyTensor's own. What `pymc.sample` then does without mode JAXPR the user is told.

    Parameters
    ----------
    linker
        The mode's.
    asker
        The frame that reads it. Of PyMC's, its module and an argument of `pymc.sample` count.
    """
    module = asker.f_globals.get("__name__", "")
    if not module.startswith("pymc.sampling.") or isinstance(linker, JAXLinker) or not isinstance(linker, JaxprLinker):
        return linker
    is_replaced = isinstance(predefined_modes["JAX"].linker, JaxprLinkerForJax)
    caller = asker.f_back
    sampler = caller.f_locals.get("nuts_sampler") if caller is not None else None
    if sampler in WITHOUT_MODE and not is_replaced:
        warn_user(
            f"pymc.sample does not pass mode JAXPR on to nuts_sampler={sampler!r}, which runs {WITHOUT_MODE[sampler]}: call it"
            f" inside `with pytensor_jaxpr_linker.in_place_of_jax():`, or call pytensor_jaxpr_linker.pymc.sample(sampler={sampler!r}).",
            IgnoredModeWarning,
        )
    if is_replaced or module == "pymc.sampling.parallel":
        return JaxprLinkerForJax(linker.options)
    return linker
