"""Functions as ``.vmfb`` files: compiled by IREE, run by its runtime, in Python and without."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

pytest.importorskip("iree.compiler")
pytest.importorskip("iree.runtime")
import jax
from pytensor.compile.ops import wrap_py
from pytensor.graph.replace import graph_replace

import pytensor_jaxpr_linker as pjl
from jaxpr_artifact import ArtifactError, IreeFunction, load_iree
from jaxpr_artifact.iree import FIRST_STATE, MAIN, iree_header_of
from pytensor_jaxpr_linker.artifacts.iree import tool_path
from pytensor_jaxpr_linker.pymc import export_logdensity, export_predictive, export_sampler

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")  # in the reference


def run_without_python(path: Path, name: str, arguments: list[Any], count: int) -> list[np.ndarray]:
    """Return the results of a function of a file, run by ``iree-run-module`` in an empty environment."""
    tool, folder = tool_path("iree._runtime_libs", "iree-run-module"), path.parent
    command = [str(tool), "--device=local-task", f"--module={path}", f"--function={name}"]
    for i, x in enumerate(arguments):
        np.save(folder / f"in{i}.npy", x)
        command.append(f"--input=@{folder}/in{i}.npy")
    command += [f"--output=@{folder}/out{i}.npy" for i in range(count)]
    done = subprocess.run(command, env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [np.load(folder / f"out{i}.npy") for i in range(count)]


X, Y = np.random.default_rng(0).normal(size=(4, 3)), np.arange(4.0)


def test_hundred_steps(step: tuple[Callable[..., Any], IreeFunction]) -> None:
    """Updates go into the state; results are the caller's."""
    fn, loaded = step
    results = []
    for i in range(100):
        (want, _), (got, element) = fn(X, Y, 1), loaded(X, i=1, y=Y)
        np.testing.assert_allclose(got, want, rtol=1e-12)
        assert element == 1.0 and got.flags.owndata
        results.append((got, got.copy()))
        assert loaded.state["n"] == i + 1
    np.testing.assert_allclose(loaded.state["w"], shared_of(fn, "w"), rtol=1e-12)
    assert all(x == y for x, y in results)
    assert "float64 (4, 3)" in str(loaded) and "step(x, y, i)" in repr(loaded)


def shared_of(fn: Any, name: str) -> np.ndarray:
    return next(v.get_value() for v in fn.get_shared() if v.name == name)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((X, Y, 9), IndexError, "out of bounds for axis 0 with size 4"),
        ((X[:2], Y, 1), TypeError, r"x has shape \(4, 3\), and its value has \(2, 3\)"),
        ((X.astype(complex), Y, 1), TypeError, "x has dtype float64, and its value has complex128"),
        ((X, Y[None], 1), TypeError, "y has 1 axis"),
        ((X, Y), TypeError, "missing a required argument: 'i'"),
    ],
)
def test_bad_arguments(step: Any, arguments: tuple, error: type[Exception], message: str) -> None:
    """The state keeps its values."""
    before = dict(step[1].state)
    with pytest.raises(error, match=message):
        step[1](*arguments)
    assert all((step[1].state[name] == value).all() for name, value in before.items())


def test_without_python(step: Any) -> None:
    """State goes in and comes out; the last result is the number of the check that failed."""
    path = Path(step[1].path)
    state = run_without_python(path, FIRST_STATE, [], 2)
    names = list(step[1].state)
    fresh = load_iree(path, device="local-sync")
    for name, value in zip(names, state, strict=True):
        assert (fresh.state[name] == value).all()
    loss, element, *following, check = run_without_python(path, MAIN, [X, Y, np.array(2), *state], 5)
    want, _ = fresh(X, Y, 2)
    assert loss == want and element == 2.0 and check == 0
    assert (following[names.index("w")] == fresh.state["w"]).all()
    assert run_without_python(path, MAIN, [X, Y, np.array(7), *state], 5)[-1] == 1


def test_gaussian_process(tmp_path: Path) -> None:
    """The marginal log density and its gradient, by Cholesky factors, without Python."""
    x, y, scale, noise = pt.dvector("x"), pt.dvector("y"), pt.dscalar("scale"), pt.dscalar("noise")
    covariance = pt.exp(-0.5 * ((x[:, None] - x) / scale) ** 2) + noise**2 * pt.eye(x.shape[0])
    factor = pt.linalg.cholesky(covariance)
    z = pt.linalg.solve_triangular(factor, y, lower=True)
    density = -0.5 * (z**2).sum() - pt.log(pt.diagonal(factor)).sum()
    outputs = [density, *pt.grad(density, [scale, noise])]
    values = [np.linspace(0.0, 3.0, 12), np.sin(np.arange(12.0)), np.array(0.7), np.array(0.2)]
    path = tmp_path / "gp.vmfb"
    pjl.export([x, y, scale, noise], outputs, path=path, examples=values)
    want = pytensor.function([x, y, scale, noise], outputs, mode="FAST_COMPILE")(*values)
    for got, expected in zip(run_without_python(path, MAIN, values, 3), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_kalman_filter(tmp_path: Path) -> None:
    """A scan over observations with solves in each step, and the gradient of its likelihood, without Python."""
    ys, drift = pt.dmatrix("ys"), pt.dscalar("drift")
    transition = pt.stack([[1.0, 1.0], [0.0, drift]])

    def advance(y: Any, mean: Any, cov: Any, total: Any, transition: Any) -> list[Any]:
        mean, cov = transition @ mean, transition @ cov @ transition.T + 0.1 * pt.eye(2)
        spread = cov + 0.5 * pt.eye(2)
        gain = pt.linalg.solve(spread, cov, assume_a="pos").T
        rest = y - mean
        total = total - 0.5 * (rest @ pt.linalg.solve(spread, rest) + pt.log(pt.linalg.det(spread)))
        return [mean + gain @ rest, cov - gain @ cov, total]

    start = [pt.zeros(2), pt.eye(2), pt.zeros(())]
    means, _, totals = pytensor.scan(
        advance, sequences=[ys], outputs_info=start, non_sequences=[transition], return_updates=False
    )
    outputs = [means, totals[-1], pt.grad(totals[-1], drift)]
    values = [np.random.default_rng(1).normal(size=(15, 2)), np.array(0.9)]
    path = tmp_path / "kalman.vmfb"
    pjl.export([ys, drift], outputs, path=path, examples=values)
    want = pytensor.function([ys, drift], outputs, mode="FAST_COMPILE")(*values)
    *found, check = run_without_python(path, MAIN, values, 4)
    assert check == 0  # each matrix is positive definite
    for got, expected in zip(found, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


def test_hamiltonian_step(tmp_path: Path) -> None:
    """HMC on a PyMC model, with its random key, leapfrog steps and acceptance: a chain has the moments of its density."""
    precision = np.array([[2.0, 0.6], [0.6, 1.0]])
    with pm.Model() as model:
        pm.MvNormal("q", np.zeros(2), tau=precision)
    density, (value,) = model.logp(), model.value_vars
    position = pytensor.shared(np.zeros(2), name="position")
    rng = pytensor.shared(np.random.default_rng(3), name="rng")

    def energy(q: Any) -> Any:
        return graph_replace(-density, {value: q})

    rng_next, momentum = pt.random.normal(size=(2,), rng=rng, return_next_rng=True)
    rng_last, uniform = pt.random.uniform(rng=rng_next, return_next_rng=True)

    def leapfrog(q: Any, p: Any) -> list[Any]:
        p = p - 0.1 * pt.grad(energy(q), q)
        q = q + 0.2 * p
        return [q, p - 0.1 * pt.grad(energy(q), q)]

    qs, ps = pytensor.scan(leapfrog, outputs_info=[position, momentum], n_steps=8, return_updates=False)
    before, after = energy(position) + 0.5 * (momentum**2).sum(), energy(qs[-1]) + 0.5 * (ps[-1] ** 2).sum()
    following = pt.where(pt.log(uniform) < before - after, qs[-1], position)
    fn = pytensor.function([], following, updates={position: following, rng: rng_last}, mode="JAXPR")
    transition = pjl.export(fn, path=tmp_path / "hmc.vmfb", name="transition")
    draws = np.array([transition() for _ in range(1500)])
    np.testing.assert_allclose(np.cov(draws.T), np.linalg.inv(precision), atol=0.15)
    by_jax = pjl.export(fn, path=tmp_path / "hmc.jaxpr", name="transition")
    np.testing.assert_allclose([by_jax() for _ in range(20)], draws[:20], rtol=1e-9)


def test_pymc(tmp_path: Path) -> None:
    """The log density with its gradient, and predictions for given draws of the parameters."""
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        group = pm.Data("group", rng.integers(0, 3, 20))
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
        theta = pm.Normal("theta", mu, tau, shape=3)
        pm.Normal("y", theta[group], 0.5, observed=rng.normal(size=20))
    point = {name: np.asarray(v) + 0.1 for name, v in model.initial_point().items()}
    data = {"group": model["group"].get_value()}
    density = export_logdensity(model, path=tmp_path / "logp.vmfb")
    value, *gradient = density(**point, **data)
    np.testing.assert_allclose(value, model.compile_logp()(point), rtol=1e-10)
    np.testing.assert_allclose(
        np.concatenate([np.ravel(g) for g in gradient]), model.compile_dlogp()(point), rtol=1e-10
    )
    predict = export_predictive(model, path=tmp_path / "predict.vmfb")
    draw = {"key": np.array([1, 2], "uint32"), "theta": np.arange(3.0), **data}
    by_jax = export_predictive(model, path=tmp_path / "predict.jaxpr")
    np.testing.assert_allclose(predict(**draw), by_jax(**draw), rtol=1e-12)


@pytest.mark.parametrize("target", ["x86-64", "aarch64", "cuda", ("--iree-hal-target-backends=vmvx",)], ids=str)
def test_other_targets(target: Any, tmp_path: Path) -> None:
    """They compile; a program for another machine is not loaded."""
    x = pt.dvector("x")
    y = pt.sin(x) if isinstance(target, str) else x + 1  # vmvx has no library
    found = pjl.export([x], y, path=tmp_path / "f.vmfb", dims={"x": "3"}, target=target)
    assert found is None and (tmp_path / "f.vmfb").stat().st_size > 1000
    if target == "x86-64":
        np.testing.assert_allclose(load_iree(tmp_path / "f.vmfb")(X[:3, 0]), np.sin(X[:3, 0]))


def test_an_argument_that_is_called_self(tmp_path: Path) -> None:
    x = pt.dscalar("self")
    assert pjl.export([x], x + 1, tmp_path / "f.vmfb")(self=2) == 3


def test_jax_arrays_of_a_narrower_dtype(tmp_path: Path) -> None:
    x = pt.dvector("x")
    double = pjl.export([x], 2 * x, tmp_path / "f.vmfb", dims={"x": "3"})
    np.testing.assert_array_equal(double(jax.numpy.ones(3, "float32")), np.full(3, 2.0))


def test_a_header_without_a_target() -> None:
    header = {"name": "f", "arguments": [], "state": [], "outputs": [], "is_bare": False, "fixed": [], "checks": []}
    found = iree_header_of("f", json.dumps({**header, "versions": {}, "target": "host"}))
    assert (
        found.target == "host"
        and found.programs == {}
        and found.as_json().keys() == {*header, "versions", "target", "note"}
    )
    for change, message in (({"versions": {}}, "it has no target"), ({"target": "host"}, "has not the parts")):
        with pytest.raises(ArtifactError, match=f"Its description is wrong: .*{message}"):
            iree_header_of("f", json.dumps({**header, **change}))


def test_dtypes(tmp_path: Path) -> None:
    """Unsigned and boolean results, float32, scalars and empty arrays come back as they are."""
    u, b, s, e = pt.vector("u", dtype="uint32"), pt.vector("b", dtype="bool"), pt.fscalar("s"), pt.dmatrix("e")
    given = [np.array([1, 2**32 - 1], "uint32"), np.array([True, False]), np.array(0.5, "float32"), np.zeros((0, 3))]
    fn = pjl.export([u, b, s, e], [u + 1, ~b, pt.sin(s), e * 2], path=tmp_path / "f.vmfb", examples=given)
    want = pytensor.function([u, b, s, e], [u + 1, ~b, pt.sin(s), e * 2], mode="FAST_COMPILE")(*given)
    for got, expected in zip(fn(*given), want, strict=True):
        assert got.dtype == expected.dtype and got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_accuracy(tmp_path: Path) -> None:
    """Functions that lose all digits near 0, or at large numbers in float32, in IREE's form; powers of special values."""
    x, y = pt.dvector("x"), pt.dvector("y")
    small = np.array([1e-17, -3e-12, 1e-5, 0.0, -0.3])
    functions = [pt.log1p, pt.expm1, pt.sinh, pt.arcsinh, pt.arctanh]
    special = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, np.inf, -np.inf, np.nan])
    a, b = (m.ravel() for m in np.meshgrid(special, special))
    large = pt.fvector("large")
    outputs = [*[f(x) for f in functions], pt.pow(y, pt.as_tensor(b)), pt.sin(large), pt.tan(large)]
    values = [small, a, np.array([1e-18, 1e12, 3e30], "float32")]
    found = pjl.export([x, y, large], outputs, path=tmp_path / "f.vmfb", examples=values)(*values)
    for numpy, got in zip((np.log1p, np.expm1, np.sinh, np.arcsinh, np.arctanh), found, strict=False):
        np.testing.assert_allclose(got, numpy(small), rtol=2e-15)
    with np.errstate(all="ignore"):
        want = a**b
    np.testing.assert_allclose(found[5], want, rtol=1e-13)
    assert (np.signbit(found[5]) == np.signbit(want))[~np.isnan(want)].all()
    np.testing.assert_allclose(found[6], np.sin(values[2]), rtol=1e-6)
    np.testing.assert_allclose(found[7], np.tan(values[2]), rtol=1e-6)


def test_complex_numbers_beside_real_ones(tmp_path: Path) -> None:
    """A length by numbers divided by the largest: IREE alone computes 12 in place of 4."""
    h, t = (pt.tensor(name, dtype="complex128", shape=(n, 1)) for name, n in (("h", 1), ("t", 3)))
    size = [abs(x.real) + abs(x.imag) for x in (h, t)]
    scale = pt.maximum(size[0], size[1].max(axis=0, keepdims=True))
    parts = [x / scale.astype("complex128") for x in (h, t)]
    squares = [x.real * x.real + x.imag * x.imag for x in parts]
    length = scale * pt.sqrt(squares[0] + squares[1].sum(axis=0, keepdims=True))
    values = np.array([[1 + 1j]]), np.array([[1], [2j], [3]])
    function = pjl.export([h, t], length, path=tmp_path / "length.vmfb", examples=values)
    np.testing.assert_allclose(function(*values), 4.0)


def test_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty steps by a shell program: the loss falls, in an empty environment."""
    folder = Path(__file__).parents[3] / "examples" / "deploy"
    monkeypatch.setattr("sys.argv", ["export_regression.py", "--out", str(tmp_path)])
    runpy.run_path(str(folder / "export_regression.py"))
    command = [folder / "step_without_python.sh", tool_path("iree._runtime_libs", "iree-run-module"), tmp_path, "40"]
    subprocess.run(command, env={"PATH": os.defpath}, capture_output=True, check=True)
    np.testing.assert_allclose(np.load(tmp_path / "weights.npy"), [1.0, -2.0, 0.5], atol=0.02)
    assert np.load(tmp_path / "count.npy") == 40


def test_sampler_is_refused(tmp_path: Path) -> None:
    with pm.Model() as model:
        pm.Normal("x")
    with pytest.raises(NotImplementedError, match=r"IREE 3\.13 does not run this NUTS"):
        export_sampler(model, path=tmp_path / "nuts.vmfb")


# What bad input gets


def test_bad_options(tmp_path: Path) -> None:
    x = pt.dvector("x")
    path = tmp_path / "f.vmfb"
    with pytest.raises(TypeError, match=r"fixed lengths, and these are open: x: \(x_0\)"):
        pjl.export([x], x + 1, path=path)
    with pytest.raises(ValueError, match="target is one of 'host', 'x86-64', 'aarch64', 'cuda'"):
        pjl.export([x], x + 1, path=path, dims={"x": "3"}, target="sparc")
    with pytest.raises(TypeError, match="vjp_order is for files of JAX"):
        pjl.export([x], x + 1, path=path, dims={"x": "3"}, vjp_order=1)
    with pytest.raises(TypeError, match="target='cuda' is for files of IREE"):
        pjl.export([x], x + 1, path=tmp_path / "f.jaxpr", target="cuda")
    with pytest.raises(pjl.GraphBreakError, match="JX001"):
        pjl.export([x], host(x), path=path, dims={"x": "3"})
    assert not list(tmp_path.iterdir())


def host(x: Any) -> Any:
    """Return something that runs on the host."""
    return wrap_py([pt.dvector], [pt.dscalar])(lambda v: np.asarray(v.sum()))(x)
