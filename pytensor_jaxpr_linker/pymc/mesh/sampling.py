"""`sample_on_mesh`: chains and data on several devices or processes, and runs that go on after a crash."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import pymc as pm
import xarray as xr
from jax.sharding import Mesh

from pytensor_jaxpr_linker.base.jax_compat import with_x64_restored
from pytensor_jaxpr_linker.pymc.arguments import Names
from pytensor_jaxpr_linker.pymc.chains.runners import CHAINS
from pytensor_jaxpr_linker.pymc.request import Request
from pytensor_jaxpr_linker.pymc.sampling import sample_request


@with_x64_restored
def sample_on_mesh(
    draws: int = 1000,
    *,
    tune: int = 1000,
    chains: int | None = None,
    model: pm.Model | None = None,
    mesh: Mesh | None = None,
    shard: Mapping[str, str] | None = None,
    store: str | Path | None = None,
    sampler: Literal["nuts", "numpyro", "blackjax", "mclmc"] = "nuts",
    target_accept: float | None = None,
    max_treedepth: int = 10,
    random_seed: Any = None,
    initvals: Any = None,
    jitter: bool = True,
    gradient: Literal["pytensor", "jax"] = "pytensor",
    var_names: Names | None = None,
    progressbar: bool = True,
    compute_convergence_checks: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> xr.DataTree:
    """Draw from the posterior of a PyMC model on the devices of a mesh, of one process or several; `sample` with `mesh`
    or `store` calls this.

    Parameters
    ----------
    draws, tune, model, target_accept, max_treedepth, random_seed, initvals, jitter, gradient, var_names, progressbar
        See `sample`.
    chains : int, optional
        By default four, or as many as the mesh's axis "chains" is long if that is more.
    mesh : jax.sharding.Mesh, optional
        The devices; by default all of JAX's, along an axis "chains". Chains are divided along the axis "chains", if
        there is one, and data along the others.
    shard : dict, optional
        The axis of the mesh along which each dim of the data is divided, see `pytensor_jaxpr_linker.pymc.shard`.
    store : str or Path, optional
        A folder for draws and a checkpoint. Draws go there in blocks, so memory is bounded. If there is a checkpoint of
        the same run, the run goes on from it, and gives the draws that it would have given without the interruption. In
        a run of several processes all of them need the folder; process 0 writes.
    sampler : {"nuts", "numpyro", "mclmc"}
        Whose transitions; "blackjax" is an alias of "nuts".
    compute_convergence_checks : bool
        Whether to log PyMC's warnings; not with `store`, for they read all draws.
    on_progress : callable, optional
        Called with the number of transitions that are done, and the number of all, each time that these can't be lost
        any more.
    **options
        Options of the sampler, as for `sample`.

    Returns
    -------
    xarray.DataTree
        As from `sample`. With `store` it reads the folder when its values are needed; ``draws.zarr`` there can be
        opened by xarray, too.

    Raises
    ------
    ValueError
        For arguments that can't be, or a folder that has another run: the message has the remedy.
    RuntimeError
        If a process of the run has ended, or has another program.

    Examples
    --------
    >>> import jax, numpy as np, pymc as pm
    >>> import pytensor_jaxpr_linker as pjl
    >>> with pm.Model(coords={"obs": range(6)}) as model:
    ...     x = pm.Normal("x")
    ...     y = pm.Normal("y", x, 1, observed=np.arange(6.0), dims="obs")
    >>> mesh = jax.make_mesh((1, 1), ("chains", "data"))
    >>> found = pjl.pymc.sample(50, tune=50, model=model, mesh=mesh, shard={"obs": "data"}, random_seed=1,
    ...                         progressbar=False, compute_convergence_checks=False)
    >>> dict(found.posterior.sizes)
    {'chain': 4, 'draw': 50}
    """
    if mesh is None and shard is None:
        mesh = Mesh(np.array(jax.devices()), (CHAINS,))
    return sample_request(Request(**locals()))
