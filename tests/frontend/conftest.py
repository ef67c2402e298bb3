"""What tests of the frontend share."""

from __future__ import annotations

import time

import pytest

from pytensor_jaxpr_linker.graph.rewritten import environment
from pytensor_jaxpr_linker.graph.rewritten.store import STORE


@pytest.fixture
def empty_store(monkeypatch):
    """Each test begins with an empty store, without a folder, and with sources that nobody edits meanwhile."""
    monkeypatch.setattr(environment, "IMPORTED", time.time_ns())
    STORE.clear()
    STORE.use(None)
    yield
    STORE.clear()
    STORE.use(None)
