"""Chains and data on one mesh: the draws of one device, and of a run that was interrupted."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from mesh_models import hierarchical, regression

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.pymc import sample, sample_on_mesh
from pytensor_jaxpr_linker.pymc.chains.kept_draws import Draws, FolderStore, KeptDraws

pytest.importorskip("blackjax")

DEVICES = jax.devices()
QUIET = {"progressbar": False, "compute_convergence_checks": False}
FEW = {"draws": 6, "tune": 5, "chains": 4, "random_seed": 3, "max_treedepth": 4, **QUIET}


ONE = jax.make_mesh((1,), ("chains",), devices=DEVICES[:1])


def mesh_of(chains, data):
    return jax.make_mesh((chains, data), ("chains", "data"), devices=DEVICES[: chains * data])


@pytest.fixture(scope="module", autouse=True)
def compiled_programs(tmp_path_factory):
    """Equal programs are compiled once."""
    pjl.cache(tmp_path_factory.mktemp("programs"))


@pytest.mark.parametrize(("sampler", "sizes"), [("blackjax", (2, 2)), ("numpyro", (1, 2))])
def test_draws_are_those_of_one_device(sampler, sizes):
    """For some draws: a rounding error grows by a factor with each draw."""
    pytest.importorskip(sampler)
    model = regression(203)
    found = sample(model=model, mesh=mesh_of(*sizes), shard={"obs": "data"}, sampler=sampler, **FEW)
    want = sample(model=model, sampler=sampler, chain_method="vectorized", **FEW)
    for name in ("slope", "intercept"):
        assert found.posterior[name].dims == want.posterior[name].dims
        np.testing.assert_allclose(found.posterior[name], want.posterior[name], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found.sample_stats["n_steps"], want.sample_stats["n_steps"])


def test_quiet(capfd, caplog):
    loud = {name: value for name, value in FEW.items() if name not in QUIET}
    sample(model=regression(16), mesh=ONE, quiet=True, **loud)
    assert capfd.readouterr() == ("", "")
    assert not caplog.text


def test_chains_alone_and_data_alone():
    """More devices than chains, too: the last ones run chains of the first once more, and nobody reads them."""
    model, run = hierarchical(40, groups=3), {**FEW, "chains": 3}
    one = sample_on_mesh(model=model, mesh=ONE, **run)
    chains = sample_on_mesh(model=model, mesh=jax.make_mesh((4,), ("chains",), devices=DEVICES[:4]), **run)
    data = sample_on_mesh(model=model, mesh=jax.make_mesh((8,), ("data",)), shard={"obs": "data"}, **run)
    assert chains.posterior.attrs["mesh"] == "{'chains': 4}"
    for found in (chains, data):
        assert dict(found.posterior.sizes) == dict(one.posterior.sizes)
        np.testing.assert_allclose(found.posterior["effect"], one.posterior["effect"], rtol=1e-9, atol=1e-9)


def test_mclmc():
    """Chains and data divided; the draws are those of one device."""
    with pm.Model(coords={"obs": range(11)}) as model:
        effect = pm.Normal("effect", size=2)
        pm.Normal("y", effect.sum(), 1, observed=np.linspace(-1, 2, 11), dims="obs")
    run = {**FEW, "sampler": "mclmc", "chains": 2, "draws": 5, "tune": 4}
    del run["max_treedepth"]
    found = sample(model=model, mesh=mesh_of(2, 2), shard={"obs": "data"}, **run)
    want = sample_on_mesh(model=model, mesh=ONE, **run)
    assert dict(found.posterior.sizes) == dict(want.posterior.sizes)
    np.testing.assert_allclose(found.posterior["effect"], want.posterior["effect"], rtol=1e-6, atol=1e-6)


class Killed(Exception):
    pass


def killed_after(transitions):
    def call(done, total):
        if done >= transitions:
            raise Killed

    return call


def test_a_run_goes_on_where_it_was(tmp_path):
    """Killed in the warm-up, then among the draws, with a block that is not full; the draws are those of a run without a kill."""
    model, run = (
        hierarchical(40, groups=3),
        {"draws": 130, "tune": 30, "chains": 2, "max_treedepth": 3, "random_seed": 5, **QUIET},
    )
    mesh = jax.make_mesh((2,), ("chains",), devices=DEVICES[:2])
    for transitions in (24, 149):
        with pytest.raises(Killed):
            sample_on_mesh(model=model, mesh=mesh, store=tmp_path, on_progress=killed_after(transitions), **run)
    reported = []
    found = sample_on_mesh(
        model=model, mesh=mesh, store=tmp_path, on_progress=lambda done, total: reported.append(done), **run
    )
    assert reported == [160]
    want = sample_on_mesh(model=model, mesh=mesh, **run)
    for name in ("mean", "effect", "noise"):
        assert found.posterior[name].dims == want.posterior[name].dims
        np.testing.assert_array_equal(found.posterior[name].values, want.posterior[name].values)
    np.testing.assert_array_equal(found.sample_stats["lp"].values, want.sample_stats["lp"].values)
    assert list(found.posterior["group"].values) == [0, 1, 2] and list(found.posterior["draw"].values) == list(
        range(130)
    )
    assert set(found.children) == set(want.children)
    opened = xr.open_datatree(tmp_path / "draws.zarr", engine="zarr", consolidated=False)
    np.testing.assert_array_equal(opened.posterior["mean"], want.posterior["mean"])
    finished = sample_on_mesh(model=model, mesh=mesh, store=tmp_path, **{**run, "random_seed": None})
    np.testing.assert_array_equal(finished.posterior["mean"], want.posterior["mean"])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"draws": 31}, "draws"),
        ({"mesh": jax.make_mesh((2,), ("chains",), devices=DEVICES[:2])}, "mesh"),
        ({"jitter": False}, "arguments"),
        ({"random_seed": 6}, "seeds"),
        ({"max_treedepth": 4}, "programs"),
        ({}, "data"),
    ],
    ids=["draws", "mesh", "arguments", "seeds", "programs", "data"],
)
def test_a_store_of_another_run(tmp_path, change, what):
    model = hierarchical(40, groups=3)
    run = {"draws": 30, "tune": 0, "chains": 1, "max_treedepth": 3, "random_seed": 5, "mesh": ONE, **QUIET}
    with pytest.raises(Killed):
        sample_on_mesh(model=model, store=tmp_path, on_progress=killed_after(25), **run)
    if what == "data":
        pm.set_data({"x": np.ones(40)}, model=model)
    with pytest.raises(
        ValueError, match=f"has a run with other {what}: finish that with the same, or give another folder"
    ):
        sample_on_mesh(model=model, store=tmp_path, **{**run, **change})


def interrupt(done, total):
    if done > 10:
        raise KeyboardInterrupt


@pytest.mark.parametrize("to_folder", [True, False], ids=["folder", "memory"])
def test_interrupted(to_folder, tmp_path, caplog):
    """Draws in memory are the result. A folder goes on, and the error says so."""
    run = {"draws": 40, "tune": 0, "chains": 1, "max_treedepth": 3, "random_seed": 5, "mesh": ONE, **QUIET}
    call = partial(sample_on_mesh, model=hierarchical(40, groups=3), on_progress=interrupt, **run)
    if to_folder:
        with pytest.raises(KeyboardInterrupt) as caught:
            call(store=tmp_path)
        assert caught.value.__notes__ == [
            f"The folder {tmp_path} keeps 24 of 40 transitions of each chain: the same call goes on after them."
        ]
    else:
        assert call().posterior.sizes["draw"] == 24
        assert "Interrupted: 24 of 40 draws of 1 chain are kept." in caplog.text


def test_a_damaged_store(tmp_path):
    (tmp_path / "checkpoint.npz").write_bytes(b"no archive")
    (tmp_path / "file").touch()
    run = {"model": hierarchical(40, groups=3), "mesh": ONE, **FEW}
    with pytest.raises(ValueError, match=r"checkpoint\.npz is damaged: delete the folder, or give another one"):
        sample_on_mesh(store=tmp_path, **run)
    with pytest.raises(NotADirectoryError, match="file' is a file: give a folder, which is made if it is missing"):
        sample_on_mesh(store=tmp_path / "file", **run)


@pytest.mark.parametrize("thinning", [1, 2, 7])
def test_blocks_and_checkpoints(tmp_path, thinning):
    """Whatever the lengths of chunks, each draw is written once, in its place, with the warnings of those that are left out."""

    def tree(draws):
        data = xr.Dataset({"x": (("chain", "draw"), draws.positions["x"])}, coords={"draw": np.arange(length(draws))})
        stats = xr.Dataset({name: (("chain", "draw"), x) for name, x in draws.stats.items()})
        return xr.DataTree.from_dict(
            {"posterior": data, "sample_stats": stats, "constant_data": xr.Dataset({"c": ("k", ["a", "b"])})}
        )

    def length(draws):
        return draws.positions["x"].shape[1]

    values, done, in_memory = np.arange(2 * 333.0).reshape(2, 333), 0, KeptDraws(333, thinning)
    for part in (1, 98, 2, 150, 82):
        store = FolderStore(tmp_path, 333, thinning, tree)
        assert (store.before is None) is (done == 0)
        store.go_on({"of": "a test"})
        x = values[:, done : done + part]
        chunk = {"x": x}, {"lp": -x, "diverging": x % 100 == 99}
        for kept in (store, in_memory):
            kept.add(chunk, 0, part)
        done += part
        store.save(done, [np.array(done)])
        checkpoint = FolderStore(tmp_path, 333, thinning, tree).before
        assert (checkpoint.done, int(checkpoint.state[0]), checkpoint.about) == (done, done, {"of": "a test"})
    found, want = store.result({"took": 1.0}), in_memory.result()
    assert isinstance(want, Draws) and length(want) == 333 // thinning
    np.testing.assert_array_equal(found.posterior["x"], want.positions["x"])
    np.testing.assert_array_equal(found.posterior["x"], values[:, thinning - 1 :: thinning])
    for name in ("lp", "diverging"):
        np.testing.assert_array_equal(found.sample_stats[name], want.stats[name])
    assert list(found["constant_data"]["c"].values) == ["a", "b"] and found.posterior.attrs["took"] == 1.0


def test_a_store_takes_what_sample_takes(tmp_path):
    """Thinning, a callback, the log likelihood and PyMC's name of the sampler; killed, the run goes on. The draws are those of a run in memory."""
    model, seen = hierarchical(40, groups=3), []
    run = {"draws": 61, "tune": 10, "chains": 2, "max_treedepth": 3, "random_seed": 5, "mesh": ONE, **QUIET}
    run |= {"thinning": 2, "log_likelihood": True, "nuts_sampler": "blackjax"}

    def note(trace, draw):
        seen.append((draw.chain, draw.draw_idx))
        assert trace.get_values("mean").shape == (len(trace),)
        if len(seen) == 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        sample(model=model, store=tmp_path, callback=note, **run)
    assert "keeps 24 of 71 transitions of each chain" in caught.value.__notes__[0]
    found, want = sample(model=model, store=tmp_path, callback=note, **run), sample(model=model, **run)
    assert seen[-1] == (1, 70) and seen[60] == (0, 24) and found.posterior.sizes["draw"] == 30
    for group in ("posterior", "sample_stats", "log_likelihood"):
        for name, x in want[group].data_vars.items():
            np.testing.assert_array_equal(found[group][name], x, err_msg=name)
    assert found.posterior.attrs["thinning"] == 2 and found.posterior.attrs["interrupted"] == 0
    with pytest.raises(ValueError, match="has a run with other arguments"):
        sample(model=model, store=tmp_path, **{**run, "thinning": 3})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"sampler": "nutpie", "store": "folder"},
            ValueError,
            "sampler='nutpie' knows of no mesh: use one of 'nuts', 'numpyro', 'mclmc'.",
        ),
        (
            {"sampler": "chees", "mesh": ONE},
            ValueError,
            "sampler='chees' knows of no mesh: use one of 'nuts', 'numpyro', 'mclmc'.",
        ),
        (
            {"sampler": "blackjx", "mesh": ONE},
            ValueError,
            "There is no sampler 'blackjx': use one of 'nuts', 'numpyro', 'mclmc'. Did you mean 'blackjax'?",
        ),
        ({"mesh": 8}, TypeError, "mesh must be a jax.sharding.Mesh, not 8: make one by jax.make_mesh"),
        ({"mesh": ONE, "shard": "obs"}, TypeError, "shard says along which axis .* give a dict such as .*, not 'obs'"),
        (
            {"mesh": mesh_of(2, 4), "shard": {"obs": ("chains", "data")}},
            ValueError,
            "A dim is divided along one axis of the mesh, and shard has \\('chains', 'data'\\) for 'obs'",
        ),
        (
            {"shard": {"obs": "data"}},
            ValueError,
            "there is none: give one, such as mesh=jax.make_mesh\\(\\(1, 8\\), \\('chains', 'data'\\)\\)",
        ),
        (
            {"mesh": mesh_of(2, 4)},
            ValueError,
            "The mesh has the axis 'data', and nothing is divided along it: give shard",
        ),
        (
            {"shard": {"obs": "chains"}},
            ValueError,
            "Chains are divided along the mesh's axis 'chains', so data can't be",
        ),
        (
            {"mesh": mesh_of(2, 4), "shard": {"obs": "rows"}},
            ValueError,
            "The mesh has no axis 'rows' for the dim 'obs'",
        ),
        ({"store": "folder", "cores": 2}, TypeError, "cores is not for runs with mesh, shard or store: leave it out."),
        (
            {"store": "folder", "mas_matrix": "dense"},
            TypeError,
            "takes no argument 'mas_matrix'. Did you mean 'mass_matrix'?",
        ),
        (
            {"store": "folder", "discard_tuned_samples": False},
            TypeError,
            "A store keeps no draws of the warm-up: leave out discard_tuned_samples",
        ),
        ({"store": "folder", "draws": 0}, ValueError, "draws must be an integer and at least 1, not 0"),
    ],
    ids=[
        "sampler",
        "chees",
        "typo",
        "number",
        "name",
        "two",
        "none",
        "axis",
        "chains",
        "shard",
        "cores",
        "option",
        "warm-up",
        "draws",
    ],
)
def test_what_can_not_be(arguments, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        sample(model=hierarchical(40, groups=3), **{"mesh": None, **QUIET, **arguments})
    assert not list(tmp_path.iterdir())
