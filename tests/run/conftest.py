"""A folder of kept programs."""

from __future__ import annotations

import time

import pytensor.sparse  # noqa: F401 # PyTensor imports it while it rewrites, and with it more rewrites
import pytest

from pytensor_jaxpr_linker.base import rules
from pytensor_jaxpr_linker.graph.rewritten import environment
from pytensor_jaxpr_linker.graph.rewritten.store import STORE


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of kept programs, in a process where nobody edits sources or has registered rules."""
    monkeypatch.setattr(environment, "IMPORTED", time.time_ns())
    for table in (rules.RULES, rules.SCALAR_RULES):
        monkeypatch.setattr(table, "foreign", set())
    monkeypatch.setattr(environment, "registered", lambda in_folder: "the same")
    STORE.clear()
    STORE.use(tmp_path)
    yield tmp_path
    STORE.clear()
    STORE.use(None)
