"""Eight schools: a PyMC model, sampled by the sampler of your choice on its log density in mode "JAXPR".

Run ``python examples/eight_schools.py --sampler nuts``; ``--help`` lists the options.
"""

import argparse
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr
from matplotlib.figure import Figure

from pytensor_jaxpr_linker.pymc import fit_pathfinder, sample, sample_smc

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SAMPLERS = ["nuts", "nutpie", "numpyro", "pymc", "mclmc", "smc", "pathfinder"]
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def build_model() -> pm.Model:
    """Return the model of Rubin (1981), with effects that are not centered, so that NUTS can move."""
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        offset = pm.Normal("offset", dims="school")
        theta = pm.Deterministic("theta", mu + tau * offset, dims="school")
        pm.Normal("effect", theta, ERRORS, observed=EFFECTS, dims="school")
    return model


def draw(model: pm.Model, sampler: str, draws: int, tune: int, chains: int, seed: int) -> xr.DataTree:
    """Draw from the posterior; each sampler gets the arguments that it has."""
    if sampler == "pathfinder":
        return fit_pathfinder(draws * chains, model=model, random_seed=seed)
    if sampler == "smc":
        return sample_smc(draws, chains=chains, model=model, random_seed=seed)
    aim = {} if sampler == "mclmc" else {"target_accept": 0.95}
    return sample(draws, tune=tune, chains=chains, model=model, sampler=sampler, random_seed=seed, **aim)


def save_plot(data: xr.DataTree, sampler: str, path: Path) -> None:
    """Plot what each school found, and what the model makes of it."""
    posterior = az.extract(data)
    low, median, high = np.quantile(posterior["theta"].transpose("school", "sample"), [0.055, 0.5, 0.945], axis=1)
    rows = np.arange(len(EFFECTS))
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes, tau = figure.subplots(1, 2, width_ratios=[2, 1])
    axes.errorbar(EFFECTS, rows - 0.12, xerr=1.6 * ERRORS, fmt="o", color="tab:gray", label="observed, 89% interval")
    errors = [median - low, high - median]
    axes.errorbar(median, rows + 0.12, xerr=errors, fmt="o", color="tab:blue", label="posterior, 89% interval")
    axes.axvline(float(posterior["mu"].median()), color="tab:orange", linestyle="--", label="median of mu")
    axes.set_yticks(rows, [f"school {name}" for name in posterior["school"].to_numpy()])
    axes.invert_yaxis()
    axes.set_xlabel("effect of coaching, in points")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    axes.set_title(f"Eight schools by {sampler}", loc="left")
    tau.hist(posterior["tau"], bins=np.linspace(0, 20, 41), density=True, color="tab:blue")
    tau.set_xlabel("tau, sd between schools")
    tau.set_yticks([])
    figure.savefig(path, dpi=120)


def main(argv: list[str] | None = None) -> Path:
    """Sample, print the summary, save the plot, and return where it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sampler", choices=SAMPLERS, default="nuts")
    parser.add_argument("--draws", type=int, default=1000, help="draws to keep from each chain")
    parser.add_argument("--tune", type=int, default=1000, help="warm-up draws of each chain, if the sampler has such")
    parser.add_argument("--chains", type=int, default=4, help="number of chains")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers")
    parser.add_argument("--out", type=Path, default=Path(), help="directory for eight_schools_SAMPLER.png")
    arguments = parser.parse_args(argv)
    options = vars(arguments)
    path = options.pop("out") / f"eight_schools_{arguments.sampler}.png"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        data = draw(build_model(), **options)
    except (ImportError, OSError, ValueError) as error:
        raise SystemExit(f"eight_schools.py: {error}") from error
    print(az.summary(data, var_names=["mu", "tau", "theta"]).to_string())
    if arguments.sampler == "pathfinder":
        print(f"Pareto k is {data.posterior.attrs['pareto_k']:.2f}: above 0.7 the approximation is poor.")
    if arguments.sampler == "smc":
        evidence = data.sample_stats["log_marginal_likelihood"][:, -1].to_numpy()
        print(f"Logarithm of the marginal likelihood, by chain: {np.round(evidence, 2)}")
    save_plot(data, arguments.sampler, path)
    print(f"Plot: {path}")
    return path


if __name__ == "__main__":
    main()
