"""Functions whose programs are kept in a folder, as an earlier and a later process have them."""

from __future__ import annotations

import pytensor

from pytensor_jaxpr_linker.frontend.targets import compiled_runner
from pytensor_jaxpr_linker.graph.rewritten.store import STORE
from pytensor_jaxpr_linker.run.specialization import LaterLowered


def compiled(inputs, outputs, **arguments):
    """Compile a function as a process does that has nothing in memory."""
    STORE.clear()
    return pytensor.function(inputs, outputs, mode="JAXPR", **arguments)


def is_kept(f):
    """Return whether the program of a function's last call was kept by an earlier one."""
    (program,) = compiled_runner(f).programs
    (specialization,) = program.specializations
    return isinstance(list(specialization.lowered.values())[-1], LaterLowered)


def twice(inputs, outputs, *values, **arguments):
    """Call two functions of a graph, of which the second has to find the program of the first; return the results."""
    first, second = (compiled(inputs, outputs, **arguments) for _ in range(2))
    results = first(*values), second(*values)
    assert (is_kept(first), is_kept(second)) == (False, True)
    return results
