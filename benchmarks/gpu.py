"""Models on a GPU, as they are: first call and calls of log density and gradient, and NUTS with 1, 64 and 4,096 chains.

    pip install "jax[cuda13]" -e ".[bench,numpyro]"

Mode JAXPR beside PyTensor's mode JAX and, for sampling, the same model in NumPyro. It runs on any platform, and the result names it. It writes GPU.json.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from backends import TITLES, prepare
from clock import Clock
from processes import Job, collect
from rendering import figure, table

MODELS = ("radon_x_100", "logistic", "gaussian_process", "hidden_markov")
HOUSES, COUNTIES = 919, 85
#: By what the table says, the sampler of `pytensor_jaxpr_linker.pymc.sample`.
SAMPLERS = {"BlackJAX, mode JAXPR": "blackjax", "NumPyro, mode JAXPR": "numpyro", "NumPyro's own model": None}


def build(name: str, quick: bool) -> Any:
    """Return a PyMC model."""
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


def start(backend: str) -> dict[str, str]:
    """Import what a mode needs, have JAX load its libraries, and return what it computes on."""
    prepare(backend, Clock())
    jax.config.update("jax_enable_x64", True)
    jax.block_until_ready(jax.numpy.linalg.cholesky(jax.numpy.eye(2) @ jax.numpy.eye(2)))
    device = jax.devices()[0]
    return {"device": device.device_kind, "platform": device.platform, "jax": jax.__version__}


def calls(name: str, backend: str, quick: bool) -> dict[str, float]:
    """Return seconds until the first log density and gradient, and the median of further ones."""
    start(backend)
    from pytensor_jaxpr_linker.pymc import logdensity

    model = build(name, quick)
    began = perf_counter()
    call: Callable[[], Any]
    if backend == "jaxpr":
        logp = logdensity(model)
        data, q = jax.device_put(logp.data), {n: np.asarray(x) for n, x in model.initial_point().items()}
        function = jax.jit(jax.value_and_grad(logp))
        call = lambda: jax.block_until_ready(function(q, data))  # noqa: E731
    else:
        point, gradient = model.initial_point(), model.dlogp()
        outputs = [model.logp(), *(gradient if isinstance(gradient, list | tuple) else [gradient])]
        compiled = model.compile_fn(outputs, mode="JAX")
        call = lambda: jax.block_until_ready(compiled(point))  # noqa: E731
    first, *rest = (seconds(call, began if i == 0 else None) for i in range(6 if quick else 31))
    return {"first_seconds": first, "call_seconds": median(rest)}


def seconds(call: Callable[[], Any], began: float | None = None) -> float:
    """Return the seconds of a call, or since another time."""
    began = perf_counter() if began is None else began
    call()
    return perf_counter() - began


def nuts(how: str, chains: int, draws: int) -> dict[str, float]:
    """Return the seconds of NUTS on a hierarchical model, with compilation."""
    start("jaxpr")
    rng = np.random.default_rng(0)
    county, y = rng.integers(0, COUNTIES, HOUSES), rng.normal(size=HOUSES)
    run = our_nuts if SAMPLERS[how] else numpyro_nuts
    return {"seconds": run(SAMPLERS[how], county, y, chains, draws)}


def numpyro_nuts(_: None, county: np.ndarray, y: np.ndarray, chains: int, draws: int) -> float:
    """Return the seconds of NumPyro's NUTS on its own form of the model."""
    import numpyro
    import numpyro.distributions as dist

    def model() -> None:
        mean, scale = numpyro.sample("mean", dist.Normal(0, 1)), numpyro.sample("scale", dist.HalfNormal(1))
        noise = numpyro.sample("noise", dist.HalfNormal(1))
        effect = numpyro.sample("effect", dist.Normal(0, 1).expand([COUNTIES]))
        numpyro.sample("y", dist.Normal(mean + scale * effect[county], noise), obs=y)

    numbers = {"num_warmup": draws, "num_samples": draws, "num_chains": chains}
    began = perf_counter()
    mcmc = numpyro.infer.MCMC(numpyro.infer.NUTS(model), **numbers, chain_method="vectorized", progress_bar=False)
    mcmc.run(jax.random.key(0))
    jax.block_until_ready(mcmc.get_samples())
    return perf_counter() - began


def our_nuts(sampler: str, county: np.ndarray, y: np.ndarray, chains: int, draws: int) -> float:
    """Return the seconds of `sample` on the same model."""
    from pytensor_jaxpr_linker.pymc import sample

    __import__(sampler)
    with pm.Model():
        mean, scale, noise = pm.Normal("mean", 0, 1), pm.HalfNormal("scale", 1), pm.HalfNormal("noise", 1)
        effect = pm.Normal("effect", 0, 1, size=COUNTIES)
        pm.Normal("y", mean + scale * effect[county], noise, observed=y)
        options = {"chain_method": "vectorized", "progressbar": False, "compute_convergence_checks": False}
        return seconds(lambda: sample(draws, tune=draws, chains=chains, sampler=sampler, random_seed=0, **options))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measurement."""
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--chains", nargs="*", type=int, help="1, 64 and 4,096, or 1 and 4 with --quick")
    parser.add_argument("--data", type=Path, default=Path("GPU.json"), help="where to write the figures")


def run(args: argparse.Namespace) -> dict:
    """Measure and print tables in Markdown."""
    jobs = [Job("gpu:start", {"backend": "jaxpr"})]
    for name, backend in [(name, backend) for name in args.models for backend in ("jaxpr", "jax")]:
        arguments = {"name": name, "backend": backend, "quick": args.quick}
        jobs.append(Job("gpu:calls", arguments, ("calls", name, TITLES[backend])))
    every = args.chains if args.chains is not None else [1, 4] if args.quick else [1, 64, 4096]
    for chains, how in [(chains, how) for chains in every for how in SAMPLERS]:
        arguments = {"how": how, "chains": chains, "draws": 50 if args.quick else 500}
        jobs.append(Job("gpu:nuts", arguments, ("nuts", f"{chains:,} chains", how)))
    collected: dict = {}
    collect([[job] for job in jobs], collected, args.data)
    print(*(collected.get(key) for key in ("device", "platform", "jax")))
    for part, columns in {"calls": ["first_seconds", "call_seconds"], "nuts": ["seconds"]}.items():
        results = [(what, how, r) for what, found in collected.get(part, {}).items() for how, r in found.items()]
        print(
            "\n"
            + table(["what", "how", *columns], [[w, h, *(figure(r.get(c)) for c in columns)] for w, h, r in results], 2)
        )
    return collected
