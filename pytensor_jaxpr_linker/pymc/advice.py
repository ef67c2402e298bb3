"""What `diagnose` advises, in the words of the sampler that drew."""

from __future__ import annotations

import xarray as xr

#: What to try for correlated variables: an argument of the sampler, else another sampler.
CORRELATED = {
    "nuts": "mass_matrix='low_rank'",
    "blackjax": "mass_matrix='low_rank'",  # in results of older versions
    "numpyro": "mass_matrix='dense'",
    "nutpie": "adaptation='low_rank'",
    "pymc": "init='jitter+adapt_full'",
}
ANOTHER_SAMPLER = "sampler='nuts' with mass_matrix='low_rank'"
#: Methods that have no warm-up.
WITHOUT_WARMUP = ("smc", "pathfinder")


def sampler_of(data: xr.DataTree) -> str:
    """Return which sampler of this package drew; nothing if it was another one."""
    return str(data["posterior"].attrs.get("sampler", ""))


def for_correlated(sampler: str) -> str:
    """Return what to try for correlated variables.

    Examples
    --------
    >>> from pytensor_jaxpr_linker.pymc.advice import for_correlated
    >>> for_correlated("nutpie"), for_correlated("chees")
    ("adaptation='low_rank'", "sampler='nuts' with mass_matrix='low_rank'")
    """
    return CORRELATED.get(sampler, ANOTHER_SAMPLER)


def for_one_chain(sampler: str) -> str:
    """Return what to do about a single chain."""
    if sampler == "pathfinder":
        return "Pathfinder approximates the posterior: compare with the draws of sample."
    return "Run four chains."


def for_disagreement(sampler: str) -> str:
    """Return what to do about chains that do not agree."""
    if sampler in WITHOUT_WARMUP:
        return "Run more draws; if that does not help, reparameterize."
    return "Run more draws and a longer warm-up (tune); if that does not help, reparameterize."


def for_modes(sampler: str) -> str:
    """Return what to do about chains in different places."""
    order = "order what may change places (a mixture's components)"
    if sampler == "smc":
        return f"{order}, or run more draws."
    return f"look at initvals, {order}, or use sample_smc, which moves between modes."


def for_few_effective(sampler: str, times: int) -> str:
    """Return what to do about too few effective draws."""
    if sampler == "pathfinder":
        return "Use more paths, or sample."
    if sampler == "smc":
        return f"Take {times} times the draws."
    return f"Take {times} times the draws, or try {for_correlated(sampler)}."


def for_stuck(sampler: str) -> str:
    """Return what to do about chains that never moved."""
    return "Run more draws." if sampler in WITHOUT_WARMUP else "Give other initvals, or more tune."
