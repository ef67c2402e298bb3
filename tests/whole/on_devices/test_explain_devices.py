"""What `explain` tells of arrays on a mesh, and of the collectives between its devices."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import Doubled
from mesh_models import hierarchical

import pytensor_jaxpr_linker as pjl

MESH = jax.make_mesh((8,), ("data",))


def test_a_function_of_a_shared_variable():
    w, x = pjl.shard(pytensor.shared(np.ones((16, 4)), name="w"), MESH, ["data"]), pt.dvector("x")
    f = pytensor.function([x], (w @ x).sum(), updates={w: w + x}, mode="JAXPR")
    told = pjl.explain(f, args=[np.ones(4)])
    assert [(p.name, p.bytes, p.bytes_per_device) for p in told.placed] == [("'x'", 32, 32), ("'w'", 512, 64)]
    assert [(c.operation, c.arrays, c.bytes) for c in told.collectives] == [("all-reduce", 1, 8)]
    text = str(told)
    assert "'w': divided, axis 0 along 'data', 512 bytes, 64 on a device" in text
    assert "all-reduce in region 0: 1 array, 8 bytes" in text
    assert told.as_dict()["placed"][1]["layout"] == "divided, axis 0 along 'data'"


def test_without_examples_the_collectives_are_not_known():
    w, x = pjl.shard(pytensor.shared(np.ones((16, 4)), name="w"), MESH, ["data"]), pt.dvector("x")
    told = pjl.explain(pytensor.function([x], (w @ x).sum(), mode="JAXPR"))
    assert [p.name for p in told.placed] == ["'w'"]
    assert "no collective is known" in str(told)


def two_regions():
    w = pjl.shard(pytensor.shared(np.arange(64.0).reshape(16, 4), name="w"), MESH, ["data"])
    x, c = pt.dvector("x"), pt.constant(np.ones((4, 5000)))
    y = pt.exp(w @ x)
    with pjl.options(on_break="ignore"):
        return pytensor.function([x], (y * Doubled()(y.sum()) + (w @ c).sum()).sum(), mode="JAXPR")


def collectives_of_a_call(f, *args):
    """From XLA's own text of the programs that a call compiles."""
    regions = f.vm.runner.executor.examples([*args, *(c.storage[0] for c in f.input_storage[len(args) :])])
    found = []
    for (specialization, values), program in zip(regions, f.vm.runner.programs, strict=True):
        with jax.enable_x64(True):
            compiled = specialization.call.lower(*values, *program.constants_beside(values, None)).compile()
        found.append(len(re.findall(r" = \S+ all-reduce\(| = \(.*?\) all-reduce\(", compiled.as_text())))
    return found


@pytest.mark.parametrize("how", ["after a call", "of examples"])
def test_collectives_of_several_regions(how):
    """The second region takes what the first left divided; the stages of a function are of the mesh, too."""
    f, x = two_regions(), np.zeros(4)
    if how == "after a call":
        f(x)
    told = pjl.explain(f) if how == "after a call" else pjl.explain(f, args=[x])
    assert "'w': divided, axis 0 along 'data', 512 bytes, 64 on a device" in str(told)
    wanted = collectives_of_a_call(f, x)
    titles = [batch.title for batch in told.regions]
    assert len(titles) == 2 and all(wanted)
    assert [[c.region for c in told.collectives].count(title) for title in titles] == wanted
    assert all(c.operation == "all-reduce" and c.bytes % 8 == 0 for c in told.collectives)
    stages = pjl.stages(f) if how == "after a call" else pjl.stages(f, x)
    assert all("all-reduce" in hlo for hlo in stages.hlo)


def test_regions_of_unknown_shapes():
    told = pjl.explain(two_regions())
    assert [p.name for p in told.placed] == ["'w'"] and "no collective is known" in str(told)


def test_without_a_mesh_nothing_is_told():
    x = pt.dvector("x")
    told = pjl.explain(pytensor.function([x], x.sum(), mode="JAXPR"), args=[np.ones(3)])
    assert (told.placed, told.collectives) == ((), ())
    assert "On the devices" not in str(told)


@pytest.mark.parametrize("n", [400, 403])
def test_a_log_density(n):
    told = pjl.explain(pjl.pymc.shard(hierarchical(n), MESH, {"obs": "data"}))
    data = [p for p in told.placed if p.layout.startswith("divided")]
    assert len(data) == 3 and all(p.bytes == 8 * p.bytes_per_device for p in data)
    assert [c.operation for c in told.collectives] == ["all-reduce"]
