"""Two small models of each package that builds on PyMC, and what mode JAXPR makes of them: run by `run.py` in its environment.

python tests/whole/clients/models.py NAME
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.pymc import sample

SHORT = {
    "draws": 20,
    "tune": 20,
    "chains": 1,
    "random_seed": 1,
    "progressbar": False,
    "compute_convergence_checks": False,
}
RNG = np.random.default_rng(1)


def bambi_linear() -> pm.Model:
    """`y ~ a * b + (a | g)`."""
    import bambi

    data = pd.DataFrame(RNG.normal(size=(60, 3)), columns=["y", "a", "b"]).assign(g=np.repeat(list("uvwxyz"), 10))
    return built(bambi.Model("y ~ a * b + (a | g)", data)).backend.model


def bambi_hsgp() -> pm.Model:
    """Counts with a Gaussian process in `x` and an intercept for each group."""
    import bambi

    data = pd.DataFrame({"y": RNG.poisson(3, 60), "x": np.linspace(0, 1, 60), "g": np.repeat(list("uvwxyz"), 10)})
    formula = "y ~ 0 + hsgp(x, m=8, c=2) + (1 | g)"
    return built(bambi.Model(formula, data, family="negativebinomial")).backend.model


def built(model: Any) -> Any:
    """Return a model that is built."""
    model.build()
    return model


def marketing_clv() -> pm.Model:
    """How often customers buy, and when they stop to."""
    from pymc_marketing.clv import BetaGeoModel

    age = RNG.uniform(20, 40, 30)
    counts = RNG.poisson(2, 30).astype(float)
    recency = np.where(counts > 0, age * RNG.uniform(0.2, 0.9, 30), 0)
    data = pd.DataFrame({"customer_id": range(30), "frequency": counts, "recency": recency, "T": age})
    model = BetaGeoModel()
    model.build_model(data)
    return model.model


def marketing_mmm() -> pm.Model:
    """A media mix of two channels."""
    from pymc_marketing.mmm import MMM, GeometricAdstock, LogisticSaturation

    x = pd.DataFrame(
        {"date": pd.date_range("2024-01-01", periods=40, freq="W"), "tv": RNG.random(40), "web": RNG.random(40)}
    )
    adstock, saturation = GeometricAdstock(l_max=4), LogisticSaturation()
    model = MMM(date_column="date", channel_columns=["tv", "web"], adstock=adstock, saturation=saturation)
    model.build_model(x, pd.Series(RNG.random(40) + 1, name="y"))
    return model.model


def causal_model(name: str) -> pm.Model:
    """Return one of CausalPy's models of one treated unit."""
    import arviz
    import xarray as xr

    arviz.r2_score = None  # CausalPy 0.8 imports it, for scores after sampling; ArviZ 1.2 has none
    import causalpy

    coords = {"coeffs": ["a", "b", "c"], "obs_ind": range(30), "treated_units": ["unit"]}
    x = xr.DataArray(
        RNG.random((30, 3)), dims=["obs_ind", "coeffs"], coords={k: coords[k] for k in ("obs_ind", "coeffs")}
    )
    y = xr.DataArray(RNG.random((30, 1)), dims=["obs_ind", "treated_units"])
    model = getattr(causalpy.pymc_models, name)()
    y = y.assign_coords({k: coords[k] for k in y.dims})
    model.priors = {**model.priors_from_data(x, y), **model.priors}  # as its `fit` does
    model.build_model(X=x, y=y, coords=coords)
    return model


def causal_synthetic_control() -> pm.Model:
    """A weighted sum of controls."""
    return causal_model("WeightedSumFitter")


def causal_regression() -> pm.Model:
    """The regression of differences in differences."""
    return causal_model("LinearRegression")


def extras_marginal() -> pm.Model:
    """A mixture whose discrete variable is summed over."""
    import pymc_extras

    with pm.Model() as model:
        k = pm.Bernoulli("k", pm.Beta("p", 2, 2), shape=20)
        pm.Normal("y", pm.Normal("mu", shape=2)[k], 1, observed=RNG.normal(size=20))
    return pymc_extras.marginalize(model, ["k"])


def extras_trend() -> pm.Model:
    """A local trend by the Kalman filter."""
    from pymc_extras.statespace import structural

    trend = structural.LevelTrend(order=2, innovations_order=[0, 1]).build(verbose=False)
    with pm.Model(coords=trend.coords) as model:
        pm.Deterministic("P0", pt.eye(2) * pm.Exponential("scale", 1), dims=("state", "state_aux"))
        pm.Normal("initial_level_trend", dims="state_level_trend")
        pm.Exponential("sigma_level_trend", 1, dims="shock_level_trend")
        trend.build_statespace_graph(RNG.normal(size=(10, 1)).cumsum(0))
    return model


def bart_mean() -> pm.Model:
    """Trees for a mean."""
    import pymc_bart

    x = np.linspace(0, 1, 40)[:, None]
    with pm.Model() as model:
        y = np.sin(6 * x[:, 0])
        pm.Normal("y", pymc_bart.BART("mu", x, y, m=10), pm.HalfNormal("sigma"), observed=y)
    return model


def bart_probability() -> pm.Model:
    """Trees for the logit of a probability."""
    import pymc_bart

    x = RNG.random((40, 2))
    with pm.Model() as model:
        y = (x.sum(1) > 1).astype(int)
        pm.Bernoulli("y", logit_p=pymc_bart.BART("mu", x, y, m=10), observed=y)
    return model


def econ_model(solver: str) -> pm.Model:
    """Return a real business cycle, linearized and solved in each evaluation."""
    import gEconpy

    path = Path(gEconpy.__file__).parent / "data" / "GCN Files" / "RBC.gcn"
    cycle = gEconpy.statespace_from_gcn(path, verbose=False)
    cycle.configure(observed_states=["Y"], measurement_error=["Y"], solver=solver, verbose=False)
    with pm.Model(coords=cycle.coords) as model:
        cycle.to_pymc()
        for name in set(cycle.param_names) - {rv.name for rv in model.free_RVs}:
            pm.HalfNormal(name, 0.1)
        index = pd.date_range("2000-01-01", periods=10, freq="QS")
        data = pd.DataFrame({"Y": 0.01 * RNG.normal(size=10)}, index=index)
        cycle.build_statespace_graph(data, add_norm_check=False)
    return model


def econ_scan() -> pm.Model:
    """`scan_cycle_reduction`."""
    return econ_model("scan_cycle_reduction")


def econ_gensys() -> pm.Model:
    """`gensys`, the default."""
    return econ_model("gensys")


def dims_linear() -> pm.Model:
    """A linear regression by named dimensions."""
    import pymc.dims as pmd

    with pm.Model(coords={"row": range(20), "k": ["a", "b"]}) as model:
        x = pmd.Data("x", RNG.normal(size=(20, 2)), dims=("row", "k"))
        mean = (x * pmd.Normal("slope", dims="k")).sum("k")
        pmd.Normal("y", mean, pmd.HalfNormal("sigma"), observed=pmd.as_xtensor(RNG.normal(size=20), dims="row"))
    return model


def dims_groups() -> pm.Model:
    """Groups by `isel`."""
    import pymc.dims as pmd

    with pm.Model(coords={"row": range(20), "g": range(4)}) as model:
        group = pmd.Data("group", np.repeat(range(4), 5), dims="row")
        level = pmd.Normal("level", pmd.Normal("mu"), pmd.HalfNormal("tau"), dims="g")
        pmd.Normal("y", level.isel(g=group), 1, observed=pmd.as_xtensor(RNG.normal(size=20), dims="row"))
    return model


#: For each package the models, and what it is called on PyPI.
CLIENTS: dict[str, tuple[str, tuple[Callable[[], pm.Model], ...]]] = {
    "bambi": ("bambi", (bambi_linear, bambi_hsgp)),
    "pymc-marketing": ("pymc-marketing", (marketing_clv, marketing_mmm)),
    "CausalPy": ("CausalPy", (causal_synthetic_control, causal_regression)),
    "pymc-extras": ("pymc-extras", (extras_marginal, extras_trend)),
    "pymc-bart": ("pymc-bart", (bart_mean, bart_probability)),
    "gEconpy": ("gEconpy", (econ_scan, econ_gensys)),
    "pymc.dims": ("pymc", (dims_linear, dims_groups)),
}


def largest_error(model: pm.Model, mode: Any, reference: Any) -> float:
    """Return how much log density and gradient differ between two modes, as a fraction of the largest element, at two points."""
    outputs = [model.logp(), model.dlogp()]
    f, g = (
        model.compile_fn(outputs, inputs=model.value_vars, mode=m, on_unused_input="ignore") for m in (mode, reference)
    )
    start = {name: np.asarray(x) for name, x in model.initial_point().items()}
    beside = {name: x + (0.01 * RNG.normal(size=x.shape)).astype(x.dtype) for name, x in start.items()}
    errors = []
    for point in (start, beside):
        for got, want in zip(f(point), g(point), strict=True):
            assert np.isfinite(want).all(), "the log density or its gradient is not finite"
            errors.append(np.abs(got - want).max() / max(1.0, np.abs(want).max()))
    return float(max(errors))


def sampled_by(model: pm.Model) -> tuple[str, str]:
    """Return the first sampler that draws, of one program, with host steps, and of PyMC, and why others do not."""
    refused = []
    # Short trajectories; a model that PyMC samples without NUTS refuses an argument of NUTS.
    for sampler, options in (("nuts", {"max_treedepth": 4}), ("nutpie", {"max_treedepth": 4}), ("pymc", {})):
        began = time.perf_counter()
        try:
            found = sample(model=model, sampler=sampler, chain_method="sequential", **SHORT, **options)
        except Exception as error:
            refused.append(f"{sampler}: {type(error).__name__}: {' '.join(str(error).split())[:160]}")
            continue
        assert found.posterior.sizes["draw"] == SHORT["draws"]
        return f"{sampler}, {time.perf_counter() - began:.0f} s", "; ".join(refused)
    return "none", "; ".join(refused)


def report(make: Callable[[], pm.Model]) -> dict[str, Any]:
    """Return what mode JAXPR makes of a model."""
    row: dict[str, Any] = {"model": (make.__doc__ or "").rstrip(".")}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = make()
            breaks = pjl.explain([model.logp(), model.dlogp()], mode="JAXPR").breaks
            row["error"] = largest_error(model, "JAXPR", "FAST_COMPILE")
            row["breaks"] = sorted({b.code for b in breaks}), len(breaks)
            row["sampler"], row["refused"] = sampled_by(model)
    except Exception as error:
        row["failed"] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return row


if __name__ == "__main__":
    package, makers = CLIENTS[sys.argv[1]]
    print(json.dumps({"version": version(package), "rows": [report(make) for make in makers]}))
