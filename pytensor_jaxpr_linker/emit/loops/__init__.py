"""Loops: `Scan` and `ScalarLoop`."""

from pytensor_jaxpr_linker.emit.loops import (  # noqa: F401
    scalar_loop,
    scan,
)
