"""nutpie's models, and the settings that it refuses."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

#: Options of a run, not settings of the sampler.
OF_A_RUN = {"cores", "progress_callback", "progress_rate", "progress_style", "progress_template"}


def as_model(density: Callable[[np.ndarray], Any], size: int, start: Callable[[int], np.ndarray]) -> Any:
    """Return nutpie's model of a density of vectors of length `size`; `start` maps a seed to the start of a chain."""
    from nutpie.compiled_pyfunc import from_pyfunc

    return from_pyfunc(
        size,
        lambda: density,
        lambda *_: lambda x: {"position": x},  # constrained later, all at once
        [np.dtype("float64")],
        [(size,)],
        ["position"],
        make_initial_point_fn=start,
    )


def refusal(options: Mapping[str, Any]) -> str:
    """Return nutpie's error for its options, or nothing.

    nutpie has no list of its settings, so it draws from a normal distribution with them.
    """
    import nutpie

    settings = {name: value for name, value in options.items() if name not in OF_A_RUN}
    if not settings:
        return ""
    normal = as_model(lambda x: (-0.5 * float(x @ x), -x), 1, lambda seed: np.ones(1))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a run that nobody asked for: the run itself warns
            nutpie.sample(normal, draws=1, tune=1, chains=1, cores=1, seed=1, progress_bar=False, **settings)
    except Exception as error:  # which of them depends on nutpie's release
        return reason_of(" ".join(str(error).split()))
    return ""


def reason_of(text: str) -> str:
    """Return the text of an error of nutpie, without the stack of its Rust functions: the Python error that caused it,
    if there is one.

    Examples
    --------
    >>> from pytensor_jaxpr_linker.pymc.samplers.nutpie_options import reason_of
    >>> reason_of("Failed Caused by: PyError { value: ValueError('no adapter'), traceback: None } Stack backtrace: 0")
    'no adapter'
    >>> reason_of("Failed Caused by: bad gradient Stack backtrace: 0: <unknown>")
    'Failed'
    """
    text = text.partition(" Stack backtrace")[0]
    caused = re.search(r"value: \w+\('(.*)'\)", text)
    return caused.group(1) if caused else text.partition(" Caused by")[0]
