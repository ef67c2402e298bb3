"""Refuses to run programs in a process forked after JAX started.

See `jaxpr_artifact.fork`; here JAX itself says whether it had started.
The remedy names `mp_ctx` until PyTensor and PyMC release the patches of docs/notes/upstream/linkers-and-forks.md.
"""

from __future__ import annotations

from jaxpr_artifact.fork import OTHER_PROCESSES, jax_threads
from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.words import page_url

process = jax_threads
process.have_started = jax_compat.backend_has_started
process.remedy = (
    "in `pymc.sample` and `pymc.sample_smc` pass `mp_ctx=pytensor_jaxpr_linker.pymc.process_context()` or `cores=1`, or call"
    f" `pytensor_jaxpr_linker.pymc.sample`, which does not fork; {OTHER_PROCESSES} ({page_url('threads', 'processes')})."
)
