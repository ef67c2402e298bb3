"""Chains in processes, which start without the user's script where they can."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

BEGIN = r"""
import os
import numpy as np, pymc as pm, pytensor.tensor as pt
from pytensor import wrap_py
from pytensor_jaxpr_linker.pymc import process_context, sample

os.write(1, b"runs\n")  # one system call: processes that print at the same time leave each other's lines whole
short = dict(draws=5, tune=5, chains=2, cores=2, random_seed=1, quiet=True, compute_convergence_checks=False)

def model(function):
    with pm.Model() as model:
        pm.Normal("y", function(pm.Normal("x")), 1.0, observed=2.0)
    return model

@wrap_py([pt.dscalar], [pt.dscalar])
def half(x):
    return np.asarray(x / 2)
"""


def run_script(path, code):
    """Run a script that has no ``if __name__ == "__main__":`` of its own, and return its process."""
    path.write_text(BEGIN + code)
    return subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    "call",
    [
        "sample(model=model(pt.exp), sampler='pymc', **short)",
        "pm.sample(model=model(pt.exp), backend='JAXPR', nuts_sampler='pymc', mp_ctx=process_context(), **short)",
    ],
    ids=["sample", "pymc.sample"],
)
def test_a_script_without_a_guard_runs_once(tmp_path, call):
    done = run_script(tmp_path / "script.py", f"print({call}.posterior['x'].shape, __file__)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["runs", f"(2, 5) {tmp_path / 'script.py'}"]


def test_processes_keep_the_scripts_platform(tmp_path):
    code = """
import jax
jax.config.update("jax_platforms", "cpu,cuda")
process = process_context().Process(target=eval, args=("print(__import__('jax').config.jax_platforms)",))
process.start()
process.join()
"""
    done = run_script(tmp_path / "script.py", code)
    assert done.stdout.splitlines() == ["runs", "cpu,cuda"], done.stderr


def test_what_is_pickled_by_its_name_is_found_in_the_script(tmp_path):
    call = "print(sample(model=model(half), sampler='pymc', **short).posterior['x'].shape)"
    done = run_script(tmp_path / "guarded.py", f"if __name__ == '__main__':\n    {call}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["runs"] * 3 + ["(2, 5)"]
    done = run_script(tmp_path / "without.py", call)
    assert done.returncode == 1
    *_, traceback = done.stderr.split("Traceback")
    assert "RuntimeError: The process of a chain needs what this script defines" in traceback
    assert "put the call under `if __name__" in traceback
    assert done.stderr.count("Traceback") == 1
