"""Discrete variables without pymc-extras: what the error names, and that it serves."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

from pytensor_jaxpr_linker.pymc import sample
from pytensor_jaxpr_linker.pymc.samplers import marginal

SHORT = {"draws": 300, "tune": 300, "chains": 2, "cores": 1, "random_seed": 1, "quiet": True}
DATA = np.array([-2.0, -1.5, 2.0, 2.5, 1.5])


def test_what_serves_in_place_of_pymc_extras(monkeypatch):
    """`pip install pymc-extras` replaces PyMC, so the error says that, and names two other ways, which agree."""
    monkeypatch.setattr(marginal, "find_spec", lambda name: None)
    with pm.Model() as discrete:
        p = pm.Beta("p", 1, 1)
        pm.Normal("y", 4.0 * pm.Bernoulli("k", p, shape=5) - 2.0, observed=DATA)
    with pytest.raises(ImportError) as error:
        sample(model=discrete, marginalize=True)
    message = str(error.value)
    assert "replaces PyMC 6.4.0 by 6.3.2" in message and "pm.Mixture" in message and "sampler='pymc'" in message
    assert message.count(". ") == 0
    with pm.Model() as by_hand:
        p = pm.Beta("p", 1, 1)
        pm.Mixture("y", pm.math.stack([1 - p, p]), [pm.Normal.dist(-2.0), pm.Normal.dist(2.0)], observed=DATA)
    found = [sample(model=by_hand, **SHORT), sample(model=discrete, sampler="pymc", **SHORT)]
    means = [float(draws.posterior["p"].mean()) for draws in found]
    np.testing.assert_allclose(means, 4 / 7, atol=0.06)
