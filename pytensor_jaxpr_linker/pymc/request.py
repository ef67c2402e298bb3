"""`Request`: the arguments of `sample`, and their checks, before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pymc as pm
from jax.sharding import Mesh
from rich.theme import Theme

from pytensor_jaxpr_linker.base.interpreter import usable_cores
from pytensor_jaxpr_linker.base.words import counted
from pytensor_jaxpr_linker.pymc import arguments
from pytensor_jaxpr_linker.pymc import options as sampler_options
from pytensor_jaxpr_linker.pymc.arguments import GRADIENTS, Names, as_names, shown
from pytensor_jaxpr_linker.pymc.chains.chains import ChainRun
from pytensor_jaxpr_linker.pymc.chains.runners import CHAINS
from pytensor_jaxpr_linker.pymc.functions.axis_names import check_axis_lengths
from pytensor_jaxpr_linker.pymc.functions.differentiable import check_variables
from pytensor_jaxpr_linker.pymc.functions.initial import check_initvals
from pytensor_jaxpr_linker.pymc.mesh.sharded_density import check_sampler_of_mesh, checked_mesh
from pytensor_jaxpr_linker.pymc.samplers.marginal import marginalized

#: Samplers other than NUTS, as messages name them.
METHOD_NAMES = {"mclmc": "MCLMC", "chees": "ChEES"}
METHODS = ("parallel", "vectorized", "sequential", "processes")
#: Arguments that are true or false.
FLAGS = ("jitter", "discard_tuned_samples", "quiet", "compute_convergence_checks")
#: PyMC's kinds of progress bars, which are one here.
BARS = ("combined", "split", "combined+stats", "stats+combined", "split+stats", "stats+split")
#: The number of transitions of the warm-up where PyMC's default, None, is given.
TUNE = 1000
#: The default number of chains of ChEES, which learns from many.
MANY_CHAINS = 64
#: The largest number of starting points of many chains.
MOST_SUPERCHAINS = 16
#: The default sampler: it has more effective draws a second than PyMC's default on all models of `benchmarks/`.
DEFAULT = "nuts"


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of `sample`, as given, or, from `checked`, as samplers read them, without synonyms.

    Only this sampler takes `options`. `package` is the sampler's package; `seeds` has one for each chain.
    """

    draws: int
    tune: int
    chains: int
    model: pm.Model
    sampler: str
    target_accept: float | None
    max_treedepth: int
    nuts: Mapping[str, Any] | None = None
    chain_method: str = "parallel"
    cores: int | None = None
    random_seed: Any
    initvals: Any
    jitter: bool
    restarts: int = 0
    gradient: Literal["pytensor", "jax"]
    var_names: Names | None
    marginalize: Names | Literal[True] | None = None
    thinning: int = 1
    discard_tuned_samples: bool = True
    log_likelihood: bool | list[str] = False
    idata_kwargs: Mapping[str, Any] = field(default_factory=dict)
    callback: Callable | None = None
    progressbar: Any
    progressbar_theme: Any = None
    quiet: bool = False
    compute_convergence_checks: bool
    nuts_sampler: str | None = None
    mesh: Mesh | None
    shard: Mapping[str, str] | None
    store: str | Path | None
    options: dict[str, Any]
    on_progress: Callable[[int, int], None] | None = None
    package: ModuleType = pm
    is_default: bool = False
    seeds: list[int] = field(default_factory=list)

    def checked(self) -> Request:
        """Return the arguments as samplers read them. Raise an error, with the remedy, for invalid arguments."""
        model = marginalized(arguments.check_model(self.model), self.marginalize)
        arguments.check_dict("nuts", self.nuts)
        given = self.sampler, self.nuts_sampler
        named, pymcs = (sampler_options.ALIASES.get(name, name) if isinstance(name, str) else name for name in given)
        if pymcs is not None and named not in (None, pymcs):
            raise ValueError(
                f"nuts_sampler={self.nuts_sampler!r} is PyMC's name of sampler={self.sampler!r}: leave out one of them."
            )
        sampler = named or pymcs or DEFAULT
        if self.is_on_mesh:
            check_sampler_of_mesh(sampler)
        arguments.check_choice("sampler", sampler, sampler_options.PACKAGES)
        options = sampler_options.without_defaults(self.options)
        options, aims = sampler_options.with_nuts(sampler, self.nuts, self.target_accept, self.max_treedepth, options)
        jitter, options = sampler_options.with_init(sampler, self.jitter, options)
        of_blackjax = isinstance(form := options.get("mass_matrix"), str) and form == "low_rank"
        package = arguments.require("blackjax" if of_blackjax else sampler_options.PACKAGES[sampler])
        tune = TUNE if self.tune is None else self.tune
        found = replace(self, model=model, sampler=sampler, tune=tune, package=package, options=options, **aims)
        check_kinds(found)
        check_numbers(found)
        check_sampler(found)
        check_variables_for(found)
        mesh = checked_mesh(self.mesh, self.shard) if self.is_on_mesh else None
        sampler_options.check_options(sampler, GIVEN, options)
        sampler_options.check_callback(sampler, self.callback)
        if sampler == "nutpie" and self.progressbar_theme is not None:
            raise TypeError(
                "nutpie's progress bar has no theme: use progress_template, or leave out progressbar_theme."
            )
        check_initvals(model, self.initvals)
        idata = sampler_options.checked_idata_kwargs(sampler, self.idata_kwargs)
        check_axis_lengths(model, self.var_names, idata)
        log_likelihood = idata.pop("log_likelihood", self.log_likelihood)
        few = max(2, min(4, usable_cores())) if mesh is None else max(4, mesh.shape.get(CHAINS, 1))
        chains = self.chains or (MANY_CHAINS if sampler == "chees" else few)
        return replace(
            found,
            is_default=not (named or pymcs or self.is_on_mesh),
            mesh=mesh,
            chains=chains,
            seeds=arguments.chain_seeds(self.random_seed, chains),
            random_seed=list(self.random_seed) if isinstance(self.random_seed, range) else self.random_seed,
            chain_method="vectorized" if sampler == "chees" else self.chain_method,
            jitter=jitter,
            log_likelihood=checked_log_likelihood(model, log_likelihood, self.var_names),
            idata_kwargs=idata,
            progressbar=not self.quiet and self.progressbar,
        )

    @property
    def is_on_mesh(self) -> bool:
        """Whether chains are divided along a mesh, of all devices if none is given."""
        return self.mesh is not None or self.shard is not None or self.store is not None

    @property
    def run(self) -> ChainRun:
        """How chains of a JAX program run."""
        keep_warmup = not self.discard_tuned_samples
        return ChainRun(self.draws, self.chain_method, self.cores, self.thinning, keep_warmup, self.mesh)

    @property
    def adaptation(self) -> dict[str, Any]:
        """The arguments of a sampler's kernel."""
        found = {"tune": self.tune, "max_treedepth": self.max_treedepth, **self.options}
        aim = self.target_accept or sampler_options.TARGET_ACCEPTS.get(self.sampler)
        return found if aim is None else {"target_accept": aim, **found}

    @property
    def superchains(self) -> int:
        """The number of starting points: for nested R-hat, an equal number of ChEES's chains starts at each."""
        if self.sampler != "chees" or isinstance(self.initvals, list | tuple):
            return self.chains
        return max((n for n in range(2, MOST_SUPERCHAINS + 1) if self.chains % n == 0), default=self.chains)

    @property
    def chains_at_a_time(self) -> int:
        """The number of chains that run at the same time, each in a thread of its own."""
        return self.chains if self.chain_method == "parallel" else 1

    @property
    def not_of_nutpie(self) -> list[str]:
        """The arguments that keep nutpie, which runs host steps, from taking the place of the default sampler."""
        vectorized = ["chain_method='vectorized'"] if self.chain_method == "vectorized" else []
        return [*vectorized, *self.options, *(["callback"] if self.callback is not None else [])]


#: Fields that are not arguments of `sample`, or not for all samplers.
OF_OTHERS = ("options", "on_progress", "package", "is_default", "seeds")
#: The arguments of `sample` that all samplers have.
GIVEN = [name for name in Request.__annotations__ if name not in OF_OTHERS]


def check_restarts(asked: Any) -> None:
    """Raise an error for restarts of chains, which this package no longer has."""
    if isinstance(asked, bool) or not isinstance(asked, Integral) or asked:
        raise ValueError(
            f"restarts={shown(asked)}: chains no longer start again, since that hid modes of the posterior. Leave"
            " restarts out. If R-hat is above 1.01, run more chains, look at each of them (diagnose) and reparametrize;"
            " sample_smc samples separate modes."
        )


def check_kinds(asked: Request) -> None:
    """Raise an error for arguments of a kind that no sampler takes."""
    for name in FLAGS:
        arguments.check_flag(name, getattr(asked, name))
    bar, theme = asked.progressbar, asked.progressbar_theme
    if isinstance(bar, str):
        arguments.check_choice("progressbar", bar, BARS)
    else:
        arguments.check_flag("progressbar", bar)
    if not isinstance(theme, (Theme | str | None) if asked.sampler == "pymc" else (Theme | None)):
        raise TypeError(f"progressbar_theme must be a rich.theme.Theme, not {shown(theme)}.")


def checked_log_likelihood(model: pm.Model, asked: Any, var_names: Names | None) -> bool | list[str]:
    """Return whether to compute the log likelihood, or the names of observed variables to compute it for."""
    if isinstance(asked, bool | None):
        found: bool | list[str] = bool(asked)
    else:
        found, known = as_names(asked), [str(rv.name) for rv in model.observed_RVs]
        if unknown := [name for name in found if name not in known]:
            observed = ", ".join(map(repr, known)) or "none"
            raise ValueError(f"log_likelihood has {unknown[0]!r}, but the observed variables are {observed}.")
    names = None if var_names is None else as_names(var_names)
    if found and names is not None and (missing := [rv.name for rv in model.free_RVs if rv.name not in names]):
        raise ValueError(
            f"log_likelihood is computed from all free variables, and var_names leaves out {missing[0]!r}: add it."
        )
    return found


def check_numbers(asked: Request) -> None:
    """Raise an error for numbers and choices that no sampler takes."""
    arguments.check_choice("chain_method", asked.chain_method, METHODS)
    arguments.check_choice("gradient", asked.gradient, GRADIENTS)
    arguments.check_integer("draws", asked.draws, 1)
    arguments.check_integer("tune", asked.tune, 0)
    arguments.check_integer("chains", 1 if asked.chains is None else asked.chains, 1)
    arguments.check_integer("max_treedepth", asked.max_treedepth, 1)
    arguments.check_integer("cores", 1 if asked.cores is None else asked.cores, 1)
    arguments.check_integer("thinning", asked.thinning, 1)
    if asked.thinning > asked.draws:
        raise ValueError(f"thinning={asked.thinning} leaves none of {counted(asked.draws, 'draw')}: give more draws.")
    if asked.target_accept is not None:
        arguments.check_fraction("target_accept", asked.target_accept)
    if asked.cores is not None and asked.chain_method not in ("parallel", "processes"):
        raise ValueError("cores is how many chains run at a time with chain_method='parallel': leave one of them out.")


def check_sampler(asked: Request) -> None:
    """Raise an error for arguments that this sampler does not support."""
    sampler = asked.sampler
    if asked.is_on_mesh:
        for name, default in (("chain_method", "parallel"), ("cores", None)):
            if getattr(asked, name) != default:
                raise TypeError(f"{name} is not for runs with mesh, shard or store: leave it out.")
        if asked.store is not None and not asked.discard_tuned_samples:
            raise TypeError("A store keeps no draws of the warm-up: leave out discard_tuned_samples.")
    if asked.chain_method == "vectorized" and sampler in ("nutpie", "pymc"):
        raise ValueError(
            f"{sampler} can't run chains as one program: use chain_method='parallel', or sampler='nuts' or 'numpyro'."
        )
    if asked.chain_method == "processes" and sampler != "nutpie":
        what = "PyMC's chains are processes anyway" if sampler == "pymc" else "chains of JAX's programs need none"
        raise ValueError(f"chain_method='processes' is for sampler='nutpie': {what}, so leave it out.")
    if sampler == "mclmc" and asked.target_accept is not None:
        raise TypeError("sampler='mclmc' accepts every step, so it has no target_accept: use desired_energy_var.")
    if sampler in ("mclmc", "chees") and not asked.discard_tuned_samples:
        raise TypeError(f"sampler={sampler!r} keeps no draws of its warm-up: leave out discard_tuned_samples.")
    if sampler == "chees":
        if asked.chain_method == "sequential" or asked.cores is not None:
            raise ValueError(
                "The chains of sampler='chees' adapt together, so they are one program: leave out chain_method and"
                " cores."
            )
        arguments.check_integer("chains", MANY_CHAINS if asked.chains is None else asked.chains, 2)
        arguments.check_integer("tune", asked.tune, 1)
    if sampler == "nutpie" and asked.tune == 0:
        raise ValueError("nutpie can't sample without warm-up: use tune=1 or more, or sampler='nuts'.")
    if sampler == "nutpie" and not isinstance(asked.initvals, dict | None):
        raise ValueError("nutpie starts all chains by the same initvals: give one dict.")
    if sampler == "pymc" and asked.gradient == "jax":
        raise ValueError(
            "PyMC's steps have PyTensor's gradient only: leave out gradient='jax', or use another sampler."
        )


def check_variables_for(asked: Request) -> None:
    """Raise an error for a model without free variables, or with variables that this sampler can't move."""
    arguments.check_free(asked.model)
    if asked.sampler != "pymc":
        others = "use sampler='pymc', which has other steps"
        remedy = f"leave out mesh, shard and store, and {others}" if asked.is_on_mesh else others
        check_variables(asked.model, METHOD_NAMES.get(asked.sampler, "NUTS"), remedy)
