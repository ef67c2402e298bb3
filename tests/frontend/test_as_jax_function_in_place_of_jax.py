"""`in_place_of_jax`, and the `vm.jit_fn` that libraries take from functions of mode JAX."""

from __future__ import annotations

import pickle
import threading

import jax
import numpy as np
import pytensor
import pytensor.compile
import pytensor.tensor as pt
import pytest
from helpers import Doubled
from pytensor.compile import mode as modes
from pytensor.compile.mode import Mode, get_mode, predefined_linkers
from pytensor.graph.fg import FunctionGraph
from pytensor.link.jax.linker import JAXLinker

import pytensor_jaxpr_linker as pjl

nutpie = pytest.importorskip("nutpie")
pm = pytest.importorskip("pymc")
pytestmark = pytest.mark.usefixtures("jax_settings")


@pytest.fixture(scope="module")
def schools():
    """Return a model with a transform, shared data and a Deterministic."""
    with pm.Model(coords={"school": range(4)}) as model:
        y = pm.Data("y", np.array([28.0, 8.0, -3.0, 7.0]), dims="school")
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        z = pm.Normal("z", dims="school")
        theta = pm.Deterministic("theta", mu + tau * z, dims="school")
        pm.Normal("obs", theta, 10.0, observed=y, dims="school")
    return model


def looked_up():
    """Return what the names of mode JAX stand for."""
    from pytensor.link.jax.dispatch import jax_funcify

    return [
        *(get_mode(name) for name in ("JAX", "JAXPR")),
        predefined_linkers["jax"],
        modes.JAX,
        pytensor.compile.JAX,
        jax_funcify.dispatch(FunctionGraph),
    ]


def test_names_are_replaced_and_restored():
    before = looked_up()
    x = pt.dvector("x")
    with pjl.in_place_of_jax():
        inside = looked_up()
        assert all(a is not b for a, b in zip(before, inside, strict=True))
        assert isinstance(get_mode("jax").linker, JAXLinker)  # PyMC asks
        with pjl.in_place_of_jax():
            pass
        assert looked_up() == inside
        f = pytensor.function([x], x * 2, mode="JAX")
        g = pytensor.function([x], x * 2, mode=Mode("jax", "fast_run"))
    assert looked_up() == before
    for function in (f, g, pickle.loads(pickle.dumps(f))):
        assert isinstance(function.maker.linker, pjl.JaxprLinker)
        np.testing.assert_array_equal(function([1.0, 2.0]), [2.0, 4.0])
    with pytest.raises(KeyError, match="wrong"), pjl.in_place_of_jax():
        raise KeyError("wrong")
    assert looked_up() == before


def test_blocks_of_several_threads_overlap():
    before, entered, leave = looked_up(), threading.Event(), threading.Event()

    def other():
        with pjl.in_place_of_jax():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with pjl.in_place_of_jax():
        thread.start()
        assert entered.wait(60)
    assert looked_up() != before  # the other thread is inside
    leave.set()
    thread.join(60)
    assert looked_up() == before


def test_jit_fn_inside_transformations(no_other_jax):
    """Inputs and then shared variables in, a tuple out, differentiable in both modes, also where a value is static."""
    x, n = pt.dvector("x"), pt.lscalar("n")
    scale = pytensor.shared(np.array([1.0, 2.0, 3.0]), name="scale")
    with pjl.in_place_of_jax():
        f = pytensor.function([x], [(scale * x**2).sum(), x.sum()], mode="JAX")
        g = pytensor.function([n, x], (pt.arange(n) * x).sum(), mode="JAX")
    jit_fn, value = f.vm.jit_fn, np.array([1.0, 2.0, 3.0])
    assert [v.name for v in f.get_shared()] == ["scale"]
    with jax.enable_x64(True):
        for call in (jit_fn, jit_fn._fun, jax.jit(jit_fn)):
            found = call(value, scale.get_value())
            assert isinstance(found, tuple)
            np.testing.assert_allclose(found, [36, 6])
        slope = jax.grad(lambda x: jit_fn(x, np.ones(3))[0])
        np.testing.assert_allclose(slope(value), 2 * value)
        np.testing.assert_allclose(jax.hessian(lambda x: jit_fn(x, np.ones(3))[0])(value), 2 * np.eye(3))
        np.testing.assert_allclose(jax.vmap(slope)(np.stack([value, -value])), [2 * value, -2 * value])
        (empty, _) = jit_fn(np.zeros(0), np.zeros(0))
        np.testing.assert_array_equal(empty, 0.0)
        np.testing.assert_allclose(jax.jit(lambda x: g.vm.jit_fn(3, x))(value), [8.0])
        with pytest.raises(pjl.RuntimeTracerError, match="'n' determines a shape"):
            jax.jit(g.vm.jit_fn)(3, value)


def test_jit_fn_says_what_is_missing():
    x = pt.dvector("x")
    scale = pytensor.shared(np.ones(2), name="scale")
    jit_fn = pytensor.function([x], scale * x, mode="JAXPR").vm.jit_fn
    with pytest.raises(TypeError, match=r"expected 2 arguments \('x', 'scale'\), got 1"):
        jit_fn(np.ones(2))


def test_jit_fn_of_a_graph_with_host_steps():
    x = pt.dvector("x")
    with pjl.in_place_of_jax(), pytest.warns(pjl.GraphBreakWarning):
        f = pytensor.function([x], Doubled()(x), mode="JAX")
    np.testing.assert_array_equal(f([1.0]), [2.0])
    with pytest.raises(pjl.GraphBreakError, match="Doubled"):
        f.vm.jit_fn(np.ones(1))


def test_funcified_graphs(no_other_jax):
    x = pt.fvector("x")
    with pjl.in_place_of_jax():
        f = pm.sampling.jax.get_jaxified_graph([x], [pt.exp(x).sum(), x[:2]])
        with pytest.raises(pjl.GraphBreakError, match="Doubled"):
            pm.sampling.jax.get_jaxified_graph([x], [Doubled()(x)])
    total, two = f(np.zeros(3, "float32"))
    assert total.dtype == two.dtype == "float32"
    assert (float(total), two.shape) == (3.0, (2,))
    np.testing.assert_allclose(jax.grad(lambda x: f(x)[0])(jax.numpy.zeros(2, "float32")), [1, 1])
    with pytest.raises(TypeError, match="expected 1 arguments"):
        f()


def test_jaxified_logp_is_pymcs(schools, no_other_jax):
    point = {"mu": np.array(1.0), "tau_log__": np.array(0.5), "z": np.array([0.1, -1.0, 2.0, 0.3])}
    with pjl.in_place_of_jax():
        logp = pm.sampling.jax.get_jaxified_logp(schools)
    values = [point[v.name] for v in schools.value_vars]
    np.testing.assert_allclose(logp(values), schools.compile_logp(mode="FAST_COMPILE")(point), rtol=1e-12)
    with jax.enable_x64(True):
        slope = np.concatenate([np.ravel(g) for g in jax.jit(jax.grad(logp))(values)])
    np.testing.assert_allclose(slope, schools.compile_dlogp(mode="FAST_COMPILE")(point), rtol=1e-10)


@pytest.mark.parametrize("gradient", ["pytensor", "jax"])
def test_nutpie(schools, gradient, no_other_jax):
    """It compiles inside of the block and samples afterwards, with the data that it is given."""
    with pjl.in_place_of_jax():
        compiled = nutpie.compile_pymc_model(schools, backend="jax", gradient_backend=gradient, freeze_model=False)
    x = np.linspace(-1, 1, 6)
    value, slope = compiled._make_logp_func()(x, **compiled._shared_data)
    point = dict(zip(["mu", "tau_log__", "z"], [x[0], x[1], x[2:]], strict=True))
    np.testing.assert_allclose(value, schools.compile_logp(mode="FAST_COMPILE")(point), rtol=1e-12)
    np.testing.assert_allclose(slope, schools.compile_dlogp(mode="FAST_COMPILE")(point), rtol=1e-10)
    short = {"draws": 100, "tune": 100, "chains": 2, "seed": 1, "progress_bar": False}
    found = [nutpie.sample(c, **short).posterior for c in (compiled, compiled.with_data(y=np.full(4, 100.0)))]
    np.testing.assert_allclose(found[0]["theta"], found[0]["mu"] + found[0]["tau"] * found[0]["z"])
    assert float(found[1]["theta"].mean()) > 30 > float(found[0]["theta"].mean())


@pytest.mark.parametrize("sampler", ["nutpie", "numpyro"])
def test_pymc_sample(schools, sampler, no_other_jax):
    """`backend="JAXPR"` means this package, whatever the sampler."""
    pytest.importorskip(sampler)
    with pjl.in_place_of_jax():
        found = pm.sample(
            20, tune=20, chains=1, cores=1, model=schools, nuts_sampler=sampler, backend="JAXPR", random_seed=1,
            progressbar=False, compute_convergence_checks=False, quiet=True,
        )  # fmt: skip
    assert found.posterior["theta"].shape == (1, 20, 4)
