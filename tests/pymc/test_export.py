"""PyMC models in files: log density and gradient, predictions, a run of NUTS, at lengths unknown to the export."""

import inspect
import logging
import sys
from pathlib import Path

import jax
import numpy as np
import pytensor
import pytest
from helpers import run_python

import pytensor_jaxpr_linker as pjl
from tests.artifacts.test_export import WITHOUT_PYTENSOR, run_elsewhere

pm = pytest.importorskip("pymc")

from pytensor_jaxpr_linker.pymc import export_logdensity, export_predictive, export_sampler, logdensity  # noqa: E402

logging.getLogger("pymc").setLevel(logging.ERROR)
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.jaxpr"


def regression(rows=4):
    """Return a model whose observations are shared data, and their values."""
    rng = np.random.default_rng(rows)
    table = {"x": rng.normal(size=rows), "y_data": rng.normal(size=rows)}
    with pm.Model(coords={"row": range(rows), "group": range(3)}) as model:
        x, y = (pm.Data(name, values, dims="row") for name, values in table.items())
        slope = pm.Normal("slope", 0.0, 1.0, dims="group")
        sigma = pm.HalfNormal("sigma")
        pm.Deterministic("mean", slope.sum() * x, dims="row")
        pm.Normal("y", slope.sum() * x, sigma, observed=y, dims="row")
    return model, table


POINT = {"slope": np.array([0.1, -0.3, 0.5]), "sigma_log__": np.array(0.2)}


def test_log_density_and_gradient_of_other_lengths(path):
    loaded = export_logdensity(regression()[0], path=path, symbolic=["row"], vjp_order=1, batched=True)
    assert [a.name for a in loaded.header.arguments] == ["slope", "sigma_log__", "x", "y_data"]
    assert loaded.header.arguments[2].shape == ("row",)
    for rows in (1, 4, 7):
        model, table = regression(rows)
        value, *gradient = loaded(**POINT, **table)
        np.testing.assert_allclose(value, model.compile_logp()(POINT), rtol=1e-12)
        np.testing.assert_allclose(np.hstack(gradient), model.compile_dlogp()(POINT), rtol=1e-12)
        with jax.enable_x64(True):
            several = jax.vmap(lambda s, table=table: loaded.jax(s, POINT["sigma_log__"], **table)[0])(np.eye(3))
        np.testing.assert_allclose(several[1], loaded(np.eye(3)[1], POINT["sigma_log__"], **table)[0], rtol=1e-12)


def test_model_by_the_general_door(path):
    model, _ = regression()
    loaded = pjl.export(model, path=path)
    value, *gradient = loaded(**POINT)
    np.testing.assert_allclose(
        np.hstack([value, *gradient]), np.hstack([model.compile_logp()(POINT), model.compile_dlogp()(POINT)])
    )
    assert set(loaded.state) == {"x", "y_data"}
    point_function = pjl.export(model.compile_logp(mode="JAXPR"), path=path)
    np.testing.assert_allclose(point_function(**POINT), value)
    assert set(point_function.state) == {"x", "y_data"}


def test_log_density_by_the_general_door(path):
    """It takes the parameters alone, as `logdensity`. Data are state, and unread lengths of dims are left out."""
    logp = logdensity(regression()[0])
    loaded = pjl.export(logp, path, dims={"x": "row", "y_data": "row"}, vjp_order=1)
    assert str(inspect.signature(loaded)) == "(slope, sigma_log__)"
    assert set(loaded.state) == {"x", "y_data"}
    with jax.enable_x64(True):
        np.testing.assert_allclose(loaded(**POINT), [logp(POINT)], rtol=1e-12)
        gradient = jax.grad(lambda slope: loaded(slope, POINT["sigma_log__"])[0])(POINT["slope"])
        wanted = jax.grad(lambda slope: logp({**POINT, "slope": slope}))(POINT["slope"])
        np.testing.assert_allclose(gradient, wanted, rtol=1e-12)
    model, table = regression(7)
    loaded.state.update(table)
    np.testing.assert_allclose(loaded(**POINT), [model.compile_logp()(POINT)], rtol=1e-12)


def test_the_function_of_a_log_density_takes_the_data(path):
    """`as_jax_function` has an argument for each input, and an artifact of its result has the same arguments."""
    fn = pjl.as_jax_function(logdensity(regression()[0]))
    loaded = pjl.export(fn, path)
    assert len(loaded.header.arguments) == len(fn.program.inputs) >= 4
    assert not loaded.state


@pytest.mark.parametrize("door", [export_logdensity, export_predictive])
def test_integers_of_the_data_have_any_dtype(door, path):
    """`pm.Data` makes 32-bit integers of them, and takes what NumPy makes."""
    with pm.Model(coords={"row": range(3)}) as model:
        group = pm.Data("group", np.array([0, 1, 1]), dims="row")
        pm.Normal("y", pm.Normal("mu", shape=2)[group], observed=np.zeros(3), dims="row")
    loaded = door(model, path=path, symbolic="row" if door is export_predictive else (), platforms=("cpu",))
    before = [jax.random.key(0)] * (door is export_predictive) + [np.ones(2)]
    (argument,) = [a for a in loaded.header.arguments if a.name == "group"]
    assert argument.dtype == "int32"
    given = np.array([1, 0, 1])
    want = loaded(*before, given.astype("int32"))[0]
    for same in (given, given.astype("uint8"), given.astype("uint64"), jax.numpy.asarray(given), given.tolist()):
        np.testing.assert_array_equal(loaded(*before, same)[0], want)
    for wrong in (np.array([2**31, 0, 0]), np.array([2**64 - 1, 0, 0], "uint64"), given.astype("float32")):
        with pytest.raises(TypeError, match=r"group has dtype int32, .* can't be cast to it without a loss"):
            loaded(*before, wrong)
    with jax.enable_x64(True), pytest.raises(TypeError, match="group has dtype int32"):  # values are not known
        jax.jit(lambda g: loaded.jax(*before, g))(given)


def test_predictions_given_draws(path):
    loaded = export_predictive(regression()[0], path=path, symbolic=["row"])
    assert [a.name for a in loaded.header.arguments] == ["key", "slope", "sigma", "x"]
    count, x = 4000, np.array([0.0, 1.0])
    keys = jax.random.split(jax.random.key(1), count)
    slopes = np.tile(POINT["slope"], (count, 1))
    (draws,) = loaded.batched(keys, slopes, np.full(count, 0.5), x)
    np.testing.assert_array_equal(draws, loaded.batched(keys, slopes, 0.5, np.tile(x, (count, 1)))[0])
    assert draws.shape == (count, 2)
    np.testing.assert_allclose(draws.mean(0), [0, 0.3], atol=0.04)
    np.testing.assert_allclose(draws.std(0), 0.5, rtol=0.05)
    again = loaded(jax.random.key(3), POINT["slope"], 0.5, x)[0]
    np.testing.assert_array_equal(again, loaded(jax.random.key_data(jax.random.key(3)), POINT["slope"], 0.5, x)[0])
    with pytest.raises(ValueError, match="scale < 0"):
        loaded(jax.random.key(3), POINT["slope"], -0.5, x)


def test_predicted_deterministics(path):
    loaded = export_predictive(regression()[0], ["mean", "y"], path=path, symbolic=["row"], batched=False)
    mean, y = loaded(jax.random.key(1), POINT["slope"], 0.5, np.arange(3.0))
    np.testing.assert_allclose(mean, 0.3 * np.arange(3))
    assert y.shape == (3,) and not np.allclose(mean, y)


def test_what_can_not_be_predicted(path):
    model, _ = regression()
    with pytest.raises(ValueError, match=r"predicts no 'meam'; it has y, mean. Did you mean 'mean'"):
        export_predictive(model, "meam", path=path)
    with pytest.raises(ValueError, match="has the dim 'rows'; their dims are group, row"):
        export_logdensity(model, path=path, symbolic=["rows"])
    with pm.Model() as prior:
        pm.Normal("x")
    with pytest.raises(ValueError, match="no observed variables"):
        export_predictive(prior, path=path)


def discrete():
    """Return a model with a discrete parameter."""
    with pm.Model() as model:
        pm.Normal("y", pm.Poisson("k", 3.0), 1.0, observed=1.0)
    return model


DOORS = [export_logdensity, export_predictive, export_sampler]


@pytest.mark.parametrize("door", DOORS)
def test_what_is_no_model(door, path):
    with pytest.raises(TypeError, match=r"A PyMC model is needed, .* not 3"):
        door(3, path=path)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"platforms": ["gpu"]}, "'gpu'. GPUs are 'cuda' and 'rocm'"),
        ({"constraints": "row >"}, r"constraints=\['row >'\] are none"),
        ({"path": "model.onnx"}, "does not write .onnx files"),
    ],
)
def test_wrong_options(door, options, message, path):
    with pytest.raises(ValueError, match=message):
        door(regression()[0], **{"path": path, **options})
    assert not path.exists()


def test_one_symbolic_dim_and_one_constraint_by_themselves(path):
    loaded = export_logdensity(regression()[0], path=path, symbolic="row", constraints="row >= 2")
    assert loaded.header.arguments[2].shape == ("row",)
    assert loaded.header.constraints == ("row >= 2",)


def test_discrete_parameters(path):
    pytest.importorskip("blackjax")
    with pytest.raises(ValueError, match="'k' is discrete: export its log density, for a sampler of your own"):
        export_sampler(discrete(), path=path)
    value = export_logdensity(discrete(), path=path)(k=2)[0]
    np.testing.assert_allclose(value, discrete().compile_logp()({"k": np.array(2)}))


def test_run_of_a_sampler_elsewhere(path):
    pytest.importorskip("blackjax")
    model, _ = regression(50)
    loaded = export_sampler(model, path=path, draws=300, tune=200, symbolic=["row"])
    assert loaded.header.outputs[0].name == "slope"
    _, table = regression(80)
    np.savez(path.parent / "table.npz", **table)
    out = run_elsewhere(
        f"""
        sample = load({str(path)!r})
        with np.load({str(path.parent / "table.npz")!r}) as file:
            table = dict(file)
        keys = jax.random.split(jax.random.key(1), 2)
        draws = sample.batched(keys, np.zeros((2, 3)), np.zeros(2), **table)
        found = dict(zip([o.name for o in sample.header.outputs], draws))
        total, sigma = found["slope"].sum(-1), found["sigma"]
        print(total.shape, total.mean(), sigma.mean(), found["diverging"].sum())
        """
    )
    *shape, mean, sigma, diverging = out.replace("(", "").replace(")", "").replace(",", "").split()
    least_squares = table["x"] @ table["y_data"] / (table["x"] @ table["x"])
    spread = np.std(table["y_data"] - least_squares * table["x"])
    assert shape == ["2", "300"]
    np.testing.assert_allclose([float(mean), float(sigma)], [least_squares, spread], atol=0.15)
    assert int(diverging) < 30


def test_run_of_a_sampler_in_float32(path):
    """Chains move in float64; draws have the dtype of the model."""
    pytest.importorskip("blackjax")
    with pytensor.config.change_flags(floatX="float32"):
        with pm.Model() as model:
            pm.Normal("x", 3, 2, shape=2)
            pm.HalfNormal("sigma")
        loaded = export_sampler(model, path=path, draws=500, tune=200)
        x, sigma, *_ = loaded(np.array([1, 2], "uint32"), np.zeros(2, "float32"), np.float32(0))
    assert (x.dtype, x.shape, sigma.dtype) == ("float32", (500, 2), "float32")
    np.testing.assert_allclose([np.mean(x), np.std(x)], [3, 2], atol=0.3)


def test_radon_of_three_sizes_elsewhere(path, monkeypatch):
    """One export of the log density and its gradient, for every number of houses, in a process that has JAX alone."""
    pytest.importorskip("blackjax")
    monkeypatch.syspath_prepend(EXAMPLES)
    radon = sys.modules.get("radon") or __import__("radon")
    houses = radon.load_houses(radon.DATA)
    loaded = export_logdensity(radon.build_model(houses, frozen=False), path=path, symbolic=["house"])
    assert {"cpu", "cuda", "tpu"} <= set(loaded.header.platforms)
    model = radon.build_model(houses, frozen=False)
    logp, dlogp = model.compile_logp(), model.compile_dlogp()
    rng = np.random.default_rng(0)
    point = {v.name: rng.normal(size=model.initial_point()[v.name].shape) * 0.1 for v in model.value_vars}
    wanted = []
    for i, step in enumerate((1, 10, 500)):
        table = {name: x[::step] for name, x in radon.table_of(houses).items()}
        np.savez(path.parent / f"{i}.npz", **point, **table)
        pm.set_data(table, model=model, coords={"house": np.arange(len(table["measured"]))})
        wanted.append([len(table["measured"]), logp(point), *dlogp(point)])
    run_elsewhere(
        f"""
        logp = load({str(path)!r})
        for i in range(3):
            with np.load("{path.parent}/" + f"{{i}}.npz") as file:
                value, *gradient = logp(**file)
                np.save("{path.parent}/" + f"{{i}}.npy", np.hstack([len(file["measured"]), value, *gradient]))
        """
    )
    for i, want in enumerate(wanted):
        np.testing.assert_allclose(np.load(path.parent / f"{i}.npy"), want, rtol=1e-9)


def test_example(tmp_path, monkeypatch, capsys):
    pytest.importorskip("blackjax")
    monkeypatch.syspath_prepend(EXAMPLES / "deploy")
    monkeypatch.syspath_prepend(EXAMPLES)
    import export_radon

    houses = (EXAMPLES / "data" / "radon_all.csv").read_text().splitlines()
    few = [houses[0], *[h for h in houses[1:] if h.split(",")[0] in ("4", "5", "8", "20", "57", "214")]]
    (tmp_path / "few.csv").write_text("\n".join(few))
    options = ["--data", str(tmp_path / "few.csv"), "--draws", "20", "--tune", "50", "--out", str(tmp_path)]
    files = export_radon.main(options)
    assert {"logp.jaxpr", "predict.jaxpr", "sample.jaxpr", "all.npz"} <= {file.name for file in files}
    capsys.readouterr()
    code = (EXAMPLES / "deploy" / "use_radon.py").read_text()
    code = code.replace("from __future__ import annotations", "", 1)
    code = code.replace('if __name__ == "__main__":\n    main()', "")
    run = f"\nnumbers = main(['--deployed', {str(tmp_path)!r}])\nassert np.isfinite(list(numbers.values())).all()"
    out = run_python(WITHOUT_PYTENSOR + code + run)
    assert "log density" in out and "predicted radon" in out
