"""The list of nightly tests (`nightly.txt`) and how it is made (`nightly.py`)."""

from __future__ import annotations

from pathlib import Path

import nightly

SECONDS = {"f[a]": 1.0, "f[b]": 9.0, "g": 2.0, "h": 9.0, "i[a]": 2.0, "i[b]": 8.0}


def test_the_quickest_case_of_a_function_stays():
    assert set(nightly.chosen(SECONDS)) == {"f[b]", "h", "i[b]"}


def test_listed_tests_exist():
    """An id that names no test would mark nothing, and the test would be in each run again."""
    sources: dict[str, str] = {}
    missing = []
    for test in nightly.listed().keys() - {""}:
        path, _, name = test.partition("::")
        if path not in sources:
            file = Path(__file__).parents[2] / path
            sources[path] = file.read_text() if file.is_file() else ""
        function = name.partition("[")[0].rpartition("::")[2]
        if f"def {function}(" not in sources[path]:
            missing.append(test)
    assert missing == []
