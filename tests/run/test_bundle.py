"""Bundles: programs that another folder finds, and files of which nothing is imported or executed."""

from __future__ import annotations

import json
import os
import pickle
import sys
from hashlib import sha256

import pytest
from helpers import run_python

from pytensor_jaxpr_linker.command_line.main import run_command
from pytensor_jaxpr_linker.graph.rewritten import store
from pytensor_jaxpr_linker.graph.rewritten.store import CHECKSUM, STORE, checksum
from pytensor_jaxpr_linker.run import bundle
from pytensor_jaxpr_linker.run.bundle import BundleError, export_bundle, import_bundle

#: Prints what two functions return, and whether their programs were kept by an earlier process.
CALLS = """
import json
import numpy as np, pytensor, pytensor.tensor as pt
import pytensor_jaxpr_linker
from pytensor_jaxpr_linker.frontend.targets import compiled_runner

x, m = pt.dvector("x"), pt.dmatrix("m")
printed = []
for inputs, output, value in (([x], pt.exp(x) + 1, np.arange(3.0)), ([m], pt.linalg.cholesky(m), np.eye(2) * 4)):
    f = pytensor.function(inputs, output, mode="JAXPR")
    result = f(value).tolist()
    (specialization,) = compiled_runner(f).programs[0].specializations
    printed.append([result, type(list(specialization.lowered.values())[-1]).__name__])
print(json.dumps(printed))
"""
KEY = "ab" * 32
#: The parts of an entry with one program, as `keep_programs` makes it.
PROGRAM = b"code", "jit(f)", True, ((0,), {}), 0, [((3,), "float64", False, False)], [0], [((), "float64", False)]
PLAIN = [PROGRAM], None


def entry(value, key=KEY) -> bytes:
    """Return an entry of a folder."""
    data = value if isinstance(value, bytes) else pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return checksum(key, data) + data


def sealed(entries, writer=None) -> bytes:
    """Return a bundle of these entries with a right seal, whatever they are."""
    contents = pickle.dumps((writer or {}, entries))
    return bundle.MAGIC + bundle.FORMAT + sha256(contents).digest() + contents


class Shell:
    """Pickles as a call of `os.system`."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"echo executed > {self.path}",)


@pytest.fixture
def folders(tmp_path):
    """Return an empty folder and a path for a bundle."""
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    return folder, tmp_path / "bundle"


@pytest.fixture
def command(tmp_path, capsys):
    """Return a function that runs ``cache`` with a folder, or None for none, and returns its status and output."""
    before = STORE.folder

    def run(folder, *words):
        STORE.use(folder)
        status = run_command(["cache", *map(str, words)])
        said = capsys.readouterr()
        return status, said.out + said.err

    yield run
    STORE.use(before)


def test_another_folder_finds_the_programs(tmp_path):
    """From one process to the next; the first has kept rewritten graphs, too, and these stay in its folder."""
    first, second, path = tmp_path / "first", tmp_path / "second", tmp_path / "bundle"
    made = json.loads(run_python(CALLS, PYTENSOR_JAXPR_CACHE=str(first)))
    assert [kind for _, kind in made] == ["Lowered"] * 2 and len(list(first.iterdir())) > 2
    cache = "import sys; from pytensor_jaxpr_linker.command_line.main import run_command; run_command({})"
    said = run_python(cache.format(["cache", "export", str(path)]), PYTENSOR_JAXPR_CACHE=str(first))
    assert said.startswith(f"{path}: 2 programs")
    said = run_python(cache.format(["cache", "import", str(path)]), PYTENSOR_JAXPR_CACHE=str(second))
    assert said.startswith("2 programs added, 0 already there.\nThey are machine code")  # the same versions and CPU
    assert len(list(second.iterdir())) == 2
    found = json.loads(run_python(CALLS, PYTENSOR_JAXPR_CACHE=str(second)))
    assert [kind for _, kind in found] == ["LaterLowered"] * 2
    assert [result for result, _ in found] == [result for result, _ in made]


def test_only_programs_are_written(folders, tmp_path):
    folder, path = folders
    (folder / KEY).write_bytes(entry(PLAIN))
    (folder / ("cd" * 32)).write_bytes(entry(Shell(tmp_path / "shell"), "cd" * 32))  # as rewritten graphs, a class
    (folder / ("ef" * 32)).write_bytes(entry(PLAIN))  # the checksum is another key's
    (folder / f"{store.WRITING}1").write_bytes(b"half")
    assert export_bundle(folder, path) == 1
    assert bundle.read_bundle(path)[1] == {KEY: entry(PLAIN)}
    assert not (tmp_path / "shell").exists()


def test_entries_that_are_there_stay(folders):
    folder, path = folders
    (folder / KEY).write_bytes(b"the user's own")
    path.write_bytes(sealed({KEY: entry(PLAIN), "cd" * 32: entry(PLAIN, "cd" * 32)}))
    assert import_bundle(path, folder)[:2] == (1, 1)
    assert (folder / KEY).read_bytes() == b"the user's own"
    if sys.platform != "win32":
        assert (folder / ("cd" * 32)).stat().st_mode & 0o777 == 0o600


def malicious(path):
    """Return entries that would run something, or tell that they would: by what they are."""
    shell = pickle.dumps(Shell(path))
    by_name = b"cos\nsystem\n(S'echo executed > " + str(path).encode() + b"'\ntR."
    return {
        "outer": shell,
        "inner": pickle.dumps(([(Shell(path), *PROGRAM[1:])], None)),
        "value about it": pickle.dumps(([PROGRAM], Shell(path))),
        "opcode GLOBAL": by_name,
        "opcode INST": b"(S'echo executed > " + str(path).encode() + b"'\nios\nsystem\n.",
        "extension": b"\x80\x02\x82\x01.",
        "persistent": b"Pexec\n.",
        "class of another package": pickle.dumps(([PROGRAM], json.JSONDecoder)),
        "numpy": pickle.dumps(([PROGRAM], pytest.importorskip("numpy").zeros(1))),
        "other parts": pickle.dumps(([PROGRAM[1:]], None)),
        "no pickle": b"no pickle",
    }


@pytest.mark.parametrize("how", malicious("-"))
def test_nothing_is_executed(folders, tmp_path, how):
    folder, path = folders
    data = malicious(tmp_path / "shell")[how]
    path.write_bytes(sealed({"cd" * 32: entry(PLAIN, "cd" * 32), KEY: entry(data)}))
    with pytest.raises(BundleError, match=r"refused.*nothing was imported"):
        import_bundle(path, folder)
    assert not list(folder.iterdir()) and not (tmp_path / "shell").exists()


def test_the_malicious_entries_would_run(tmp_path):
    """Or else the test above says nothing."""
    for how in ("outer", "inner", "value about it", "opcode GLOBAL", "opcode INST"):
        pickle.loads(malicious(tmp_path / "shell")[how])
        (tmp_path / "shell").unlink()


@pytest.mark.parametrize("key", ["../" + KEY[3:], "/tmp/x", KEY.upper(), KEY[1:], KEY + "\n", ".", ""])
def test_keys_are_no_paths(folders, key):
    folder, path = folders
    path.write_bytes(sealed({key: entry(PLAIN, key)}))
    with pytest.raises(BundleError, match="the key is"):
        import_bundle(path, folder)
    assert not list(folder.iterdir())


def broken():
    """Return what may have become of a bundle, with what the message says."""
    whole, start = sealed({KEY: entry(PLAIN)}), len(bundle.MAGIC + bundle.FORMAT)
    found = {"empty": (b"", "it is not a bundle"), "another file": (b"PK" + whole, "it is not a bundle")}
    for offset in (start, start + CHECKSUM, start + CHECKSUM + 20, len(whole) // 2, len(whole) - 1):
        changed = whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :]
        found[f"byte {offset}"] = changed, "damaged"
    for length in (start, start + 9, len(whole) // 2, len(whole) - 1):
        found[f"{length} bytes"] = whole[:length], "damaged"
    found["more"] = whole + b"0", "damaged"
    found["format"] = whole.replace(bundle.FORMAT, b"2\n"), "another format"
    found["entry"] = sealed({KEY: entry(PLAIN)[:-1]}), "the checksum is wrong"
    for strange in ([], [KEY], {1: entry(PLAIN)}, {KEY: 1}, {KEY: None}, {KEY: entry([])}, {KEY: entry([[1], 2])}):
        found[f"entries {strange}"] = sealed(strange), "is refused, as"
    found["writer"] = sealed({}, [1]), "is refused, as"
    return found


@pytest.mark.parametrize("how", broken())
def test_damage_is_one_sentence(folders, command, how):
    folder, path = folders
    data, says = broken()[how]
    path.write_bytes(data)
    status, said = command(folder, "import", path)
    assert status == 1 and says in said and said.count("nothing was imported.\n") == 1
    assert not list(folder.iterdir())


def test_files_that_are_missing_and_a_folder_that_is_off(folders, command):
    folder, path = folders
    assert command(folder, "import", path)[0] == 1
    assert command(folder, "export", path.parent / "missing" / "bundle")[0] == 1
    path.write_bytes(sealed({}))
    for action in ("export", "import"):
        status, said = command(None, action, path)
        assert status == 1 and "No program is kept" in said
    assert path.read_bytes() == sealed({})


def test_a_large_file_is_not_read(folders, monkeypatch):
    folder, path = folders
    path.write_bytes(sealed({KEY: entry(PLAIN)}))
    monkeypatch.setattr(bundle, "MOST_BYTES", 0)
    monkeypatch.setattr(bundle, "MOST_OTHER_BYTES", path.stat().st_size - 1)
    with pytest.raises(BundleError, match="larger"):
        import_bundle(path, folder)


def test_a_full_disk_leaves_nothing(folders, monkeypatch):
    folder, path = folders
    keys = [f"{n:064x}" for n in range(3)]
    path.write_bytes(sealed({key: entry(PLAIN, key) for key in keys}))

    def write(file, data):
        if file.name == keys[2]:
            raise OSError("No space left on device")
        store.write_at_once(file, data)

    monkeypatch.setattr(bundle, "write_at_once", write)
    with pytest.raises(OSError, match="No space"):
        import_bundle(path, folder)
    assert not list(folder.iterdir())


def test_the_folder_keeps_its_limit(folders, monkeypatch):
    folder, path = folders
    keys = [f"{n:064x}" for n in range(4)]
    path.write_bytes(sealed({key: entry(PLAIN, key) for key in keys}))
    monkeypatch.setattr(bundle, "MOST_BYTES", 2 * len(entry(PLAIN)))
    import_bundle(path, folder)
    assert 0 < len(list(folder.iterdir())) < 3


def test_the_writer_had_other_versions(folders, command):
    folder, path = folders
    writer = bundle.writer_here() | {"jax": "0.1", "another processor": "-"}
    path.write_bytes(sealed({KEY: entry(PLAIN)}, writer))
    status, said = command(folder, "import", path)
    assert status == 0 and "1 program added, 0 already there." in said and "only from those you trust" in said
    assert f"the writer had jax 0.1, here {bundle.writer_here()['jax']}; another processor." in said
    assert "1 program," in command(folder)[1]
