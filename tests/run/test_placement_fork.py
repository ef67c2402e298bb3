"""A process that is forked after JAX has started: programs are refused there, where they would wait forever."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytensor.tensor as pt
import pytest
from helpers import run_python
from pytensor import wrap_py

import pytensor_jaxpr_linker as pjl

CHILDREN = """
    import os, warnings
    import jax, numpy as np, pytensor, pytensor.tensor as pt
    import pytensor_jaxpr_linker as pjl

    warnings.simplefilter("ignore")  # JAX's, about the fork
    x, s = pt.vector("x", dtype="float64"), pytensor.shared(np.ones(3), name="s")
    f = pytensor.function([x], x + 1, mode="JAXPR")
    mode = pytensor.compile.mode.Mode(pjl.JaxprLinker(), "fast_run")
    g = pytensor.function([x], x + s, updates={s: s + 1}, mode=mode)
    h = pjl.as_jax_function([x], [pt.exp(x)])
    with pjl.in_place_of_jax():
        k = pytensor.function([x], x + 1, mode="JAX").vm.jit_fn
    value = np.ones(3)

    def in_child(call):
        pid = os.fork()
        if pid == 0:
            try:
                call()
            except RuntimeError as error:
                os._exit(3 if "forkserver" in str(error) else 4)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def grandchild():
        os._exit(in_child(lambda: f(value)))

    def compiled():
        pytensor.function([x], x * 2, mode="JAXPR")(value)

    assert jax._src.xla_bridge._backends == {}
    # JAX starts in the child.
    assert in_child(lambda: f(value)) == in_child(compiled) == in_child(lambda: h(value)) == 0
    assert (f(value) == 2).all()
    calls = (lambda: f(value), lambda: f(x=value), lambda: g(value), lambda: h(value), lambda: k(value))
    for call in (*calls, compiled, grandchild):
        assert in_child(call) == 3
    assert in_child(lambda: [f, g, s.get_value(), pytensor.function([x], x * 2, mode="FAST_COMPILE")(value)]) == 0
    assert (f(value) == 2).all() and (g(value) == 2).all()
    print("ok")
"""


def test_children():
    assert run_python(CHILDREN).strip() == "ok"


PYMC = """
    import multiprocessing, warnings
    import pymc as pm, pytensor_jaxpr_linker
    from pytensor_jaxpr_linker.pymc import sample

    if __name__ == "__main__":
        warnings.simplefilter("ignore")
        multiprocessing.set_start_method("fork")
        short = dict(draws=5, tune=5, chains=2, progressbar=False, compute_convergence_checks=False)
        with pm.Model() as model:
            pm.Normal("x")
        try:
            pm.sample(**short, cores=2, backend="JAXPR", model=model)
        except Exception as error:
            print(error)
        print(sample(**short, cores=2, sampler="pymc", model=model).posterior["x"].shape)
"""


WITHOUT_GUARD = """
    import warnings
    import pymc as pm, pytensor_jaxpr_linker as pjl

    warnings.simplefilter("ignore")
    short = dict(chains=2, cores=2, progressbar=False, compute_convergence_checks=False, backend="JAXPR")
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("x"), observed=1.0)
    context = pjl.pymc.process_context()
    print(pm.sample(5, tune=5, model=model, mp_ctx=context, **short).posterior["x"].shape)
    print(pm.sample_smc(20, model=model, mp_ctx=context, **short).posterior["x"].shape)
"""


def test_the_advice_needs_no_guard(tmp_path):
    """A script as users write them, without ``if __name__ == "__main__":``."""
    pytest.importorskip("pymc")
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(WITHOUT_GUARD), encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == ["(2, 5)", "(2, 20)"], done.stderr


def test_pymc_sample_says_it_and_ours_does_not_fork(tmp_path):
    """PyMC's processes are forked, unless the linker is PyTensor's own `JAXLinker`. It shows the error of the child."""
    pytest.importorskip("pymc")
    script = tmp_path / "script.py"  # a fork server imports it
    script.write_text(textwrap.dedent(PYMC), encoding="utf-8")
    said = run_python(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')").strip().splitlines()
    # Either chain may be the first to fail.
    assert re.match(r"Chain \d failed with: This process was forked", said[0]) and "pymc.process_context()" in said[0]
    assert said[-1] == "(2, 5)"


DOORS = Path(__file__).parents[1] / "whole" / "processes" / "doors.py"
#: Shapes of what `use` in that program returns.
SHAPES = "[(3,), (3,), (2,), (1, 5, 2), (), (1, 5, 2)]"


def lines_of(method: str) -> list[str]:
    """Return what the program prints that uses each public door in other processes."""
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, DOORS, method], capture_output=True, text=True, timeout=1200, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_each_door_is_closed_in_a_forked_process():
    """Nothing hangs: an error says what to do."""
    for package in ("pymc", "blackjax", "numpyro", "nutpie"):
        pytest.importorskip(package)
    lines = lines_of("fork")
    assert len(lines) > 40 and {line.rpartition(": ")[2] for line in lines} == {"refused"}, lines


@pytest.mark.parametrize("method", ["spawn", "loky"])
def test_other_processes_run_what_was_used_here(method):
    for package in ("pymc", "blackjax", "numpyro", *(["joblib"] if method == "loky" else [])):
        pytest.importorskip(package)
    assert lines_of(method) == ([SHAPES] if method == "spawn" else [SHAPES, "refused"])


def test_an_error_goes_to_another_process():
    """An error that does not unpickle ends a thread of `multiprocessing.Pool`, so its caller waits forever."""
    x = pt.dvector("x")
    with pytest.raises(pjl.GraphBreakError) as error:
        pjl.as_jax_function([x], wrap_py([pt.dvector], [pt.dvector])(abs)(x))
    error.value.add_note("in a worker")
    found = pickle.loads(pickle.dumps(error.value))
    assert type(found) is pjl.GraphBreakError and str(found) == str(error.value) and "abs" in str(found)
    assert found.__notes__ == ["in a worker"] and found.breaks == ()
