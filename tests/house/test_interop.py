"""The programs of docs/interop.md print what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "interop.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```\n\nIt prints\n\n```\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize(("package", "number"), [("blackjax", 0), ("numpyro", 1), ("jax", 2)])
def test_program_prints_what_the_page_says(package, number):
    pytest.importorskip(package)
    program, expected = PROGRAMS[number]
    assert f"import {package}" in program
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stdout == expected
