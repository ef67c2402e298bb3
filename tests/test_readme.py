"""The README's first screen is true: its program prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_first_program_prints_what_the_readme_says():
    text = README.read_text()
    program = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
    expected = re.search(r"It prints\n\n```\n(.*?)```", text, re.DOTALL).group(1)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout == expected
