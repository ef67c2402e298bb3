"""The files of packages that kept programs depend on."""

from __future__ import annotations

import os
import sys
from hashlib import sha256
from types import ModuleType

import pytest
from helpers import run_python

from pytensor_jaxpr_linker.graph.rewritten import environment

RULES, INIT = "a = 0.5\n", ""
#: The files of a package were written then, and its installation was recorded a second later, in ns.
WRITTEN = 1_700_000_000 * 10**9
RECORDED = WRITTEN + 10**9


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function that installs a package in a folder of its own, and returns what is known of its files."""

    def make(name, rules=RULES, shift=0, recorded=True, edit=None):
        root = tmp_path / name / "some"
        info = tmp_path / name / "some-1.2.dist-info"
        root.mkdir(parents=True)
        info.mkdir()
        lines = [f"some-1.2.dist-info/INSTALLER,,{name}", "some/__pycache__/rules.pyc,,"]
        for file, text in (("__init__.py", INIT), ("rules.py", rules)):
            path = root / file
            path.write_text(text)
            os.utime(path, ns=(WRITTEN + shift, WRITTEN + shift))
            lines.append(f"some/{file},sha256={sha256(text.encode()).hexdigest()},{len(text)}")
        if recorded:
            (info / "RECORD").write_text("\n".join(lines))
            os.utime(info / "RECORD", ns=(RECORDED + shift, RECORDED + shift))
        if edit:
            (root / "rules.py").write_text(edit)
            os.utime(root / "rules.py", ns=(RECORDED + shift + 10**9,) * 2)
        module = ModuleType("some")
        module.__file__ = str(root / "__init__.py")
        monkeypatch.setitem(sys.modules, "some", module)
        return environment.files_of("some")

    return make


def test_two_installations_of_one_wheel_are_equal(install):
    """Whenever they were made, and by whom."""
    assert install("here") == install("there", shift=10**12)


def test_another_wheel_with_files_of_the_same_size(install):
    assert install("here") != install("there", rules="a = 0.7\n")


def test_a_file_that_was_edited(install):
    """Its text may have the same length, and go back to what it was."""
    found = [install(name, edit=edit) for name, edit in (("as it was", None), ("other", "a = 0.7\n"), ("same", RULES))]
    assert found[0] != found[1] and found[0] != found[2]


def test_without_a_record_times_count(install):
    assert install("here", recorded=False) == install("there", recorded=False)
    assert install("then", recorded=False) != install("later", recorded=False, shift=1)


def test_an_edit_after_the_import(install, monkeypatch):
    monkeypatch.setattr(environment, "IMPORTED", RECORDED)
    with pytest.raises(environment.NotDescribed, match="written after it was imported"):
        install("here", edit="a = 0.7\n")


LATER = """
import sys
import pytensor, pytensor.sparse, pytensor_jaxpr_linker
from pytensor_jaxpr_linker.graph.rewritten.environment import registered

before = registered(in_folder=True), registered(in_folder=False)
assert "pytensor.typed_list.rewriting" not in sys.modules
import pytensor.link.numba.dispatch
assert "pytensor.typed_list.rewriting" in sys.modules
print(*(old == new for old, new in zip(before, (registered(in_folder=True), registered(in_folder=False)))))
"""


def test_a_module_that_pytensor_imports_late():
    """As `pymc.set_data` does with Numba: what it registers is for its own Ops, so kept programs are found."""
    assert run_python(LATER).split() == ["True", "False"]
