"""Random draws: mode JAXPR, mode JAX where it has the distribution, and NumPy's own Generator.

It takes four minutes. With names, it measures the distributions whose names begin so, and stores nothing. Each figure is the least time of a call over many, on
one core: processor time of all threads, which other processes do not change.
"""

import argparse
import gc
import json
from collections.abc import Callable
from time import process_time
from typing import Any

import numpy as np
from clock import pin_to_one_core
from processes import Job, collect

#: Draws a call.
DRAWS = 100_000
#: Name, distribution, PyTensor's parameters, and NumPy's where they differ; None where NumPy has no such method.
DISTRIBUTIONS: list[tuple[str, str, tuple, Any]] = [
    ("uniform", "uniform", (0.0, 1.0), ...),
    ("normal", "normal", (0.0, 1.0), ...),
    ("exponential", "exponential", (1.0,), ...),
    ("gamma(2)", "gamma", (2.0, None, 1.0), (2.0,)),
    ("gamma(0.3)", "gamma", (0.3, None, 1.0), (0.3,)),
    ("inverse gamma(3)", "invgamma", (3.0, 1.0), None),
    ("generalized gamma", "gengamma", (2.0, 3.0, 1.0), None),
    ("beta(2, 3)", "beta", (2.0, 3.0), ...),
    ("beta(0.5, 0.5)", "beta", (0.5, 0.5), ...),
    ("Student t(3)", "t", (3.0, 0.0, 1.0), None),
    ("von Mises(2)", "vonmises", (0.0, 2.0), ...),
    ("Wald", "wald", (1.0, 2.0), ...),
    ("Dirichlet of 3", "dirichlet", ([1.0, 2.0, 3.0],), ...),
    ("Poisson(3)", "poisson", (3.0,), ...),
    ("Poisson(20)", "poisson", (20.0,), ...),
    ("Poisson(10,000)", "poisson", (1e4,), ...),
    ("binomial(10, 0.3)", "binomial", (10, 0.3), ...),
    ("binomial(100, 0.4)", "binomial", (100, 0.4), ...),
    ("negative binomial(5, 0.3)", "negative_binomial", (5.0, 0.3), ...),
    ("beta-binomial(10, 2, 3)", "betabinom", (10, 2.0, 3.0), None),
    ("geometric(0.3)", "geometric", (0.3,), ...),
    ("hypergeometric(5, 5, 3)", "hypergeometric", (5, 5, 3), ...),
    ("hypergeometric(100, 70, 50)", "hypergeometric", (100, 70, 50), ...),
    ("integers below 1,000", "integers", (0, 1000), ...),
    ("categorical of 3", "categorical", ([0.2, 0.3, 0.5],), None),
    ("multinomial(20) of 3", "multinomial", (20, [0.2, 0.3, 0.5]), ...),
]


def least_ms(call: Callable[[], Any], seconds: float) -> float:
    """Return the least processor time of one call in ms, after three calls that do not count."""
    for _ in range(3):
        call()
    times, total = [], 0.0
    gc.disable()
    while len(times) < 5 or total < seconds:
        start = process_time()
        call()
        times.append(process_time() - start)
        total += times[-1]
    gc.enable()
    return min(times) * 1000


def draws_in_mode(mode: str, distribution: str, params: tuple) -> Callable[[], Any] | None:
    """Return a function that draws in a mode of PyTensor's, to a NumPy array, or None where it can't."""
    import pytensor
    import pytensor.tensor as pt

    rng = pytensor.shared(np.random.default_rng(1))
    given = [None if x is None else np.asarray(x) for x in params]
    next_rng, draws = getattr(pt.random, distribution)(*given, size=(DRAWS,), rng=rng, return_next_rng=True)
    try:
        f = pytensor.function([], draws, mode=mode, updates={rng: next_rng})
        f()
    except (NotImplementedError, TypeError):  # mode JAX: no such distribution, or numpyro, which draws it, is missing
        return None
    return lambda: np.asarray(f())


def measure(name: str, seconds: float) -> dict:
    """Return the time of a call for each backend that has a distribution."""
    pin_to_one_core()
    import pytensor_jaxpr_linker  # noqa: F401  (registers the mode)

    distribution, params, numpy_params = next(row for title, *row in DISTRIBUTIONS if title == name)
    calls = {mode.lower(): draws_in_mode(mode, distribution, params) for mode in ("JAXPR", "JAX")}
    if numpy_params is not None:
        method = getattr(np.random.default_rng(1), {"t": "standard_t"}.get(distribution, distribution))
        calls["numpy"] = lambda: method(*(params if numpy_params is ... else numpy_params), size=DRAWS)
    return {backend: {"ms": least_ms(call, seconds)} for backend, call in calls.items() if call is not None}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measurement."""
    parser.add_argument("names", nargs="*", help="only distributions whose names begin so")
    parser.add_argument("--seconds", type=float, default=0.5, help="how long each is repeated")


def run(args: argparse.Namespace) -> dict:
    """Measure."""
    data = args.out.with_suffix(".json")
    collected = json.loads(data.read_text()) | {"draws": {}} if data.exists() and not args.names else {}
    names = [name for name, *_ in DISTRIBUTIONS if not args.names or name.startswith(tuple(args.names))]
    jobs = [Job("random_draws:measure", {"name": n, "seconds": args.seconds}, ("draws", n)) for n in names]
    collect([jobs], collected, None if args.names else data)
    return collected
