"""What a user waits for beside PyMC and JAX: the packages that our imports and a default `sample` import."""

from __future__ import annotations

import subprocess
import sys

#: The first two names of modules that come with an import of this package, and then with its PyMC half. ArviZ makes the
#: DataTree, and a placeholder of NumPyro.
OF_IMPORTS = {"jax.extend", "numpy.polynomial"}
OF_PYMC = {"arviz_base", "lazy_loader", "numpyro"}
#: The same for a default `sample` of a model, first (PyTensor's rewriting, JAX's lowering and xarray) and later, when its
#: programs are kept.
OF_SAMPLE = [{"pytensor.sparse", "scipy.linalg", "xarray.computation"}, {"xarray.computation"}]

SCRIPT = """
import sys

def names():
    pairs = [tuple(name.split(".")[:2]) for name in sys.modules]
    others = [p for p in pairs if p[0] not in sys.stdlib_module_names and not any(part[0] == "_" for part in p)]
    return {".".join(p) for p in others if p[0] not in ("pytensor_jaxpr_linker", "jaxpr_artifact", "__main__")}

import pymc as pm, jax
seen = names()

def show():
    new = names() - seen
    seen.update(new)
    print(*sorted(new))

import pytensor_jaxpr_linker as pjl
show()
import pytensor_jaxpr_linker.pymc
show()
with pm.Model():
    x = pm.Normal("x", shape=3)
    pm.Normal("y", x, pm.HalfNormal("s"), observed=[1.0, 2.0, 3.0])
    seen.update(names())
    pjl.cache(sys.argv[1])
    pjl.pymc.sample(draws=200, tune=100, progressbar=False, random_seed=1)
show()
"""


def test_nothing_new_is_imported(tmp_path):
    (tmp_path / "kept").mkdir(mode=0o700)
    for of_sample in OF_SAMPLE:
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / "kept")]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        imports, pymc, sampling = (set(line.split()) for line in found)
        assert imports <= OF_IMPORTS
        assert {name.partition(".")[0] for name in pymc} <= OF_PYMC
        assert sampling <= of_sample
