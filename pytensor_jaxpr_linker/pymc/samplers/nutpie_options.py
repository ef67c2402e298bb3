"""What nutpie samples, and the settings that it refuses."""

from __future__ import annotations

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
    """Return nutpie's error for its options, or nothing: it has no list of its settings, so it draws from a normal with them."""
    import nutpie

    settings = {name: value for name, value in options.items() if name not in OF_A_RUN}
    if not settings:
        return ""
    normal = as_model(lambda x: (-0.5 * float(x @ x), -x), 1, lambda seed: np.ones(1))
    try:
        nutpie.sample(normal, draws=1, tune=1, chains=1, cores=1, seed=1, progress_bar=False, **settings)
    except Exception as error:  # which of them depends on nutpie's release
        return " ".join(str(error).split())
    return ""
