"""Runs nodes on the host, each by the thunk that its Op makes, as PyTensor's own VM would."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from copy import copy, deepcopy
from typing import Any

import jax
import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.scalar.basic import ScalarType
from pytensor.scan.op import Scan
from pytensor.tensor.type import DenseTensorType

from pytensor_jaxpr_linker.errors import note_node
from pytensor_jaxpr_linker.plan import HostStep


class HostStage:
    """The nodes of a host step between slots.

    Where an Op is lazy, a node runs when its result is asked for: a conditional's thunk leaves the branch not taken unevaluated.
    What a node destroys is a copy: the order of nodes that PyTensor found for Ops that work in place does not hold here.
    """

    def __init__(self, step: HostStep, inputs: list[int], outputs: list[int]):
        self.inputs, self.outputs = inputs, outputs
        variables = {v: None for node in step.nodes for v in (*node.inputs, *node.outputs)}
        self._cells: dict[Variable, list[Any]] = {v: [v.data if isinstance(v, Constant) else None] for v in variables}
        self._computed = {v: [isinstance(v, Constant)] for v in variables}
        self._destroyed: dict[Apply, dict[Variable, list[Any]]] = {}
        self._thunks: dict[Apply, Any] = {}
        for node in step.nodes:
            own = {node.inputs[i]: [None] for i in destroyed_inputs(node)}
            if own:
                self._destroyed[node] = own
            op = without_mode(node.op)
            self._thunks[node] = op.make_thunk(node, {**self._cells, **own}, self._computed, [], impl="py")
        self._takes = [(self._cells[v], slot, v) for v, slot in zip(step.inputs, inputs, strict=True)]
        self._returns = [(self._cells[v], slot, v) for v, slot in zip(step.outputs, outputs, strict=True)]
        self._temporary = [v for v in variables if not isinstance(v, Constant)]
        self._temporary_cells = [self._cells[v] for v in self._temporary]
        self._lock = threading.RLock()  # the cells are those of one call
        is_lazy = any(getattr(thunk, "lazy", False) for thunk in self._thunks.values())
        self._run_nodes = self._run_needed if is_lazy else self._run_all

    def run(self, env: list[Any]) -> None:
        """Run the nodes on what the slots hold and store what the last of them return.

        Raises
        ------
        Exception
            What an Op raises, with a note that names the node.
        """
        with self._lock:
            try:
                for cell, slot, variable in self._takes:
                    cell[0] = to_host(env[slot], variable)
                self._run_nodes()
                for cell, slot, variable in self._returns:
                    env[slot] = as_declared(cell[0], variable)
            finally:
                for cell in self._temporary_cells:
                    cell[0] = None

    def _run_all(self) -> None:
        """Run the nodes in order."""
        for node, thunk in self._thunks.items():
            self._run(node, thunk)

    def _run_needed(self) -> None:
        """Run the nodes that the results need."""
        for v in self._temporary:
            self._computed[v][0] = v.owner not in self._thunks
        stack = [v for _, _, v in reversed(self._returns)]
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
                required = self._run(node, thunk)
                missing = [node.inputs[i] for i in required] if is_lazy and required else []
            if missing:
                stack += missing
            else:
                for v in node.outputs:
                    self._computed[v][0] = True

    def _run(self, node: Apply, thunk: Any) -> Any:
        """Run the thunk of a node; that of a lazy Op returns the positions of the inputs that it needs first."""
        destroyed = self._destroyed.get(node, {})
        for variable, cell in destroyed.items():
            cell[0] = deepcopy(self._cells[variable][0])
        try:
            return thunk()
        except Exception as error:
            note_node(error, node)
            raise
        finally:
            for cell in destroyed.values():
                cell[0] = None


def without_mode(op: Op) -> Op:
    """Return an Op without the mode that the user chose for its inner graph: on the host PyTensor's own VM runs that."""
    if not isinstance(op, Scan) or op.mode is None:
        return op
    op = copy(op)
    op.mode, op._fn = None, None
    return op


def destroyed_inputs(node: Apply) -> set[int]:
    """Return the positions of the inputs whose memory the Op of a node writes to."""
    return {i for positions in node.op.destroy_map.values() for i in positions}


def to_host(value: Any, variable: Variable) -> Any:
    """Return a value as the Ops of PyTensor take it."""
    if isinstance(value, jax.Array):
        value = np.asarray(value)
    return value[()] if isinstance(variable.type, ScalarType) and isinstance(value, np.ndarray) else value


def as_declared(value: Any, variable: Variable) -> Any:
    """Return what a host Op made as an array, if its type is one: some return Python's own numbers."""
    return np.asarray(value) if isinstance(variable.type, DenseTensorType) else value
