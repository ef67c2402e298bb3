"""Folders and files that others can write to: their contents would be executed, so they are refused."""

from __future__ import annotations

import os
import pickle
import stat
import time
from pathlib import Path

import numpy as np
import pytensor
import pytensor.sparse  # PyTensor imports it while it rewrites, and with it more rewrites
import pytensor.tensor as pt
import pytest
from helpers import run_python

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base.private_files import UnsafeFolderError, checked_folder, read_file
from pytensor_jaxpr_linker.graph.rewritten import environment
from pytensor_jaxpr_linker.graph.rewritten.store import STORE, checksum, write_at_once

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no such rights")
AS_ROOT = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives a file away")
#: The number of a user that is not this one.
ANOTHER = 12345


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of the user's, and sources that nobody edits while the tests run."""
    monkeypatch.setattr(environment, "IMPORTED", time.time_ns())
    (tmp_path / "cache" / "graphs").mkdir(parents=True, mode=0o700)
    (tmp_path / "cache").chmod(0o700)
    yield tmp_path / "cache"
    STORE.clear()
    STORE.use(None)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702, 0o1777])
@pytest.mark.parametrize("place", [".", "graphs"])
def test_a_folder_that_others_can_write_to_is_refused(folder, mode, place):
    (folder / place).chmod(mode)
    with pytest.raises(UnsafeFolderError, match=rf"{folder}.* can be written to .*mode {mode:o}.*chmod 700 {folder}"):
        pjl.cache(folder)
    assert not STORE.has_folder
    (folder / place).chmod(0o700)
    checked_folder(folder / place)


@AS_ROOT
@pytest.mark.parametrize("place", [".", "graphs", "entry", ".."])
def test_what_belongs_to_another_user_is_refused(folder, place):
    (folder / "entry").write_bytes(b"program")
    os.chown(folder / place, ANOTHER, ANOTHER)
    with pytest.raises(UnsafeFolderError, match=f"{folder}.*belongs to another user .number {ANOTHER}"):
        pjl.cache(folder)


def test_folders_above_count(folder):
    """Who can rename the folder can put another one in its place, unless the folder above is like /tmp."""
    folder.parent.chmod(0o777)
    with pytest.raises(UnsafeFolderError, match=f"{folder.parent}, above it, can be written to"):
        checked_folder(folder)
    folder.parent.chmod(0o1777)
    checked_folder(folder)
    folder.parent.chmod(0o755)
    assert checked_folder(folder) == folder


def test_a_link_is_what_it_leads_to(folder, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert checked_folder(link) == folder
    folder.chmod(0o777)
    with pytest.raises(UnsafeFolderError):
        pjl.cache(link)


def test_programs_that_others_can_write_to(folder):
    """In a folder that others can enter, where JAX has written with an open umask."""
    (folder / "entry").write_bytes(b"program")
    (folder / "entry").chmod(0o664)
    checked_folder(folder)
    folder.chmod(0o755)
    with pytest.raises(UnsafeFolderError, match="entry, in it, can be written to"):
        checked_folder(folder)


PROGRAM = """
import os, stat
import numpy as np, pytensor, pytensor.tensor as pt
import pytensor_jaxpr_linker as pjl

os.umask(0)
folder, x = pjl.cache(os.environ["FOLDER"]), pt.dvector("x")
assert np.array_equal(pytensor.function([x], x * 2, mode="JAXPR")(np.ones(2)), [2.0, 2.0])
assert any(folder.iterdir()) and any((folder / "graphs").iterdir())
for path in (folder.parent, folder, folder / "graphs", *(folder / "graphs").iterdir()):
    print(oct(path.stat().st_mode & 0o077))
"""


def test_what_is_made_is_for_the_user_alone(tmp_path):
    """Whatever the umask is."""
    assert set(run_python(PROGRAM, FOLDER=str(tmp_path / "new" / "folder")).split()) == {"0o0"}


class Planted:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def plant(folder: Path, trace: Path) -> tuple[Path, pt.TensorVariable]:
    """Replace the entry of a graph by a forged one, and return it, and the input of an equal graph."""
    pjl.cache(folder)
    x = pt.dvector("x")
    pytensor.function([x], pt.exp(x) * 3, mode="JAXPR")
    (entry,) = (folder / "graphs").iterdir()
    data = pickle.dumps(Planted(trace))
    write_at_once(entry, checksum(entry.name, data) + data)
    STORE.clear()
    return entry, x


def open_to_all(entry):
    entry.chmod(0o666)


def open_to_the_group(entry):
    entry.chmod(0o620)


def of_another(entry):
    os.chown(entry, ANOTHER, ANOTHER)


def a_link(entry):
    entry.rename(entry.parent.parent / "elsewhere")
    entry.symlink_to(entry.parent.parent / "elsewhere")


def a_pipe(entry):
    entry.unlink()
    os.mkfifo(entry)


@pytest.mark.parametrize(
    "change", [open_to_all, open_to_the_group, pytest.param(of_another, marks=AS_ROOT), a_link, a_pipe]
)
def test_a_file_that_is_planted_later_is_not_read(folder, tmp_path, change):
    """It costs one warning, and is made again."""
    entry, x = plant(folder, tmp_path / "trace")
    change(entry)
    with pytest.warns(pjl.CacheWarning, match="can't be read: .*made again") as caught:
        f = pytensor.function([x], pt.exp(x) * 3, mode="JAXPR")
    assert len(caught) == 1 and caught[0].filename == __file__
    np.testing.assert_allclose(f(np.zeros(2)), [3.0, 3.0])
    assert not (tmp_path / "trace").exists()
    assert stat.S_IMODE(entry.lstat().st_mode) == 0o600 and entry.is_file()
    assert read_file(entry)


def test_what_is_planted_runs_where_rights_are_not_looked_at(folder, tmp_path):
    """Else the tests above would find nothing."""
    _, x = plant(folder, tmp_path / "trace")
    pytensor.function([x], pt.exp(x) * 3, mode="JAXPR")
    assert (tmp_path / "trace").exists()
