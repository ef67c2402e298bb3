"""The arguments that each sampler takes beyond the common ones."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from importlib.util import find_spec
from typing import Any

import pymc as pm
from pymc.step_methods import NUTS, STEP_METHODS

from pytensor_jaxpr_linker.pymc.arguments import check_choice, did_you_mean
from pytensor_jaxpr_linker.pymc.sampler_nutpie import refusal

#: The samplers, and the package of each.
PACKAGES = {"nutpie": "nutpie", "numpyro": "numpyro", "blackjax": "blackjax", "mclmc": "blackjax", "pymc": "pymc"}

#: Arguments of nutpie and of PyMC that `sample` does not hand on, and why.
WITHHELD = {
    "nutpie": {
        "compiled_model": "use model",
        "seed": "use random_seed",
        "maxdepth": "use max_treedepth",
        "progress_bar": "use progressbar",
        "num_tune": "use tune",
        "num_draws": "use draws",
        "num_chains": "use chains",
        "init_mean": "use initvals",
        "save_warmup": "draws of the warm-up are not kept",
        "return_raw_trace": "sample returns a DataTree",
        "blocking": "sample returns when all chains are done",
        "zarr_store": "draws are kept in memory",
    },
    "pymc": {
        "nuts_sampler": "use sampler",
        "nuts_sampler_kwargs": "use nuts",
        "backend": "the mode is JAXPR",
        "compile_kwargs": "the mode is JAXPR",
        "return_inferencedata": "sample returns a DataTree",
    },
}


def check_options(sampler: str, common: Collection[str], given: Mapping[str, Any]) -> None:
    """Raise an error, before anything is compiled, if a sampler does not take one of the `given` arguments. All take the `common` ones."""
    for name in given:
        if reason := WITHHELD.get(sampler, {}).get(name):
            raise TypeError(f"sampler={sampler!r} takes no argument {name!r} here: {reason}.")
    known = options_of(sampler)
    unknown = [name for name in given if name not in known]
    if sampler == "nutpie":
        refused = refusal(given)
        unknown = unknown if refused else []
        if refused and not unknown:
            raise TypeError(f"sampler='nutpie' refuses its options: {refused}.")
    if unknown:
        names = ", ".join(map(repr, unknown))
        raise TypeError(f"sampler={sampler!r} takes no argument {names}.{hint(unknown[0], sampler, {*common, *known})}")
    if "mass_matrix" in given:
        check_choice("mass_matrix", given["mass_matrix"], kernel_module(sampler).MASS_MATRICES)
    if sampler == "pymc" and (unknown := [name for name in given.get("nuts") or () if name not in nuts_options()]):
        raise TypeError(
            f"PyMC's NUTS takes no argument {', '.join(map(repr, unknown))}.{did_you_mean(unknown[0], nuts_options())}"
        )


def hint(name: str, sampler: str, known: Collection[str]) -> str:
    """Return, for a message, the samplers that have an argument, else a similar name of this one."""
    others = [other for other in PACKAGES if other != sampler and is_installed(other) and name in options_of(other)]
    return f" Samplers that do: {', '.join(map(repr, others))}." if others else did_you_mean(name, known)


def is_installed(sampler: str) -> bool:
    """Tell whether a sampler's package is installed."""
    return find_spec(PACKAGES[sampler]) is not None


def options_of(sampler: str) -> set[str]:
    """Return the arguments that a sampler takes beyond the common ones; nutpie documents its own."""
    if sampler == "pymc":
        steps = {step.name for step in STEP_METHODS}
        return (parameters(pm.sample) | nuts_options() | steps) - WITHHELD["pymc"].keys()
    if sampler == "nutpie":
        import nutpie

        documented = re.findall(r"^(\w+):", inspect.getdoc(nutpie.sample) or "", re.MULTILINE)
        return {*parameters(nutpie.sample), *documented} - WITHHELD["nutpie"].keys()
    return parameters(kernel_module(sampler).make_kernel) - {"logp", "tune", "target_accept", "max_treedepth"}


def kernel_module(sampler: str) -> Any:
    """Return the module of a sampler that is a JAX program."""
    return importlib.import_module(f"{__package__}.kernel_{sampler}")


def nuts_options() -> set[str]:
    """Return the arguments of PyMC's NUTS."""
    made_by = (vars(cls)["__init__"] for cls in NUTS.__mro__ if "__init__" in vars(cls))
    return set().union(*map(parameters, made_by)) - {"self", "vars", "model"}


def parameters(function: Callable) -> set[str]:
    """Return the names of a function's parameters."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name for name, p in inspect.signature(function).parameters.items() if p.kind not in several}
