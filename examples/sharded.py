"""A logistic regression whose observations are divided among devices: log density, gradient, and NUTS that goes on after a crash.

python examples/sharded.py                     # on eight forced CPU devices
python examples/sharded.py --devices 0         # on the devices that JAX finds: GPUs, or those of a cluster
srun python examples/sharded.py --devices 0 --cluster
"""

from __future__ import annotations

import argparse
from pathlib import Path


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--observations", type=int, default=100_003, help="any number: what devices can't divide is padded"
    )
    parser.add_argument("--devices", type=int, default=8, help="forced CPU devices; 0 for those that JAX finds")
    parser.add_argument("--cluster", action="store_true", help="call jax.distributed.initialize() first")
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--store", type=Path, help="a folder for draws and checkpoints: run again to go on")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Run the example; return the means of the slopes."""
    options = parse(argv)

    import jax

    # All of this comes before anything that asks JAX for its devices.
    if options.devices:
        jax.config.update("jax_num_cpu_devices", options.devices)
    if options.cluster:
        jax.distributed.initialize()
    jax.config.update("jax_enable_x64", True)

    import numpy as np
    import pymc as pm

    import pytensor_jaxpr_linker as pjl

    rng = np.random.default_rng(0)
    truth = np.array([1.0, -0.5, 0.25])
    x = rng.normal(size=(options.observations, 3))
    y = (rng.uniform(size=options.observations) < 1 / (1 + np.exp(-x @ truth))).astype("int32")
    coords = {"obs": np.arange(options.observations), "feature": ["a", "b", "c"]}
    with pm.Model(coords=coords) as model:
        design = pm.Data("x", x, dims=("obs", "feature"))
        slope = pm.Normal("slope", 0, 1, dims="feature")
        pm.Bernoulli("y", logit_p=design @ slope, observed=y, dims="obs")

    # 1. Observations along one axis of a mesh: XLA divides the work, and adds up the parts.
    count = len(jax.devices())
    mesh = jax.make_mesh((count,), ("data",))
    logp = pjl.pymc.shard(model, mesh, {"obs": "data"})
    value, gradient = jax.jit(jax.value_and_grad(logp))({"slope": truth}, logp.data)
    print(f"log density {float(value):.6f}, gradient {np.asarray(gradient['slope']).round(3)}")
    print(pjl.explain(logp).text(most=4))

    # 2. Chains along the other axis.
    along = 2 if count % 2 == 0 else 1
    both = jax.make_mesh((along, count // along), ("chains", "data"))
    found = pjl.pymc.sample(
        options.draws,
        tune=options.draws,
        chains=options.chains,
        model=model,
        mesh=both,
        shard={"obs": "data"},
        store=options.store,
        random_seed=1,
        progressbar=jax.process_index() == 0,
        compute_convergence_checks=False,
    )
    means = found.posterior["slope"].mean(("chain", "draw"))
    print(f"means {means.values.round(3)}, of data made with {truth}")
    return {str(name): float(means.sel(feature=name)) for name in coords["feature"]}


if __name__ == "__main__":
    main()
