"""The pause of Python's garbage collector."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest

from pytensor_jaxpr_linker.base import interpreter
from pytensor_jaxpr_linker.base.interpreter import gc_paused


class Cycle:
    """An object that refers to itself."""

    def __init__(self):
        self.itself = self


@pytest.fixture
def unseen(monkeypatch):
    """Count from zero."""
    gc.collect()
    monkeypatch.setattr(interpreter, "UNSEEN", interpreter.Unseen())
    return interpreter.UNSEEN


def is_old(value) -> bool:
    return any(x is value for x in gc.get_objects(2))


def test_what_a_pause_makes_is_old_and_can_be_collected(unseen):
    with gc_paused():
        assert not gc.isenabled()
        kept, garbage = Cycle(), weakref.ref(Cycle())
    assert gc.isenabled()
    assert is_old(kept)
    assert garbage() is not None
    gc.collect()
    assert garbage() is None
    assert kept.itself is kept


def test_many_unseen_objects_wait_for_the_collector(unseen, monkeypatch):
    monkeypatch.setattr(interpreter, "MOST_UNSEEN", 5000)
    with gc_paused():
        many = [[] for _ in range(6000)]
    assert not is_old(many)
    gc.collect()
    with gc_paused():
        few = [[] for _ in range(100)]
    assert is_old(few)
    assert 100 <= unseen.count <= 5000


def test_objects_that_the_user_hides_from_the_collector_stay_hidden(unseen):
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with gc_paused():
            new = Cycle()
        assert gc.get_freeze_count() == count > 0
        assert not is_old(new)
    finally:
        gc.unfreeze()


def test_a_pause_that_fails_or_is_inside_another(unseen):
    with pytest.raises(ValueError, match="stop"), gc_paused(), gc_paused():
        raise ValueError("stop")
    assert gc.isenabled()
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


AT_THE_END = """
import atexit, gc, sys
atexit.register(lambda: print(gc.get_freeze_count() > 0, open(sys.argv[1]).read()))  # runs last
import pytensor_jaxpr_linker

class Log:
    def __init__(self):
        self.file, self.itself = open(sys.argv[1], "w"), self
        self.file.write("written")

Log()
raise SystemExit(3)
"""


def test_a_process_ends_without_a_collection_and_keeps_files(tmp_path):
    """A file in a cycle of objects has what was written to it, and the exit status stays."""
    command = [sys.executable, "-c", AT_THE_END, str(tmp_path / "log.txt")]
    found = subprocess.run(command, capture_output=True, text=True)
    assert (found.returncode, found.stdout.split()) == (3, ["True", "written"]), found.stderr
    assert not found.stderr


def test_iree_reports_no_leaks():
    pytest.importorskip("iree.runtime")
    code = "import iree.runtime, iree.compiler, pytensor_jaxpr_linker"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "leaked" not in found.stderr
