"""The points where chains start, their log densities, and where a chain starts again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pytensor_jaxpr_linker.pymc.chains.chain_progress import Watched
from pytensor_jaxpr_linker.pymc.chains.chains import Chains, shapes_of
from pytensor_jaxpr_linker.pymc.chains.programs import options_of_few_calls, pymc_logger
from pytensor_jaxpr_linker.pymc.chains.restarts import trial_length
from pytensor_jaxpr_linker.pymc.functions.initial import Start, check_starts, stacked_points
from pytensor_jaxpr_linker.pymc.kept_models import KeptModel

#: What PyMC's log says of a chain that starts again.
RESTARTED = (
    "Chain {chain} starts again from another point: after {count} transitions it was in a region with about {share:.0e} of the probability around the best chain"
    " (restarts=0 keeps it there)."
)


class ChainStarts:
    """The points where chains start.

    Parameters
    ----------
    starts
        The points, which change.
    group
        How many chains start at each.
    evaluate
        Maps as many points to their log densities.

    Attributes
    ----------
    restarts
        How often chains have started again.
    """

    def __init__(self, starts: Sequence[Start], group: int, evaluate: Callable[[list[dict]], Iterable[Any]]):
        self._starts, self._group, self._evaluate = starts, group, evaluate
        self.restarts = 0

    def check(self) -> None:
        """Draw points anew where the log density is not finite, see `check_starts`."""
        check_starts(self._starts, self._evaluate)

    def positions(self) -> dict[str, np.ndarray]:
        """Return the positions of all chains."""
        return chain_positions([start.point for start in self._starts], self._group)

    def elsewhere(self, watched: Watched, tune: int, lost: Mapping[int, float]) -> dict[str, np.ndarray]:
        """Draw other points for chains that start again, given with their `log_shares`. Return the positions of all chains."""
        for chain, log_share in lost.items():
            pymc_logger.info(RESTARTED.format(chain=chain, count=trial_length(tune), share=np.exp(log_share)))
            self._starts[chain].draw_another()
        self.restarts += len(lost)
        self.check()
        watched.begin_again()
        return self.positions()


def chain_positions(points: list[dict[str, np.ndarray]], group: int) -> dict[str, np.ndarray]:
    """Return the positions of chains, `group` of which start at each point."""
    return wide([point for point in points for _ in range(group)])


def logdensities_of(chains: Chains, group: int) -> Callable[[list[dict]], np.ndarray]:
    """Return the function from points to their log densities, by the first transition of chains."""
    return lambda points: chains.logdensities(chain_positions(points, group))[::group]


def wide(points: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the points of chains as arrays of float64, in which samplers move, with an axis of chains in front."""
    return {name: x.astype("float64") for name, x in stacked_points(points).items()}


def density_of_points(
    kept: KeptModel, like: dict[str, np.ndarray], data: Mapping[str, Any]
) -> Callable[[list[dict]], list[float]]:
    """Return the function from points to their log densities, by a program of one point, which is kept."""
    one = {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in like.items()}

    def make() -> jax.stages.Compiled:
        args = one, dict(data)
        jitted = kept.programs.folder.jitted(key, lambda q, data: kept.logp(q, data), args)
        return jitted.lower(*args).compile(options_of_few_calls())

    key = "log density", shapes_of(data), shapes_of(one), kept.lengths
    with jax.enable_x64(True):
        call = kept.programs.find(key, make)

    def value(point: dict[str, np.ndarray]) -> float:
        with jax.enable_x64(True):
            return float(call({name: np.asarray(point[name], "float64") for name in one}, dict(data)))

    return lambda points: [value(point) for point in points]
