"""Runs the tests of the folder `on_devices` in processes of eight forced CPU devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "on_devices"
#: Forced devices: XLA divides the cores of the machine among them.
EIGHT_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("test_*.py")))
def test_on_eight_devices(name):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        str(FOLDER / f"{name}.py"),
    ]
    path = os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, **EIGHT_DEVICES, "PYTHONPATH": path}
    run = subprocess.run(command, env=env, cwd=FOLDER.parents[2], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
