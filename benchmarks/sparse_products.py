"""Products of sparse matrices in mode JAXPR and in PyTensor's FAST_RUN, and by SciPy; writes their section of the report.

    python benchmarks/sparse_products.py                 all of them, about fifteen minutes on an idle machine
    python benchmarks/sparse_products.py --render        write the section again, from the JSON file

Each product runs in a process that is pinned to one core from its start. Both modes take turns, and the least time of each
counts. `run.py` keeps what was measured here.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).parent
HEADING = "## Sparse products"
TEXT = """
Microseconds a call of `f(...)`, pinned to one core: the least time of calls that take turns in one process. Mode FAST_RUN is Numba here.
A matrix is n by n, with entries at random; it is multiplied by a vector or by 16 columns. "×" is the ratio to mode JAXPR: above 1, mode
JAXPR is faster. An input matrix is taken apart, and a sparse result put together, on the host in both modes. SciPy's time is that of
`matrix @ array` alone.
"""
#: Rows and share of entries.
SIZES = ((1000, 0.05), (10_000, 0.001), (10_000, 0.005))
COLUMNS = (0, 16)
MODES = ("JAXPR", "FAST_RUN")


class Case(NamedTuple):
    """A function of PyTensor and its arguments."""

    inputs: list
    outputs: Any
    values: list


def cases(matrix: Any, columns: int) -> dict[str, Callable[[], Case]]:
    """Return the products of a matrix and an array of so many columns."""
    import pytensor
    import pytensor.sparse as ps
    import pytensor.tensor as pt

    n, rng = matrix.shape[0], np.random.default_rng(1)
    value = rng.normal(size=(n, columns) if columns else n)
    y = pt.dmatrix("y") if columns else pt.dvector("y")
    constant = ps.as_sparse_variable(matrix)
    csr, csc = ps.csr_matrix("x", dtype="float64"), ps.csc_matrix("x", dtype="float64")
    data = pt.dvector("data")
    same_places = ps.CSR(data, matrix.indices, matrix.indptr, list(matrix.shape))

    def half_square(x):
        return 0.5 * (x**2).sum()

    found = {
        "constant": lambda: Case([y], ps.dot(constant, y), [value]),
        "constant, transposed": lambda: Case([y], ps.dot(constant.T, y), [value]),
        "constant places": lambda: Case([data, y], ps.dot(same_places, y), [matrix.data, value]),
        "CSR input": lambda: Case([csr, y], ps.dot(csr, y), [matrix, value]),
        "CSC input": lambda: Case([csc, y], ps.dot(csc, y), [matrix.tocsc(), value]),
        "array times CSR input": lambda: Case([csr, y], ps.dot(y.T, csr), [matrix, value]),
    }
    if columns:
        dot = ps.structured_dot(same_places, y)
        found["constant, gradient"] = lambda: Case(
            [y], pytensor.grad(half_square(ps.structured_dot(constant, y)), y), [value]
        )
        found["constant places, both gradients"] = lambda: Case(
            [data, y], pytensor.grad(half_square(dot), [data, y]), [matrix.data, value]
        )
    return found


def measure(subject: str, seconds: float) -> dict:
    """Time one product in both modes and in SciPy, and compare the results of the modes."""
    import pytensor
    import scipy.sparse
    from clock import pin_to_one_core

    pin_to_one_core()
    import pytensor_jaxpr_linker  # noqa: F401  (registers the mode)

    name, n, density, columns = subject.split("/")
    matrix = scipy.sparse.random(int(n), int(n), float(density), format="csr", random_state=0)
    matrix.sort_indices()
    case = cases(matrix, int(columns))[name]()
    calls = {}
    for mode in MODES:
        f = pytensor.function(case.inputs, case.outputs, mode=mode, trust_input=True)
        calls[mode] = lambda f=f: f(*case.values)
    operand = case.values[-1]
    results = [calls[mode]() for mode in MODES]
    for got, want in zip(*(r if isinstance(r, list) else [r] for r in results), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
    calls["SciPy"] = lambda: matrix @ operand
    least = dict.fromkeys(calls, float("inf"))
    until, rounds = perf_counter() + seconds, 0
    while rounds < 20 or perf_counter() < until:
        rounds += 1
        for key, call in calls.items():
            for _ in range(3):
                start = perf_counter()
                call()
                least[key] = min(least[key], 1e6 * (perf_counter() - start))
    return least


def section(found: dict[str, dict]) -> str:
    """Return the section of the report."""
    from report import figure, table, with_ratio

    rows = []
    for subject, times in found.items():
        name, n, density, columns = subject.split("/")
        by = f"{columns} columns" if int(columns) else "vector"
        ratio = with_ratio(times["FAST_RUN"], times["JAXPR"])
        rows.append(
            [name, by, f"{int(n):,}, {float(density):.1%}", figure(times["JAXPR"]), ratio, figure(times["SciPy"])]
        )
    header = ["matrix", "times", "n, entries", "mode JAXPR", "mode FAST_RUN", "SciPy"]
    return f"{HEADING}\n{TEXT}\n{table(header, rows, 3)}"


def main() -> int:
    """Measure, and write the section."""
    from report import replace_section

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long the calls of a product take")
    parser.add_argument("--subject", help="one product, like 'constant/1000/0.05/16': print its times and stop")
    parser.add_argument("--render", action="store_true", help="only write the section again, from the JSON file")
    args = parser.parse_args()
    if args.subject:
        print(json.dumps(measure(args.subject, args.seconds)))
        return 0
    data = args.out.with_suffix(".json")
    saved = json.loads(data.read_text()) if data.exists() else {}
    if not args.render:
        saved["sparse"] = {}
        for name, (n, density), columns in all_subjects():
            subject = f"{name}/{n}/{density}/{columns}"
            command = [sys.executable, __file__, "--subject", subject, "--seconds", str(args.seconds)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            saved["sparse"][subject] = json.loads(done.stdout)
            data.write_text(json.dumps(saved, indent=1) + "\n")
            print(subject, {key: round(us, 1) for key, us in saved["sparse"][subject].items()}, flush=True)
    replace_section(args.out, HEADING + "\n", section(saved["sparse"]))
    return 0


def all_subjects() -> list[tuple[str, tuple[int, float], int]]:
    """Return each product, size and number of columns."""
    import scipy.sparse

    small = scipy.sparse.identity(2, format="csr")
    return [(name, size, k) for k in COLUMNS for name in cases(small, k) for size in SIZES]


if __name__ == "__main__":
    sys.exit(main())
