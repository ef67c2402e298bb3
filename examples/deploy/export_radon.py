"""Exports the radon model: run this where PyMC is. `use_radon.py` uses the files where there is only JAX."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from pytensor_jaxpr_linker.pymc import export_logdensity, export_predictive, export_sampler

sys.path.insert(0, str(Path(__file__).parents[1]))
from radon import DATA, build_model, load_houses, table_of  # the example that fits this model


def main(arguments: list[str] | None = None) -> list[Path]:
    """Write the artifacts, and two tables to try them on; return their paths."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("deployed"), help="the folder of the files")
    parser.add_argument("--data", type=Path, default=DATA, help="CSV file of houses")
    parser.add_argument("--draws", type=int, default=200, help="how many draws the sampler keeps")
    parser.add_argument("--tune", type=int, default=200, help="how many transitions adapt it")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    houses = load_houses(options.data)
    model = build_model(houses, frozen=False)

    for name, export, more in (
        ("logp", export_logdensity, {"vjp_order": 1}),
        ("predict", export_predictive, {}),
        ("sample", export_sampler, {"draws": options.draws, "tune": options.tune, "batched": False}),
    ):
        print(export(model, path=options.out / f"{name}.jaxpr", symbolic=["house"], **more), end="\n\n")
    for name, rows in (("all", slice(None)), ("every_tenth", slice(None, None, 10))):
        np.savez(options.out / f"{name}.npz", **{k: v[rows] for k, v in table_of(houses).items()})
    return sorted(options.out.iterdir())


if __name__ == "__main__":
    main()
