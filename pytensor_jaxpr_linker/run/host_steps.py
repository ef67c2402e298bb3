"""Runs nodes on the host as PyTensor's VM does: by the `perform` of the Op, or by the thunk that the Op makes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from typing import Any

import jax
import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.link.c.op import COp
from pytensor.scalar.basic import ScalarType
from pytensor.scan.op import Scan

from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.base.errors import describe_node, note_node, variable_name
from pytensor_jaxpr_linker.plan.model import HostStep
from pytensor_jaxpr_linker.run.codegen import destroyed_inputs, perform_nodes
from pytensor_jaxpr_linker.run.placement import PartsElsewhere, is_here, to_host

#: Up to this many nodes are run by a function that is made for them: making it takes longer than making thunks.
FEW_HOST_NODES = 32


class HostStage:
    """The nodes of a host step between slots: `call` runs them on the values of the inputs and returns those of the outputs.

    One generated function runs a few nodes that only have a `perform`; thunks run all others. If an Op is lazy, a node runs when its result
    is asked for: a conditional's thunk leaves the branch not taken unevaluated. A node that works in place gets a copy, since the order of
    nodes that PyTensor found for such Ops does not hold here. The error of an Op gets a note that names the node.
    """

    def __init__(self, step: HostStep, inputs: list[int], outputs: list[int]):
        self.inputs, self.outputs = inputs, outputs
        is_plain = len(step.nodes) <= FEW_HOST_NODES and all(only_performs(node.op) for node in step.nodes)
        run = perform_nodes(step, host_form, declared_form) if is_plain else Thunks(step).call

        def call(args: list) -> list:
            try:
                return run(args)
            except PartsElsewhere:
                raise parts_elsewhere(step, args) from None

        self.call = call


def parts_elsewhere(step: HostStep, args: Sequence[Any]) -> PartsElsewhere:
    """Return the error about inputs of a host step that are divided among processes."""
    names = ", ".join(variable_name(v) for v, x in zip(step.inputs, args, strict=True) if not is_here(x))
    return PartsElsewhere(
        f"A host step, which begins with {describe_node(step.nodes[0])}, reads {names}, and other processes have parts of that: give the Op an"
        " emission rule, so that it is part of the XLA program, or shard its operand over the devices of one process."
    )


class Thunks:
    """The nodes of a host step, each with the thunk that its Op makes."""

    def __init__(self, step: HostStep):
        variables = {v: None for node in step.nodes for v in (*node.inputs, *node.outputs)}
        cells: dict[Variable, list[Any]] = {v: [v.data if isinstance(v, Constant) else None] for v in variables}
        self._computed = {v: [isinstance(v, Constant)] for v in variables}
        self._thunks = {node: self._make_thunk(node, cells) for node in step.nodes}
        self._takes = [(cells[v], host_form(v)) for v in step.inputs]
        self._returns = [(cells[v], declared_form(v)) for v in step.outputs]
        self._results = step.outputs
        self._temporary = [v for v in variables if not isinstance(v, Constant)]
        self._temporary_cells = [cells[v] for v in self._temporary]
        self._lock = threading.RLock()  # the cells are those of one call; an Op may call its own function
        self._ordered = list(self._thunks.items())
        self._is_lazy = any(getattr(thunk, "lazy", False) for thunk in self._thunks.values())

    def _make_thunk(self, node: Apply, cells: dict[Variable, list[Any]]) -> Any:
        """Return the thunk of a node on the cells of its variables, or on copies of what it destroys."""
        own: dict[Variable, list[Any]] = {node.inputs[i]: [None] for i in destroyed_inputs(node)}
        thunk: Any = without_mode(node.op).make_thunk(node, {**cells, **own}, self._computed, [], impl="py")
        return on_copies(thunk, [(cells[v], cell) for v, cell in own.items()]) if own else thunk

    def call(self, args: Sequence[Any]) -> list[Any]:
        """Run the nodes, see `HostStage`."""
        with self._lock:
            outer = [cell[0] for cell in self._temporary_cells]  # None, unless an Op in this step made the call
            try:
                for (cell, as_host), value in zip(self._takes, args):  # noqa: B905
                    cell[0] = as_host(value)
                if self._is_lazy:
                    self._run_needed()
                else:
                    for node, thunk in self._ordered:
                        try:
                            thunk()
                        except Exception as error:
                            note_node(error, node)
                            raise
                return [as_declared(cell[0]) for cell, as_declared in self._returns]
            finally:
                for cell, value in zip(self._temporary_cells, outer):  # noqa: B905
                    cell[0] = value

    def _run_needed(self) -> None:
        """Run the nodes that the results need."""
        for v in self._temporary:
            self._computed[v][0] = v.owner not in self._thunks
        stack = list(reversed(self._results))
        while stack:
            if self._computed[stack[-1]][0]:
                stack.pop()
                continue
            node = stack[-1].owner
            assert node is not None
            thunk = self._thunks[node]
            is_lazy = getattr(thunk, "lazy", False)
            missing: Sequence[Variable] = [] if is_lazy else [v for v in node.inputs if not self._computed[v][0]]
            if not missing:
                try:
                    required = thunk()  # that of a lazy Op returns the positions of the inputs that it needs first
                except Exception as error:
                    note_node(error, node)
                    raise
                missing = [node.inputs[i] for i in required] if is_lazy and required else []
            if missing:
                stack += missing
            else:
                for v in node.outputs:
                    self._computed[v][0] = True


def only_performs(op: Op) -> bool:
    """Return whether the thunk of an Op is a call of its `perform`, which keeps nothing between calls."""
    makers = (type(op).make_thunk, type(op).make_py_thunk)
    return (
        makers[0] in (Op.make_thunk, COp.make_thunk)
        and makers[1] is Op.make_py_thunk
        and not isinstance(op, HasInnerGraph)
    )


def on_copies(thunk: Any, copied: Sequence[tuple[list[Any], list[Any]]]) -> Any:
    """Return a thunk that first copies the value in the first cell of each pair to the second cell."""

    def run() -> Any:
        try:
            for given, own in copied:
                own[0] = deepcopy(given[0])
            return thunk()
        finally:
            for _, own in copied:
                own[0] = None

    run.lazy = getattr(thunk, "lazy", False)  # type: ignore[attr-defined]
    return run


def without_mode(op: Op) -> Op:
    """Return an Op without the mode that the user chose for its inner graph: on the host PyTensor's own VM runs that."""
    if not isinstance(op, Scan) or op.mode is None:
        return op
    op = copy(op)
    op.mode, op._fn = None, None
    return op


def host_form(variable: Variable) -> Callable[[Any], Any]:
    """Return the function that converts a value, perhaps a JAX array, to one that PyTensor's Ops take for `variable`."""
    if is_tensor(variable.type):
        return to_host
    return scalar if isinstance(variable.type, ScalarType) else off_device


def off_device(value: Any) -> Any:
    """Return a value of any type, as a NumPy array if it is one of JAX's."""
    return to_host(value) if isinstance(value, jax.Array) else value


def scalar(value: Any) -> Any:
    """Return an array of one number as that number."""
    value = off_device(value)
    return value[()] if isinstance(value, np.ndarray) else value


def declared_form(variable: Variable) -> Callable[[Any], Any]:
    """Return the function that converts the result of a host Op to its type: for a tensor some Ops return Python's own numbers."""
    return np.asarray if is_tensor(variable.type) else unchanged


def unchanged(value: Any) -> Any:
    """Return the value itself."""
    return value
