"""`logdensity`, `initial_points` and `constrain` of `pytensor_jaxpr_linker.pymc`."""

from __future__ import annotations

import jax
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from helpers import run_python
from pymc.exceptions import SamplingError
from pytensor import config, wrap_py

import pytensor_jaxpr_linker as pjl
import pytensor_jaxpr_linker.pymc as jaxpr_pymc
from pytensor_jaxpr_linker.pymc import constrain, initial_points, logdensity, process_context, shard


@pytest.fixture(scope="module")
def regression():
    """Return a model with shared data, a transform, a vector and a Deterministic."""
    with pm.Model(coords={"k": range(3)}) as model:
        x = pm.Data("x", np.arange(12.0).reshape(4, 3))
        y = pm.Data("y", np.array([1.0, 2.0, 2.0, 5.0]))
        sigma = pm.HalfNormal("sigma")
        beta = pm.Normal("beta", dims="k")
        mean = pm.Deterministic("mean", x @ beta)
        pm.Normal("obs", mean, sigma, observed=y)
    return model


@pytest.fixture(scope="module")
def point():
    return {"sigma_log__": np.array(0.3), "beta": np.array([0.1, -0.2, 0.3])}


@pytest.mark.parametrize("gradient", ["pytensor", "jax"])
def test_logdensity_and_gradient_are_pymcs(regression, point, gradient):
    logp = logdensity(regression, gradient=gradient, var_names=["beta", "sigma_log__"])
    flat = logp.ravel(point)
    assert logp.size == 4
    expected = regression.compile_logp(mode="FAST_COMPILE")(point)
    slope = regression.compile_dlogp(mode="FAST_COMPILE")(point)  # in the model's order
    np.testing.assert_allclose(logp(point), expected, rtol=1e-12)
    with jax.enable_x64(True):
        value, found = jax.jit(jax.value_and_grad(logp))(flat)
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        np.testing.assert_allclose(found, np.roll(slope, -1), rtol=1e-10)
        by_name = jax.grad(logp)(logp.unravel(jax.numpy.asarray(flat)))
        np.testing.assert_allclose(by_name["beta"], slope[1:], rtol=1e-10)
        batch = jax.vmap(logp)(np.stack([flat, flat + 1]))
        np.testing.assert_allclose(batch[0], expected, rtol=1e-12)


def test_shared_data_are_arguments(regression, point):
    logp = logdensity(regression)
    assert logp.data.keys() == {"x", "y"}
    half = {"x": np.arange(6.0).reshape(2, 3), "y": np.array([0.0, 1.0])}
    with jax.enable_x64(True):
        program = jax.jit(logp)
        before = program(point, logp.data)
        shorter = program(point, half)
    with regression:
        pm.set_data(half)
        try:
            np.testing.assert_allclose(logp(point), shorter, rtol=1e-12)  # current values, of a new length
            np.testing.assert_allclose(shorter, regression.compile_logp(mode="FAST_COMPILE")(point), rtol=1e-12)
        finally:
            pm.set_data({"x": np.arange(12.0).reshape(4, 3), "y": np.array([1.0, 2.0, 2.0, 5.0])})
    np.testing.assert_allclose(logp(point), before, rtol=1e-12)


def test_bad_arguments_of_logdensity(regression, point):
    logp = logdensity(regression)
    with pytest.raises(ValueError, match="no shared data 'z'; it has 'x', 'y'"):
        logp(point, {"z": 1})
    with pytest.raises(ValueError, match="No value for 'beta'"):
        logp({"sigma_log__": 0.0})
    with pytest.raises(ValueError, match="must have length 4, not 5"):
        logp(np.zeros(5))
    with pytest.raises(TypeError, match=r"'x' is a .* but its argument has shape \(3,\)"):
        logp(point, {"x": np.zeros(3)})
    with pytest.raises(ValueError, match="names must be all of"):
        logdensity(regression, var_names=["beta"])
    with pytest.raises(ValueError, match="Unknown gradient 'stan': choose one of 'pytensor', 'jax'"):
        logdensity(regression, gradient="stan")
    with pm.Model() as empty, pytest.raises(ValueError, match="no free variables"):
        logdensity(empty)
    with pm.Model() as minibatch:
        pm.Normal("a", pm.Normal("m"), observed=pm.Minibatch(np.arange(9.0), batch_size=3), total_size=9)
    with pytest.raises(ValueError, match=r"draws random numbers.*use pm\.fit"):
        logdensity(minibatch)


def test_invalid_parameters_have_no_density():
    """As in `pymc.compile`, which makes -inf of the check that mode JAXPR can't raise inside of JAX."""
    with pm.Model() as model:
        pm.Normal("x", 0, pm.Normal("s"))
    assert np.isneginf(np.asarray(logdensity(model)({"s": -1.0, "x": 0.0})))


def test_float32_model_moves_in_float64():
    with pm.Model() as model:
        pm.Normal("x", np.float32(0), np.float32(1), shape=2, dtype="float32")
    logp = logdensity(model)
    with jax.enable_x64(True):
        gradient = jax.grad(logp)(jax.numpy.array([1.0, 2.0]))
    assert gradient.dtype == "float64"
    np.testing.assert_allclose(gradient, [-1, -2], rtol=1e-6)


def test_initial_points_are_pymcs(regression):
    points = initial_points(regression, 3, random_seed=5)
    assert {name: x.shape for name, x in points.items()} == {"sigma_log__": (3,), "beta": (3, 3)}
    again = initial_points(regression, 3, random_seed=5)
    np.testing.assert_array_equal(points["beta"], again["beta"])
    assert len(np.unique(points["beta"])) == 9
    still = initial_points(regression, 2, jitter=False, initvals={"beta": np.ones(3)})
    np.testing.assert_array_equal(still["beta"], np.ones((2, 3)))


def test_initial_points_are_drawn_without_the_c_compiler(monkeypatch):
    """The loop in LKJ's starting point took it twelve seconds."""

    def compile_in_c(*args, **kwargs):
        raise AssertionError("the C compiler runs")

    with pm.Model() as model:
        pm.LKJCholeskyCov("chol", n=2, eta=1.0, sd_dist=pm.Exponential.dist(1.0))
    compiler = config.cxx
    expected = initial_points(model, 1, random_seed=1, jitter=False)
    monkeypatch.setattr("pytensor.link.c.basic.CLinker.cthunk_factory", compile_in_c)
    found = initial_points(model, 1, random_seed=1, jitter=False)
    np.testing.assert_array_equal(*(points["chol_cholesky-cov-packed__"] for points in (found, expected)))
    assert logdensity(model).size == 3
    assert config.cxx == compiler


def test_a_start_without_density_names_the_term():
    with pm.Model() as model:
        a = pm.Normal("a")
        pm.Uniform("b", a + 10, a + 11, observed=np.array([0.0, 10.5]))
    logp = logdensity(model)
    with pytest.raises(SamplingError, match=r"is -inf: the term of 'b' is -inf \(1 of 2 elements.*initvals"):
        initial_points(model, 2, random_seed=1, logp=logp)
    with pm.Model() as model:
        pm.Normal("a")
        pm.Potential("p", pt.constant(np.nan))
    with pytest.raises(SamplingError, match="is nan: the term of 'p' is nan"):
        initial_points(model, 1, random_seed=1, logp=logdensity(model), jitter=False)


def test_data_that_do_not_fit_together():
    """PyMC takes them; the first call says which they are."""
    with pm.Model() as model:
        x, z = pm.Data("x", np.zeros(3)), pm.Data("z", np.ones(3))
        pm.Normal("y", pm.Normal("m") + x + z, observed=np.zeros(3))
        logp = logdensity(model)
        pm.set_data({"x": np.zeros(5)})
    with pytest.raises(AssertionError, match=r"Got shape \(5,\), expected \(3,\)") as error:
        logp({"m": 0.0})
    assert "'x' of shape (5,), 'z' of shape (3,)" in "".join(error.value.__notes__)
    assert "in one pm.set_data" in "".join(error.value.__notes__)
    with model, pytest.raises(ValueError, match="New values for 'x' must have 1 dimensions"):
        pm.set_data({"x": np.zeros((3, 1))})


def test_initvals_that_the_model_has_not(regression):
    with pytest.raises(ValueError, match="initvals has 'b', but the free variables are 'sigma', 'beta'"):
        initial_points(regression, 1, initvals={"b": 1.0})
    with pytest.raises(ValueError, match=r"initvals has shape \(2, 2\) for 'beta'"):
        initial_points(regression, 2, initvals=[None, {"beta": np.ones((2, 2))}])
    with pytest.raises(ValueError, match="chains must be at least 1, not 0"):
        initial_points(regression, 0)
    given = {"sigma_log__": 0.5, "beta": np.ones(3)}
    point = initial_points(regression, 1, initvals=given, jitter=False)
    np.testing.assert_allclose(point["sigma_log__"], 0.5, rtol=1e-6)  # PyMC goes by way of the constrained value


def test_constrain(regression, monkeypatch):
    draws = {"sigma_log__": np.linspace(-1, 1, 10).reshape(2, 5), "beta": np.arange(30.0).reshape(2, 5, 3)}
    expected = {
        "sigma": np.exp(draws["sigma_log__"]),
        "beta": draws["beta"],
        "mean": draws["beta"] @ np.arange(12.0).reshape(4, 3).T,
    }
    found = constrain(regression)(draws)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12)
        assert found[name].dtype == "float64"
    monkeypatch.setattr(
        "pytensor_jaxpr_linker.pymc.functions.constrained.CHUNK_BYTES", 200
    )  # three draws at once, the last one alone
    for name, value in constrain(regression)(draws).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-12)
    one = constrain(regression, var_names=["mean"])(
        {"sigma_log__": np.array(0.0), "beta": np.ones(3)}, {"x": np.ones((2, 3))}
    )
    np.testing.assert_allclose(one["mean"], [3, 3])
    assert constrain(regression)({"sigma_log__": np.zeros((2, 0)), "beta": np.zeros((2, 0, 3))})["mean"].shape[:2] == (
        2,
        0,
    )
    with pytest.raises(ValueError, match="no 'gamma'; it has"):
        constrain(regression, var_names=["gamma"])


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (0,)], ids=str)
def test_constrain_with_any_leading_axes(lead):
    """Of a scalar, and of a variable without elements, too."""
    with pm.Model() as model:
        pm.HalfNormal("x")
        pm.Normal("empty", shape=(2, 0))
    point = {"x_log__": np.full(lead, 1.0), "empty": np.zeros((*lead, 2, 0))}
    found = constrain(model)(point)
    np.testing.assert_allclose(found["x"], np.full(lead, np.e))
    assert found["x"].shape == lead and found["empty"].shape == (*lead, 2, 0)


def test_constrain_differentiates_as_it_is_asked():
    with pm.Model() as model:
        pm.Deterministic("y", pm.Normal("x") ** 2)
    both = [constrain(model, gradient="jax"), jaxpr_pymc.compile(model, gradient="jax").constrain]
    with jax.enable_x64(True):
        for function in both:
            np.testing.assert_allclose(jax.jacfwd(function)({"x": 3.0})["y"]["x"], 6.0)
    with pytest.raises(ValueError, match="Unknown gradient 'stan'"):
        constrain(model, gradient="stan")


def test_constrain_with_a_dim_of_new_length():
    with pm.Model() as model:
        model.add_coord("k", range(3))
        x = pm.Normal("x")
        pm.Deterministic("many", x * pt.ones(model.dim_lengths["k"]))
    f = constrain(model)
    assert f({"x": np.zeros(2)})["many"].shape == (2, 3)
    assert f({"x": np.zeros(2)})["many"].shape == (2, 3)
    model.set_dim("k", 4, range(4))
    assert f({"x": np.zeros(2)})["many"].shape == (2, 4)


def test_constrain_with_a_host_step():
    @wrap_py([pt.dvector], [pt.dvector])
    def reverse(x):
        return x[::-1].copy()

    with pm.Model() as model:
        x = pm.Normal("x", shape=2)
        pm.Deterministic("r", reverse(x))
    with pytest.warns(pjl.GraphBreakWarning):
        found = constrain(model)({"x": np.array([[1.0, 2.0], [3.0, 4.0]])})
    np.testing.assert_array_equal(found["r"], [[2, 1], [4, 3]])


def test_importing_the_linker_imports_no_pymc():
    code = "import sys, pytensor_jaxpr_linker; print('pymc' in sys.modules, 'blackjax' in sys.modules)"
    assert run_python(code) == "False False\n"


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap], ids=["jit", "vmap"])
def test_constrained_values_inside_a_transformation(transform):
    with pm.Model() as model:
        pm.Deterministic("twice", 2 * pm.HalfNormal("x"))
    with jax.enable_x64(True):
        found = transform(constrain(model))({"x_log__": np.zeros(3)})
    assert set(found) == {"x", "twice"}
    np.testing.assert_allclose(found["twice"], np.full(3, 2.0))


def test_reports_on_a_log_density(regression):
    """`make_jaxpr`, `explain` and `stages` need no arguments: the model has an initial point and data."""
    logp = logdensity(regression)
    assert [v.aval.shape for v in pjl.make_jaxpr(logp).invars] == [(), (3,), (4, 3), (4,), ()]  # the length of k
    assert len(pjl.explain(logp).batches) == 1
    assert "stablehlo" in pjl.stages(logp).stablehlo[0]
    fn = pjl.as_jax_function(logp, gradient="jax")
    with jax.enable_x64(True):
        point = {"sigma_log__": 0.3, "beta": np.ones(3)}
        args = [point["sigma_log__"], point["beta"], *logp.data.values(), 3]
        np.testing.assert_allclose(fn(*args)[0], logp(point))


def test_functions_of_a_model_say_what_they_are():
    with pm.Model() as model:
        pm.HalfNormal("scale")
    assert repr(logdensity(model)) == "<log density of scale_log__, as a JAX function>"
    assert repr(constrain(model)) == "<map of unconstrained draws to scale>"
    with pm.Model(coords={"obs": range(2)}) as divided:
        pm.Normal("y", pm.Normal("mu"), observed=np.ones(2), dims="obs")
    logp = shard(divided, jax.make_mesh((1,), ("data",)), {"obs": "data"})
    assert repr(logp) == "<log density of mu, with 'obs' along 'data' of {'data': 1}, as a JAX function>"
    assert "do not run the script again" in repr(process_context())


def test_pymcs_functions_are_this_packages(regression, point):
    """They take the short way of calls that `pytensor.function` has."""
    joint = regression.logp_dlogp_function(mode="JAXPR", ravel_inputs=False)
    compiled = pm.compile(regression.value_vars, regression.logp(), mode="JAXPR")
    by_point = regression.compile_fn(regression.logp(), mode="JAXPR")
    assert [type(f) for f in (compiled, by_point.f, joint._pytensor_function)] == [pjl.JaxprFunction] * 3
    want = regression.compile_logp(mode="FAST_COMPILE")(point)
    for _ in range(2):
        np.testing.assert_allclose(by_point(point), want)
        np.testing.assert_allclose(compiled(**{v.name: np.asarray(point[v.name]) for v in regression.value_vars}), want)
    with_numba = pm.compile(regression.value_vars, regression.logp(), mode="NUMBA")
    assert type(with_numba) is not pjl.JaxprFunction
