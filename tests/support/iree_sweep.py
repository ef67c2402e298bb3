"""Each sample of the Op table as a program of IREE, compiled and run: what fails, and why. It takes some ten minutes.

``PYTHONPATH=. python tests/support/iree_sweep.py [FAMILY ...]`` prints a line for each row that fails, and the number of those that do not.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import op_table_sparse as sparse
from op_row import Row
from op_table import FAMILIES as OF_ARRAYS

from jaxpr_artifact import IreeFunction
from pytensor_jaxpr_linker.artifacts.exportable import exportable
from pytensor_jaxpr_linker.artifacts.iree import write_iree
from pytensor_jaxpr_linker.base.errors import GraphBreakError
from pytensor_jaxpr_linker.frontend.targets import graph_target
from tests.whole.test_op_table import AS_BUILT, REFERENCE, TOLERANCE, Case, assert_close, evaluate, joined

FAMILIES = {**OF_ARRAYS, "sparse": sparse.ROWS}


def compiled(rows: list[Row], path: Path, every_sample: bool = True) -> tuple[IreeFunction, list[Case]]:
    """Return the expressions of rows, on their samples, as one program, and the cases that it computes."""
    cases = [Case(row, v, "float64") for row in rows for v in (row.samples if every_sample else (row.values,))]
    inputs, outputs = joined(cases)
    values = [v for case in cases for v in case.values]
    target = graph_target(inputs, outputs, AS_BUILT, "the sweep")
    found = exportable(target, dims={}, examples=values, constraints=(), name="sample", platforms=("cpu",))
    function = write_iree(path, found, "host")
    assert function is not None
    return function, cases


def check(rows: list[Row], folder: Path, every_sample: bool = True) -> None:
    """Raise an exception unless IREE computes what PyTensor does."""
    function, cases = compiled(rows, folder / "sample.vmfb", every_sample)
    values = [v for case in cases for v in case.values]
    results = function(*values)
    assert_close(cases, results, evaluate(REFERENCE, cases, values), *TOLERANCE["float64"])


def failures(families: list[str]) -> Iterator[tuple[str, str, str, float]]:
    """Yield family, row, what went wrong (or nothing), and seconds."""
    with tempfile.TemporaryDirectory() as folder:
        for family in families:
            for row in FAMILIES[family]:
                if not row.one_program:
                    continue
                start = time.perf_counter()
                try:
                    try:
                        check([row], Path(folder))
                    except GraphBreakError:  # of other shapes some row is not one program
                        check([row], Path(folder), every_sample=False)
                    fault = ""
                except Exception as error:
                    fault = f"{type(error).__name__}: {error}"
                yield family, row.name, fault, time.perf_counter() - start


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    good = count = 0
    for family, name, fault, seconds in failures(sys.argv[1:] or list(FAMILIES)):
        count, good = count + 1, good + (not fault)
        if fault:
            print(f"{family}/{name} ({seconds:.1f} s): {fault[:1500]}\n", flush=True)
    print(f"{good} of {count} rows")
