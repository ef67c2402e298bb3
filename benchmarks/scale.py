"""Log density and gradient of many observations, divided among forced CPU devices: error, memory, operations and collectives.

It prints one line of JSON. Bytes are those of XLA's buffer assignment for one device. `docs/notes/scale.md` has a table.
"""

import argparse
import json
import re

#: A collective operation in the text of a program, after the shapes of its results.
COLLECTIVE = re.compile(
    r"(\([^()]*(?:\{[^()]*\}[^()]*)*\)|\S+) (all-\w+|collective-permute|reduce-scatter)(?:-start)?\("
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measurement."""
    parser.add_argument("--observations", type=int, default=10_000_000)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--features", type=int, default=5)


def run(args: argparse.Namespace) -> dict:
    """Measure one size."""
    import jax

    jax.config.update("jax_num_cpu_devices", args.devices)
    jax.config.update("jax_enable_x64", True)
    import numpy as np
    import pymc as pm

    import pytensor_jaxpr_linker as pjl

    n, k = args.observations, args.features
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, k))
    truth = np.linspace(-1, 1, k)
    y = (rng.uniform(size=n) < 1 / (1 + np.exp(-x @ truth))).astype("int8")
    group = rng.integers(0, 1000, n).astype("int32")
    with pm.Model(coords={"obs": np.arange(1), "feature": np.arange(k), "group": np.arange(1000)}) as model:
        data = {"x": ("obs", "feature"), "y": ("obs",), "group_of": ("obs",)}
        design = pm.Data("x", x[:1], dims=data["x"])
        given, group_of = pm.Data("y_given", y[:1], dims="obs"), pm.Data("group_of", group[:1], dims="obs")
        slope, scale = pm.Normal("slope", 0, 1, dims="feature"), pm.HalfNormal("scale", 1)
        effect = pm.Normal("effect", 0, 1, dims="group")
        pm.Bernoulli("y", logit_p=design @ slope + scale * effect[group_of], observed=given, dims="obs")
        pm.set_data({"x": x, "y_given": y, "group_of": group}, coords={"obs": np.arange(n)})

    def measure(count: int) -> tuple[dict, tuple]:
        mesh = jax.make_mesh((count,), ("data",), devices=jax.devices()[:count])
        logp = pjl.pymc.shard(model, mesh, {"obs": "data"})
        q, placed = np.linspace(-0.5, 0.5, logp.size), logp.data
        compiled = jax.jit(jax.value_and_grad(logp)).lower(q, placed).compile()
        memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
        collectives = COLLECTIVE.findall(compiled.as_text())
        found = {
            "devices": count,
            "argument_bytes": memory.argument_size_in_bytes,
            "temporary_bytes": memory.temp_size_in_bytes,
            "output_bytes": memory.output_size_in_bytes,
            "flops": cost.get("flops"),
            "bytes_accessed": cost.get("bytes accessed"),
            "collectives": [name for _, name in collectives],
            "reduced": [shapes for shapes, _ in collectives],
        }
        return found, jax.tree.map(np.asarray, compiled(q, placed))

    one, (value, gradient) = measure(1)
    several, (other, gradients) = measure(args.devices)
    error = {
        "value": float(abs(other - value) / abs(value)),
        "gradient": float(np.abs(gradients - gradient).max() / np.abs(gradient).max()),
    }
    print(json.dumps({"observations": n, "features": k, "error": error, "one": one, "several": several}))
    return {}
