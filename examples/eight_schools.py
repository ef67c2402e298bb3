"""Eight schools: a PyMC model, sampled by the sampler of your choice on its log density in mode "JAXPR".

Run ``python examples/eight_schools.py --sampler blackjax``; ``--help`` lists the options.
"""

import argparse

import arviz as az
import numpy as np
import pymc as pm

from pytensor_jaxpr_linker.pymc import sample

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def build_model() -> pm.Model:
    """Return the model of Rubin (1981), with effects that are not centered, so that NUTS can move."""
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        offset = pm.Normal("offset", dims="school")
        theta = pm.Deterministic("theta", mu + tau * offset, dims="school")
        pm.Normal("effect", theta, ERRORS, observed=EFFECTS, dims="school")
    return model


def main(argv: list[str] | None = None) -> None:
    """Sample, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sampler", choices=["nutpie", "numpyro", "blackjax", "pymc"], default="blackjax")
    parser.add_argument("--draws", type=int, default=1000, help="draws to keep from each chain")
    parser.add_argument("--tune", type=int, default=1000, help="warm-up draws of each chain")
    parser.add_argument("--chains", type=int, default=4, help="number of chains")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers")
    arguments = parser.parse_args(argv)
    data = sample(
        arguments.draws,
        tune=arguments.tune,
        chains=arguments.chains,
        model=build_model(),
        sampler=arguments.sampler,
        random_seed=arguments.seed,
        target_accept=0.95,
    )
    print(az.summary(data, var_names=["mu", "tau", "theta"]).to_string())


if __name__ == "__main__":
    main()
