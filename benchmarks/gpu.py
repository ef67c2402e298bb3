"""Models on a GPU, as they are: first call and calls of log density and gradient, and NUTS with 1, 64 and 4,096 chains.

    pip install "jax[cuda13]" -e ".[bench,numpyro]"
    python benchmarks/gpu.py                  # all of it; writes GPU.json and prints a table in Markdown
    python benchmarks/gpu.py --quick          # small sizes, to see that it runs

Mode JAXPR beside PyTensor's mode JAX and, for sampling, the same model in NumPyro. It runs on any platform, and the result names it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def build(name: str, quick: bool) -> Any:
    """Return a PyMC model."""
    import numpy as np
    import pymc as pm
    import pytensor
    import pytensor.tensor as pt

    rng = np.random.default_rng(0)
    with pm.Model() as model:
        if name == "radon_x_100":
            n, counties = (9_000, 80) if quick else (919_000, 8_500)
            county, floor = rng.integers(0, counties, n).astype("int32"), rng.integers(0, 2, n).astype("float64")
            mean, scale, noise = pm.Normal("mean", 0, 1), pm.HalfNormal("scale", 1), pm.HalfNormal("noise", 1)
            effect, slope = pm.Normal("effect", 0, 1, size=counties), pm.Normal("slope", 0, 1)
            where = (mean + scale * effect)[pm.Data("county", county)] + slope * pm.Data("floor", floor)
            pm.Normal("y", where, noise, observed=pm.Data("radon", rng.normal(size=n)))
        elif name == "logistic":
            n, k = (10_000, 20) if quick else (1_000_000, 100)
            x = pm.Data("x", rng.normal(size=(n, k)))
            slope = pm.Normal("slope", 0, 1, size=k)
            pm.Bernoulli("y", logit_p=x @ slope, observed=pm.Data("given", rng.integers(0, 2, n)))
        elif name == "gaussian_process":
            n = 256 if quick else 4_096
            x = np.linspace(0, 10, n)[:, None]
            length, height = pm.InverseGamma("length", 5, 5), pm.HalfNormal("height", 1)
            process = pm.gp.Marginal(cov_func=height**2 * pm.gp.cov.ExpQuad(1, length))
            process.marginal_likelihood("y", x, np.sin(x[:, 0]), sigma=pm.HalfNormal("noise", 1))
        else:
            steps, states = (200, 4) if quick else (2_000, 16)
            observed = pm.Data("series", rng.normal(size=steps))
            means, rows = pm.Normal("means", 0, 2, size=states), pm.Dirichlet("rows", np.ones((states, states)))
            emissions = pm.logp(pm.Normal.dist(means, 1), observed[:, None])

            def forward(emission: Any, last: Any, rows: Any) -> Any:
                return emission + pt.logsumexp(last[:, None] + pt.log(rows), axis=0)

            first = emissions[0] - np.log(states)
            alphas = pytensor.scan(
                forward, sequences=[emissions[1:]], outputs_info=[first], non_sequences=[rows], return_updates=False
            )
            pm.Potential("likelihood", pt.logsumexp(alphas[-1]))
    return model


MODELS = ("radon_x_100", "logistic", "gaussian_process", "hidden_markov")


def calls(model: Any, mode: str, repeats: int) -> dict[str, float]:
    """Return seconds until the first log density and gradient, and the median of further ones."""
    import jax
    import numpy as np

    began = time.perf_counter()
    if mode == "JAXPR":
        from pytensor_jaxpr_linker.pymc import logdensity

        logp = logdensity(model)
        data = jax.device_put(logp.data)
        function, q = jax.jit(jax.value_and_grad(logp)), {n: np.asarray(x) for n, x in model.initial_point().items()}
        call: Callable[[], Any] = lambda: jax.block_until_ready(function(q, data))  # noqa: E731
    else:
        point = model.initial_point()
        compiled = model.compile_fn([model.logp(), *_list(model.dlogp())], mode="JAX")
        call = lambda: jax.block_until_ready(compiled(point))  # noqa: E731
    call()
    first = time.perf_counter() - began
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return {"first_seconds": first, "call_seconds": statistics.median(taken)}


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def numpyro_radon(quick: bool, chains: int, draws: int) -> float:
    """Return the seconds of NumPyro's NUTS on its own form of a hierarchical model, with compilation."""
    import jax
    import numpy as np
    import numpyro
    import numpyro.distributions as dist

    counties, n = 85, 919
    rng = np.random.default_rng(0)
    county, y = rng.integers(0, counties, n), rng.normal(size=n)

    def model() -> None:
        mean, scale = numpyro.sample("mean", dist.Normal(0, 1)), numpyro.sample("scale", dist.HalfNormal(1))
        noise = numpyro.sample("noise", dist.HalfNormal(1))
        effect = numpyro.sample("effect", dist.Normal(0, 1).expand([counties]))
        numpyro.sample("y", dist.Normal(mean + scale * effect[county], noise), obs=y)

    began = time.perf_counter()
    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model),
        num_warmup=draws,
        num_samples=draws,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0))
    jax.block_until_ready(mcmc.get_samples())
    return time.perf_counter() - began


def our_radon(sampler: str, chains: int, draws: int) -> float:
    """Return the seconds of `sample` on the same model, with compilation."""
    import numpy as np
    import pymc as pm

    from pytensor_jaxpr_linker.pymc import sample

    counties, n = 85, 919
    rng = np.random.default_rng(0)
    county, y = rng.integers(0, counties, n), rng.normal(size=n)
    with pm.Model() as model:
        mean, scale, noise = pm.Normal("mean", 0, 1), pm.HalfNormal("scale", 1), pm.HalfNormal("noise", 1)
        effect = pm.Normal("effect", 0, 1, size=counties)
        pm.Normal("y", mean + scale * effect[county], noise, observed=y)
    began = time.perf_counter()
    sample(
        draws,
        tune=draws,
        chains=chains,
        model=model,
        sampler=sampler,
        chain_method="vectorized",
        random_seed=0,
        progressbar=False,
        compute_convergence_checks=False,
    )
    return time.perf_counter() - began


def main() -> None:
    """Measure, write GPU.json, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--chains", nargs="*", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path("GPU.json"))
    options = parser.parse_args()

    import jax

    jax.config.update("jax_enable_x64", True)
    device = jax.devices()[0]
    jax.block_until_ready(jax.numpy.linalg.cholesky(jax.numpy.eye(2) @ jax.numpy.eye(2)))  # loads the libraries
    found: dict[str, Any] = {
        "device": device.device_kind,
        "platform": device.platform,
        "jax": jax.__version__,
        "rows": [],
    }

    def record(**row: Any) -> None:
        found["rows"].append(row)
        options.out.write_text(json.dumps(found, indent=1))
        print(
            "| " + " | ".join(f"{x:.4g}" if isinstance(x, float) else str(x) for x in row.values()) + " |", flush=True
        )

    print(
        f"{device.device_kind} ({device.platform}), JAX {jax.__version__}\n\n| what | how | first, s | call, s |\n|---|---|---|---|"
    )
    for name in options.models:
        for mode in ("JAXPR", "JAX"):
            try:
                record(
                    what=name, how=f"mode {mode}", **calls(build(name, options.quick), mode, 5 if options.quick else 30)
                )
            except Exception as error:  # a mode may lack an Op: the table says so
                record(what=name, how=f"mode {mode}", first_seconds=type(error).__name__, call_seconds="-")
    draws = 50 if options.quick else 500
    print("\n| NUTS | how | chains | seconds |\n|---|---|---|---|")
    for chains in options.chains or ([1, 4] if options.quick else [1, 64, 4096]):
        for how, run in (
            ("BlackJAX, mode JAXPR", lambda n: our_radon("blackjax", n, draws)),
            ("NumPyro, mode JAXPR", lambda n: our_radon("numpyro", n, draws)),
            ("NumPyro's own model", lambda n: numpyro_radon(options.quick, n, draws)),
        ):
            record(what="radon, 919", how=how, chains=chains, seconds=run(chains))


if __name__ == "__main__":
    main()
