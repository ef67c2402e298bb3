"""Hierarchical radon model: built in PyMC, compiled with mode="JAXPR", sampled by BlackJAX.

Run ``python examples/radon.py``; ``--help`` lists the options.
"""

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import arviz as az
import jax
import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from nuts import sample
from pymc.model.transform.optimization import freeze_dims_and_data

import pytensor_jaxpr_linker  # noqa: F401  registers mode "JAXPR"

DATA = Path(__file__).parent / "data" / "radon_all.csv"
COLUMNS = {"county": "category", "floor": "int64", "log_radon": "float64", "log_uranium": "float64"}
UNKNOWN_FLOOR = 9
MEANING = {
    "mu_intercept": "log radon in the basement, mean county",
    "mu_floor": "effect of being above the basement, mean county",
    "uranium": "effect of the county's log uranium",
    "sigma_intercept": "sd of log radon in the basement between counties",
    "sigma_floor": "sd of the floor effect between counties",
    "sigma": "sd between the houses of a county",
}


class Result(NamedTuple):
    """Largest relative difference of mode "JAXPR" from the default mode, posterior table, path of the plot."""

    difference: float
    table: pd.DataFrame
    figure: Path


def load_houses(path: Path) -> pd.DataFrame:
    """Read the houses and clean ``floor``, the floor on which radon was measured.

    Parameters
    ----------
    path : Path
        CSV file with the columns county, floor, log_radon and log_uranium.

    Returns
    -------
    DataFrame
        One row a house; ``floor`` is 0 in the basement and 1 above it, ``county`` is categorical.
    """
    houses = pd.read_csv(path, usecols=list(COLUMNS), dtype=COLUMNS)
    if houses.isna().any(axis=None):
        raise ValueError("the data has missing values")
    # 9 means that nobody noted the floor. Such a row says little about the floor's effect: drop it.
    # 0 is the basement and 1 the first floor; the few on 2 and 3 are above the basement as well.
    # A county that so loses its only house remains a category: the model predicts it from the others.
    known = houses[houses["floor"] != UNKNOWN_FLOOR]
    if set(known["floor"].clip(upper=1)) != {0, 1}:
        raise ValueError("the data must have houses measured in the basement (floor 0) and above it (floor 1)")
    print(
        f"Data: {len(known):,} of {len(houses):,} houses, {houses['county'].nunique()} counties; dropped "
        f"{len(houses) - len(known)} with floor {UNKNOWN_FLOOR} (unknown), counted {(known['floor'] > 1).sum()} "
        "on floors above 1 as floor 1"
    )
    return known.assign(floor=known["floor"].clip(upper=1))


def build_model(houses: pd.DataFrame, frozen: bool = True) -> pm.Model:
    """Build the model in which intercept and floor effect vary by county.

    Parameters
    ----------
    houses : DataFrame
        As `load_houses` returns it.
    frozen : bool
        Whether the table of houses is part of the model. If not, it is shared data, which may be exchanged.

    Returns
    -------
    Model
        The population parameters of `MEANING` and, by county, ``intercept`` and ``floor``.
    """
    # Uranium differs between the houses of some counties: the mean makes it a predictor of the county.
    soil = houses.groupby("county", observed=False)["log_uranium"].mean()
    # Centered, so that mu_intercept is the mean county's; one without houses counts as average.
    soil = (soil - soil.mean()).fillna(0.0).to_numpy()
    with pm.Model(coords={"county": houses["county"].cat.categories, "house": np.arange(len(houses))}) as model:
        table = {name: pm.Data(name, values, dims="house") for name, values in table_of(houses).items()}
        mu_intercept = pm.Normal("mu_intercept", 0.0, 2.0)
        mu_floor = pm.Normal("mu_floor", 0.0, 1.0)
        uranium = pm.Normal("uranium", 0.0, 1.0)
        sigma_intercept = pm.HalfNormal("sigma_intercept", 1.0)
        sigma_floor = pm.HalfNormal("sigma_floor", 1.0)
        sigma = pm.HalfNormal("sigma", 1.0)
        # The houses tell much about most intercepts and little about most floor effects: NUTS mixes
        # best with the former centered and the latter non-centered.
        intercept = pm.Normal("intercept", mu_intercept + uranium * soil, sigma_intercept, dims="county")
        offset = pm.Normal("floor_offset", 0.0, 1.0, dims="county")
        floor = pm.Deterministic("floor", mu_floor + sigma_floor * offset, dims="county")
        mean = intercept[table["county_of"]] + floor[table["county_of"]] * table["floor_of"]
        pm.Normal("log_radon", mean, sigma, observed=table["measured"], dims="house")
    # The lengths of dimensions are shared variables: as constants, they are no inputs of the log density.
    return freeze_dims_and_data(model) if frozen else model


def table_of(houses: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the columns that the model takes."""
    return {
        "county_of": houses["county"].cat.codes.to_numpy(dtype="int32"),  # as pm.Data keeps integers
        "floor_of": houses["floor"].to_numpy(dtype="float64"),
        "measured": houses["log_radon"].to_numpy(),
    }


def check_modes(model: pm.Model) -> float:
    """Compare log density and gradient in mode "JAXPR" with PyTensor's default mode, near the initial point."""
    rng = np.random.default_rng(0)
    initial = [model.initial_point()[v.name] for v in model.value_vars]
    point = [value + 0.1 * rng.standard_normal(np.shape(value)) for value in initial]
    values = {}
    for mode in (None, "JAXPR"):
        started = time.perf_counter()
        function = pm.compile(model.value_vars, [model.logp(), model.dlogp()], mode=mode)
        logp, dlogp = function(*point)
        compiled = time.perf_counter()
        for _ in range(200):
            function(*point)
        call = (time.perf_counter() - compiled) / 200
        values[mode] = np.append(dlogp, logp)
        print(
            f"  {mode or 'default':8} logp {logp:.9f}, |gradient| {np.linalg.norm(dlogp):.9f}; "
            f"compiled in {compiled - started:.1f} s, {call * 1e6:.0f} µs a call"
        )
    difference = np.abs(values["JAXPR"] - values[None])
    relative = (difference / np.abs(values[None])).max()
    print(f"  largest difference: {difference.max():.1e} absolute, {relative:.1e} relative")
    return float(relative)


def print_table(data: xr.DataTree) -> pd.DataFrame:
    """Print and return ArviZ's summary of the population parameters."""
    names = ["mean", "sd", "eti89_lb", "eti89_ub", "ess_bulk", "ess_tail", "r_hat"]
    options = {"ci_prob": 0.89, "ci_kind": "eti", "round_to": "none"}
    table = az.summary(data, var_names=list(MEANING), **options)[names]
    formats = dict.fromkeys(["ess_bulk", "ess_tail"], "{:.0f}".format)
    shown = table.assign(meaning=[MEANING[name] for name in table.index])
    print("", shown.to_string(float_format="{:.3f}".format, formatters=formats), sep="\n")
    every = az.summary(data, var_names=[*MEANING, "intercept", "floor"], **options)
    level, factor = np.exp(table.loc[["mu_intercept", "mu_floor"], "mean"])
    print(
        "\nHow to read it: a parameter lies between eti89_lb and eti89_ub with probability 0.89. In the mean county\n"
        f"radon is {level:.1f} (in the data's unit) in the basement and {factor:.2f} times that above it. "
        "Trust this if r_hat is near 1\n(below 1.02), ess is some hundreds and next to no draw diverged. "
        f"Over all {len(every)} parameters, those of the counties\nincluded, the worst r_hat is "
        f"{every['r_hat'].max():.3f} and the worst ess {every['ess_bulk'].min():.0f}; "
        f"{int(data.sample_stats['diverging'].sum())} draws diverged. "
        "More --tune and --draws help."
    )
    return table


def draw_forest(axes: Axes, values: np.ndarray, labels: list[str], title: str, center: float) -> None:
    """Draw median, 50% and 89% interval of each row of `values`."""
    low, quarter, median, three_quarters, high = np.quantile(values, [0.055, 0.25, 0.5, 0.75, 0.945], axis=1)
    rows = np.arange(len(values))
    axes.axvline(center, color="tab:orange", linestyle="--", linewidth=1.2)
    axes.hlines(rows, low, high, color="tab:blue", linewidth=1.2)
    axes.hlines(rows, quarter, three_quarters, color="tab:blue", linewidth=3.5)
    axes.plot(median, rows, "o", color="white", markeredgecolor="tab:blue", markersize=5)
    axes.set_yticks(rows, labels)
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel("log radon")
    axes.grid(axis="x", alpha=0.3)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "left", "right"]].set_visible(False)


def save_forest_plot(data: xr.DataTree, houses: pd.DataFrame, path: Path) -> None:
    """Plot the population parameters and the 20 counties with the most houses."""
    posterior = az.extract(data)
    sizes = houses["county"].value_counts().head(20)
    large = posterior.sel(county=sizes.index.to_numpy())
    large = large.sortby(large["intercept"].mean("sample"), ascending=False)
    labels = [f"county {county} ({sizes[county]} houses)" for county in large["county"].to_numpy()]
    figure = Figure(figsize=(11, 9.5), layout="constrained")
    figure.suptitle("Radon in houses: posterior medians with 50% and 89% intervals", fontsize=13)
    grid = figure.add_gridspec(2, 2, height_ratios=[len(MEANING), len(labels)])
    population = np.stack([posterior[name] for name in MEANING])
    draw_forest(figure.add_subplot(grid[0, :]), population, list(MEANING.values()), "Population (dashed: zero)", 0.0)
    for column, name, mean, title in (
        (0, "intercept", "mu_intercept", "In the basement (dashed: mean county)"),
        (1, "floor", "mu_floor", "Effect of being above the basement"),
    ):
        axes = figure.add_subplot(grid[1, column])
        values = large[name].transpose("county", "sample").to_numpy()
        draw_forest(axes, values, labels if column == 0 else [""] * len(labels), title, float(posterior[mean].median()))
    figure.savefig(path, dpi=150)


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    formatter = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=formatter)
    parser.add_argument("--draws", type=int, default=1000, help="draws to keep from each chain")
    parser.add_argument("--tune", type=int, default=500, help="warm-up draws of each chain, not kept")
    parser.add_argument("--chains", type=int, default=4, help="number of chains")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers")
    parser.add_argument("--out", type=Path, default=Path(), help="directory for radon_forest.png")
    parser.add_argument("--data", type=Path, default=DATA, help="CSV file of houses")
    arguments = parser.parse_args(argv)
    for name, least in (("draws", 4), ("tune", 20), ("chains", 1), ("seed", 0)):
        if getattr(arguments, name) < least:
            parser.error(f"--{name} must be at least {least}")
    return arguments


def main(argv: list[str] | None = None) -> Result:
    """Run the example.

    Parameters
    ----------
    argv : list of str, optional
        Command line, by default that of the process.

    Returns
    -------
    Result
        What was printed and plotted.
    """
    started = time.perf_counter()
    arguments = parse_arguments(argv)
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        houses = load_houses(arguments.data)
    except (OSError, ValueError) as error:
        raise SystemExit(f"radon.py: {error}") from error
    # Mode "JAXPR" sees to its own precision; the code of BlackJAX around it needs this.
    jax.config.update("jax_enable_x64", True)
    model = build_model(houses)
    print("Log density and gradient, in PyTensor's default mode and in mode JAXPR:")
    difference = check_modes(model)
    print("Sampling:")
    data = sample(model, arguments.draws, arguments.tune, arguments.chains, arguments.seed)
    table = print_table(data)
    figure = arguments.out / "radon_forest.png"
    save_forest_plot(data, houses, figure)
    print(f"\nForest plot: {figure}. All in all {time.perf_counter() - started:.0f} s.")
    return Result(difference, table, figure)


if __name__ == "__main__":
    main()
