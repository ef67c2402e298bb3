"""The comparison with Stan's programs: what it accepts, and that it finds what differs."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

PROGRAM = """
data { int n; vector[n] y; }
parameters {
  simplex[3] weights; positive_ordered[2] mu; cholesky_factor_corr[3] L; matrix[2, 2] z; real<lower=0, upper=2> bounded;
}
model {
  weights ~ dirichlet([1.0, 2.0, 3.0]'); mu ~ normal(1, 2); L ~ lkj_corr_cholesky(2);
  to_vector(z) ~ normal(0, 1); z[1, 2] ~ normal(3, 1); bounded ~ normal(0, 1);
  y ~ normal(mu[1] + weights[2] * z[1, 2], bounded);
}
"""
MODEL = """
import pymc as pm
from pymc.distributions.transforms import Chain, log, ordered
from posteriors.models import model

@model
def made_up(data):
    weights = pm.Dirichlet("weights", [1, 2, 3])
    mu = pm.Normal("mu", 1, 2, shape=2, transform=Chain([log, ordered]), initval=[1, 2])
    pm.LKJCorr("L", n=3, eta=2)
    z = pm.Normal("z", SLOPE, 1, shape=(2, 2))
    pm.Potential("more", pm.logp(pm.Normal.dist(3, 1), z[0, 1]))
    bounded = pm.Uniform("bounded", 0, 2)
    pm.Potential("half", pm.logp(pm.Normal.dist(0, 1), bounded))
    pm.Normal("y", mu[0] + weights[1] * z[0, 1], bounded, observed=data["y"])
"""


@pytest.fixture
def folder(tmp_path):
    """A posteriordb of one posterior."""
    about = {"model_name": "made_up", "data_name": "few", "reference_posterior_name": None, "dimensions": {}}
    for path, content in {
        "posteriors/few-made_up.json": json.dumps(about),
        "models/stan/made_up.stan": PROGRAM,
    }.items():
        tmp_path.joinpath(path).parent.mkdir(parents=True)
        tmp_path.joinpath(path).write_text(content, encoding="utf-8")
    (tmp_path / "data" / "data").mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "data" / "data" / "few.json.zip", "w") as archive:
        archive.writestr("few.json", json.dumps({"n": 3, "y": [0.5, 1.5, 4]}))
    return tmp_path


def check(folder, model: str) -> dict:
    """Return what the check says of a model, in a process of its own."""
    calls = f"print(json.dumps(posterior_files.check({str(folder)!r}, 'few-made_up', 5, 'FAST_COMPILE')))"
    code = f"import json, posterior_files\n{model}\n{calls}"
    done = subprocess.run([sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_one_density_in_two_systems_of_coordinates(folder):
    pytest.importorskip("stanli")
    found = check(folder, MODEL.replace("SLOPE", "0"))
    assert found["points"] == 5 and found["value"] < 1e-12 and found["gradient"] < 1e-10


def test_a_density_that_differs_is_found(folder):
    pytest.importorskip("stanli")
    found = check(folder, MODEL.replace("SLOPE", "1e-6"))
    assert found["gradient"] > 1e-8
