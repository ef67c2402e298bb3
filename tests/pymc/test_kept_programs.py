"""Programs of models and samplers that a later process takes from the folder of `cache`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from helpers import run_python
from pytensor.tensor.math import Dot

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base.rules import RULES, SCALAR_RULES
from pytensor_jaxpr_linker.graph.rewritten.store import STORE
from pytensor_jaxpr_linker.pymc import kept_models, sample, sampling
from pytensor_jaxpr_linker.pymc.functions.density import LogDensity
from pytensor_jaxpr_linker.pymc.kept_models import KeptModels

SHORT = {"tune": 20, "chains": 2, "random_seed": 3, "progressbar": False, "compute_convergence_checks": False}
#: One for each way in which a kernel is built and its chains run.
SAMPLERS = {
    "blackjax": {"sampler": "blackjax"},
    "vectorized": {"sampler": "blackjax", "chain_method": "vectorized"},
    "numpyro": {"sampler": "numpyro"},
    "mclmc": {"sampler": "mclmc"},
    "chees": {"sampler": "chees", "chains": 4},
}


def regression(scale=1.0, values=(0.5, -1.0, 2.0), rows=None):
    with pm.Model() as model:
        x = pm.Data("x", np.arange(float(rows or len(values))))
        slope, sigma = pm.Normal("slope", 0, scale, shape=2), pm.HalfNormal("sigma")
        mean = pm.Deterministic("mean", slope[0] + slope[1] * x)
        pm.Normal("y", mean, sigma, observed=np.resize(values, rows or len(values)))
    return model


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that is used, and emptied of what this process keeps, in a process that has changed no rule."""
    for table in (RULES, SCALAR_RULES):
        monkeypatch.setattr(table, "foreign", set())
    STORE.clear()
    STORE.use(tmp_path)
    yield tmp_path
    STORE.clear()
    STORE.use(None)


@pytest.fixture
def later_process(monkeypatch):
    """Return a function that forgets all that this process keeps in memory, as a later one would not have it."""

    def forget():
        STORE.clear()
        kept = KeptModels()
        monkeypatch.setattr(kept_models, "KEPT_MODELS", kept)
        monkeypatch.setattr(sampling, "KEPT_MODELS", kept)

    forget()
    return forget


@pytest.fixture
def evaluated(monkeypatch):
    """The calls of log densities: there is one for each trace."""
    calls = []
    call = LogDensity.__call__
    monkeypatch.setattr(LogDensity, "__call__", lambda self, *args: (calls.append(args), call(self, *args))[1])
    return calls


def draws_of(model, **arguments):
    with model:
        found = sample(10, **{**SHORT, **arguments})
    return {name: x.values for name, x in found.posterior.data_vars.items()}


@pytest.mark.parametrize("arguments", SAMPLERS.values(), ids=SAMPLERS)
def test_a_later_process_traces_nothing(folder, later_process, evaluated, arguments):
    """It draws the same: so does BlackJAX without a folder, to rounding."""
    first = draws_of(regression(), **arguments)
    assert evaluated
    later_process()
    evaluated.clear()
    second = draws_of(regression(), **arguments)
    assert not evaluated
    assert set(first) == {"slope", "sigma", "mean"}
    for name, x in first.items():
        np.testing.assert_array_equal(second[name], x)
    if arguments == SAMPLERS["blackjax"]:
        later_process()
        STORE.use(None)
        for name, x in draws_of(regression(), **arguments).items():
            np.testing.assert_allclose(x[:, :3], first[name][:, :3], rtol=1e-6, atol=1e-9)
        assert evaluated


def test_values_of_data_are_no_part_of_a_program(folder, later_process, evaluated):
    draws_of(regression())
    later_process()
    evaluated.clear()
    other = regression()
    with other:
        pm.set_data({"x": [3.0, 1.0, 0.0]})
    found = draws_of(other)
    assert not evaluated
    slope = found["slope"]
    np.testing.assert_allclose(found["mean"], slope[..., :1] + slope[..., 1:] * [3.0, 1.0, 0.0])


def test_inputs_are_no_part_of_a_program(folder, later_process, evaluated):
    first = draws_of(regression())
    later_process()
    evaluated.clear()
    found = draws_of(regression(), target_accept=0.6, step_size=0.2)
    assert not evaluated
    assert not np.array_equal(found["slope"], first["slope"])


#: Arguments of the model and of `sample` that make other programs.
OTHERS = [
    ({"scale": 2.0}, {}),
    ({"values": (0.5, -1.0, 2.5)}, {}),
    ({"rows": 4}, {}),
    ({}, {"max_treedepth": 4}),
    ({}, {"gradient": "jax"}),
    ({}, {"mass_matrix": "dense"}),
]


def test_what_programs_depend_on(folder, later_process, evaluated):
    """Another model, shape or option has programs of its own."""
    for model, arguments in [({}, {}), *OTHERS]:
        evaluated.clear()
        draws_of(regression(**model), **arguments)
        assert evaluated, (model, arguments)
        later_process()


def test_a_rule_of_the_users(folder, later_process, evaluated, monkeypatch):
    """Where one of PyTensor's Ops has another rule, nothing is kept, and nothing that is kept is taken."""
    draws_of(regression())
    before = set(folder.iterdir())
    later_process()
    evaluated.clear()
    rule = RULES[Dot]
    monkeypatch.setitem(RULES, Dot, replace(rule, emit=lambda *args: rule.emit(*args)))
    draws_of(regression())
    assert evaluated
    assert set(folder.iterdir()) == before


def test_an_op_without_a_program(folder, later_process):
    """Deterministics with host steps are computed one by one, as without a folder."""
    from pytensor.compile.ops import wrap_py

    @wrap_py([pt.dscalar], [pt.dscalar])
    def halved(x):
        return x / 2

    for _ in range(2):
        with pm.Model() as model:
            x = pm.Normal("x")
            pm.Deterministic("half", halved(x))
        with pytest.warns(pjl.GraphBreakWarning):
            found = draws_of(model)
        np.testing.assert_array_equal(found["half"], found["x"] / 2)
        later_process()


def test_damaged_entries_are_made_again(folder, later_process):
    first = draws_of(regression())
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    later_process()
    with pytest.warns(pjl.CacheWarning, match="damaged"):
        second = draws_of(regression())
    np.testing.assert_array_equal(first["slope"], second["slope"])


PROGRAM = """
import json, os, warnings
import pymc as pm
import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.pymc import sample
from tests.pymc.test_kept_programs import SHORT, regression
from pytensor_jaxpr_linker.pymc.functions.density import LogDensity

warnings.simplefilter("error")
pjl.cache(os.environ["FOLDER"])
traced, call = [], LogDensity.__call__
LogDensity.__call__ = lambda self, *args: (traced.append(1), call(self, *args))[1]
with regression():
    found = sample(10, **SHORT)
print(json.dumps([len(traced), found.posterior["slope"].values.ravel().tolist()]))
"""


def test_processes_with_other_hash_seeds(tmp_path):
    """The text of a model is the same in each."""

    def run(seed):
        return json.loads(
            run_python(PROGRAM, PYTHONHASHSEED=seed, FOLDER=str(tmp_path), PYTHONPATH=os.pathsep.join(sys.path))
        )

    traced, draws = run("1")
    assert traced
    assert run("2") == [0, draws]
