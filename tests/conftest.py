"""Settings of all tests, and the fixtures that several files share."""

from __future__ import annotations

import os

# Programs of an earlier run would hide what makes them. Processes that tests start keep none, either.
os.environ["PYTENSOR_JAXPR_CACHE"] = "off"

import jax
import nightly
import pytest
from hypothesis import settings
from jax.experimental.compilation_cache import compilation_cache

# A deadline would fail on a busy machine, not for a fault.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

#: A program that `whole/test_processes.py` starts: importing it runs it.
collect_ignore = ["whole/processes/member.py"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the tests that `nightly.txt` lists, and the ones that no list has, before pytest selects by marks."""
    listed, slow, shared = nightly.listed(), nightly.listed(nightly.SLOW), nightly.functions_that_share()
    for item in items:
        if item.nodeid in listed:
            item.add_marker(pytest.mark.nightly)
        elif item.nodeid not in slow and item.nodeid.partition("[")[0] not in shared:
            item.add_marker(pytest.mark.quick)


@pytest.fixture(scope="module")
def jax_settings():
    """Undo what PyTensor and PyMC set for the process when their JAX modules are imported: 64 bits, and devices for later clients."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
        wide, _ = jax.config.jax_enable_x64, jax.devices()
        import pymc.sampling.jax  # noqa: F401

        jax.config.update("jax_enable_x64", True)  # as where they are imported first
        yield
        jax.config.update("jax_enable_x64", wide)


@pytest.fixture
def x64():
    """Run a test with 64 bits in JAX, as the package runs programs."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def no_other_jax(monkeypatch):
    """Fail where PyTensor's own JAX backend converts a graph."""

    def convert(*args, **kwargs):
        raise AssertionError("PyTensor's own JAX backend runs")

    monkeypatch.setattr("pytensor.link.jax.dispatch.basic.fgraph_to_python", convert)


@pytest.fixture(autouse=True)
def settings_of_the_process():
    """Restore JAX's precision, which PyTensor's JAX backend sets when a test is the first to import it, and the folder of `cache`."""
    wide, folder = jax.config.jax_enable_x64, jax.config.jax_compilation_cache_dir
    yield
    if jax.config.jax_enable_x64 != wide:
        jax.config.update("jax_enable_x64", wide)
    if jax.config.jax_compilation_cache_dir != folder:
        compilation_cache.reset_cache()
        jax.config.update("jax_compilation_cache_dir", folder)
