"""`cache`: programs that an earlier process compiled."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import run_python

import pytensor_jaxpr_linker as pjl

#: Compiles functions with NumPy and with JAX results, and prints what JAX's cache did and what the functions returned.
PROGRAM = """
import json, os, warnings
from collections import Counter
import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytensor_jaxpr_linker as pjl

counts = Counter()
jax.monitoring.register_event_listener(lambda event, **_: counts.update([event.rpartition("/")[2]]))
jax.jit(lambda x: x + 1)(1.0)  # JAX is in use before
folder = pjl.cache(os.environ["FOLDER"])
counts.clear()
x, i = pt.dmatrix("x"), pt.lscalar("i")
names = {f"w{k}": pt.dvector(f"w{k}") for k in range(4)}
loss = sum((pt.exp(w) * x[i]).sum() for w in names.values()) + pt.linalg.cholesky(x @ x.T + pt.eye(3)).sum()
grads = pytensor.grad(loss, list(names.values()))
values = [np.arange(9.0).reshape(3, 3), 1, *(np.full(3, k / 10) for k in range(4))]
results = []
for kind in ("numpy", "jax"):
    with pjl.options(results=kind), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        f = pytensor.function([x, i, *names.values()], [loss, *grads], mode="JAXPR")
        results += [float(np.sum(r)) for r in f(*values)]
print(json.dumps([str(folder), counts["cache_hits"], counts["cache_misses"], results]))
"""


def run(folder: Path, hash_seed: str = "0") -> tuple[str, int, int, list[float]]:
    """Return what `PROGRAM` prints in a process of its own."""
    return json.loads(run_python(PROGRAM, PYTHONHASHSEED=hash_seed, FOLDER=str(folder)))


def test_a_second_process_compiles_nothing(tmp_path):
    folder, hits, misses, results = run(tmp_path / "new" / "folder")
    assert (folder, hits, misses >= 2) == (str(tmp_path / "new" / "folder"), 0, True)
    for seed in ("1", "random"):  # programs are equal byte for byte, however sets are ordered
        assert run(tmp_path / "new" / "folder", seed)[1:] == [misses, 0, results]


def test_damaged_and_foreign_entries_are_compiled(tmp_path):
    *_, misses, results = run(tmp_path)
    entries = [path for path in tmp_path.iterdir() if path.is_file()]
    entries[0].write_bytes(entries[0].read_bytes()[:100])
    for path in entries[1:]:
        path.write_bytes(b"not a program")
    (tmp_path / "notes.txt").write_text("not an entry")
    assert run(tmp_path)[1:] == [0, misses, results]


FULL = """
import json, os, warnings
import jax
import numpy as np
jax.jit(lambda x: x + 1)(1.0)  # JAX is in use before the import
import resource, pytensor, pytensor.tensor as pt
import pytensor_jaxpr_linker as pjl

folder, x = pjl.cache(os.environ["FOLDER"]), pt.dvector("x")
if "SIZE" in os.environ:  # a file that becomes larger can't be written, as if the disk were full
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.environ["SIZE"]), resource.RLIM_INFINITY))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", pjl.CacheWarning)
    results = [pytensor.function([x], pt.exp(x) + k, mode="JAXPR")(np.zeros(2)).tolist() for k in range(3)]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
warned = [str(w.message) for w in caught if w.category is pjl.CacheWarning]
print(json.dumps([results, warned, len(os.listdir(folder / "graphs"))]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit for the size of a file")
def test_a_folder_that_is_full(tmp_path):
    """One warning, the right results, and no partial file.

    A later process finds room, and compiles the programs of which JAX kept a part.
    """
    want = [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    results, (warned,), left = json.loads(run_python(FULL, FOLDER=str(tmp_path), SIZE="100"))
    assert (results, left) == (want, 0) and "can't be kept in" in warned and "File too large" in warned
    assert json.loads(run_python(FULL, FOLDER=str(tmp_path))) == [want, [], 3]


def test_a_folder_that_cannot_be_written(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.warns(pjl.CacheWarning, match="can't be kept in .*file/below: .* To do") as caught:
        assert pjl.cache(file / "below") is None
    assert caught[0].filename == __file__
    x = pt.dvector("x")
    np.testing.assert_array_equal(pytensor.function([x], x * 2, mode="JAXPR")(np.ones(2)), [2.0, 2.0])
