"""Products of sparse matrices in mode JAXPR and in PyTensor's FAST_RUN, and by SciPy.

All of them take about fifteen minutes on an idle machine. Both modes take turns, and the least time of each counts.
"""

import argparse
import json
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from clock import least_us, pin_to_one_core
from processes import Job, collect
from rendering import figure, table, with_ratio

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
    """Time one product, like ``constant/1000/0.05/16``, in both modes and in SciPy, and compare the results of the modes."""
    pin_to_one_core()
    import pytensor
    import scipy.sparse

    import pytensor_jaxpr_linker  # noqa: F401  (registers the mode)

    name, n, density, columns = subject.split("/")
    matrix = scipy.sparse.random(int(n), int(n), float(density), format="csr", random_state=0)
    matrix.sort_indices()
    case = cases(matrix, int(columns))[name]()
    calls = {}
    for mode in MODES:
        f = pytensor.function(case.inputs, case.outputs, mode=mode, trust_input=True)
        calls[mode] = lambda f=f: f(*case.values)
    results = [calls[mode]() for mode in MODES]
    for got, want in zip(*(r if isinstance(r, list) else [r] for r in results), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
    calls["SciPy"] = lambda: matrix @ case.values[-1]
    return least_us(calls, seconds / len(calls))


def subjects() -> list[str]:
    """Return each product, size and number of columns."""
    import scipy.sparse

    small = scipy.sparse.identity(2, format="csr")
    products = [(name, columns) for columns in COLUMNS for name in cases(small, columns)]
    return [f"{name}/{n}/{density}/{columns}" for (name, columns), (n, density) in product(products, SIZES)]


def sparse_table(found: dict[str, dict]) -> str:
    """Time of a call, a line for each product."""
    rows = []
    for subject, times in found.items():
        name, n, density, columns = subject.split("/")
        by = f"{columns} columns" if int(columns) else "vector"
        cells = [name, by, f"{int(n):,}, {float(density):.1%}", figure(times.get("JAXPR"))]
        rows.append([*cells, with_ratio(times.get("FAST_RUN"), times.get("JAXPR")), figure(times.get("SciPy"))])
    return table(["matrix", "times", "n, entries", "mode JAXPR", "mode FAST_RUN", "SciPy"], rows, 3)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measurement."""
    parser.add_argument("--subjects", nargs="+", help="products, like 'constant/1000/0.05/16': store nothing")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long the calls of a product take")


def run(args: argparse.Namespace) -> dict:
    """Measure."""
    data = args.out.with_suffix(".json")
    saved = json.loads(data.read_text()) if data.exists() and not args.subjects else {}
    collected = saved | {"sparse": {}}
    arguments = [{"subject": subject, "seconds": args.seconds} for subject in args.subjects or subjects()]
    jobs = [Job("sparse_products:measure", chosen, ("sparse", chosen["subject"])) for chosen in arguments]
    collect([[job] for job in jobs], collected, None if args.subjects else data)
    return collected
