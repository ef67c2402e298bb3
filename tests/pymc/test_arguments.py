"""What samplers of `pytensor_jaxpr_linker.pymc` are given, and what they refuse before they compile."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.step_methods import STEP_METHODS
from pymc.step_methods.compound import Competence
from pytensor import wrap_py
from pytensor.gradient import grad_undefined
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pytensor_jaxpr_linker as pjl
import pytensor_jaxpr_linker.pymc as ours
from pytensor_jaxpr_linker.base.rules import RULES
from pytensor_jaxpr_linker.frontend.pregrad import without_gradient
from pytensor_jaxpr_linker.pymc import fit_pathfinder, initial_points, logdensity, sample, sample_smc

SAMPLERS = ("nutpie", "numpyro", "blackjax", "mclmc", "pymc")
METHODS = (*SAMPLERS, "sample_smc", "fit_pathfinder")
BY_GRADIENTS = tuple(name for name in METHODS if name != "pymc")
NO_CHECKS = {"compute_convergence_checks": False}
QUIET = {"progressbar": False, **NO_CHECKS}
SHORT = {"draws": 20, "tune": 20, "chains": 2, "random_seed": 1, **QUIET}
IN_TURN = {**SHORT, "sampler": "pymc", "chain_method": "sequential", "quiet": True}


@pytest.fixture(scope="module")
def model():
    """Return a model of a vector and a scale."""
    with pm.Model() as model:
        mu = pm.Normal("mu", shape=2)
        sigma = pm.HalfNormal("sigma")
        pm.Deterministic("double", 2 * mu)
        pm.Normal("y", mu, sigma, observed=[1.0, 2.0])
    return model


def draw(name, **arguments):
    """Sample by any of the methods, of which each is a sampler of `sample` or a function."""
    arguments = {**SHORT, **arguments}
    if name == "sample_smc":
        return sample_smc(**{k: v for k, v in arguments.items() if k != "tune"})
    if name == "fit_pathfinder":
        kept = {k: v for k, v in arguments.items() if k not in ("tune", "chains", *QUIET)}
        return fit_pathfinder(paths=2, maxiter=10, **kept)
    pytest.importorskip({"mclmc": "blackjax"}.get(name, name))
    return sample(
        sampler=name, **{"chain_method": "sequential"} | arguments | ({"quiet": True} if name == "pymc" else {})
    )


@pytest.fixture
def no_compilation(monkeypatch):
    """Fail where a sampler begins."""

    def begin(*args, **kwargs):
        raise AssertionError("something is compiled")

    for place in ("sampling.drawn", "samplers.pymc_steps.pm.sample", "samplers.pathfinder.climb"):
        monkeypatch.setattr(f"pytensor_jaxpr_linker.pymc.{place}", begin)


# -- variables that NUTS must not move ---------------------------------------------------------------------------------


class Grow(pm.Slice):
    """A step that is for Gumbel variables, as that of BART is for BART."""

    name = "grow"

    @staticmethod
    def competence(var, has_grad):
        is_gumbel = isinstance(var.owner.op, type(pm.Gumbel.rv_op))
        return Competence.IDEAL if is_gumbel else Competence.INCOMPATIBLE


@pytest.fixture
def trees(monkeypatch):
    """Return a model with a variable that has a step of its own."""
    monkeypatch.setattr("pymc.sampling.mcmc.STEP_METHODS", STEP_METHODS)
    STEP_METHODS.append(Grow)
    with pm.Model() as model:
        pm.Normal("y", pm.Gumbel("trees", 0, 1), pm.HalfNormal("sigma"), observed=[1.0, 2.0])
    yield model
    STEP_METHODS.remove(Grow)


@pytest.mark.parametrize("name", BY_GRADIENTS)
def test_a_variable_with_a_step_of_its_own_is_refused(trees, name, no_compilation):
    with pytest.raises(ValueError, match=r"PyMC samples 'trees' by Grow, .*sampler='pymc'"):
        draw(name, model=trees)


def test_a_variable_with_a_step_of_its_own_has_no_log_density_but_pymcs_step(trees):
    with pytest.raises(ValueError, match="'trees' by Grow"):
        logdensity(trees)
    found = sample(model=trees, **IN_TURN)
    assert {"trees", "sigma"} == set(found.posterior.data_vars)
    assert "nstep_out" in found.sample_stats  # of Slice


def test_bart():
    pmb = pytest.importorskip("pymc_bart")
    x = np.linspace(0, 1, 20)[:, None]
    with pm.Model() as model:
        pm.Normal(
            "y", pmb.BART("mu", x, np.sin(6 * x[:, 0]), m=5), pm.HalfNormal("sigma"), observed=np.sin(6 * x[:, 0])
        )
    for function in (logdensity, sample_smc, fit_pathfinder, sample):
        with pytest.raises(ValueError, match="'mu' by PGBART"):
            function(model=model)
    found = sample(model=model, **IN_TURN)
    assert found.posterior["mu"].shape == (2, 20, 20)


def test_a_discrete_model_has_a_log_density():
    with pm.Model() as model:
        pm.Normal("y", pm.Bernoulli("z", 0.3), observed=1.0)
    expected = model.compile_logp(mode="FAST_COMPILE")({"z": np.array(1)})
    np.testing.assert_allclose(logdensity(model)({"z": 1}), expected, rtol=1e-12)


# -- seeds -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nutpie", "pymc"])
def test_one_seed_for_each_chain(model, name):
    draws = [draw(name, model=model, random_seed=seeds).posterior["mu"] for seeds in ([1, 2], (1, 2), [2, 3])]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])


def test_a_seed_belongs_to_its_chain(model):
    """Where this package runs the chains."""
    first, second = (
        draw("blackjax", model=model, random_seed=seeds).posterior["mu"] for seeds in ([1, 2], np.array([3, 2]))
    )
    np.testing.assert_array_equal(first[1], second[1])
    assert not np.array_equal(first[0], second[0])
    points = initial_points(model, 2, [1, 2])
    np.testing.assert_array_equal(points["mu"][1], initial_points(model, 2, [5, 2])["mu"][1])


@pytest.mark.parametrize("name", METHODS)
def test_another_number_of_seeds(model, name, no_compilation):
    with pytest.raises(
        ValueError, match=r"random_seed has 3 seeds for 2 (chains|paths): give one number, or one seed for each"
    ):
        draw(name, model=model, random_seed=[1, 2, 3])


@pytest.mark.parametrize("name", ["sample_smc", "fit_pathfinder"])
def test_seeds_and_a_name_for_methods_without_chains(model, name):
    draws = [draw(name, model=model, random_seed=[1, 2], var_names="mu").posterior for _ in range(2)]
    assert set(draws[0].data_vars) == {"mu"}
    np.testing.assert_array_equal(draws[0]["mu"], draws[1]["mu"])


# -- PyMC's own steps --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [{"init": "adapt_diag"}, {"nuts": {"target_accept": 0.9}}, {"target_accept": 0.9, "nuts": {"max_treedepth": 5}}],
    ids=str,
)
def test_arguments_of_pymcs_nuts(model, arguments):
    found = sample(model=model, **IN_TURN, **arguments)
    assert found.posterior["mu"].shape == (2, 20, 2)
    assert not (found.sample_stats["tree_depth"] > arguments.get("nuts", {}).get("max_treedepth", 10)).any()


def test_steps_that_are_given(model):
    with model:
        steps = {"all": pm.Metropolis(), "one": pm.Slice([model["sigma"]])}
    found = {name: sample(model=model, step=step, **IN_TURN).sample_stats for name, step in steps.items()}
    stats = {name: set(group.data_vars) for name, group in found.items()}
    assert "accepted" in stats["all"] and "tree_depth" not in stats["all"]
    assert "tree_depth" in stats["one"] and "nstep_out" in stats["one"]
    with pytest.raises(ValueError, match="target_accept is for NUTS, and PyMC gives no variable to it here"):
        sample(model=model, step=steps["all"], target_accept=0.9, **IN_TURN)


def test_discrete_variables_only():
    with pm.Model() as model:
        pm.Normal("y", pm.Bernoulli("z", 0.3), observed=[1.0])
    assert sample(model=model, **IN_TURN).posterior["z"].shape == (2, 20)


# -- Ops without gradient ----------------------------------------------------------------------------------------------


@wrap_py([pt.dscalar], [pt.dscalar])
def half(x):
    return np.asarray(x / 2)


class Undefined(Op):
    """Has an emission rule in the tests below, and says that it has no gradient."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(inputs[0])

    def pullback(self, inputs, outputs, cotangents):
        return [grad_undefined(self, 0, inputs[0], "of no good reason")]


def black_box(function):
    """Return a model in which one of two variables goes through a function without gradient."""
    with pm.Model() as model:
        pm.Normal("y", pm.math.exp(function(pm.Normal("x"))), pm.HalfNormal("sigma"), observed=2.0)
    return model


@pytest.mark.parametrize("function", [half, Undefined()], ids=["no pullback", "undefined"])
@pytest.mark.parametrize("name", BY_GRADIENTS)
def test_the_op_without_gradient_is_named(name, function):
    remedy = "pm.sample_smc" if name == "sample_smc" else "sampler='pymc'"
    with pytest.raises(NotImplementedError) as error:
        draw(name, model=black_box(function))
    message = str(error.value)
    assert f"no gradient with respect to 'x', since {function}(x) has none: use" in message
    assert remedy in message
    assert __file__ in message


class WithoutRule(Op):
    """Doubles, and has no emission rule."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(2 * inputs[0])


class Doubled(WithoutRule):
    """Has an emission rule in the tests below; its gradient is an Op without one."""

    def pullback(self, inputs, outputs, cotangents):
        return [WithoutRule()(cotangents[0])]


@pytest.fixture
def with_rule(monkeypatch):
    """Register the emission rule of an Op of this file while a test runs."""
    before = dict(RULES)
    pjl.emits(Doubled)(lambda op, node, b, x: pjl.prims.add(b, x, x))
    yield
    RULES.clear()
    RULES.update(before)


@pytest.mark.parametrize("name", [name for name in BY_GRADIENTS if name != "nutpie"])
def test_remedies_for_a_gradient_without_rule(name, with_rule):
    """The message names what works, and it does: JAX's derivative here, the other samplers in the next test."""
    model = black_box(Doubled())
    other = {"sample_smc": "use pm.sample_smc(backend='JAXPR')", "fit_pathfinder": "use sample, which"}
    with pytest.raises(pjl.GraphBreakError) as error:
        draw(name, model=model)
    remedies = str(error.value).splitlines()[-1]
    assert "WithoutRule" in str(error.value) and "give gradient='jax'" in remedies
    named = {"blackjax": "nuts"}.get(name, name)
    assert other.get(name, f"leave out sampler={named!r}, or give sampler='nutpie' or 'pymc'") in remedies
    assert "sigma" in draw(name, model=model, gradient="jax").posterior


@pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.GraphBreakWarning")
def test_other_samplers_run_a_gradient_without_rule(with_rule):
    pytest.importorskip("nutpie")
    model = black_box(Doubled())
    for arguments in ({}, {"sampler": "nutpie"}, {"sampler": "pymc", "cores": 1, "quiet": True}):
        assert sample(model=model, **SHORT, **arguments).posterior.sizes["draw"] == 20
    assert pm.sample_smc(20, model=model, backend="JAXPR", chains=1, cores=1, progressbar=False, **NO_CHECKS)
    with pytest.raises(pjl.GraphBreakError, match="leave out mesh, shard, store and sampler") as error:
        sample(model=model, mesh=jax.make_mesh((1,), ("chains",)), **SHORT)
    assert "give gradient='jax'" in str(error.value)
    assert sample(model=model, mesh=jax.make_mesh((1,), ("chains",)), gradient="jax", **SHORT)


def test_explain_tells_of_the_value_where_there_is_no_gradient():
    told = pjl.explain(black_box(half))
    assert told.no_gradient.startswith(f"The log density has no gradient with respect to 'x', since {half}(x) has none")
    assert "The log density alone\n  The log density has no gradient" in str(told) and told.host_steps
    assert [v.name for v in told.outputs] == ["log density"]
    with pytest.raises(NotImplementedError, match="no gradient with respect to 'x'"):
        pjl.stages(black_box(half))
    assert not pjl.explain(black_box(lambda x: 2 * x)).no_gradient


@pytest.mark.filterwarnings("ignore:The `pymc.dims` module is experimental")
def test_the_op_without_gradient_is_named_among_named_dimensions():
    dims = pytest.importorskip("pymc.dims")

    @wrap_py([pt.dvector], [pt.dvector])
    def reverse(x):
        return x[::-1].copy()

    with pm.Model(coords={"k": range(3)}) as model:
        x = dims.Normal("x", dims="k")
        moved = dims.as_xtensor(reverse((2 * x).values), dims=("k",))
        dims.Normal("y", moved + dims.Normal("z"), 1.0, observed=dims.as_xtensor(np.ones(3), dims=("k",)), dims="k")
    names, node = without_gradient(model.logp(), model.continuous_value_vars)
    assert names == ["x"] and node.op is reverse


def test_pymc_samples_an_op_without_gradient():
    with pytest.warns(pjl.GraphBreakWarning):
        found = sample(model=black_box(half), **IN_TURN)
    assert found.posterior["x"].shape == (2, 20)


# -- refused and accepted arguments ------------------------------------------------------------------------------------


ASKED_OF_A_MODEL = [
    *(partial(draw, name) for name in METHODS),
    ours.sample,
    ours.compile,
    ours.logdensity,
    ours.constrain,
    partial(ours.initial_points, chains=2),
    partial(ours.export_logdensity, path="f.jaxpr"),
    partial(ours.export_predictive, path="f.jaxpr"),
    partial(ours.export_sampler, path="f.jaxpr"),
    partial(ours.shard, axes={"obs": "data"}),
]


@pytest.mark.parametrize("function", ASKED_OF_A_MODEL, ids=lambda f: getattr(f, "__name__", None))
@pytest.mark.parametrize("given", [3, "m", pm.Model])
def test_what_is_no_model(function, given):
    with pytest.raises(TypeError, match=r"A PyMC model is needed, or none inside `with model:`, not "):
        function(model=given)


@pytest.mark.parametrize(
    ("draws", "error", "message"),
    [
        ({"sigma_log__": 0.0}, ValueError, "No value for 'mu': the unconstrained variables are 'mu', 'sigma_log__'"),
        (
            [1.0, 2.0],
            TypeError,
            r"A dict of the unconstrained variables 'mu', 'sigma_log__' is needed, not \[1.0, 2.0\]",
        ),
        (
            {"mu": np.zeros(2), "sigma_log__": 0.0, "sigma": 1.0},
            ValueError,
            "No unconstrained variable is called 'sigma': they are 'mu', 'sigma_log__'",
        ),
        (
            {"mu": 0.0, "sigma_log__": 0.0},
            ValueError,
            r"The value of 'mu' has shape \(\), but a point of this variable has 1 axis",
        ),
        (
            {"mu": np.zeros((3, 2)), "sigma_log__": np.zeros(4)},
            ValueError,
            r"the same leading axes: 'mu' has \(3,\), but 'sigma_log__' has \(4,\)",
        ),
    ],
)
def test_what_is_no_draw_of_the_model(model, draws, error, message):
    with pytest.raises(error, match=message):
        ours.constrain(model)(draws)
