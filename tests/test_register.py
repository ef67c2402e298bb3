"""What the package registers with PyTensor."""

from __future__ import annotations

from pytensor.compile.mode import optdb, predefined_linkers, predefined_modes

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
    assert {name for _, name, _ in OPTDB_REWRITES} <= set(pjl.JaxprLinker.required_rewrites)
