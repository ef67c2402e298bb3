"""Kept models in runs of samplers."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.logprob.abstract import _logprob

import pytensor_jaxpr_linker as pjl
import pytensor_jaxpr_linker.pymc as jaxpr_pymc
from pytensor_jaxpr_linker.base.rules import RULES
from pytensor_jaxpr_linker.graph.rewritten.live import LiveDescriptions
from pytensor_jaxpr_linker.pymc import logdensity, sample
from pytensor_jaxpr_linker.pymc.kept_models import KEPT_MODELS
from pytensor_jaxpr_linker.pymc.samplers.jax_kernels import named_values, run_hashes
from tests.pymc.test_kept_models import Table, densities_of_the_user, parts_of_the_user

SHORT = {"draws": 200, "tune": 200, "chains": 1, "random_seed": 1, "quiet": True, "compute_convergence_checks": False}


def shifted():
    """Return a model whose posterior of `slope` is about -shift, and the array of shifts."""
    shift = np.linspace(-1.0, 1.0, 50)
    with pm.Model(coords={"row": range(50)}) as model:
        slope = pm.Normal("slope", 0, 100)
        pm.Normal("y", pm.Deterministic("mean", slope + pt.constant(shift), dims="row"), 1, observed=np.zeros(50))
    return model, shift


def test_sample_sees_arrays_and_coordinates():
    model, shift = shifted()
    compiled = jaxpr_pymc.compile(model)
    with jax.enable_x64(True):
        before = compiled.logdensity({"slope": 0.0})
    first = sample(model=model, **SHORT).posterior
    shift += 50.0
    model.set_dim("row", 50, coord_values=range(100, 150))
    second = sample(model=model, **SHORT).posterior
    np.testing.assert_allclose([first["slope"].mean(), second["slope"].mean()], [0.0, -50.0], atol=0.1)
    np.testing.assert_array_equal(second["row"], range(100, 150))
    np.testing.assert_allclose(second["mean"].mean(), 0.0, atol=0.1)
    with jax.enable_x64(True):
        change = compiled.logdensity({"slope": 0.0}) - before
    np.testing.assert_allclose(change, -(shift @ shift - (shift - 50.0) @ (shift - 50.0)) / 2, rtol=1e-9)


def test_surroundings_are_part_of_the_key(monkeypatch):
    """Rules, options and settings, of PyTensor and of JAX."""
    kept = KEPT_MODELS.find(parts_of_the_user(), "pytensor")

    def is_kept():
        return kept.is_of(kept.model, "pytensor")

    contexts = [
        jax.default_matmul_precision("bfloat16"),
        jax.numpy_dtype_promotion("strict"),
        jax.debug_nans(True),
        pjl.options(allow_traced_leaves=False),
        pytensor.config.change_flags(floatX="float32"),
        pytensor.config.change_flags(optdb__max_use_ratio=7),
    ]
    for context in contexts:
        with context:
            assert not is_kept(), context
        assert is_kept()
    with monkeypatch.context() as patch:
        patch.setitem(RULES, Table, replace(RULES[Table], emit=lambda op, node, b, x: x))
        assert not is_kept()
    assert is_kept()
    with jax.enable_x64(True):  # samplers set it themselves
        assert is_kept()


def test_a_density_that_is_registered_anew(monkeypatch):
    """A cell of a notebook that runs again replaces the function of a class of Op."""
    model = densities_of_the_user()
    kept = KEPT_MODELS.find(model, "pytensor")
    rv = type(model["y"].owner.op)
    before = _logprob.dispatch(rv)
    _logprob.register(rv, lambda op, values, *args, **kwargs: -(values[0] ** 2))
    try:
        assert not kept.is_of(model, "pytensor")
    finally:
        _logprob.register(rv, before)
    assert kept.is_of(model, "pytensor")


def test_a_run_in_a_folder_is_of_the_same_arrays():
    """Also of arrays that are too long for a `repr`, or for the text of a program."""
    shift, start = np.linspace(-1.0, 1.0, 20_000), np.zeros(1200)
    program = "without large constants"

    def hashes():
        with pm.Model() as model:
            pm.Normal("y", pm.Normal("slope") + pt.constant(shift), 1, observed=np.zeros(20_000))
        return run_hashes(program, logdensity(model), {"draws": 1}, [[1], named_values({"slope": start})], pm)

    first = hashes()
    assert hashes() == first
    for array, what in ((start, "other arguments"), (shift, "programs")):
        array[600] += 0.5
        assert {name for name, found in hashes().items() if found != first[name]} == {what}
        array[600] -= 0.5


def test_what_can_refer_to_itself_has_a_text():
    """And different things have different ones."""

    def text(value):
        return LiveDescriptions().digest(value)

    loop = [1.0]
    loop.append(loop)
    assert text(loop) == text(loop)
    values = [0.0, -0.0, 0, False, None, "0", b"0", np.float32(0), np.array(0.0), np.array(-0.0), np.array([0.0])]
    values += [np.array(0, ">i4"), np.array(0, "<i4"), np.zeros(2000), np.eye(1, 2000, 1000)[0], np.array(["0"])]
    values += [np.array([b"0"], object), {"a": 1, "b": 2}, {"b": 2, "a": 1}, [1, 2], (1, 2), {1, 2}, slice(1, 2), loop]
    quiet, loud = np.array([0x7FF8000000000000, 0x7FF8000000000001], "u8").view("f8")
    values += [quiet, loud, np.ma.array([1.0], mask=True), np.ma.array([1.0], mask=False), np.array([1.0])]
    texts = [text(value) for value in values]
    assert len(set(texts)) == len(texts)
    assert texts == [text(value) for value in values]
