"""Tests mirror the rooms: a newcomer who knows a module knows where its tests are."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
PACKAGE = ROOT / "pytensor_jaxpr_linker"
#: Beside the rooms: tests of what no module does alone, of the repository itself, and what tests share.
OTHERS = {"whole", "house", "support"}
ROOMS = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} | {"jaxpr_artifact"}


def test_folders():
    assert {path.name for path in TESTS.iterdir() if path.is_dir() and path.name != "__pycache__"} == ROOMS | OTHERS
    assert [path.name for path in TESTS.glob("*.py")] == ["conftest.py"]
    assert not list((TESTS / "support").glob("test_*.py"))


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_files_of_a_room_are_named_after_its_modules(room):
    """An aspect of a module may follow its name: ``test_scalar_values.py`` for ``scalar.py``."""
    strange = []
    for test in (TESTS / room).rglob("test_*.py"):
        folder = (ROOT if room == "jaxpr_artifact" else PACKAGE) / test.parent.relative_to(TESTS)
        modules = {path.stem for path in folder.glob("*") if path.suffix == ".py" or (path / "__init__.py").is_file()}
        name = test.stem.removeprefix("test_")
        if not any(name == module or name.startswith(module + "_") for module in modules):
            strange.append(str(test.relative_to(TESTS)))
    assert strange == []


def test_length_of_a_file():
    """Who reads one test reads its file."""
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in TESTS.rglob("test_*.py")}
    assert not [str(path.relative_to(TESTS)) for path, length in lengths.items() if length > 400]
