"""The README is true: its programs run and print what it says, and its picture shows what the benchmark measured."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def run(program: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_program_samples_and_draws_a_picture(tmp_path):
    pytest.importorskip("blackjax")
    table = run(PROGRAMS[0], tmp_path).splitlines()
    assert [line.split()[0] for line in table[-2:]] == ["mu", "tau"]
    assert (tmp_path / "schools.png").read_bytes().startswith(b"\x89PNG")
    assert len(PROGRAMS[0].splitlines()) <= 15


@pytest.mark.parametrize("i", range(1, len(PROGRAMS)))
def test_other_programs_print_what_the_readme_says(i, tmp_path):
    after = TEXT.partition(PROGRAMS[i])[2]
    expected = re.search(r"\n```\n(.*?)```", after.removeprefix("```"), re.DOTALL)
    assert expected is not None
    assert run(PROGRAMS[i], tmp_path) == expected[1]


def test_the_picture_and_its_sentence_show_the_benchmark(tmp_path, monkeypatch):
    """``python benchmarks/bench.py charts`` draws it anew, and prints the sentence."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import charts

    sentence = re.search("<!-- draws -->(.*)<!-- /draws -->", TEXT, re.DOTALL)[1]
    assert " ".join(sentence.split()) == charts.sentence()
    # Curves that stand for a model are as many in the picture as there are models.
    found = charts.PICTURE.read_text(encoding="utf-8")
    assert found.count("stroke: #cccccc; stroke-width: 2;") == len(charts.PANELS_OF_DRAWS) * len(charts.read())
