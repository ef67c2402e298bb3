"""XLA's programs of functions that a later process finds, or has to compile: what they depend on, and damage."""

from __future__ import annotations

import json
import os
import stat
import sys
import threading
import time
import warnings

import numpy as np
import pytensor
import pytensor.sparse  # PyTensor imports it while it rewrites, and with it more rewrites
import pytensor.tensor as pt
import pytest
from helpers import run_python
from kept import compiled, is_kept, twice
from pytensor.raise_op import Assert

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.graph.rewritten import store
from pytensor_jaxpr_linker.graph.rewritten.store import prune
from pytensor_jaxpr_linker.run import kept_executables

x, m = pt.dvector("x"), pt.dmatrix("m")

#: Inputs, outputs and values of programs that differ in how they are packed, donated and computed.
GRAPHS = {
    "sum": ([x], x.sum(), [np.arange(3.0)]),
    "two results": ([x, m], [x * 2, m @ x], [np.arange(3.0), np.arange(6.0).reshape(2, 3)]),
    "large": ([x], [x + 1, x.mean()], [np.arange(70_000.0)]),
    "empty": ([x], [x + 1, x.sum()], [np.empty(0)]),
    "nothing read": ([x], pt.ones_like(x), [np.array([np.nan, -0.0])]),
    "integers": ([i := pt.lvector("i")], [i * 2, i.sum()], [np.arange(4)]),
    "LAPACK": ([m], pt.linalg.cholesky(m), [np.eye(3) * 4 + 1]),
    "loop": (
        [x],
        pytensor.scan(lambda a, s: s * 0.5 + a, x, pt.constant(0.0, dtype="float64"), return_updates=False),
        [np.arange(5.0)],
    ),
}


@pytest.mark.parametrize("inputs, outputs, values", GRAPHS.values(), ids=GRAPHS)
def test_results_are_the_same_to_the_bit(folder, inputs, outputs, values):
    first, second = twice(inputs, outputs, *values)
    expected = pytensor.function(inputs, outputs, mode="FAST_COMPILE")(*values)
    for a, b, c in zip(*(r if isinstance(r, list) else [r] for r in (first, second, expected)), strict=True):
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()
        np.testing.assert_allclose(b, c, rtol=1e-12)


def test_calls_of_a_kept_program(folder):
    """Results are new arrays in each call; shared variables, updates and other shapes work as ever."""
    w = pytensor.shared(np.ones(3), name="w")
    for kept in (False, True):
        w.set_value(np.ones(3))
        f = compiled([x], (w * x).sum(), updates={w: w + x})
        assert [float(f(np.ones(3))) for _ in range(3)] == [3.0, 6.0, 9.0]
        assert is_kept(f) == kept
        w.set_value(np.ones(2))
        assert float(f(np.full(2, 5.0))) == 10.0
        np.testing.assert_array_equal(w.get_value(), [6.0, 6.0])
    first, second = compiled([x], x + 1), compiled([x], x + 1)
    first(np.zeros(3))
    a, b = second(np.zeros(3)), second(np.ones(3))
    np.testing.assert_array_equal([a, b], [[1.0] * 3, [2.0] * 3])
    assert is_kept(second)


def test_arguments_of_other_kinds(folder):
    """Arrays that are not contiguous, of another dtype, or JAX's own."""
    import jax

    first, second = (compiled([m], m * 2) for _ in range(2))
    values = [np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(3, 2).T, [[1, 2, 3], [4, 5, 6]]]
    with jax.enable_x64(True):
        values.append(jax.numpy.arange(6.0).reshape(2, 3))
    for value in values:
        for f in (first, second):
            np.testing.assert_array_equal(f(value), np.asarray(value) * 2.0)


def test_checks_of_a_kept_program(folder):
    """A kept program has no Jaxpr until a check fails: then the error is the same."""
    checked = Assert("x is positive")(x, (x > 0).all())
    errors = []
    for kept in (False, True):
        f = compiled([x], checked.sum())
        assert float(f(np.ones(2))) == 2.0 and is_kept(f) == kept
        with pytest.raises(AssertionError, match="x is positive") as caught:
            f(-np.ones(2))
        errors.append((str(caught.value), len(caught.value.__notes__)))
    assert errors[0] == errors[1]


def test_reports_of_a_kept_program(folder):
    """`explain` and `stages` build what they show."""
    twice([x], pt.exp(x).sum(), np.ones(2))
    f = compiled([x], pt.exp(x).sum())
    f(np.ones(2))
    assert is_kept(f)
    assert "exp" in str(pjl.stages(f, np.ones(2)).regions[0].jaxpr)
    assert "load" in str(pjl.explain(f)) and "exp" in str(pjl.explain(f))


def damaged(data):
    """Return what may have become of an entry."""
    return {"cut": data[:-1], "changed": data[:-1] + bytes([data[-1] ^ 1]), "empty": b"", "other": b"no program" * 9}


@pytest.mark.parametrize("how", damaged(b"1"))
def test_damage_costs_one_warning(folder, how):
    compiled([x], x * 7)(np.ones(2))
    for path in folder.iterdir():
        path.write_bytes(damaged(path.read_bytes())[how])
    with pytest.warns(pjl.CacheWarning, match="damaged") as caught:
        assert compiled([x], x * 7)(np.ones(2)).tolist() == [7.0, 7.0]
    assert len([w for w in caught if w.category is pjl.CacheWarning]) == 1
    second = compiled([x], x * 7)
    second(np.ones(2))
    assert is_kept(second)  # it was made again


def test_a_program_that_xla_cannot_read(folder, monkeypatch):
    compiled([x], x * 9)(np.ones(2))

    def fail(*args, **kwargs):
        raise ValueError("a program of another XLA")

    monkeypatch.setattr(kept_executables.jax_compat, "load_program", fail)
    with pytest.warns(pjl.CacheWarning, match="can't be loaded.*another XLA"):
        assert compiled([x], x * 9)(np.ones(2)).tolist() == [9.0, 9.0]


def test_threads_keep_one_program(folder):
    functions = [compiled([x], pt.exp(x) * 11) for _ in range(4)]
    results = [None] * 4

    def call(k):
        results[k] = functions[k](np.zeros(2)).tolist()

    threads = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert results == [[11.0, 11.0]] * 4
    assert not [p for p in folder.iterdir() if p.name.startswith(store.WRITING)]


def test_the_entries_used_least_recently_go(tmp_path):
    now = time.time()
    for k in range(20):
        path = tmp_path / f"{k:02}"
        path.write_bytes(bytes(100))
        os.utime(path, (now - 1000 + k, now - 1000 + k))
    os.utime(tmp_path / "00", (now, now))  # used since
    for age, name in ((10, "young"), (2 * store.ABANDONED, "old")):
        path = tmp_path / f"{store.WRITING}{name}"
        path.write_bytes(b"")
        os.utime(path, (now - age, now - age))
    assert [p.name for p in prune(tmp_path, 5000)] == [f"{store.WRITING}old"]
    gone = {p.name for p in prune(tmp_path, 1500)}
    assert gone == {f"{k:02}" for k in range(1, 9)}  # to 80 % of 1,500 bytes
    assert prune(tmp_path / "missing", 0) == []


DEFAULT = """
import json, os, warnings
import numpy as np, pytensor, pytensor.tensor as pt
import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.graph.rewritten.store import STORE
from pytensor_jaxpr_linker.frontend.targets import compiled_runner

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", pjl.CacheWarning)
    if os.environ.get("CALL"):
        pjl.cache(False)
    m = pt.dmatrix("m")
    f = pytensor.function([m], pt.linalg.cholesky(m).sum(), mode="JAXPR")
    result = float(f(np.eye(3) * 4))
(specialization,) = compiled_runner(f).programs[0].specializations
warned = [str(w.message) for w in caught if w.category is pjl.CacheWarning]
kinds = [type(x).__name__ for x in specialization.lowered.values()]
import jax
print(json.dumps([result, kinds, str(STORE.folder), warned, jax.config.jax_compilation_cache_dir]))
"""


def by_default(home, **env):
    """Return what a process prints that says nothing of a cache, or only what `env` says."""
    flags = f"base_compiledir={home / 'compiled'}"
    env = {"PYTENSOR_JAXPR_CACHE": "", "HOME": str(home), "PYTENSOR_FLAGS": flags, **env}
    return json.loads(run_python(DEFAULT, **env))


def test_programs_are_kept_by_default(tmp_path):
    """In a later process LAPACK has to be looked up; JAX's own settings stay."""
    folder = str(tmp_path / "compiled" / "jaxpr")
    assert by_default(tmp_path) == [6.0, ["Lowered"], folder, [], None]
    assert by_default(tmp_path, PYTHONHASHSEED="7") == [6.0, ["LaterLowered"], folder, [], None]
    assert by_default(tmp_path, PYTENSOR_JAXPR_CACHE="off") == [6.0, ["Lowered"], "None", [], None]
    assert by_default(tmp_path, CALL="1") == [6.0, ["Lowered"], "None", [], None]
    named = tmp_path / "named"
    assert by_default(tmp_path, PYTENSOR_JAXPR_CACHE=str(named)) == [6.0, ["Lowered"], str(named), [], None]
    if hasattr(os, "geteuid"):
        assert stat.S_IMODE(named.stat().st_mode) == 0o700


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no such rights")
def test_a_default_folder_that_others_can_write_to(tmp_path):
    folder = tmp_path / "compiled" / "jaxpr"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    result, kinds, used, (warned,), _ = by_default(tmp_path)
    assert (result, kinds, used) == (6.0, ["Lowered"], "None")
    assert f"chmod 700 {folder}" in warned and not list(folder.iterdir())


def test_a_default_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled" / "jaxpr").write_text("a file")
    assert by_default(tmp_path)[:2] == [6.0, ["Lowered"]]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows can't change the mode of a folder")
def test_a_folder_that_is_only_read(folder):
    twice([x], x * 13, np.ones(2))
    folder.chmod(0o500)
    try:
        f = compiled([x], x * 13)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pjl.CacheWarning)
            assert f(np.ones(2)).tolist() == [13.0, 13.0]
        assert is_kept(f)
    finally:
        folder.chmod(0o700)
