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
from pytensor.compile.mode import get_mode

from pytensor_jaxpr_linker.pymc.arguments import (
    check_above_zero,
    check_choice,
    check_dict,
    check_flag,
    did_you_mean,
    shown,
)
from pytensor_jaxpr_linker.pymc.samplers.nutpie_options import refusal

#: The largest number of doublings of a trajectory of NUTS: PyMC's.
MAX_TREEDEPTH = 10
#: The default aim of the adaptation of the step size, an acceptance rate: for nutpie and NumPyro PyMC's. Our NUTS
#: reaches its aim: the first number, and up to the second where trajectories have large errors of their energy. With
#: 0.8 alone the models `latent_gp`, `hsgp` and `eight_schools` of `benchmarks/` had dozens of divergences in 4,000
#: draws, with 0.9 a few or none; with 0.9 a banana's mean was off by more than three standard errors in 38 % of runs,
#: with 0.95 in 5 % (docs/notes/warm-up.md). With 0.9 alone the others took 1.4 times as many gradients for an effective
#: draw.
TARGET_ACCEPTS = {"nuts": (0.8, 0.95), "numpyro": 0.8, "nutpie": 0.8, "chees": 0.651}

#: The samplers, and the package of each.
PACKAGES = {
    "nuts": "pytensor_jaxpr_linker",
    "nutpie": "nutpie",
    "numpyro": "numpyro",
    "mclmc": "blackjax",
    "chees": "blackjax",
    "pymc": "pymc",
}

#: Other names of samplers. PyMC has NUTS of BlackJAX by this name.
ALIASES = {"blackjax": "nuts"}

#: The names of other packages for the arguments of `sample`.
SYNONYMS = {
    theirs: ours
    for ours, names in {
        "mass_matrix='dense'": "dense_mass",
        "step_size": "init_step_size initial_step step_scale",
        "mass_matrix": "is_mass_matrix_diagonal",
        "max_treedepth": "max_tree_depth maxdepth",
        "adaptation='low_rank'": "mass_matrix",
        "chains": "n_chains num_chains",
        "draws": "num_draws num_samples",
        "tune": "num_tune num_warmup",
        "progressbar": "progress_bar",
        "random_seed": "rng_key seed",
        "discard_tuned_samples=False": "save_warmup",
        "initvals": "start",
        "target_accept": "target_accept_prob target_acceptance_rate",
        "thinning": "thin",
    }.items()
    for theirs in names.split()
}
#: Arguments of nutpie and of PyMC that `sample` does not hand on, and why.
WITHHELD = {
    "nutpie": {
        **{name: f"use {SYNONYMS[name]}" for name in ("maxdepth", "num_chains", "num_draws", "num_tune", "seed")},
        "progress_bar": "use progressbar",
        "compiled_model": "use model",
        "init_mean": "use initvals",
        "save_warmup": "use discard_tuned_samples",
        "return_raw_trace": "sample returns a DataTree",
        "blocking": "sample returns when all chains are done",
        "zarr_store": "draws are kept in memory",
    },
    "pymc": {"nuts_sampler_kwargs": "use nuts"},
}
#: Arguments of PyMC that no sampler takes, and why.
WITHHELD_BY_ALL = {
    "backend": "the mode is JAXPR, so leave it out, or call pm.sample",
    "compile_kwargs": "the mode is JAXPR, so leave it out, or call pm.sample",
    "nuts_sampler_kwargs": "give them as arguments of their own",
    "return_inferencedata": "sample returns a DataTree, so leave it out and read data.posterior, or call pm.sample",
}
#: Arguments of PyMC that only ``sampler="pymc"`` takes, and what serves other samplers.
BY_PYMC_ALONE = {
    "trace": "use store, a folder for draws",
    "mp_ctx": "chains run in threads, so leave it out",
    "blas_cores": "chains share the threads of BLAS, so leave it out",
    "keep_warning_stat": "leave it out, and read sample_stats.diverging",
    **dict.fromkeys(("step", "n_init", "jitter_max_retries"), "leave it out"),
}
#: PyMC's ways to begin, as `jitter` and `mass_matrix`.
INITS: dict[str, tuple[bool, str | None]] = {
    "auto": (True, None),
    "jitter+adapt_diag": (True, "diagonal"),
    "jitter+adapt_diag_grad": (True, "diagonal"),
    "adapt_diag": (False, "diagonal"),
    "jitter+adapt_full": (True, "dense"),
    "adapt_full": (False, "dense"),
}
#: The samplers whose mass matrix has several forms.
OF_SEVERAL_FORMS = ("nuts", "numpyro")
#: The default of each argument of `pymc.sample`.
PYMC_DEFAULTS = {name: p.default for name, p in inspect.signature(pm.sample).parameters.items()}
#: The keys of ``idata_kwargs`` of `pymc.sample` that all samplers here take.
IDATA = ("coords", "dims", "log_likelihood")


def check_options(sampler: str, common: Collection[str], options: Mapping[str, Any]) -> None:
    """Raise an error, before anything is compiled, if a sampler does not take one of its `options`.

    All samplers take the `common` arguments.
    """
    known = options_of(sampler)
    withheld = {**WITHHELD_BY_ALL, **WITHHELD.get(sampler, {})}
    if sampler != "pymc":
        withheld |= {name: f"{instead}, or give sampler='pymc'" for name, instead in BY_PYMC_ALONE.items()}
    wrong = {name: f" here: {withheld[name]}." for name in options if name in withheld}
    unknown = [name for name in options if name not in known and name not in wrong]
    if sampler == "nutpie" and not wrong:
        refused = refusal(options)
        unknown = unknown if refused else []
        if refused and not unknown:
            raise TypeError(f"sampler='nutpie' refuses its options: {refused}.")
    if wrong := {name: f".{hint(name, sampler, {*common, *known})}" for name in unknown} | wrong:
        raise TypeError(" ".join(f"sampler={sampler!r} takes no argument {name!r}{why}" for name, why in wrong.items()))
    if "step_size" in options and sampler != "pymc":
        check_above_zero("step_size", options["step_size"])
    if sampler == "mclmc":
        check_mclmc(options)
    if "mass_matrix" in options:
        check_choice("mass_matrix", options["mass_matrix"], kernel_module(sampler).MASS_MATRICES)
    if sampler == "pymc" and (unknown := [name for name in options.get("nuts") or () if name not in nuts_options()]):
        raise TypeError(
            f"PyMC's NUTS takes no argument {', '.join(map(repr, unknown))}.{did_you_mean(unknown[0], nuts_options())}"
        )


def check_mclmc(options: Mapping[str, Any]) -> None:
    """Raise an error for invalid options of MCLMC, or options without effect."""
    check_flag("adjusted", options.get("adjusted", False))
    if "desired_energy_var" in options:
        check_above_zero("desired_energy_var", options["desired_energy_var"])
        if options.get("adjusted"):
            raise TypeError(
                "adjusted=True rejects steps, so no energy error is left for desired_energy_var to bound: leave it out."
            )


def without_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options without PyMC's own defaults, which wrappers of `pymc.sample` hand on, and without our own mode."""

    def is_default(name: str, value: Any) -> bool:
        default = PYMC_DEFAULTS.get(name, ...)
        return value is default or (isinstance(value, int | str) and (type(value), value) == (type(default), default))

    def is_ours(name: str, value: Any) -> bool:
        mode = value.get("mode", "JAXPR") if isinstance(value, dict) and not value.keys() - {"mode"} else value
        return name in ("backend", "compile_kwargs") and (str(mode).upper() == "JAXPR" or mode is get_mode("JAXPR"))

    return {name: value for name, value in options.items() if not (is_default(name, value) or is_ours(name, value))}


def with_nuts(
    sampler: str, nuts: Mapping[str, Any] | None, target_accept: float | None, max_treedepth: int, options: dict
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return other options, and the aim and the depth of NUTS by name, each of which may be in `nuts`."""
    given, nuts = {"target_accept": target_accept, **options}, dict(nuts or {})
    given |= {} if max_treedepth == MAX_TREEDEPTH else {"max_treedepth": max_treedepth}
    if twice := sorted(name for name in nuts if given.get(name) is not None):
        raise ValueError(f"{' and '.join(twice)} is given twice, once in nuts: leave out one.")
    aims = {"target_accept": target_accept, "max_treedepth": max_treedepth}
    aims = {name: nuts.pop(name, value) for name, value in aims.items()}
    if sampler == "pymc":
        return {**options, "nuts": nuts} if nuts else options, aims
    return {**options, **nuts}, aims


def with_init(sampler: str, jitter: bool, options: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Return `jitter` and options in place of PyMC's ``init``, which only ``sampler="pymc"`` takes as it is."""
    if sampler == "pymc" or "init" not in options:
        return jitter, options
    init = options["init"]
    known = [name for name, (_, form) in INITS.items() if form != "dense" or sampler in OF_SEVERAL_FORMS]
    if not isinstance(init, str) or init not in known:
        choices = ", ".join(map(repr, known))
        raise ValueError(f"sampler={sampler!r} has no init {shown(init)}: choose {choices}, or sampler='pymc' for it.")
    jitters, mass_matrix = INITS[init]
    rest = {name: value for name, value in options.items() if name != "init"}
    if mass_matrix is None or (mass_matrix == "diagonal" and sampler not in OF_SEVERAL_FORMS):
        return jitter and jitters, rest
    return jitter and jitters, {"mass_matrix": mass_matrix, **rest}


def check_callback(sampler: str, callback: Callable | None) -> None:
    """Raise an error for a function to call after each draw that can't be called."""
    if callback is not None and sampler == "nutpie":
        raise TypeError("nutpie calls nothing after each draw: use progress_callback, or sampler='nuts'.")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be a function of trace and draw, not {callback!r}.")


def checked_idata_kwargs(sampler: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return ``idata_kwargs``, or raise an error for keys that a sampler does not take."""
    check_dict("idata_kwargs", given)
    found = dict(given or {})
    known = sorted(parameters(pm.to_inference_data) - {"trace", "model"}) if sampler == "pymc" else IDATA
    if unknown := [name for name in found if name not in known]:
        raise TypeError(
            f"idata_kwargs takes {', '.join(map(repr, known))}, not {', '.join(map(repr, unknown))}."
            f"{did_you_mean(unknown[0], known)}"
        )
    for name in ("coords", "dims"):
        check_dict(f"idata_kwargs[{name!r}]", found.get(name))
    return found


def hint(name: str, sampler: str, known: Collection[str]) -> str:
    """Return a hint for a message: an argument's name here, or the samplers that take it, or a similar name."""
    if name in SYNONYMS and SYNONYMS[name].partition("=")[0] in known:
        return f" It is {SYNONYMS[name]} here."
    installed = [other for other, package in PACKAGES.items() if other != sampler and find_spec(package)]
    others = [other for other in installed if name in options_of(other)]
    if others:
        return f" Samplers that do: {', '.join(map(repr, others))}."
    return did_you_mean(name, {*known, *PYMC_DEFAULTS}.union(*map(options_of, installed)))


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
    return importlib.import_module(f"{__package__}.kernels.{sampler}")


def nuts_options() -> set[str]:
    """Return the arguments of PyMC's NUTS."""
    made_by = (vars(cls)["__init__"] for cls in NUTS.__mro__ if "__init__" in vars(cls))
    return set().union(*map(parameters, made_by)) - {"self", "vars", "model"}


def parameters(function: Callable) -> set[str]:
    """Return the names of a function's parameters."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name for name, p in inspect.signature(function).parameters.items() if p.kind not in several}
