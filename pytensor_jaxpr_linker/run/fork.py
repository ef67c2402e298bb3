"""Refuses to run programs in a process forked after JAX started: a fork copies no thread of JAX, so programs would never end."""

from __future__ import annotations

import os

from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.documentation import page_url

FORKED = (
    "This process was forked from one in which JAX was running. JAX has threads, which a fork does not copy, so a function of mode JAXPR"
    " would wait here forever. To do: in `pymc.sample` and `pymc.sample_smc` pass `mp_ctx=pytensor_jaxpr_linker.pymc.process_context()` or"
    " `cores=1`, or call `pytensor_jaxpr_linker.pymc.sample`. Start processes of your own by `multiprocessing.get_context('forkserver')`, in"
    f" a script under `if __name__ == '__main__':` ({page_url('threads', 'processes')})."
)


class ThisProcess:
    """The state of this process that a fork changes."""

    #: Whether JAX's threads were left behind in the process that this one was forked from.
    has_no_threads = False

    def note_fork(self) -> None:
        """Take note that this is the child of a fork."""
        self.has_no_threads = self.has_no_threads or jax_compat.backend_has_started()

    def check(self) -> None:
        """Raise a RuntimeError if a program would never end here."""
        if self.has_no_threads:
            raise RuntimeError(FORKED)


process = ThisProcess()
if hasattr(os, "register_at_fork"):  # there is none on Windows, where nothing is forked
    os.register_at_fork(after_in_child=process.note_fork)
