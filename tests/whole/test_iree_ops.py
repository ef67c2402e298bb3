"""Samples of the Op table, compiled and run by IREE; `tests/support/iree_sweep.py` runs all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("iree.compiler")
pytest.importorskip("iree.runtime")

from iree_sweep import FAMILIES, check
from op_row import Row

from pytensor_jaxpr_linker.base.rules import class_name
from pytensor_jaxpr_linker.jaxpr.portable.rewrite import NotPortableError
from pytensor_jaxpr_linker.report import support
from pytensor_jaxpr_linker.report.support import IREE
from tests.whole.test_op_table import Case, ops_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(invalid value|divide by zero|overflow) encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:`axes` should not be `None`:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
    pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning"),  # in the reference
]

#: Rows of families whose programs IREE compiles slowly. The sweep runs the others.
FEW = {
    "functions": ["J0"],
    "linear algebra": ["Cholesky", "Solve", "QR", "Eigh", "Schur"],
    "sparse": ["Dot"],
}


def limited(row: Row) -> set[str]:
    """Return the Ops of a row that IREE does not run, or not all of."""
    case = Case(row, row.values, "float64")
    return {class_name(type(op)) for op in ops_of(case.outputs)} & set(IREE)


ROWS = [(family, row) for family, rows in FAMILIES.items() for row in rows if row.one_program]
REFUSED = [row for _, row in ROWS if any(not IREE[name].in_part for name in limited(row))]


@pytest.mark.parametrize("family", FAMILIES)
def test_values(family: str, tmp_path: Path) -> None:
    """All rows of a family in one program, on their first values, equal FAST_COMPILE to the tolerance of the table's test."""
    rows = [row for f, row in ROWS if f == family and row not in REFUSED and row.name in FEW.get(family, [row.name])]
    assert rows
    check([row for row in rows if not limited(row)], tmp_path, every_sample=False)


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.name)
def test_refused(row: Row, tmp_path: Path) -> None:
    with pytest.raises(NotPortableError, match=r"eig of .*Made at .*op_table.*py:\d+"):
        check([row], tmp_path)


def test_each_restriction_has_a_row() -> None:
    assert {name for _, row in ROWS for name in limited(row)} == set(IREE)
    assert set(IREE) <= {f"{row.module}.{row.name}" for row in support.table()}


def test_most_rows_run() -> None:
    """The goal is 90 %."""
    assert len([row for _, row in ROWS if not limited(row)]) >= 0.9 * len(ROWS)
