"""The cells in which PyTensor holds a function's values, and the order in which threads read and write them."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import call
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.link.basic import Container
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.random.type import RandomType

from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.base.errors import variable_name
from pytensor_jaxpr_linker.base.options import Options
from pytensor_jaxpr_linker.frontend.shared_arrays import adopt, consistent, in_cell, placed_like, shared_device_array
from pytensor_jaxpr_linker.run import placement


class Storage(NamedTuple):
    """The cells that hold a function's values: one list of length 1 for each input and output."""

    inputs: Sequence[list]
    outputs: Sequence[list]
    arrays: tuple[int, ...]
    """The positions of the inputs that are shared arrays and that something reads."""
    is_shared: bool
    """Whether other functions may replace values of inputs that something reads."""
    unread: Sequence[list]
    """If not: the cells of the last inputs, unread shared variables such as the lengths of a PyMC model's dims."""
    updates: tuple[tuple[int, list], ...]
    """The position of each output that becomes the value of an input, and the input's cell."""
    updated: tuple[list, ...]
    """The cells of these inputs, in this order."""
    turns: tuple[Turn, ...]
    """A call with updates holds them, in this order, from reading to writing, so that no update or draw is lost."""

    def read(self, given: Sequence[Any], device: jax.Device | None, column_major: Collection[int]) -> list:
        """Return the values of the inputs: the first are `given`, cells hold the others, shared arrays are on a device.

        The values at the positions `column_major` are the transposes of matrices.

        Raises
        ------
        InRows
            If such a matrix is on the device in rows.
        """
        with consistent:
            values = [cell[0] for cell in self.inputs]
        values[: len(given)] = given
        for i in self.arrays:
            values[i] = shared_device_array(self.inputs[i], values[i], device, i in column_major)
        return values

    def update(self, values: Sequence[Any]) -> None:
        """Store all updates or none, each on the devices of the old value."""
        kept = [placed_like(cell[0], values[i]) for i, cell in self.updates]
        with consistent:
            store(self.updated, kept)

    def with_inputs(self, inputs: Sequence[list]) -> Storage:
        """Return the storage of a call that runs at the same time, with outputs of its own."""
        unread = inputs[len(inputs) - len(self.unread) :]
        return self._replace(inputs=inputs, unread=unread, outputs=[[None] for _ in self.outputs])


def storage_of(fgraph: FunctionGraph, inputs: Sequence[list], outputs: Sequence[list]) -> Storage:
    """Return the storage of a graph whose inputs and outputs have these cells."""
    mapping = getattr(fgraph, "update_mapping", None) or {}
    shared = {i: v for i, v in enumerate(fgraph.inputs) if isinstance(v, SharedVariable)}
    used = {i: v for i, v in shared.items() if fgraph.clients[v] or i in mapping.values()}
    arrays = tuple(i for i, v in used.items() if is_tensor(v.type))
    first = min(shared, default=len(inputs))
    is_shared = bool(used or mapping) or len(shared) < len(inputs) - first
    turns = [turn_of(fgraph.inputs[i], inputs[i]) for i in mapping.values()]
    return Storage(
        inputs,
        outputs,
        arrays,
        is_shared,
        () if is_shared else inputs[first:],
        tuple((output, inputs[i]) for output, i in mapping.items()),
        tuple(inputs[i] for i in mapping.values()),
        tuple(sorted(turns, key=lambda turn: turn.number)),  # two calls that wait for each other would never end
    )


def store(cells: Sequence[list], values: Sequence[Any]) -> None:
    """Store a value in each cell, in one call of C: Python handles Ctrl-C before it or after it, not in between."""
    deque(map(list.__setitem__, cells, itertools.repeat(0), values), maxlen=0)


class Turn:
    """A lock that a call holds while it updates a value, and a number that orders the locks."""

    numbers = itertools.count()

    def __init__(self) -> None:
        self.number = next(self.numbers)
        self.lock = threading.RLock()  # an Op on the host may call another function


#: The turns of shared variables, which several functions may update.
_turns: WeakKeyDictionary[Container, Turn] = WeakKeyDictionary()


def turn_of(variable: Variable, cell: list) -> Turn:
    """Return the turn of the input that a function updates; a copy of a function may have a cell of its own for it."""
    container = getattr(variable, "container", None)
    if container is None or container.storage is not cell:
        return Turn()
    with consistent:
        return _turns.setdefault(container, Turn())


def in_turn(thunk: Callable[[], list], turns: Sequence[Turn]) -> Callable[[], list]:
    """Return a thunk that runs while all of the turns are held."""
    if len(turns) == 1:
        (alone,) = (turn.lock for turn in turns)

        def run_alone() -> list:
            placement.process.check()
            with alone:
                return thunk()

        return run_alone
    take = [turn.lock.acquire for turn in turns]
    release = [turn.lock.release for turn in turns]

    def run() -> list:
        placement.process.check()  # before it waits for a lock that another thread held when the process was forked
        held: list[bool] = []
        releases = map(call, itertools.compress(release, held))
        try:
            # One call of C, as `any` is: Ctrl-C leaves no lock acquired that is not in the list.
            held.extend(map(call, take))
            return thunk()
        finally:
            any(releases)

    return run if turns else thunk


#: Shared arrays of more bytes are looked up in each call, so that nothing holds an array that `set_value` has replaced.
MOST_KEPT = 2**24


class SharedArrays:
    """The values of shared variables on the device of a function, as long as nobody replaces them.

    Attributes
    ----------
    kept
        The values in the cells, the arrays on the device, and their shapes; None for each that is not known.

    Parameters
    ----------
    cells
        The cells, by the positions of the inputs.
    wide
        The dtype of each that may hold an array of another one, else None.
    column_major
        The positions of matrices that the function takes in column-major order.
    """

    def __init__(
        self,
        cells: Mapping[int, list],
        wide: Mapping[int, np.dtype | None],
        options: Options,
        column_major: Collection[int],
    ):
        self._cells, self._options = [*cells.values()], options
        self._dtypes = [wide[i] for i in cells]
        self._orders = [i in column_major for i in cells]
        self.kept: tuple = (None,) * (3 * len(cells))

    def read(self) -> bool:
        """Read the cells, and return whether their values are small and on the device."""
        self.kept = (None,) * len(self.kept)
        with consistent:
            values = [cell[0] for cell in self._cells]
        has_own = placement.device_for(self._options) is not None
        buffers = [
            buffer
            for value, order, dtype in zip(values, self._orders, self._dtypes, strict=True)
            if (buffer := placement.buffer_of(value)) is not None
            and buffer.is_own is has_own
            and buffer.is_column_major is order
            and (dtype is None or value.dtype == dtype)
        ]
        if len(buffers) < len(values) or sum(value.nbytes for value in values) > MOST_KEPT:
            return False
        arrays = [buffer.array for buffer in buffers]
        self.kept = (*values, *arrays, *(array.shape for array in arrays))
        return True


def result_converters(fgraph: FunctionGraph, borrowed: set[int], options: Options) -> list[Callable[[Any], Any]]:
    """Return for each output the function that converts XLA's array to the user's value."""
    updates = getattr(fgraph, "update_mapping", None) or {}
    has_mirrors = any(isinstance(v, SharedVariable) and is_tensor(v.type) for v in fgraph.inputs)

    def converter(i: int, variable: Variable) -> Callable[[Any], Any]:
        if isinstance(variable.type, RandomType):
            return lambda key: key
        if not (is_tensor(variable.type) or isinstance(variable.type, ScalarType)):
            return lambda value: value
        if i in updates:
            return lambda array: in_cell(placement.on_device(array, placement.device_for(options)))
        if options.results == "jax":
            return placement.read_inputs if has_mirrors else placement.on_device
        if isinstance(variable.type, ScalarType):
            return placement.numpy_scalar
        return placement.read_only if i in borrowed else np.array

    return [converter(i, v) for i, v in enumerate(fgraph.outputs)]


def containers(
    fgraph: FunctionGraph, inputs: Sequence[list], outputs: Sequence[list]
) -> tuple[list[Container], list[Container]]:
    """Return the containers by which a `Function` reaches the cells of its inputs and outputs."""
    return (
        [input_container(v, cell) for v, cell in zip(fgraph.inputs, inputs, strict=True)],
        [Container(v, cell, readonly=True) for v, cell in zip(fgraph.outputs, outputs, strict=True)],
    )


def input_container(variable: Variable, cell: list) -> Container:
    """Return the container by which `Function` checks and stores an input. A tensor's takes JAX arrays, too.

    From now on the container of a shared variable itself does so as well: `set_value` keeps a sharded array.
    """
    container = Container(variable, cell)
    if not is_tensor(variable.type):
        return container
    if isinstance(variable, SharedVariable):
        adopt(variable.container, variable_name(variable))
        return adopt(container, variable_name(variable))
    container.type = placement.DeviceTensorType(variable.type, variable_name(variable))
    return container
