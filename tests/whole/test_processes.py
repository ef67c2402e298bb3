"""Programs of several processes on one machine: the same results as one process, and clear errors when one ends.

``KILLS=20 DRAWS=4000 pytest tests/whole/test_processes.py -k random_moments`` kills a run as often, which has to be long enough for it; without it,
two times.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

pytest.importorskip("pymc")
pytest.importorskip("blackjax")
pytest.importorskip("zarr")

MEMBER = Path(__file__).parent / "processes" / "member.py"
KILLS = int(os.environ.get("KILLS", "2"))


def start(count, what, folder, devices):
    """Start the processes of a run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    env.pop("XLA_FLAGS", None)
    members = []
    for i in range(count):
        command = [sys.executable, str(MEMBER), str(port), str(count), str(i), str(devices), what, str(folder)]
        with (folder / f"errors-{i}.txt").open("w") as errors:
            members.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=env))
    return members


def end(members):
    """End what still runs."""
    for member in members:
        member.kill()
        member.wait()
        member.stdout.close()


def run(count, what, folder, devices):
    """Run processes to their end."""
    members = start(count, what, folder, devices)
    try:
        for i, member in enumerate(members):
            printed, _ = member.communicate(timeout=300)
            assert member.returncode == 0, printed + (folder / f"errors-{i}.txt").read_text()[-3000:]
    finally:
        end(members)


def arrays(folder, name):
    """Return what each process found, by its index."""
    return [dict(np.load(path)) for path in sorted(folder.glob(f"{name}-*.npz"))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With the results of one process of eight devices, of two of four, and of four of two."""
    found = tmp_path_factory.mktemp("processes")
    run(1, "density,draws,variables", found, 8)
    run(2, "density,draws,variables,different", found, 4)
    run(4, "draws", found, 2)
    return found


@pytest.mark.parametrize("name", ["density", "draws"])
def test_several_processes_find_what_one_finds(folder, name):
    """Bit for bit in all processes of a run; other numbers of processes add the parts up in another order."""
    one, *two_and_four = arrays(folder, name)
    assert len(two_and_four) == (6 if name == "draws" else 2)
    for key in one:
        for others in filter(None, (two_and_four[:2], two_and_four[2:])):
            for found in others:
                np.testing.assert_array_equal(found[key], others[0][key])
                np.testing.assert_allclose(found[key], one[key], rtol=1e-12, atol=1e-12)


def test_shared_variables_of_several_processes(folder):
    one, *several = arrays(folder, "variables")
    for found in several:
        np.testing.assert_allclose(found["sums"], one["sums"], rtol=1e-12)
        assert "A host step, which begins with Doubled(w), reads 'w', and other processes have parts of that" in str(
            found["host"]
        )
        assert "has parts on devices of other processes: gather it on all of them" in str(found["value"])


@pytest.mark.parametrize("what", ["arguments", "programs", "data", "versions of packages"])
def test_processes_that_differ(folder, what):
    for i in (0, 1):
        (found,) = arrays(folder, f"different{i}")
        different = {"arguments": "draws"}.get(what, what)
        wanted = f"The processes of this run have different {different} (process 1 differs from process 0): start the same program, with the same"
        assert wanted in str(found[what])


def reported(member, until):
    """Return the last number that a process reports, at `until` or after it."""
    last = 0
    for line in member.stdout:
        if line.strip().isdigit():
            last = int(line)
            if last >= until:
                break
    return last


def checkpointed(folder):
    """Return what the checkpoint of a run says is done."""
    with np.load(folder / "store" / "checkpoint.npz") as file:
        return json.loads(str(file["about"]))["done"]


def draws_of(folder):
    return (
        xr.open_datatree(folder / "store" / "draws.zarr", engine="zarr", consolidated=False).posterior["slope"].values
    )


def test_a_process_that_is_killed_ends_the_others_and_loses_nothing(tmp_path):
    members = start(2, "long", tmp_path, 4)
    try:
        last = reported(members[0], 100)
        members[1].kill()
        rest, _ = members[0].communicate(timeout=120)
    finally:
        end(members)
    assert members[0].returncode != 0
    message = rest + (tmp_path / "errors-0.txt").read_text()
    assert "A process of this run has ended or can't be reached, so process 0 can't go on" in message
    assert "Start all 2 processes again: the run goes on after" in message
    assert 100 <= last <= checkpointed(tmp_path) < 450
    run(2, "long", tmp_path, 4)
    assert checkpointed(tmp_path) == 450 and draws_of(tmp_path).shape == (4, 400, 5)
    assert np.isfinite(draws_of(tmp_path)).all()


def test_a_run_that_is_killed_at_random_moments_loses_no_draw(tmp_path):
    """One kill of four comes before the process reports anything, all others among its draws; each goes on from the last."""
    moments, (whole, broken) = random.Random(0), (tmp_path / "whole", tmp_path / "broken")
    for folder in (whole, broken):
        folder.mkdir()
    run(1, "long", whole, 1)
    (broken / "programs").symlink_to(whole / "programs")
    last, in_the_run = 0, 0
    for kill in range(KILLS):
        (member,) = start(1, "long", broken, 1)
        try:
            if kill % 4 == 3:
                time.sleep(moments.uniform(0, 8))
            else:
                last = max(last, reported(member, 0))
                time.sleep(moments.uniform(0, 0.3))
            in_the_run += member.poll() is None
            member.kill()
            rest, _ = member.communicate()
        finally:
            end([member])
        last = max([last, *(int(line) for line in rest.split() if line.isdigit())])
        assert last <= checkpointed(broken)
    assert in_the_run == KILLS
    run(1, "long", broken, 1)
    np.testing.assert_array_equal(draws_of(broken), draws_of(whole))
