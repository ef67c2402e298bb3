"""The templates of CONTRIBUTING.md run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytensor_jaxpr_linker.base.rules import RULES, SCALAR_RULES

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
#: The tests that the blocks define, by name.
NAMES = re.findall(r"^def (test_\w+)", "\n".join(BLOCKS), re.MULTILINE)


@pytest.fixture(scope="module")
def templates():
    """Run all blocks as one module; the rules that they register are gone afterwards."""
    tables = [(table, dict(table)) for table in (RULES, SCALAR_RULES)]
    namespace = {"__name__": "contributing"}
    exec(compile("\n".join(BLOCKS), "CONTRIBUTING.md", "exec"), namespace)
    yield namespace
    for table, rules in tables:
        for op_type in table.keys() - rules.keys():
            del table[op_type]


@pytest.mark.parametrize("name", NAMES)
def test_template(templates, name):
    templates[name]()


def test_each_kind_has_a_template():
    assert len(NAMES) == 6
    assert {"emits", "emits_scalar", "emits_draws"} <= set(re.findall(r"^@(\w+)\(", "\n".join(BLOCKS), re.MULTILINE))
