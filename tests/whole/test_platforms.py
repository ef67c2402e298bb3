"""What other platforms lack or have otherwise, simulated here: no fork, no rights, no locks of files, odd paths, spawn.

`docs/platforms.md` says which platforms the tests themselves run on.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytensor_jaxpr_linker.command_line import doctor, main

ROOT = Path(__file__).parents[2]
#: A space, letters beyond ASCII, and a part that looks like a drive of Windows, which has no such names.
FOLDER = f"with space/Ünïcode 数/C{'' if os.name == 'nt' else ':'}"

#: What Windows lacks (all of it), macOS (the affinity) and a small system without NumPy's extras may lack.
GONE = {
    "windows": "register_at_fork fork forkpty sched_getaffinity geteuid getuid getegid getgid getpgid wait3 wait4 nice",
    "macos": "sched_getaffinity sched_setaffinity posix_fallocate posix_fadvise",
    "nothing": "",
}
MODULES_GONE = {"windows": "fcntl resource pwd grp termios", "macos": "", "nothing": ""}

#: The beginning of a program: the platform lacks what GONE and MODULES_GONE say before anything is imported.
PRELUDE = """
import builtins, os, sys, warnings
for name in os.environ["GONE"].split():
    if hasattr(os, name):
        delattr(os, name)
sys.modules.update(dict.fromkeys(os.environ["MODULES_GONE"].split()))
warnings.filterwarnings("ignore", "only soft file lock is available")  # what `filelock` says without fcntl
import numpy as np, pytensor, pytensor.tensor as pt
import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.run import kept_executables
if os.environ["GONE"]:
    kept_executables.CPU_FILE = os.path.join(os.environ["FOLDER"], "no cpuinfo")
"""

PROGRAM = """
from pytensor_jaxpr_linker.command_line.doctor import PARTS, looked_at
from pytensor_jaxpr_linker.frontend.targets import compiled_runner
from pytensor_jaxpr_linker.graph.rewritten.store import STORE, WRITING
x = pt.dvector("x")
f = pytensor.function([x], pt.exp(x) * 2, mode="JAXPR")
assert f(np.zeros(2)).tolist() == [2.0, 2.0]
folder = os.environ["FOLDER"]
assert str(STORE.folder) == os.path.realpath(os.environ["PYTENSOR_JAXPR_CACHE"]) and os.listdir(STORE.folder)
(kept,) = {type(v).__name__ for s in compiled_runner(f).programs[0].specializations for v in s.lowered.values()}
path = os.path.join(folder, "f g.jaxpr")
pjl.export([x], pt.exp(-x), path=path, name="f", dims={"x": "n"})
assert pjl.load(path)(np.zeros(3)).tolist() == [1.0, 1.0, 1.0]
assert not [name for name in os.listdir(folder) if name.startswith((".", "tmp"))]
for title in ("Machine", "Folders", "Devices of JAX"):
    section = looked_at(title, PARTS[title])
    assert not section.problems, section.problems
    print(*section.lines, sep="\\n")
if os.environ["REPLACE"] == "refused":  # as on Windows while another process has the file open
    def refused(*args, **kwargs):
        raise PermissionError(13, "The process cannot access the file")
    os.replace = refused
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        g = pytensor.function([x], pt.exp(x) * 5, mode="JAXPR")
        assert g(np.zeros(2)).tolist() == [5.0, 5.0]
    print("warned:", *{w.category.__name__ for w in caught})
    assert not [name for name in os.listdir(STORE.folder) if name.startswith(WRITING)]
print("kept:", kept)
"""

SAMPLE = """
import pymc as pm, pytensor_jaxpr_linker.pymc as pjl_pymc
with pm.Model() as model:
    pm.Normal("a", 3.0, 2.0)
given = dict(draws=200, tune=200, chains=2, model=model, random_seed=1, quiet=True, progressbar=False)
print(float(pjl_pymc.sample(**given).posterior["a"].mean()))
"""

#: A script that starts processes by `spawn`: a function and a loaded one go to them.
SPAWN = """
import multiprocessing, os, sys
import numpy as np, pytensor, pytensor.tensor as pt
import pytensor_jaxpr_linker as pjl

def called(f):
    return f(np.zeros(2)).tolist()

if __name__ == "__main__":
    x = pt.dvector("x")
    f = pytensor.function([x], pt.exp(x) * 3, mode="JAXPR")
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "f g.jaxpr")
    pjl.export([x], pt.exp(-x), path=path, name="f", dims={"x": "n"})
    called(f), called(pjl.load(path))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(called, [f, pjl.load(path)]))
"""


def run(command, tmp_path, lacking="nothing", **env):
    """Run a program on a system that lacks something, with its cache and files in a folder with an odd name."""
    folder = tmp_path / FOLDER
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    given = {
        "FOLDER": str(folder),
        "GONE": GONE[lacking],
        "JAX_PLATFORMS": "cpu",
        "MODULES_GONE": MODULES_GONE[lacking],
        "PYTENSOR_JAXPR_CACHE": str(folder / "cache"),
        "PYTHONPATH": str(ROOT),
        "PYTHONUTF8": "1",
        "REPLACE": "refused" if lacking == "windows" else "",
    }
    given |= env
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, **given},
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    ("lacking", "expected"),
    [
        ("windows", ["nothing forks here", "the machine has", "are not read", "are unknown", "warned: CacheWarning"]),
        ("macos", ["forks are noticed", "the machine has", "are checked", "are unknown"]),
    ],
)
def test_a_system_that_lacks_something(lacking, expected, tmp_path):
    """Programs, files and the doctor; a second process finds what the first has kept."""
    first, second = (run(["-c", PRELUDE + PROGRAM], tmp_path, lacking) for _ in range(2))
    assert [line for line in expected if line not in first] == []
    if os.name != "nt":
        assert FOLDER in first
    assert first.splitlines()[-1] != second.splitlines()[-1]


def test_a_system_without_fork_samples(tmp_path):
    pytest.importorskip("blackjax")
    assert abs(float(run(["-c", PRELUDE + SAMPLE], tmp_path, "windows")) - 3) < 1


def test_processes_that_are_spawned(tmp_path):
    script = tmp_path / FOLDER / "a script.py"
    script.parent.mkdir(parents=True, mode=0o700)
    script.write_text(SPAWN, encoding="utf-8")
    assert run([str(script)], tmp_path).strip() == "[[3.0, 3.0], [1.0, 1.0]]"


@pytest.mark.parametrize("path", ["C:\\work\\my model.py", "D:/work/model.py", "C:\\数\\model.py"])
def test_a_model_file_on_a_drive(path):
    """The command line tells the colon of a drive from the one before a name."""
    assert main.split_target(path) == (Path(path), "")
    assert main.split_target(f"{path}:build") == (Path(path), "build")


def test_the_doctor_names_the_platforms_of_the_page():
    """The page, the workflow and the doctor name the same platforms."""
    page = (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8")
    workflow = (ROOT / ".github" / "workflows" / "platforms.yml").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \| `([\w.-]+)` \|", page, re.MULTILINE)
    assert {(system, machine) for system, machine, _ in rows} == {
        (system, machine) for system, machines in doctor.TESTED.items() for machine in machines
    }
    assert {runner for *_, runner in rows} == set(re.findall(r"runner: ([\w.-]+)", workflow))
