"""What must be the same in all processes of a run, and in a call that goes on with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pymc as pm
from jax.experimental import multihost_utils
from pytensor.graph.basic import Variable

from pytensor_jaxpr_linker.base.version import __version__
from pytensor_jaxpr_linker.graph.rewritten.live import LiveDescriptions
from pytensor_jaxpr_linker.pymc.chains.folder_store import FolderStore
from pytensor_jaxpr_linker.pymc.functions.constrained import Constrain
from pytensor_jaxpr_linker.pymc.functions.density import LogDensity
from pytensor_jaxpr_linker.pymc.kept_models import KeptModel
from pytensor_jaxpr_linker.pymc.request import Request


def seeds_of_run(request: Request, store: FolderStore | None) -> list[int]:
    """Return the seeds of chains. Without seeds of the user's, a run goes on with those that it began with, and
    processes take those of the first one.
    """
    if store is not None and store.before is not None and request.random_seed is None:
        return store.before.about["seeds"]
    return request.seeds if request.mesh is None else same_seeds(request.seeds)


def check_same_run(
    request: Request, kept: KeptModel, constrained: Constrain, program: str, store: FolderStore | None
) -> None:
    """Raise an error if another process, or the folder of the draws, has another run."""
    named = {name: getattr(request, name) for name in ("draws", "tune", "chains", "sampler")}
    others = [request.seeds, constrained.names, named_values(request.initvals), request.jitter]
    others += [request.thinning, request.log_likelihood, named_values(request.idata_kwargs)]
    mesh = {} if request.mesh is None else dict(request.mesh.shape)
    hashes = run_hashes(program, kept.logp, {**named, "mesh": mesh}, others, request.package)
    check_same_everywhere(hashes)
    if store is not None:
        store.go_on({"seeds": request.seeds, **hashes})


def same_seeds(seeds: list[int]) -> list[int]:
    """Return the seeds of process 0: without a seed of the user's, each process draws others."""
    if jax.process_count() == 1:
        return seeds
    words = np.array([[seed >> 16, seed & 0xFFFF] for seed in seeds], dtype="int32")
    found = np.asarray(multihost_utils.broadcast_one_to_all(words))
    return [(int(high) << 16) + int(low) for high, low in found]


def check_same_everywhere(parts: Mapping[str, str]) -> None:
    """Raise a RuntimeError unless all processes have the same hashes; `parts` are hexadecimal, by what they are of."""
    if jax.process_count() == 1:
        return
    words = np.array([[int(digest[i : i + 7], 16) for i in (0, 7)] for digest in parts.values()], dtype="int32")
    everywhere = np.asarray(multihost_utils.process_allgather(words))
    for i, what in enumerate(parts):
        if (differing := np.flatnonzero((everywhere[:, i] != everywhere[0, i]).any(axis=1))).size:
            raise RuntimeError(
                f"The processes of this run have different {what} (process {differing[0]} differs from process 0):"
                " start the same program, with the same arguments and versions, on each."
            )


@contextmanager
def other_processes_named(store: FolderStore | None, done: Callable[[], int]) -> Iterator[None]:
    """Say which process of several can't go on, and how, where JAX has an error; `done` returns how many transitions
    are done.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        again = (
            " with store=..., so that a run can go on"
            if store is None
            else f": the run goes on after {done()} transitions, from {store.folder}"
        )
        raise RuntimeError(
            f"A process of this run has ended or can't be reached, so process {jax.process_index()} can't go on"
            f" ({str(error).splitlines()[0]})."
            f" Start all {jax.process_count()} processes again{again}."
        ) from error


def run_hashes(
    program: str, logp: LogDensity, named: Mapping[str, Any], others: list, package: ModuleType
) -> dict[str, str]:
    """Hash every input that determines the draws; keys are the names used in error messages."""

    def digest(value: Any) -> str:
        return LiveDescriptions().digest(value)

    versions = [jax.__version__, __version__, pm.__version__, str(package.__version__)]
    return {
        "versions of packages": digest(versions),
        **{name: digest(value) for name, value in named.items()},
        "other arguments": digest(others),
        "data": digest(logp.current_data()),
        "programs": digest([program, logp.constants]),
    }


def named_values(value: Any) -> Any:
    """Return initial values with texts in the place of variables, which are others in each process."""
    if isinstance(value, Mapping):
        return {str(name): named_values(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [named_values(x) for x in value]
    return str(value) if isinstance(value, Variable) else value
