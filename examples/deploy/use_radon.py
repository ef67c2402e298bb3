"""Uses the radon model where there is JAX and no PyTensor: on tables of any length, on the CPU, a GPU or a TPU."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import jax
import numpy as np

from jaxpr_artifact import load


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Evaluate the log density, fit the model and predict; return some of the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deployed", type=Path, default=Path("deployed"), help="the folder of the files")
    parser.add_argument("--table", default="every_tenth", help="the table of houses: NAME.npz in that folder")
    options = parser.parse_args(arguments)
    with np.load(options.deployed / f"{options.table}.npz", allow_pickle=False) as file:
        table = dict(file)

    started = time.perf_counter()
    logp = load(options.deployed / "logp.jaxpr")
    start = {a.name: np.zeros(a.shape) for a in logp.header.arguments if a.name not in table}
    value, *gradient = logp(**start, **table)
    norm = np.sqrt(sum((g**2).sum() for g in gradient))
    print(
        f"{len(table['measured'])} houses: log density {value:.6f}, |gradient| {norm:.6f}; {time.perf_counter() - started:.2f} s"
    )

    started = time.perf_counter()
    sample = load(options.deployed / "sample.jaxpr")
    names = [output.name for output in sample.header.outputs]
    draws = dict(zip(names, sample(jax.random.key(1), **start, **table), strict=True))
    print(f"{len(draws['sigma'])} draws: sigma {draws['sigma'].mean():.3f}; {time.perf_counter() - started:.1f} s")

    predict = load(options.deployed / "predict.jaxpr")
    given = [a.name for a in predict.header.arguments if a.name not in ("key", *table)]
    new = {"county_of": [5, 5], "floor_of": [0.0, 1.0]}  # two floors of one house, for all draws
    keys = jax.random.split(jax.random.key(2), len(draws["sigma"]))
    (radon,) = predict.batched(key=keys, **{name: draws[name] for name in given}, **new)
    below, above = np.exp(radon).mean(axis=0)
    print(f"predicted radon: {below:.2f} in the basement, {above:.2f} above it")
    return {"logp": float(value), "sigma": float(draws["sigma"].mean()), "below": float(below), "above": float(above)}


if __name__ == "__main__":
    main()
