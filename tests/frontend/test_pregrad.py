"""The graph that is differentiated: stable gradients through every door, with the user's overrides."""

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from mpmath import exp, log, mp, mpf
from pytensor.compile.builders import OpFromGraph
from pytensor.gradient import disconnected_grad, grad_clip, grad_scale, zero_grad
from pytensor.graph.traversal import graph_inputs
from scipy.special import expit

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker import pymc as jaxpr_pymc
from pytensor_jaxpr_linker.frontend.pregrad import pregrad, value_and_gradient
from pytensor_jaxpr_linker.graph.rewritten.store import STORE
from pytensor_jaxpr_linker.pymc.samplers.nutpie import density_with_host_steps

pytestmark = pytest.mark.usefixtures("x64")

mp.dps = 60
POINTS = [-800.0, -40.0, -1.0, 0.0, 1.0, 36.0, 38.0, 40.0, 60.0, 800.0]


def bernoulli():
    """Return a model in which the sigmoid of `a` rounds to 1 at 37, and the slope of its log density."""
    with pm.Model(coords={"obs": range(1)}) as model:
        a = pm.Normal("a", 0, 5)
        pm.Bernoulli("y", p=pm.math.invlogit(a), observed=[0], dims="obs")
    return model, lambda v: -expit(v) - v / 25


def by_logdensity(model, tmp_path):
    f = jaxpr_pymc.logdensity(model)
    return jax.jit(jax.vmap(jax.grad(lambda v: f({"a": v}))))


def by_compile(model, tmp_path):
    return jax.vmap(jax.grad(lambda v: jaxpr_pymc.compile(model).logdensity({"a": v})))


def by_export(model, tmp_path):
    f = jaxpr_pymc.export_logdensity(model, path=tmp_path / "logp.jaxpr")
    return lambda points: [f(a=v)[1] for v in points]


def by_mesh(model, tmp_path):
    f = jaxpr_pymc.shard(model, jax.make_mesh((1,), ("data",)), {"obs": "data"})
    return lambda points: [jax.jit(jax.grad(f))({"a": jax.numpy.asarray(v)}, f.data)["a"] for v in points]


def by_host_steps(model, tmp_path):
    call, _ = density_with_host_steps(model)
    return lambda points: [call(np.array([v]))[1][0] for v in points]


def by_model(model, tmp_path):
    f = pjl.as_jax_function(model)
    return jax.vmap(lambda v: f(v)[1])


def by_terms(model, tmp_path):
    """The functions of tempered samplers."""
    prior, likelihood = jaxpr_pymc.compile(model)._kept.terms
    total = lambda v: prior({"a": v})[0] + likelihood({"a": v})[0]  # noqa: E731
    return jax.vmap(jax.grad(total))


DOORS = [by_logdensity, by_compile, by_export, by_mesh, by_host_steps, by_model, by_terms]


@pytest.mark.parametrize("door", DOORS)
def test_doors(door, tmp_path):
    model, slope = bernoulli()
    got = door(model, tmp_path)(np.array(POINTS))
    np.testing.assert_allclose(np.ravel(got), slope(np.array(POINTS)), rtol=1e-12)


def test_second_derivative():
    x = pt.dscalar("x")
    fn = pjl.as_jax_function([x], pt.log(1 - pt.sigmoid(x)))
    points = np.array([-700.0, -30.0, 0.0, 30.0, 40.0, 700.0])
    found = jax.vmap(jax.grad(jax.grad(fn)))(points)
    # PyTensor's product of s and 1 - s is right but for the rounding of s.
    np.testing.assert_allclose(found, -expit(points) * expit(-points), rtol=1e-9, atol=3e-16)


def log_of_sum(a, b):
    """Return the logarithm of a sum of exponentials, as the textbook has it."""
    return pt.log(pt.exp(a) + pt.exp(b))


def in_scan(step, x):
    """Return what a step gives after three rounds in a loop."""
    return pytensor.scan(step, outputs_info=[x], n_steps=3, return_updates=False)[-1]


def in_function(step, x):
    """Return a step inside an Op."""
    u = pt.dscalar("u")
    return OpFromGraph([u], [step(u)])(x)


def in_scan_in_function(step, x):
    """Return a loop inside an Op."""
    u = pt.dscalar("u")
    return OpFromGraph([u], [in_scan(step, u)])(x)


def in_batches(step, x):
    """Return a step inside an Op that is applied to each element of a vector."""
    u = pt.dscalar("u")
    return pt.vectorize(OpFromGraph([u], [step(u)]), signature="()->()")(pt.stack([x, x]))[0]


@pytest.mark.parametrize("inside", [in_scan, in_function, in_scan_in_function, in_batches])
@pytest.mark.parametrize("at", [-900.0, -45.0, 0.5, 45.0, 900.0])
def test_inner_graphs(inside, at):
    x = pt.dscalar("x")
    fn = pjl.as_jax_function([x], inside(lambda u: pt.log(pt.exp(u) + pt.exp(2 * u)), x))
    rounds = 3 if "scan" in inside.__name__ else 1
    slope, v = mpf(1), mpf(at)
    for _ in range(rounds):
        slope *= (exp(v) + 2 * exp(2 * v)) / (exp(v) + exp(2 * v))
        v = log(exp(v) + exp(2 * v))
    value, gradient = jax.value_and_grad(fn)(at)
    np.testing.assert_allclose([value, gradient], [float(v), float(slope)], rtol=1e-12)


@pytest.mark.parametrize(
    "override, slope",
    [
        (zero_grad, 0.0),
        (disconnected_grad, 0.0),
        (lambda x: grad_clip(x, -0.5, 0.5), -0.5),
        (lambda x: grad_scale(x, -2.0), 2 * expit(1.0)),
    ],
)
@pytest.mark.parametrize("inner", [False, True])
def test_overrides_in_models(override, slope, inner):
    def term(a):
        return pt.log(1 - pt.sigmoid(override(a)))

    with pm.Model() as model:
        a = pm.Normal("a")
        u = pt.dscalar("u")
        pm.Potential("term", OpFromGraph([u], [term(u)])(a) if inner else term(a))
    for door in (by_logdensity, by_host_steps, by_model):
        np.testing.assert_allclose(np.ravel(door(model, None)(np.array([1.0]))), [slope - 1], rtol=1e-12)


def test_flat_variables():
    """In canonical form, nothing depends on a variable with a flat prior; and the log density may be an input."""
    with pm.Model() as model:
        pm.Flat("unused")
        a = pm.Flat("a")
        pm.Potential("term", a + 0)
    f = jaxpr_pymc.logdensity(model)
    assert jax.grad(f)({"unused": 2.0, "a": 3.0}) == {"unused": 0.0, "a": 1.0}
    logp, *gradient = pjl.as_jax_function(model)(2.0, 3.0)
    assert [float(x) for x in (logp, *gradient)] == [3.0, 0.0, 1.0]
    assert [v.name for v in model.value_vars] == ["unused", "a"]


def test_given_graph_stays():
    """Neither the graph nor names and tags of its leaves change; an equal graph is taken from the store."""
    x, data = pt.dvector("x"), pytensor.shared(np.arange(3.0))
    cost = pt.log(1 - pt.sigmoid(x * data)).sum()
    before = pytensor.dprint(cost, file="str")
    leaves = [(v, v.name, dict(vars(v.tag))) for v in graph_inputs([cost])]
    first = pregrad([cost])
    hits = STORE.hits
    second = pregrad([cost])
    assert STORE.hits == hits + 1
    assert pytensor.dprint(first, file="str") == pytensor.dprint(second, file="str") != before
    assert pytensor.dprint(cost, file="str") == before
    assert [(v.name, dict(vars(v.tag))) for v, *_ in leaves] == [tuple(rest) for _, *rest in leaves]


def test_gradient_of_constant():
    x = pt.dvector("x")
    value, (gradient,) = value_and_gradient((x - x).sum(), [x])
    assert pytensor.function([x], [value, gradient], mode="FAST_COMPILE")(np.ones(2))[1].tolist() == [0.0, 0.0]


def test_sampling_through_a_loop():
    """A forward algorithm with exponentials and a logarithm in its step has a finite gradient, and can be sampled."""
    y = np.array([0.2, -1.0, 30.0, 2.1, -0.3])
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1, shape=2)
        emissions = pm.logp(pm.Normal.dist(mu, 1), y[:, None])
        step = lambda e, a: pt.log(pt.sum(pt.exp(a[:, None] + np.log(0.5)), axis=0)) + e  # noqa: E731
        messages = pytensor.scan(step, sequences=[emissions[1:]], outputs_info=[emissions[0]], return_updates=False)
        pm.Potential("y", pt.log(pt.sum(pt.exp(messages[-1]))))
    f = jaxpr_pymc.logdensity(model)
    at = np.array([40.0, -40.0])
    got = jax.grad(f)({"mu": at})["mu"]

    def truth(i, h):
        m = [mpf(v) + (h if k == i else 0) for k, v in enumerate(at)]
        e = [[-((mpf(float(v)) - m_) ** 2) / 2 for m_ in m] for v in y]
        a = e[0]
        for row in e[1:]:
            total = log(sum(exp(v) for v in a) / 2)
            a = [total + r for r in row]
        return log(sum(exp(v) for v in a)) - sum(v**2 for v in m) / 2

    h = mpf(10) ** -25
    np.testing.assert_allclose(got, [float((truth(i, h) - truth(i, -h)) / (2 * h)) for i in (0, 1)], rtol=1e-10)
    data = jaxpr_pymc.sample(20, tune=20, chains=1, model=model, random_seed=1, quiet=True, progressbar=False)
    assert np.isfinite(data.posterior["mu"]).all()
