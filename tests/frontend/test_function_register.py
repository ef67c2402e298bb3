"""What the package registers with PyTensor."""

from __future__ import annotations

import copy
import pickle

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import optdb, predefined_linkers, predefined_modes
from pytensor.compile.sharedvalue import shared_constructor
from pytensor.graph.rewriting.db import RewriteDatabase
from pytensor.link.basic import Container
from pytensor.tensor.sharedvar import tensor_constructor

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.frontend.as_jax_function import JaxprLinkerForJax
from pytensor_jaxpr_linker.frontend.function import OLD_MODULES, OPTDB_REWRITES, register
from pytensor_jaxpr_linker.frontend.shared_arrays import TENSOR_VALUES, register_constructors


def registered():
    rewrites = [optdb[name] for _, name, *_ in OPTDB_REWRITES]
    constructors = [shared_constructor.dispatch(kind) for kind in (*TENSOR_VALUES, jax.Array)]
    return predefined_linkers["jaxpr"], predefined_modes["JAXPR"], rewrites, constructors


def test_the_import_has_registered():
    assert predefined_modes["JAXPR"] is pjl.JAXPR
    assert all(name in optdb for _, name, *_ in OPTDB_REWRITES)


def test_a_second_call_changes_nothing():
    before = registered()
    register(pjl.JaxprMode(pjl.JaxprLinker(), None))
    assert registered() == before


def test_the_linker_asks_for_all_rewrites():
    required = set(pjl.JaxprLinker.required_rewrites)
    tagged = {rewrite.name for tag in required for rewrite in optdb.__db__.get(tag, ())}
    assert {name for _, name, *_ in OPTDB_REWRITES} <= required | tagged


@pytest.mark.parametrize("name", pjl.JaxprLinker.incompatible_rewrites)
def test_what_the_linker_leaves_out_has_that_name(name):
    """A rewrite that PyTensor renames would run again, unnoticed."""
    assert has(optdb, name)


def has(db, name):
    """Return whether a database, or a database in it, has a name or tag."""
    subs = [r for found in db.__db__.values() for r in found if isinstance(r, RewriteDatabase)]
    return name in db or any(has(sub, name) for sub in subs)


def pytensors_own(value, **options):
    """Return the shared variable that PyTensor makes without the package."""
    return tensor_constructor(value, **options)


def with_a_new_value(variable):
    variable.set_value(np.ones(2))
    return variable


@pytest.mark.parametrize("change", [lambda w: w, with_a_new_value, copy.deepcopy], ids=["new", "set", "copied"])
def test_shared_variables_are_pytensors(change):
    """Who uses no mesh finds the types, values and pickles of PyTensor."""
    ours, own = (change(make(np.zeros(3), name="w")) for make in (pytensor.shared, pytensors_own))
    assert (type(ours), ours.type, type(ours.container.type)) == (type(own), own.type, type(own.container.type))
    assert type(ours.container.value) is type(ours.container.data) is np.ndarray
    np.testing.assert_array_equal(ours.get_value(), own.get_value())
    assert b"pytensor_jaxpr_linker" not in pickle.dumps(ours)
    loaded = pickle.loads(pickle.dumps(ours)).container
    assert type(loaded) is Container
    np.testing.assert_array_equal(loaded.value, own.get_value())
    assert vars(loaded).keys() == vars(own.container).keys()


def test_values_that_pytensor_refuses():
    for w in (pytensor.shared(np.zeros(3), name="w"), pytensors_own(np.zeros(3), name="w")):
        with pytest.raises(TypeError, match='Container name "w"'):
            w.set_value(np.zeros((2, 2)))
        w.set_value(jax.numpy.ones(2))
        assert type(w.container.storage[0]) is np.ndarray


def test_a_constructor_of_somebody_else_stays():
    before = shared_constructor.dispatch(np.ndarray)
    try:
        shared_constructor.register(np.ndarray, pytensors_own)
        register_constructors()
        assert shared_constructor.dispatch(np.ndarray) is pytensors_own
    finally:
        shared_constructor.register(np.ndarray, before)


def test_pickles_that_name_modules_of_an_older_version():
    """A pickle finds each class by the module that had it."""
    w = pjl.shard(pytensor.shared(np.arange(2.0), name="w"), jax.make_mesh((1,), ("data",)), "data")
    x = pt.vector("x", dtype="float64")
    f = pytensor.function([x], pt.exp(x * w), mode=pjl.JaxprMode(JaxprLinkerForJax()))
    now = pickle.dumps([w, f], protocol=2)
    for old, new in OLD_MODULES.items():
        assert f"{new}\n".encode() in now
        now = now.replace(f"{new}\n".encode(), f"{old}\n".encode())
    loaded, f = pickle.loads(now)
    np.testing.assert_array_equal(loaded.get_value(), [0.0, 1.0])
    np.testing.assert_array_equal(f([1.0, 0.0]), [1.0, 1.0])
    assert type(loaded.container) is type(w.container)
