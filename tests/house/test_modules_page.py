"""The programs of docs/modules.md run, and print what it says."""

import re
from pathlib import Path

from helpers import run_python

PAGE = (Path(__file__).parents[2] / "docs" / "modules.md").read_text(encoding="utf-8")


def test_programs_of_the_page(tmp_path):
    blocks = re.findall(r"^```(python|)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    programs = "\n".join(code for kind, code in blocks if kind)
    printed = run_python(f"import os\nos.chdir({str(tmp_path)!r})\n{programs}")
    assert printed.strip() == blocks[1][1].strip()
    assert {path.name for path in tmp_path.iterdir()} == {"model.mlir", "model.json"}
