"""Log densities whose data are divided among devices: equal to those of one device, with one all-reduce."""

from __future__ import annotations

import re

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import Doubled
from jax.sharding import NamedSharding, PartitionSpec
from mesh_models import MODELS, hierarchical, regression
from pytensor.compile.mode import get_mode

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.pymc import logdensity, shard
from pytensor_jaxpr_linker.pymc.mesh.graph import SumOfParts, with_sums_of_parts

MESH = jax.make_mesh((8,), ("data",))
COLLECTIVES = r" (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
#: One that eight devices divide, and one that is padded.
LENGTHS = [400, 403]


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def compare_densities(found, expected, data, rtol=1e-12, position=None):
    """Check a log density and its gradient against those of another one; return the compiled HLO."""
    q = np.linspace(-0.5, 0.7, expected.size) if position is None else position
    compiled = jax.jit(jax.value_and_grad(found)).lower(q, data).compile()
    want = jax.jit(jax.value_and_grad(expected))(q, expected.data)
    for a, b in zip(compiled(q, data), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max())
    return compiled.as_text()


@pytest.mark.parametrize("gradient", ["pytensor", "jax"])
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_one_all_reduce(name, n, gradient):
    model = MODELS[name](n)
    logp = shard(model, MESH, {"obs": "data"}, gradient=gradient)
    assert logp.padded == ({} if n == 400 else {"obs": 408})
    for array, dims in ((x, logp.shardings[name].spec) for name, x in logp.data.items()):
        assert array.sharding.shard_shape(array.shape) == (
            *(array.shape[0] // 8 for d in dims[:1] if d),
            *array.shape[1:],
        )
    hlo = compare_densities(logp, logdensity(model, gradient=gradient), logp.data)
    assert re.findall(COLLECTIVES, hlo) == ["all-reduce"]


@pytest.mark.parametrize("n", LENGTHS)
def test_observed_arrays_are_data(n):
    model = regression(n, observed="array")
    logp = shard(model, MESH, {"obs": "data"})
    assert logp.data["y"].sharding.spec == jax.sharding.PartitionSpec("data")
    compare_densities(logp, logdensity(model), logp.data)


def test_new_data():
    """Values, and lengths up to the padded one."""
    model = regression(403)
    logp = shard(model, MESH, {"obs": "data"})
    first = logp.data
    assert all(a is b for a, b in zip(first.values(), logp.data.values(), strict=True))
    rng = np.random.default_rng(3)
    for n in (401, 408):
        x, y = rng.normal(size=(n, 5)), rng.integers(0, 2, n)
        pm.set_data({"x": x, "given": y}, model=model, coords={"obs": range(n)})
        assert int(logp.data["obs_length"]) == n
        compare_densities(logp, logdensity(model), logp.place({"x": x, "given": y}))
        np.testing.assert_array_equal(logp.data["x"], logp.place({"x": x})["x"])
    with pytest.raises(
        ValueError, match=r"The data have 409 elements along the dim 'obs', .* 0 to 408: call .*shard. again"
    ):
        logp.place({"x": np.zeros((409, 5)), "given": np.zeros(409)})
    with model:
        np.testing.assert_allclose(logp(np.zeros(6)), logdensity()(np.zeros(6)), rtol=1e-12)


def test_other_data_on_the_mesh():
    model = regression(400)
    logp = shard(model, MESH, {"obs": "data"})
    flat = np.linspace(-1, 1, logp.size)
    other = {"x": np.random.default_rng(4).normal(size=(400, 5))}
    placed = logp.place(other)
    assert placed["x"].sharding.spec[0] == "data"
    np.testing.assert_allclose(logp(flat, placed), logdensity(model)(flat, other), rtol=1e-12)
    assert logp.unravel(flat).keys() == {"slope", "intercept"}


def test_data_that_are_on_the_mesh():
    """`set_value` keeps an array where it lies, and the log density reads it there. PyMC makes NumPy arrays of what it gets."""
    model = regression(400)
    x = jax.device_put(np.random.default_rng(4).normal(size=(400, 5)), NamedSharding(MESH, PartitionSpec("data")))
    model["x"].set_value(x, borrow=True)
    logp = shard(model, MESH, {"obs": "data"})
    assert logp.data["x"] is pjl.device_array(model["x"]) is x
    np.testing.assert_allclose(
        logp(np.ones(6)), logdensity(regression(400))(np.ones(6), {"x": np.asarray(x)}), rtol=1e-12
    )
    pjl.shard(model["x"], MESH, ["data"])
    pm.set_data({"x": x + 1}, model=model)
    assert logp.data["x"] is pjl.device_array(model["x"])
    assert logp.data["x"].sharding.is_equivalent_to(x.sharding, 2)


@pytest.mark.parametrize("n", LENGTHS)
def test_two_axes_of_a_mesh(n):
    mesh = jax.make_mesh((2, 4), ("chains", "data"))
    model = hierarchical(n)
    logp = shard(model, mesh, {"obs": "data"})
    assert logp.data["x"].sharding.shard_shape(logp.data["x"].shape) == (-(-n // 4),)
    compare_densities(logp, logdensity(model), logp.data)


def test_batches_of_positions():
    model = hierarchical(403)
    logp = shard(model, MESH, {"obs": "data"})
    points = np.random.default_rng(5).normal(size=(3, logp.size))
    found = jax.jit(jax.vmap(jax.grad(logp), in_axes=(0, None)))(points, logp.data)
    expected = logdensity(model)
    np.testing.assert_allclose(found, jax.vmap(jax.grad(expected), in_axes=(0, None))(points, expected.data), rtol=1e-9)


@pytest.mark.parametrize("n", LENGTHS)
def test_an_invalid_parameter(n):
    with pm.Model(coords={"obs": range(n)}) as model:
        rate = pm.Normal("rate")
        pm.Poisson("y", rate, observed=np.ones(n, int), dims="obs")
    logp = shard(model, MESH, {"obs": "data"})
    assert not np.isfinite(logp({"rate": -1.0})) and np.isfinite(logp({"rate": 1.0}))
    np.testing.assert_allclose(logp({"rate": 2.0}), logdensity(model)({"rate": 2.0}), rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "n", "gradient"), [(name, 403, "pytensor") for name in sorted(MODELS)] + [("hierarchical", 400, "jax")]
)
def test_one_all_reduce_in_single_precision(name, n, gradient):
    """PyTensor adds float32 numbers up in float64, and products of matrices in float32: what devices exchange is of one dtype."""
    with pytensor.config.change_flags(floatX="float32"):
        model = MODELS[name](n)
        logp = shard(model, MESH, {"obs": "data"}, gradient=gradient)
        q = np.linspace(-0.5, 0.7, logp.size).astype("float32")
        hlo = compare_densities(logp, logdensity(model, gradient=gradient), logp.data, rtol=1e-4, position=q)
    assert re.findall(COLLECTIVES, hlo) == ["all-reduce"]


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((80_000,), None), ((3, 8000), None), ((3, 8000), (1,)), ((8000, 3), (0,)), ((9, 7), None), ((0,), None)],
)
def test_sums_of_parts_lose_no_digits(shape, axis):
    """A float32 sum of 80,000 equal numbers is wrong in the fourth digit; that of eight sums is as good as that of float64, rounded."""
    x, values = pt.tensor("x", shape=(None,) * len(shape), dtype="float32"), np.full(shape, 0.1, "float32")
    f = pytensor.function([x], x.sum(axis=axis), mode=with_sums_of_parts(get_mode("JAXPR"), 8))
    assert [type(node.op) for node in f.maker.fgraph.apply_nodes][-1] is SumOfParts
    found = f(values)
    assert found.dtype == "float32"
    np.testing.assert_allclose(found, values.sum(axis=axis, dtype="float64"), rtol=2e-7)


def test_float64_sums_are_left_alone():
    x = pt.dvector("x")
    f = pytensor.function([x], x.sum(), mode=with_sums_of_parts(get_mode("JAXPR"), 8))
    assert not any(isinstance(node.op, SumOfParts) for node in f.maker.fgraph.apply_nodes)


def test_explain_takes_one():
    logp = shard(hierarchical(400), MESH, {"obs": "data"})
    assert "One XLA program" in str(pjl.explain(logp))


def test_a_constant_of_that_length_is_named():
    """Nothing says which dim the rows of an array have that a model sorts."""
    x = np.random.default_rng(6).normal(size=(400, 50))
    with pm.Model(coords={"obs": range(400)}) as model:
        slope = pm.Normal("slope", size=50)
        pm.Normal("y", pt.sort(x * slope, axis=0).sum(axis=1), 1, observed=np.zeros(400), dims="obs")
    with pytest.warns(
        UserWarning,
        match=r"An array of shape \(400, 50\) is a constant of the model, .* make it pm.Data with the dim 'obs'",
    ):
        logp = shard(model, MESH, {"obs": "data"})
    compare_densities(logp, logdensity(model), logp.data)


def lagged(n):
    """Slices that leave nothing of few observations."""
    with pm.Model(coords={"obs": range(n)}) as model:
        x = pm.Data("x", np.linspace(0, 1, n), dims="obs")
        pm.Potential("y", -((x[10:] - pm.Normal("slope") * x[:-10]) ** 2).sum())
    return model


@pytest.mark.parametrize(
    ("make", "axes", "message"),
    [
        (
            lambda: regression(400),
            {"obs": "rows"},
            "The mesh has no axis 'rows' for the dim 'obs'; its axes are 'data': use one of them.",
        ),
        (
            lambda: regression(400),
            {"obz": "data"},
            "along the dim 'obz': the model does not have it; its data have the dims 'feature', 'obs'. Did you mean 'obs'?",
        ),
        (
            lambda: hierarchical(400),
            {"group": "data"},
            "along the dim 'group': only free variables have it, and they are whole on each device",
        ),
        (
            lambda: lagged(9),
            {"obs": "data"},
            r"The mesh does not divide the dim 'obs' of length 9, and padding would change the result: a slice along axis 0 of 'x' leaves elements only of"
            r" 11 or more, and there are 9\. Give the mesh 3 instead of 8 devices along its axis 'data'\.",
        ),
        (lambda: regression(400), {}, "axes says along which axis of the mesh a dim is divided"),
    ],
    ids=["axis", "dim", "free", "padding", "none"],
)
def test_what_can_not_be_divided(make, axes, message):
    with pytest.raises(ValueError, match=message):
        shard(make(), MESH, axes)


HALF = jax.make_mesh((4,), ("data",), devices=jax.devices()[4:])


def test_data_on_another_mesh():
    """Some of them: no program can read both. All of them: the program runs there."""
    logp, other = (shard(regression(400), mesh, {"obs": "data"}) for mesh in (MESH, HALF))
    message = r"'x' lies on 4 devices \(4, 5, 6, 7\) and 'given' on 8 devices \(0, .*\), so no program can read both: put them there by `place`"
    q = np.zeros(6)
    for call in (logp, jax.grad(logp)):
        with pytest.raises(ValueError, match=message):
            call(q, {"x": other.data["x"]})
    np.testing.assert_allclose(logp(q, other.data), logp(q), rtol=1e-12)
    np.testing.assert_allclose(logp(q, logp.place({"x": other.data["x"]})), logp(q), rtol=1e-12)


def test_a_host_step():
    """A program of several devices can't stop for the host; the error names the Op and what it reads."""
    with pm.Model(coords={"obs": range(16)}) as model:
        x, slope = pm.Data("x", np.ones(16), dims="obs"), pm.Normal("slope")
        pm.Normal("y", slope * Doubled()(x), 1, observed=np.zeros(16), dims="obs")
    for call in (shard, lambda *args: pjl.pymc.sample(5, tune=5, model=args[0], mesh=args[1], shard=args[2])):
        with pytest.raises(
            pjl.GraphBreakError, match=r"cannot put Doubled\(x\) into one XLA program: .* To do: register a rule"
        ):
            call(model, MESH, {"obs": "data"})


def test_other_names_of_data():
    logp = shard(regression(400), MESH, {"obs": "data"})
    with pytest.raises(ValueError, match="The model has no shared data 'z'; it has 'given', 'x'"):
        logp.place({"z": np.zeros(400)})


def test_a_mesh_is_needed():
    with pytest.raises(TypeError, match=r"mesh must be a jax.sharding.Mesh, not 8: make one by jax.make_mesh"):
        shard(regression(400), 8, {"obs": "data"})
