"""`UntilScan`: a loop with a condition, which also returns the number of steps that it took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.scan.op import Scan


class UntilScan(Op):
    """A `Scan` with a condition. Its outputs have full length, as if it never ended early; the last is the number of steps."""

    __props__ = ("scan",)

    def __init__(self, scan: Scan):
        self.scan = scan

    def make_node(self, *inputs: Variable) -> Apply:
        """Return the node, which takes the inputs of the scan."""
        inner = self.scan.make_node(*inputs)
        return Apply(self, list(inner.inputs), [*(v.type() for v in inner.outputs), pt.lscalar()])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Sequence[list]) -> None:
        """Run the scan on the host. It cuts its outputs itself; the cuts that follow change nothing."""
        scan_node = self.scan.make_node(*node.inputs)
        cells: dict[Variable, list] = {v: [x] for v, x in zip(scan_node.inputs, inputs, strict=True)}
        cells |= {v: [None] for v in scan_node.outputs}
        self.scan.make_thunk(scan_node, cells, {v: [True] for v in cells}, [], impl="py")()
        most = steps = int(inputs[0])
        lengths = row_counts(self.scan, inputs)
        for cell, variable, span, length in zip(
            output_storage, scan_node.outputs, spans(self.scan), lengths, strict=False
        ):
            cell[0] = cells[variable][0]
            if span is not None and length == most + span:
                steps = len(cell[0]) - span
        output_storage[-1][0] = np.asarray(steps, "int64")

    def __str__(self) -> str:
        return str(self.scan)


def spans(op: Scan) -> list[int | None]:
    """Return the number of initial rows of each output of a scan, which no step writes; None for outputs without rows."""
    info = op.info
    taps = info.mit_sot_in_slices + info.sit_sot_in_slices
    return [
        *[None] * info.n_mit_mot,
        *(-min(ins) for ins in taps),
        *[0] * info.n_nit_sot,
        *[None] * info.n_untraced_sit_sot,
    ]


def row_counts(op: Scan, inputs: Sequence[Any]) -> list[int]:
    """Return the number of rows that each output of a scan is given, for the outputs with rows."""
    buffers = (*op.outer_mitmot(inputs), *op.outer_mitsot(inputs), *op.outer_sitsot(inputs))
    return [*map(len, buffers), *(int(n) for n in op.outer_nitsot(inputs))]
