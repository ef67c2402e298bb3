"""Arguments of `sample` that users of PyMC, nutpie and NumPyro pass every day, and the statistics that they read."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from rich.theme import Theme

from pytensor_jaxpr_linker.pymc import fit_pathfinder, sample

SHORT = {
    "draws": 20,
    "tune": 20,
    "chains": 2,
    "random_seed": 1,
    "progressbar": False,
    "compute_convergence_checks": False,
}
IN_TURN = {**SHORT, "chain_method": "sequential"}
NUTS = ("blackjax", "numpyro", "nutpie", "pymc")


@pytest.fixture(scope="module")
def model():
    """Return a model of a vector and a scale."""
    with pm.Model(coords={"k": ["a", "b"]}) as model:
        mu = pm.Normal("mu", dims="k")
        sigma = pm.HalfNormal("sigma")
        pm.Normal("y", mu, sigma, observed=[1.0, 2.0])
    return model


def draw(model, sampler, **arguments):
    """Sample, quietly."""
    pytest.importorskip({"mclmc": "blackjax", "nuts": "blackjax"}.get(sampler, sampler))
    return sample(model=model, sampler=sampler, **{"quiet": True, **IN_TURN, **arguments})


@pytest.mark.parametrize("sampler", [*NUTS, "mclmc"])
def test_thinning_keeps_the_last_of_so_many(model, sampler):
    every, third = draw(model, sampler), draw(model, sampler, thinning=3)
    assert third.posterior.sizes["draw"] == third.sample_stats.sizes["draw"] == 6
    np.testing.assert_array_equal(third.posterior["mu"], every.posterior["mu"][:, 2::3])
    np.testing.assert_array_equal(third.sample_stats["lp"], every.sample_stats["lp"][:, 2::3])


@pytest.mark.parametrize("sampler", NUTS)
def test_thinning_keeps_the_divergences_of_the_draws_that_it_leaves_out(sampler):
    """In a funnel more groups of seven draws have a divergence than diverge in the last draw. The last group has 11."""
    with pm.Model() as funnel:
        v = pm.Normal("v", 0, 3)
        pm.Normal("x", 0, pm.math.exp(v / 2), shape=9)
    arguments = {"draws": 200, "tune": 60, "target_accept": 0.5, "max_treedepth": 6}
    every, seventh = draw(funnel, sampler, **arguments), draw(funnel, sampler, thinning=7, **arguments)
    for name in ("diverging", "reached_max_treedepth"):
        found = every.sample_stats[name].to_numpy()
        groups = np.split(found, range(7, 196, 7), axis=1)
        assert len(groups) == 28
        np.testing.assert_array_equal(seventh.sample_stats[name], np.stack([g.any(axis=1) for g in groups], axis=1))
    assert seventh.sample_stats["diverging"].sum() > every.sample_stats["diverging"][:, 6::7].sum()
    np.testing.assert_array_equal(seventh.sample_stats["n_steps"], every.sample_stats["n_steps"][:, 6::7])


@pytest.mark.parametrize("sampler", ["blackjax", "nutpie"])
def test_thinning_keeps_where_draws_diverged(sampler):
    with pm.Model() as funnel:
        v = pm.Normal("v", 0, 3)
        pm.Normal("x", 0, pm.math.exp(v / 2), shape=9)
    arguments = {"draws": 100, "tune": 60, "target_accept": 0.5, "store_divergences": True}
    every, tenth = (
        draw(funnel, sampler, **arguments).sample_stats,
        draw(funnel, sampler, thinning=10, **arguments).sample_stats,
    )
    assert tenth["diverging"].any()
    np.testing.assert_array_equal(np.isfinite(tenth["divergence_start"]).all(axis=2), tenth["diverging"])
    places = {tuple(x) for x in every["divergence_start"].to_numpy()[every["diverging"].to_numpy()]}
    assert {tuple(x) for x in tenth["divergence_start"].to_numpy()[tenth["diverging"].to_numpy()]} <= places


def test_thinning_of_all_groups(model):
    added = {"log_prior": True, "log_likelihood": True}
    found = draw(model, "pymc", thinning=10, idata_kwargs=added, discard_tuned_samples=False)
    sizes = {name: group.sizes["draw"] for name, group in found.children.items() if "draw" in group.sizes}
    assert sizes.pop("warmup_posterior") == sizes.pop("warmup_sample_stats") == 20
    assert sizes == dict.fromkeys(("posterior", "sample_stats", "log_prior", "log_likelihood"), 2)
    assert list(found.posterior["draw"]) == list(found.log_prior["draw"]) == [0, 1]


@pytest.mark.parametrize("sampler", NUTS)
def test_draws_of_the_warm_up(model, sampler):
    found = draw(model, sampler, discard_tuned_samples=False, tune=30)
    assert dict(found.warmup_posterior.sizes) == {"chain": 2, "draw": 30, "k": 2}
    assert set(found.warmup_posterior.data_vars) == {"mu", "sigma"}
    assert found.warmup_sample_stats["step_size"].shape == (2, 30)
    assert found.posterior["mu"].shape == (2, 20, 2)
    if sampler != "pymc":
        assert (found.warmup_posterior["sigma"] > 0).all()
        np.testing.assert_array_equal(found.posterior["mu"], draw(model, sampler, tune=30).posterior["mu"])


@pytest.mark.parametrize("sampler", ["mclmc", "chees"])
def test_samplers_without_draws_of_the_warm_up(model, sampler):
    with pytest.raises(TypeError, match="keeps no draws of its warm-up: leave out discard_tuned_samples"):
        sample(model=model, sampler=sampler, discard_tuned_samples=False)


def test_what_is_added_to_the_result(model):
    added = {"log_likelihood": True, "coords": {"axis": [5, 6]}, "dims": {"mu": ["axis"]}}
    found = draw(model, "blackjax", idata_kwargs=added)
    assert found.log_likelihood["y"].shape == (2, 20, 2)
    assert list(found.posterior["mu"]["axis"]) == [5, 6]
    assert draw(model, "pymc", idata_kwargs={"log_likelihood": True}).log_likelihood["y"].shape == (2, 20, 2)
    with pytest.raises(TypeError, match=r"takes 'coords', 'dims', 'log_likelihood', not 'dim'\. Did you mean 'dims'"):
        draw(model, "blackjax", idata_kwargs={"dim": {}})


@pytest.mark.parametrize("method", [*NUTS, "fit_pathfinder"])
def test_a_variable_without_elements(method):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("x") + pm.Normal("empty", shape=0).sum(), observed=[1.0, 2.0])
    if method == "fit_pathfinder":
        found = fit_pathfinder(20, paths=2, maxiter=10, model=model, random_seed=1, progressbar=False)
    else:
        found = draw(model, method)
    assert found.posterior["empty"].shape == (*found.posterior["x"].shape, 0)


@pytest.mark.parametrize("sampler", NUTS)
def test_arguments_of_nuts_as_a_dict(model, sampler):
    with_dict = draw(model, sampler, nuts={"target_accept": 0.95, "max_treedepth": 3})
    without = draw(model, sampler, target_accept=0.95, max_treedepth=3)
    np.testing.assert_array_equal(with_dict.posterior["mu"], without.posterior["mu"])
    assert (with_dict.sample_stats["tree_depth"] <= 3).all()


def test_pymcs_name_of_the_sampler(model):
    found = sample(model=model, nuts_sampler="numpyro", quiet=True, **IN_TURN)
    assert found.posterior.attrs["sampler"] == "numpyro"
    with pytest.raises(ValueError, match="nuts_sampler='numpyro' is PyMC's name of sampler='blackjax'"):
        sample(model=model, nuts_sampler="numpyro", sampler="blackjax", **SHORT)
    with pytest.raises(ValueError, match="Unknown sampler 'stan'"):
        sample(model=model, nuts_sampler="stan", **SHORT)


def test_blackjax_is_another_name_of_nuts(model):
    ours = draw(model, "nuts")
    for found in (draw(model, "blackjax"), sample(model=model, sampler="nuts", nuts_sampler="blackjax", **IN_TURN)):
        assert found.posterior.attrs["sampler"] == "nuts"
        np.testing.assert_array_equal(found.posterior["mu"], ours.posterior["mu"])
    with pytest.raises(TypeError, match="sampler='nuts' takes no argument 'adaptation'"):
        draw(model, "blackjax", adaptation="flow")


@pytest.mark.parametrize("sampler", ["blackjax", "pymc"])
def test_a_function_after_each_draw(model, sampler):
    seen = []
    found = draw(model, sampler, callback=lambda trace, draw: seen.append(draw))
    assert len(seen) == 2 * 40 and sum(d.tuning for d in seen) == 2 * 20
    of_second = [d for d in seen if d.chain == 1 and not d.tuning]
    assert [d.draw_idx for d in of_second] == list(range(20, 40))
    np.testing.assert_array_equal([d.point["mu"] for d in of_second], found.posterior["mu"][1])
    if sampler == "blackjax":
        np.testing.assert_array_equal([d.stats[0]["n_steps"] for d in of_second], found.sample_stats["n_steps"][1])
        assert [d.chain for d in seen if d.is_last] == [0, 1]


def test_a_function_that_ends_sampling(model, caplog):
    def stop(trace, draw):
        if draw.draw_idx == 60:
            raise KeyboardInterrupt

    with caplog.at_level("WARNING", "pymc"):
        found = sample(model=model, sampler="blackjax", callback=stop, **{**IN_TURN, "draws": 100})
    attrs = found.posterior.attrs
    assert attrs["interrupted"] == 1 and attrs["draws"] == 100 and found.posterior.sizes["draw"] == 41
    assert "Interrupted: 41 of 100 draws of 2 chains are kept." in caplog.text
    assert draw(model, "blackjax").posterior.attrs["interrupted"] == 0


def test_what_pymcs_steps_say_of_a_run(model, caplog):
    """The attributes of other samplers, and their sentence."""

    def stop(trace, draw):
        if draw.chain == 1 and draw.draw_idx == 30:
            raise KeyboardInterrupt

    arguments = {**IN_TURN, "sampler": "pymc", "thinning": 2}
    with caplog.at_level("WARNING", "pymc"):
        found = sample(model=model, callback=stop, **arguments)
    assert f"Interrupted: {found.posterior.sizes['draw']} of 10 draws of " in caplog.text
    whole = sample(model=model, quiet=True, **arguments)
    ours = draw(model, "blackjax", thinning=2).posterior.attrs
    for group in (found.posterior, whole.posterior, whole.sample_stats):
        assert ours.keys() <= group.attrs.keys()
    assert [x.posterior.attrs["interrupted"] for x in (found, whole)] == [1, 0]
    attrs = whole.posterior.attrs
    assert [attrs[name] for name in ("sampler", "draws", "thinning", "tuning_steps")] == ["pymc", 20, 2, 20]
    assert attrs["sampling_time"] > 0 and attrs["compile_time"] > 0


def test_pymcs_steps_check_convergence(model, caplog):
    with caplog.at_level("WARNING", "pymc"):
        sample(model=model, sampler="pymc", **{**IN_TURN, "draws": 100, "compute_convergence_checks": True})
    assert "effective sample size per chain is smaller than 100" in caplog.text


def test_pymcs_steps_without_variables(model):
    found = draw(model, "pymc", var_names=[])
    assert not found.posterior.data_vars
    assert (found.posterior.sizes["chain"], found.posterior.sizes["draw"]) == (2, 20)


@pytest.mark.parametrize("sampler", ["blackjax", "pymc"])
def test_a_function_that_counts_draws(model, sampler):
    """As users of PyMC end sampling, after 20 draws of the warm-up and 20 more."""

    def stop(trace, draw):
        if len(trace) >= 40:
            raise KeyboardInterrupt

    found = draw(model, sampler, callback=stop, draws=100, chains=1)
    assert dict(found.posterior.sizes) == {"chain": 1, "draw": 20, "k": 2}


def test_a_function_that_reads_draws(model):
    read = {}

    def reader(trace, draw):
        assert len(trace) == draw.draw_idx + 1 and trace.chain == draw.chain
        assert {"mu", "sigma", "sigma_log__"} <= set(trace.varnames)
        if draw.draw_idx in (10, 39):
            assert trace.get_values("sigma_log__")[draw.draw_idx] == draw.point["sigma_log__"]
            read[trace.chain, draw.draw_idx] = trace.get_values("sigma", burn=20)
            assert trace.get_values("mu", 1, 3).shape == ((draw.draw_idx + 2) // 3, 2)

    found = draw(model, "blackjax", callback=reader)
    assert read[0, 10].shape == (0,)
    np.testing.assert_allclose([read[0, 39], read[1, 39]], found.posterior["sigma"], rtol=1e-12)


def test_a_function_that_reads_what_is_not_there(model):
    with pytest.raises(KeyError, match="The trace has no 'sigm'; it has mu, sigma_log__, sigma"):
        draw(model, "blackjax", callback=lambda trace, draw: trace.get_values("sigm"))


def test_an_interrupt_in_the_warm_up(model):
    def stop(trace, draw):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw(model, "blackjax", callback=stop, tune=60)  # the first chunk is warm-up


@pytest.mark.parametrize(
    ("text", "expected"), [("Not enough samples to build a trace.", KeyboardInterrupt), ("another", ValueError)]
)
def test_pymcs_error_for_an_interrupt_in_the_warm_up(model, monkeypatch, text, expected):
    def fail(**_):
        raise ValueError(text)  # PyMC's error, of several processes

    monkeypatch.setattr(pm, "sample", fail)
    with pytest.raises(expected):
        draw(model, "pymc")


def test_ways_to_begin(model):
    plain, jittered = (draw(model, "blackjax", init=init).posterior["mu"] for init in ("adapt_diag", "auto"))
    np.testing.assert_array_equal(plain, draw(model, "blackjax", jitter=False, mass_matrix="diagonal").posterior["mu"])
    np.testing.assert_array_equal(jittered, draw(model, "blackjax").posterior["mu"])
    dense = draw(model, "numpyro", init="jitter+adapt_full").posterior["mu"]
    np.testing.assert_array_equal(dense, draw(model, "numpyro", mass_matrix="dense").posterior["mu"])
    with pytest.raises(ValueError, match=r"has no init 'advi': choose 'auto', .*, or sampler='pymc' for it"):
        draw(model, "blackjax", init="advi")


@pytest.mark.parametrize("sampler", ["blackjax", "numpyro"])
def test_the_first_step_size(model, sampler):
    found = draw(model, sampler, step_size=0.01, discard_tuned_samples=False)
    assert found.warmup_sample_stats["step_size"][0, 0] < 0.1
    assert draw(model, sampler, discard_tuned_samples=False).warmup_sample_stats["step_size"][0, 0] > 0.4


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"thinning": 0}, ValueError, "thinning must be an integer and at least 1"),
        ({"thinning": 21}, ValueError, "thinning=21 leaves none of 20 draws"),
        ({"step_size": -1.0}, ValueError, "step_size must be a number above 0"),
        ({"callback": 3}, TypeError, "callback must be a function of trace and draw"),
        ({"sampler": "nutpie", "callback": print}, TypeError, "nutpie calls nothing after each draw"),
        ({"sampler": "nutpie", "initvals": [{}, {}]}, ValueError, "nutpie starts all chains by the same initvals"),
        ({"sampler": "nutpie", "progressbar_theme": Theme({})}, TypeError, "nutpie's progress bar has no theme"),
        ({"dense_mass": True}, TypeError, "It is mass_matrix='dense' here"),
        ({"num_warmup": 10}, TypeError, "It is tune here"),
        ({"max_tree_depth": 10}, TypeError, "It is max_treedepth here"),
        ({"step": [pm.NUTS]}, TypeError, "leave it out, or give sampler='pymc'"),
        ({"store_gradient": True}, TypeError, "Samplers that do: 'nutpie'"),
        ({"nuts": {"target_accept": 0.9}, "target_accept": 0.9}, ValueError, "given twice, once in nuts"),
        ({"nuts": {"mass_matrix": "dense"}, "mass_matrix": "dense"}, ValueError, "given twice, once in nuts"),
        ({"nuts": {"frobnicate": 1}}, TypeError, "takes no argument 'frobnicate'"),
        ({"return_inferencedata": False}, TypeError, "takes no argument 'return_inferencedata'"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_what_is_refused_before_anything_compiles(model, monkeypatch, arguments, error, message):
    pytest.importorskip("nutpie")
    monkeypatch.setattr("pytensor_jaxpr_linker.pymc.sampling.sample_compiled", lambda request: 1 / 0)
    with pytest.raises(error) as found:
        sample(model=model, **SHORT, **arguments)
    assert message in str(found.value)


def test_more_chains_than_draws(model, recwarn):
    found = draw(model, "blackjax", chains=6, draws=4)
    assert found.posterior["mu"].shape == (6, 4, 2)
    assert not [w for w in recwarn if "longer than draw" in str(w.message)]


def test_times(model):
    attrs = draw(model, "blackjax").posterior.attrs
    assert 0 < attrs["sampling_time"] < 60 and attrs["compile_time"] > 0


def test_the_energy_error():
    """It vanishes with the step size, and an energy is the sum of that of the draw before and a new momentum's."""
    with pm.Model() as normal:
        pm.Normal("x", shape=5)
    exact, coarse = (draw(normal, "blackjax", target_accept=a, tune=200).sample_stats for a in (0.999, 0.5))
    errors = [float(abs(s["energy_error"]).mean()) for s in (exact, coarse)]
    assert errors[0] < 0.05 < errors[1]
    momentum = (exact["energy"] + exact["lp"]) * 2  # a sum of squares of five momenta in the metric
    assert (momentum > 0).all() and 2 < momentum.mean() < 10
    assert (exact["step_size_bar"] == exact["step_size"]).all()  # after warm-up


@pytest.mark.parametrize("sampler", ["blackjax", "nutpie"])
def test_positions_of_divergences(sampler):
    with pm.Model() as funnel:
        v = pm.Normal("v", 0, 5)
        pm.Normal("x", 0, pm.math.exp(v / 2), shape=9)
    found = draw(funnel, sampler, store_divergences=True, draws=200, tune=100, target_accept=0.6)
    stats = found.sample_stats
    diverging = stats["diverging"].to_numpy()
    start, end = (stats[f"divergence_{name}"].to_numpy() for name in ("start", "end"))
    assert diverging.any() and start.shape == end.shape == (2, 200, 10)
    np.testing.assert_array_equal(np.isnan(start).any(axis=2), ~diverging)
    chain, i = (index[-1] for index in np.nonzero(diverging[:, 1:]))
    before = np.append(found.posterior["v"][chain, i], found.posterior["x"][chain, i])
    if sampler == "blackjax":
        np.testing.assert_allclose(start[chain, i + 1], before)
    assert (start[diverging] != end[diverging]).any()
