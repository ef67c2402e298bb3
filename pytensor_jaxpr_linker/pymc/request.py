"""`Request`: what a user asks `sample` for, checked, before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from types import ModuleType
from typing import Any, Literal, NamedTuple

import pymc as pm
from rich.theme import Theme

from pytensor_jaxpr_linker.base.platforms import usable_cores
from pytensor_jaxpr_linker.base.words import counted
from pytensor_jaxpr_linker.pymc.arguments import (
    GRADIENTS,
    Names,
    as_names,
    chain_seeds,
    check_choice,
    check_dict,
    check_flag,
    check_fraction,
    check_free,
    check_integer,
    check_model,
    require,
    shown,
)
from pytensor_jaxpr_linker.pymc.chains.chains import ChainRun
from pytensor_jaxpr_linker.pymc.functions.axis_names import check_axis_lengths
from pytensor_jaxpr_linker.pymc.functions.differentiable import check_variables
from pytensor_jaxpr_linker.pymc.functions.initial import check_initvals
from pytensor_jaxpr_linker.pymc.options import (
    PACKAGES,
    TARGET_ACCEPTS,
    check_callback,
    check_options,
    checked_idata_kwargs,
    with_init,
    with_nuts,
)
from pytensor_jaxpr_linker.pymc.samplers.marginal import marginalized

#: Samplers that are no NUTS.
METHOD_NAMES = {"mclmc": "MCLMC", "chees": "ChEES"}
METHODS = ("parallel", "vectorized", "sequential", "processes")
#: Arguments that are true or false.
FLAGS = ("jitter", "discard_tuned_samples", "quiet", "compute_convergence_checks")
#: PyMC's kinds of progress bars, which are one here.
BARS = ("combined", "split", "combined+stats", "stats+combined", "split+stats", "stats+split")
#: Chains where none are asked for: ChEES learns from many.
MANY_CHAINS = 64
#: Most points at which many chains start.
MOST_SUPERCHAINS = 16
#: The sampler where none is asked for: a call has more effective draws a second than PyMC's default on all models of `benchmarks/`.
DEFAULT = "blackjax"


class Request(NamedTuple):
    """The arguments of `sample` after the checks: of names for one thing, one is left.

    Attributes
    ----------
    package
        That of the sampler.
    is_default
        Whether no sampler was asked for.
    seeds
        One for each chain.
    idata
        Coordinates and dimensions beside those of the model.
    options
        What only this sampler takes.
    """

    model: pm.Model
    sampler: str
    package: ModuleType
    is_default: bool
    draws: int
    tune: int
    chains: int
    seeds: list[int]
    random_seed: Any
    target_accept: float | None
    max_treedepth: int
    chain_method: str
    cores: int | None
    initvals: Any
    jitter: bool
    gradient: Literal["pytensor", "jax"]
    var_names: Names | None
    thinning: int
    discard_tuned_samples: bool
    log_likelihood: bool | list[str]
    idata: dict[str, Any]
    callback: Any
    progressbar: Any
    progressbar_theme: Any
    quiet: bool
    compute_convergence_checks: bool
    options: dict[str, Any]

    @property
    def run(self) -> ChainRun:
        """How chains of a JAX program run."""
        keep_warmup = not self.discard_tuned_samples
        return ChainRun(self.draws, self.chain_method, self.cores, self.thinning, keep_warmup)

    @property
    def adaptation(self) -> dict[str, Any]:
        """The arguments of a sampler's kernel."""
        found = {"tune": self.tune, "max_treedepth": self.max_treedepth, **self.options}
        aim = self.target_accept or TARGET_ACCEPTS.get(self.sampler)
        return found if aim is None else {"target_accept": aim, **found}

    @property
    def superchains(self) -> int:
        """How many points chains start at: of many chains, as many start at each, so that nested R-hat can compare them."""
        if self.sampler != "chees" or isinstance(self.initvals, list | tuple):
            return self.chains
        return max((n for n in range(2, MOST_SUPERCHAINS + 1) if self.chains % n == 0), default=self.chains)

    @property
    def chains_at_a_time(self) -> int:
        """How many chains run at the same time, each in a thread of its own."""
        return self.chains if self.chain_method == "parallel" else 1

    @property
    def not_of_nutpie(self) -> list[str]:
        """The arguments that keep nutpie, which runs host steps, from taking the place of the default sampler."""
        vectorized = ["chain_method='vectorized'"] if self.chain_method == "vectorized" else []
        return [*vectorized, *self.options, *(["callback"] if self.callback is not None else [])]


def make_request(given: Mapping[str, Any]) -> Request:
    """Check the arguments of `sample`, and raise an error, with the remedy, for those that can't be."""
    model = marginalized(check_model(given["model"]), given["marginalize"])
    quiet, kwargs = given["quiet"], dict(given["kwargs"])
    check_dict("nuts", given["nuts"])
    if kwargs.get("return_inferencedata") is True:  # which is what `sample` returns
        del kwargs["return_inferencedata"]
    named, pymcs = given["sampler"], given["nuts_sampler"]
    if pymcs is not None and named not in (None, pymcs):
        raise ValueError(f"nuts_sampler={pymcs!r} is PyMC's name of sampler={named!r}: leave out one of them.")
    asked = named or pymcs
    sampler = asked or DEFAULT
    check_choice("sampler", sampler, PACKAGES)
    package = require(PACKAGES[sampler])
    target_accept, max_treedepth, kwargs = with_nuts(
        sampler, given["nuts"], given["target_accept"], given["max_treedepth"], kwargs
    )
    jitter, kwargs = with_init(sampler, given["jitter"], kwargs)
    chains = given["chains"]
    check_kinds(given, sampler)
    check_numbers(given, target_accept, max_treedepth)
    check_sampler(sampler, given, target_accept)
    check_variables_for(model, sampler)
    check_options(sampler, [name for name in given if name != "kwargs"], kwargs)
    check_callback(sampler, given["callback"])
    if sampler == "nutpie" and given["progressbar_theme"] is not None:
        raise TypeError("nutpie's progress bar has no theme: use progress_template, or leave out progressbar_theme.")
    check_initvals(model, given["initvals"])
    idata = checked_idata_kwargs(sampler, given["idata_kwargs"])
    check_axis_lengths(model, given["var_names"], idata)
    log_likelihood = checked_log_likelihood(
        model, idata.pop("log_likelihood", given["log_likelihood"]), given["var_names"]
    )
    chains = chains or (MANY_CHAINS if sampler == "chees" else max(2, min(4, usable_cores())))
    return Request(
        model=model,
        sampler=sampler,
        package=package,
        is_default=asked is None,
        draws=given["draws"],
        tune=given["tune"],
        chains=chains,
        seeds=chain_seeds(given["random_seed"], chains),
        random_seed=list(given["random_seed"]) if isinstance(given["random_seed"], range) else given["random_seed"],
        target_accept=target_accept,
        max_treedepth=max_treedepth,
        chain_method="vectorized" if sampler == "chees" else given["chain_method"],
        cores=given["cores"],
        initvals=given["initvals"],
        jitter=jitter,
        gradient=given["gradient"],
        var_names=given["var_names"],
        thinning=given["thinning"],
        discard_tuned_samples=given["discard_tuned_samples"],
        log_likelihood=log_likelihood,
        idata=idata,
        callback=given["callback"],
        progressbar=False if quiet else given["progressbar"],
        progressbar_theme=given["progressbar_theme"],
        quiet=quiet,
        compute_convergence_checks=given["compute_convergence_checks"],
        options=kwargs,
    )


def check_restarts(asked: Any) -> None:
    """Raise an error for restarts of chains, which this package no longer has."""
    if isinstance(asked, bool) or not isinstance(asked, Integral) or asked:
        raise ValueError(
            f"restarts={shown(asked)}: chains no longer start again, since that hid modes of the posterior. Leave restarts out. If R-hat is above 1.01, run more"
            " chains, look at each of them (diagnose) and reparametrize; sample_smc samples separate modes."
        )


def check_kinds(given: Mapping[str, Any], sampler: str) -> None:
    """Raise an error for arguments that are of another kind than all samplers take."""
    for name in FLAGS:
        check_flag(name, given[name])
    bar, theme = given["progressbar"], given["progressbar_theme"]
    if isinstance(bar, str):
        check_choice("progressbar", bar, BARS)
    else:
        check_flag("progressbar", bar)
    if not isinstance(theme, (Theme | str | None) if sampler == "pymc" else (Theme | None)):
        raise TypeError(f"progressbar_theme must be a rich.theme.Theme, not {shown(theme)}.")


def checked_log_likelihood(model: pm.Model, asked: Any, var_names: Names | None) -> bool | list[str]:
    """Return whether to compute the log likelihood, or of which observed variables."""
    if isinstance(asked, bool | None):
        found: bool | list[str] = bool(asked)
    else:
        found, known = as_names(asked), [str(rv.name) for rv in model.observed_RVs]
        if unknown := [name for name in found if name not in known]:
            raise ValueError(
                f"log_likelihood has {unknown[0]!r}, but the observed variables are {', '.join(map(repr, known)) or 'none'}."
            )
    names = None if var_names is None else as_names(var_names)
    if found and names is not None and (missing := [rv.name for rv in model.free_RVs if rv.name not in names]):
        raise ValueError(
            f"log_likelihood is computed from all free variables, and var_names leaves out {missing[0]!r}: add it."
        )
    return found


def check_numbers(given: Mapping[str, Any], target_accept: float | None, max_treedepth: int) -> None:
    """Raise an error for numbers and choices that no sampler takes."""
    check_choice("chain_method", given["chain_method"], METHODS)
    check_choice("gradient", given["gradient"], GRADIENTS)
    check_integer("draws", given["draws"], 1)
    check_integer("tune", given["tune"], 0)
    check_integer("chains", 1 if given["chains"] is None else given["chains"], 1)
    check_integer("max_treedepth", max_treedepth, 1)
    check_integer("cores", 1 if given["cores"] is None else given["cores"], 1)
    check_integer("thinning", given["thinning"], 1)
    if given["thinning"] > given["draws"]:
        raise ValueError(
            f"thinning={given['thinning']} leaves none of {counted(given['draws'], 'draw')}: give more draws."
        )
    if target_accept is not None:
        check_fraction("target_accept", target_accept)
    if given["cores"] is not None and given["chain_method"] not in ("parallel", "processes"):
        raise ValueError("cores is how many chains run at a time with chain_method='parallel': leave one of them out.")


def check_sampler(sampler: str, given: Mapping[str, Any], target_accept: float | None) -> None:
    """Raise an error for what this sampler does not do."""
    if given["chain_method"] == "vectorized" and sampler in ("nutpie", "pymc"):
        raise ValueError(
            f"{sampler} can't run chains as one program: use chain_method='parallel', or sampler='blackjax' or 'numpyro'."
        )
    if given["chain_method"] == "processes" and sampler != "nutpie":
        what = "PyMC's chains are processes anyway" if sampler == "pymc" else "chains of JAX's programs need none"
        raise ValueError(f"chain_method='processes' is for sampler='nutpie': {what}, so leave it out.")
    if sampler == "mclmc" and target_accept is not None:
        raise TypeError("sampler='mclmc' accepts every step, so it has no target_accept: use desired_energy_var.")
    if sampler in ("mclmc", "chees") and not given["discard_tuned_samples"]:
        raise TypeError(f"sampler={sampler!r} keeps no draws of its warm-up: leave out discard_tuned_samples.")
    if sampler == "chees":
        check_many(given)
    if sampler == "nutpie" and given["tune"] == 0:
        raise ValueError("nutpie can't sample without warm-up: use tune=1 or more, or sampler='blackjax'.")
    if sampler == "nutpie" and not isinstance(given["initvals"], dict | None):
        raise ValueError("nutpie starts all chains by the same initvals: give one dict.")
    if sampler == "pymc" and given["gradient"] == "jax":
        raise ValueError(
            "PyMC's steps have PyTensor's gradient only: leave out gradient='jax', or use another sampler."
        )


def check_many(given: Mapping[str, Any]) -> None:
    """Raise an error for what chains that adapt together can't do."""
    if given["chain_method"] == "sequential" or given["cores"] is not None:
        raise ValueError(
            "The chains of sampler='chees' adapt together, so they are one program: leave out chain_method and cores."
        )
    check_integer("chains", MANY_CHAINS if given["chains"] is None else given["chains"], 2)
    check_integer("tune", given["tune"], 1)


def check_variables_for(model: pm.Model, sampler: str) -> None:
    """Raise an error for a model that has nothing to sample, or variables that this sampler can't move."""
    check_free(model)
    if sampler != "pymc":
        check_variables(model, METHOD_NAMES.get(sampler, "NUTS"), "use sampler='pymc', which has other steps")
