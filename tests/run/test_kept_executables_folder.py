"""A folder of kept programs under what happens to folders: two writers, a kill, a clock that jumps, a network."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytensor.tensor as pt
import pytest
from helpers import run_python
from kept import compiled, is_kept, twice

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.graph.rewritten import store

x = pt.dvector("x")

PROCESS = """
import json, os, signal, sys, time, warnings
import numpy as np, pytensor, pytensor.tensor as pt
import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.frontend.targets import compiled_runner

if os.environ.get("KILLED"):
    os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # the file is written, and has no name yet
start = os.environ.get("START", "")
while start and time.time() < float(start):
    time.sleep(0.001)
warnings.simplefilter("error", pjl.CacheWarning)
x = pt.dvector("x")
functions = [pytensor.function([x], pt.exp(x) * k, mode="JAXPR") for k in range(1, 6)]
results = [f(np.zeros(2)).tolist() for f in functions]
specializations = [compiled_runner(f).programs[0].specializations[0] for f in functions]
print(json.dumps([results, [type(v).__name__ for s in specializations for v in s.lowered.values()]]))
"""
RESULTS = [[float(k), float(k)] for k in range(1, 6)]


def of_process(folder, **env):
    """Return what a process computes with programs in a folder, and how it came to them."""
    return json.loads(run_python(PROCESS, PYTENSOR_JAXPR_CACHE=str(folder), **env))


def writing(folder):
    """Return the files of a folder that somebody began to write."""
    return [path for path in folder.iterdir() if path.name.startswith(store.WRITING)]


def test_two_processes_at_once(tmp_path):
    """Each sees whole entries or none, and leaves no partial file."""
    start = str(time.time() + 8)
    with ThreadPoolExecutor(2) as pool:
        found = [*pool.map(lambda _: of_process(tmp_path, START=start), range(2))]
    assert [results for results, _ in found] == [RESULTS] * 2
    assert not writing(tmp_path)
    assert of_process(tmp_path) == [RESULTS, ["LaterLowered"] * 5]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signal")
def test_a_kill_in_the_middle_of_a_write(tmp_path):
    with pytest.raises(AssertionError):
        of_process(tmp_path, KILLED="1")
    (left,) = writing(tmp_path)
    assert [*tmp_path.iterdir()] == [left]
    assert of_process(tmp_path) == [RESULTS, ["Lowered"] * 5]
    assert store.prune(tmp_path, store.MOST_BYTES) == []  # another process may still write it
    long_ago = time.time() - 2 * store.ABANDONED
    os.utime(left, (long_ago, long_ago))
    assert store.prune(tmp_path, store.MOST_BYTES) == [left]


@pytest.mark.parametrize("seconds", [0, 2**33], ids=["1970", "2242"])
def test_a_clock_that_jumps(folder, seconds):
    """Entries are found whatever their times are, and a use puts their time right."""
    twice([x], x * 17, np.ones(2))
    for path in folder.iterdir():
        os.utime(path, (seconds, seconds))
    f = compiled([x], x * 17)
    f(np.ones(2))
    assert is_kept(f)
    assert all(abs(path.stat().st_mtime - time.time()) < 3600 for path in folder.iterdir())


@pytest.mark.parametrize("name", ["utime", "replace", "open"])
def test_a_network_that_fails(folder, monkeypatch, name):
    """It costs a warning at most, and the results are right."""
    twice([x], x * 19, np.ones(2))
    stale = OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def fail(*_, **__):
        raise stale

    where = (store, "read_file") if name == "open" else (os, name)
    monkeypatch.setattr(*where, fail)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", pjl.CacheWarning)
        for factor in (19, 23):
            assert compiled([x], x * factor)(np.ones(2)).tolist() == [factor, factor]
    warned = [str(w.message) for w in caught if w.category is pjl.CacheWarning]
    assert len(warned) == (name != "utime") and all(stale.strerror in text for text in warned)
    assert not writing(folder)
