"""What the package registers with PyTensor."""

from __future__ import annotations

import pytest
from pytensor.compile.mode import optdb, predefined_linkers, predefined_modes
from pytensor.graph.rewriting.db import RewriteDatabase

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.frontend.register import OPTDB_REWRITES, register


def registered():
    rewrites = [optdb[name] for _, name, _ in OPTDB_REWRITES]
    return predefined_linkers["jaxpr"], predefined_modes["JAXPR"], rewrites


def test_the_import_has_registered():
    assert predefined_modes["JAXPR"] is pjl.JAXPR
    assert all(name in optdb for _, name, _ in OPTDB_REWRITES)


def test_a_second_call_changes_nothing():
    before = registered()
    register(pjl.JaxprMode(pjl.JaxprLinker(), None))
    assert registered() == before


def test_the_linker_asks_for_all_rewrites():
    required = set(pjl.JaxprLinker.required_rewrites)
    tagged = {rewrite.name for tag in required for rewrite in optdb.__db__.get(tag, ())}
    assert {name for _, name, _ in OPTDB_REWRITES} <= required | tagged


@pytest.mark.parametrize("name", pjl.JaxprLinker.incompatible_rewrites)
def test_what_the_linker_leaves_out_has_that_name(name):
    """A rewrite that PyTensor renames would run again, unnoticed."""
    assert has(optdb, name)


def has(db, name):
    """Tell whether a name or tag is one of a database's, or of those in it."""
    subs = [r for found in db.__db__.values() for r in found if isinstance(r, RewriteDatabase)]
    return name in db or any(has(sub, name) for sub in subs)
