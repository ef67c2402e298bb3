"""What is computed after sampling may fail, but must not lose the draws."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pytensor_jaxpr_linker.pymc.chains.programs import pymc_logger


@contextmanager
def keeping_draws(what: str, remedy: str) -> Iterator[None]:
    """Log that `what` failed, or was interrupted, where an error would lose the draws.

    Examples
    --------
    >>> from pytensor_jaxpr_linker.pymc.after_sampling import keeping_draws
    >>> with keeping_draws("The check of convergence", "Call diagnose(data) to see where."):
    ...     1 / 0
    """
    try:
        yield
    except KeyboardInterrupt:
        pymc_logger.warning("%s was interrupted. The draws are kept. %s", what, remedy)
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        pymc_logger.warning("%s failed (%s: %s). The draws are kept. %s", what, type(error).__name__, first, remedy)
