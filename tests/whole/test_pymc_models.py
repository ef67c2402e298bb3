"""Log densities and gradients of the PyMC models of `benchmarks/pymc_models.py`, beside PyTensor's FAST_COMPILE mode."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers import FULLGRAPH

from pytensor_jaxpr_linker.pymc import logdensity

spec = spec_from_file_location("pymc_models", Path(__file__).parents[2] / "benchmarks" / "pymc_models.py")
assert spec is not None and spec.loader is not None
pymc_models = module_from_spec(spec)
spec.loader.exec_module(pymc_models)

pytestmark = [
    pytest.mark.filterwarnings("ignore::pymc.exceptions.ImputationWarning"),
    pytest.mark.filterwarnings("ignore:SplineWrapper should implement:FutureWarning"),  # PyMC's own
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
]
#: Those whose density is also taken as a JAX function: shared data, bounds that are variables, loops, factorizations, imputation.
AS_JAX_FUNCTIONS = ("logistic", "garch", "marginal_gp", "missing", "interpolated")


def points(model):
    """Return the starting point and one beside it."""
    start, rng = model.initial_point(), np.random.default_rng(1)
    return [start, {name: x + 0.1 * rng.standard_normal(np.shape(x)) for name, x in start.items()}]


def density_and_gradient(model, mode):
    """Return what `compile_logp` and `compile_dlogp` give as one function, which takes half the time to compile."""
    return model.compile_fn([model.logp(), model.dlogp()], inputs=model.value_vars, mode=mode)


def assert_equal(results, expected):
    """Compare densities and gradients to 1e-9, relative to the largest derivative."""
    for got, want in zip(results, expected, strict=True):
        assert np.isfinite(want).all()
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9 * np.max(np.abs(want)))


@pytest.mark.parametrize("name", pymc_models.MODELS)
def test_density_and_gradient_are_pymcs(name):
    """They are one program, or else FULLGRAPH raises."""
    model = pymc_models.MODELS[name]()
    functions = [density_and_gradient(model, mode) for mode in ("FAST_COMPILE", FULLGRAPH)]
    if name in AS_JAX_FUNCTIONS:
        logp = logdensity(model)
        program = jax.jit(jax.value_and_grad(logp))
        functions.append(lambda point: program(logp.ravel(point)))
    for point in points(model):
        with jax.enable_x64(True):
            expected, *found = (f(point) for f in functions)
        for results in found:
            assert_equal(results, expected)
