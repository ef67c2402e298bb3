"""`diagnose`: says in plain words which problems draws have, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from pytensor_jaxpr_linker.base.words import counted, page_url
from pytensor_jaxpr_linker.pymc.chain_statistics import LEAST_DRAWS, ess, rhat

#: Above this many chains, all chains from one starting point are compared together (nested R-hat).
MANY = 16
#: Draws of many chains that are sorted for their ranks: of more, some are left out, which can only make both measures
#: worse.
MOST_SORTED = 2**18
#: What arviz and PyMC warn of, too: R-hat above, effective draws (of all chains) and the energy's fraction below.
MOST_RHAT, LEAST_ESS, LEAST_BFMI = 1.01, 400, 0.3
#: Nested R-hat above: a few short chains from each point leave it more noise.
MOST_NESTED_RHAT = 1.02
#: Share of draws at the maximum tree depth above which it costs much.
MOST_AT_DEPTH = 0.05
#: Chains are in different places if no other chain's mean is between theirs and they are this many standard deviations
#: of a chain apart.
APART = 3.0

# -- remedies by the sampler that drew; "" stands for all other samplers, also of other packages ---------------------

ONE_CHAIN = {
    "pathfinder": "Pathfinder approximates the posterior: compare with the draws of sample.",
    "": "Run four chains.",
}
#: What to try for correlated variables: an argument of the sampler, else another sampler.
CORRELATED = {
    "nuts": "mass_matrix='low_rank'",
    "blackjax": "mass_matrix='low_rank'",  # in results of older versions
    "numpyro": "mass_matrix='dense'",
    "nutpie": "adaptation='low_rank'",
    "pymc": "init='jitter+adapt_full'",
    "": "sampler='nuts' with mass_matrix='low_rank'",
}
#: Methods that have no warm-up.
WITHOUT_WARMUP = ("smc", "pathfinder")
DISAGREEMENT = {
    **dict.fromkeys(WITHOUT_WARMUP, "Run more draws; if that does not help, reparameterize."),
    "": "Run more draws and a longer warm-up (tune); if that does not help, reparameterize.",
}
ORDER_COMPONENTS = "order what may change places (a mixture's components)"
MODES = {
    "smc": f"{ORDER_COMPONENTS}, or run more draws.",
    "": f"look at initvals, {ORDER_COMPONENTS}, or use sample_smc, which moves between modes.",
}
FEW_EFFECTIVE = {
    "pathfinder": "Use more paths, or sample.",
    "smc": "Take {times} times the draws.",
    "": "Take {times} times the draws, or try {correlated}.",
}
STUCK = {**dict.fromkeys(WITHOUT_WARMUP, "Run more draws."), "": "Give other initvals, or more tune."}


def advice(by_sampler: dict[str, str], sampler: str) -> str:
    """Return the entry of a table for a sampler."""
    return by_sampler.get(sampler, by_sampler[""])


class Finding(NamedTuple):
    """A problem, and what to change."""

    problem: str
    remedy: str


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """The result of `diagnose`; print it.

    Attributes
    ----------
    findings
        The problems, the most important first; none if all is well.
    summary
        One sentence about the draws.
    """

    findings: list[Finding]
    summary: str

    def __str__(self) -> str:
        if not self.findings:
            return f"{self.summary}\nNothing is wrong that the draws show."
        return "\n".join([self.summary, *(f"- {problem} {remedy}" for problem, remedy in self.findings)])

    __repr__ = __str__


@np.errstate(all="ignore")  # an element that is constant has no R-hat
def diagnose(data: xr.DataTree) -> Diagnosis:
    """Say in plain words which problems draws of a posterior have, and what to change.

    Parameters
    ----------
    data : xarray.DataTree
        What `sample` or `pymc.sample` returned.

    Returns
    -------
    Diagnosis
        Print it, or read its attribute `findings`.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> from pytensor_jaxpr_linker.pymc import diagnose
    >>> draws = np.random.default_rng(1).normal(size=(4, 500)) + np.array([[0.0], [0.0], [0.0], [9.0]])
    >>> data = xr.DataTree.from_dict({"posterior": xr.Dataset({"x": (("chain", "draw"), draws)})})
    >>> print(diagnose(data))  # doctest: +NORMALIZE_WHITESPACE
    4 chains of 500 draws: R-hat at most 1.53 ('x'), at least 7 effective draws ('x').
    - The chains are in 2 places: the mean of 'x' is -0.05 (chains 0, 1 and 2) and 9.08 (chain 3).
    The posterior has several modes, or a chain got stuck: look at initvals, order what may change places
    (a mixture's components), or use sample_smc, which moves between modes.
    """
    check_draws(data)
    posterior, attrs = judged_variables(data["posterior"].to_dataset()), data["posterior"].attrs
    stats = data["sample_stats"].to_dataset() if "sample_stats" in data.children else xr.Dataset()
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    worst, sampler = worst_of(posterior), str(attrs.get("sampler", ""))
    findings = [*of_values(posterior), *of_transitions(posterior, stats, sampler)]
    findings += of_chains(posterior, worst, sampler)
    if attrs.get("interrupted"):
        problem = f"Sampling was interrupted before the {attrs.get('draws')} draws."
        findings.insert(0, Finding(problem, "Run it to its end."))
    return Diagnosis(findings, f"{counted(chains, 'chain')} of {counted(draws, 'draw')}: {described(worst)}.")


def check_draws(data: Any) -> None:
    """Raise an error unless this is the result of a sampler."""
    if not isinstance(data, xr.DataTree):
        raise TypeError(f"diagnose takes the DataTree that sample or pymc.sample returned, not {data!r:.100}.")
    if "posterior" not in data.children:
        raise ValueError(
            f"diagnose needs the group 'posterior'; this DataTree has {', '.join(data.children) or 'none'}."
        )
    if missing := [axis for axis in ("chain", "draw") if axis not in data["posterior"].sizes]:
        raise ValueError(
            f"diagnose needs a posterior with the dimensions 'chain' and 'draw'; it has no {missing[0]!r}."
        )


def judged_variables(posterior: xr.Dataset) -> xr.Dataset:
    """Return the variables with real numbers, truth values as 0 and 1."""
    others = [
        name
        for name, x in posterior.data_vars.items()
        if x.dtype.kind not in "biuf" or not x.size or not {"chain", "draw"} <= set(x.dims)
    ]
    axes = {axis: posterior[axis] for axis in ("chain", "draw")}  # which also tell sizes where no variable is left
    kept = posterior.assign_coords(axes).drop_vars(others)
    return kept.assign({name: x.astype(float) for name, x in kept.data_vars.items() if x.dtype == bool})


def described(worst: Worst) -> str:
    """Return the worst R-hat and number of effective draws as words."""
    parts = []
    if not np.isnan(worst.rhat):
        parts.append(f"R-hat at most {worst.rhat:.2f} ({worst.rhat_name!r})")
    if np.isfinite(worst.ess):
        parts.append(f"at least {worst.ess:.0f} effective draws ({worst.ess_name!r})")
    return ", ".join(parts) or "too few to judge"


class Worst(NamedTuple):
    """The largest R-hat and the smallest number of effective draws, with the names of the variables, or NaN."""

    rhat: float
    rhat_name: str
    ess: float
    ess_name: str


def worst_of(posterior: xr.Dataset) -> Worst:
    """Return the worst figures of all variables. A constant has no R-hat, nor has a single chain."""
    chains, points = posterior.sizes["chain"], int(posterior.attrs.get("superchains", 0))
    if posterior.sizes["draw"] < LEAST_DRAWS or not posterior.data_vars:
        return Worst(np.nan, "", np.nan, "")
    if chains > MANY:
        every = -(-chains * posterior.sizes["draw"] // MOST_SORTED)
        posterior = posterior.isel(draw=slice(None, None, every))
    superchains = points if chains > MANY and 1 < points < chains else None
    draws = {str(name): x.transpose("chain", "draw", ...).to_numpy() for name, x in posterior.data_vars.items()}
    of_rhat = extreme({name: rhat(x, superchains) for name, x in draws.items()}, max)
    return Worst(*of_rhat, *extreme({name: ess(x) for name, x in draws.items()}, min))


def extreme(values: Mapping[str, np.ndarray], of: Callable) -> tuple[float, str]:
    """Return the `max` or `min` of the numbers of all variables, with the variable's name; NaN if there are none."""
    found = [(of(numbers), name) for name, x in values.items() if (numbers := x[~np.isnan(x)].tolist())]
    return of(found, key=itemgetter(0), default=(np.nan, ""))


def of_values(posterior: xr.Dataset) -> Iterator[Finding]:
    """Yield a finding on the variable with the most values that are not finite."""
    reals: dict[str, Any] = {str(name): x for name, x in posterior.data_vars.items() if x.dtype.kind == "f"}
    others = {name: [axis for axis in x.dims if axis not in ("chain", "draw")] for name, x in reals.items()}
    counts = {name: int((~np.isfinite(x)).any(others[name]).sum()) for name, x in reals.items()}
    name = max(counts, key=counts.__getitem__, default="")
    if counts.get(name):
        total = posterior.sizes["chain"] * posterior.sizes["draw"]
        yield Finding(
            f"{counts[name]} of {total} draws of {name!r} hold a value that is NaN or infinite, which R-hat and"
            " effective draws leave out.",
            "Look for a division by zero, a logarithm of zero or an overflow in the expression of"
            f" {name!r} ({page_url('guides/nan')}).",
        )


def of_transitions(posterior: xr.Dataset, stats: xr.Dataset, sampler: str) -> Iterator[Finding]:
    """Yield findings on single transitions: divergences, depth, energy."""
    if not posterior.sizes["draw"]:
        return
    if "diverging" in stats and (count := int(stats["diverging"].sum())):
        total, place = stats["diverging"].size, divergence_place(posterior, stats["diverging"])
        yield Finding(
            f"{count} of {total} transitions diverged: the posterior bends more sharply there than the step size"
            f" allows, so draws from such places are missing.{place}",
            "Give target_accept=0.95 or more; if some remain, write groups non-centered (offset * scale + mean) or give"
            " scales priors that stay away from zero.",
        )
    if "reached_max_treedepth" in stats:
        share = float(stats["reached_max_treedepth"].mean())
        if share > MOST_AT_DEPTH:
            yield Finding(
                f"{share:.0%} of the transitions reached the maximum tree depth: each cost the most gradients, and went"
                " less far than it should.",
                f"Standardize the predictors, try {advice(CORRELATED, sampler)} for correlated variables, or raise"
                " max_treedepth.",
            )
    if "energy" in stats and stats["energy"].sizes.get("draw", 0) > 1:
        low = [i for i, fraction in enumerate(bfmi(stats["energy"].to_numpy())) if fraction < LEAST_BFMI]
        if low:
            yield Finding(
                f"The energy changes too slowly in {chains_named(low)} (E-BFMI below {LEAST_BFMI}): the tails are"
                " heavier, or the scales differ more, than NUTS can follow.",
                "Write groups non-centered, or replace priors with very heavy tails.",
            )


def bfmi(energy: np.ndarray) -> np.ndarray:
    """Return the estimated Bayesian fraction of missing information of each chain (Betancourt, 2016)."""
    return np.square(np.diff(energy, axis=1)).mean(axis=1) / np.maximum(energy.var(axis=1), 1e-300)


def divergence_place(posterior: xr.Dataset, diverging: xr.DataArray) -> str:
    """Return where transitions diverged, if there is a variable that is small or large there."""
    where, best, text = diverging.to_numpy().ravel(), 1.0, ""
    for name, label, x in scalar_elements(posterior):
        there, overall, spread = np.median(x.ravel()[where]), np.median(x), x.std()
        if spread > 0 and where.sum() > 2 and (distance := abs(there - overall) / spread) > best:
            best, size = distance, "small" if there < overall else "large"
            text = f" They gather where {name!r}{label} is {size} (median {there:.3g}, {overall:.3g} overall)."
    return text


def scalar_elements(posterior: xr.Dataset) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield each element of each variable: its name, its index as text, and an array of chains and draws."""
    for name, variable in posterior.data_vars.items():
        array = variable.transpose("chain", "draw", ...).to_numpy()
        for index in np.ndindex(array.shape[2:]):
            yield str(name), str(list(index)) if index else "", array[(..., *index)]


def of_chains(posterior: xr.Dataset, worst: Worst, sampler: str) -> Iterator[Finding]:
    """Yield findings on the chains as a whole."""
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    if draws < LEAST_DRAWS:
        yield Finding(f"A chain has only {counted(draws, 'draw')}, which tell nothing.", "Take 1,000 draws.")
        return
    disagree = chains > 1 and worst.rhat > (MOST_RHAT if chains <= MANY else MOST_NESTED_RHAT)
    if chains == 1:
        yield Finding(
            "One chain alone can't show whether it has found the whole posterior.", advice(ONE_CHAIN, sampler)
        )
    stuck = {i for _, _, x in scalar_elements(posterior) for i in np.flatnonzero(np.ptp(x, axis=1) == 0)}
    fixed = {i for i in stuck if all(np.ptp(x[i]) == 0 for _, _, x in scalar_elements(posterior))}
    if fixed:
        yield Finding(f"{chains_named(sorted(fixed)).capitalize()} never moved.", advice(STUCK, sampler))
    elif disagree:
        if apart := chains_apart(posterior) if chains <= MANY else "":
            yield Finding(apart, f"The posterior has several modes, or a chain got stuck: {advice(MODES, sampler)}")
        else:
            problem = f"The chains do not agree on {worst.rhat_name!r} yet (R-hat {worst.rhat:.3f})."
            yield Finding(problem, advice(DISAGREEMENT, sampler))
    if worst.ess < LEAST_ESS and not disagree:
        times = int(np.ceil(LEAST_ESS / max(worst.ess, 1.0)))
        yield Finding(
            f"{worst.ess_name!r} has only {worst.ess:.0f} effective draws, too few for quantiles.",
            advice(FEW_EFFECTIVE, sampler).format(times=times, correlated=advice(CORRELATED, sampler)),
        )


def chains_apart(posterior: xr.Dataset) -> str:
    """Return the place of each chain by the variable that separates them most, as a sentence, or nothing."""
    best, text = APART, ""
    for name, label, x in scalar_elements(posterior):
        means, spread = x.mean(axis=1), float(np.median(x.std(axis=1)))
        order = np.argsort(means)
        gaps = np.diff(means[order])
        if spread > 0 and gaps.max() / spread > best:
            best = gaps.max() / spread
            places = np.split(order, np.flatnonzero(gaps > APART * spread) + 1)
            named = means_named(means, places, spread)
            text = f"The chains are in {len(places)} places: the mean of {name!r}{label} is {named}."
    return text


def means_named(means: np.ndarray, places: list[np.ndarray], spread: float) -> str:
    """Return the mean of the chains in each place as words, with digits that `spread` gives a meaning."""
    digits = 2 - int(np.floor(np.log10(spread)))
    parts = [f"{round(float(means[place].mean()), digits) + 0.0} ({chains_named(sorted(place))})" for place in places]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def chains_named(index: Any) -> str:
    """Return chains as words: ``chain 0``, ``chains 0 and 2``."""
    numbers = [str(i) for i in index]
    if len(numbers) > 8:
        return f"{len(numbers)} chains"
    head = ", ".join(numbers[:-1])
    return f"chain {numbers[0]}" if len(numbers) == 1 else f"chains {head} and {numbers[-1]}"
