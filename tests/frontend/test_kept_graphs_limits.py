"""Graphs that are not taken from the store of rewritten graphs, and the folder that processes share."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import run_python
from pytensor.assumptions import core
from pytensor.graph import Apply, Op
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.tensor.rewriting.basic import register_canonicalize

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.frontend.kept_graphs import KEEP_OR_EXPAND, REWRITE_CACHE
from pytensor_jaxpr_linker.graph.rewritten.store import STORE
from tests.frontend.test_kept_graphs import (
    GRAPHS,
    VECTOR,
    compiled,
    graph_of,
    is_found,
    vectors,
)

pytestmark = pytest.mark.usefixtures("empty_store")


def never(fgraph, node):
    """Rewrite nothing."""


def test_a_rewrite_of_the_users_ends_it():
    """Its name does not say what it does."""
    assert is_found(graph_of)
    db = pytensor.compile.mode.optdb["canonicalize"]
    register_canonicalize(node_rewriter([pt.exp])(never), name="users_own")
    try:
        assert not is_found(graph_of)
    finally:
        (rewrite,) = db.__db__.pop("users_own")
        db._names.remove("users_own")
        for found in db.__db__.values():
            found.discard(rewrite)
    assert is_found(graph_of)


def test_an_inference_of_the_users_ends_it(monkeypatch):
    assert is_found(graph_of)
    monkeypatch.setitem(core.CONSTANT_INFER_REGISTRY, core.AssumptionKey, never)
    assert not is_found(graph_of)


def test_a_mode_without_the_last_rewrite():
    f, was_found = compiled(graph_of, mode=pjl.JAXPR.excluding(KEEP_OR_EXPAND))
    f, was_found = compiled(graph_of, mode=pjl.JAXPR.excluding(KEEP_OR_EXPAND))
    assert not was_found
    np.testing.assert_allclose(f(VECTOR), np.exp(VECTOR).sum() * 2)


def test_a_rewrite_of_a_mode_is_applied():
    @node_rewriter([pt.exp])
    def sin_instead(fgraph, node):
        return [pt.sin(node.inputs[0])]

    compiled(graph_of)
    mode = pjl.JAXPR.register((dfs_rewriter(sin_instead), 60))
    for _ in range(2):
        f, was_found = compiled(graph_of, mode=mode)
        assert not was_found
        np.testing.assert_allclose(f(VECTOR), np.sin(VECTOR).sum() * 2)


class Plus(Op):
    """An Op of the user's with a hidden state."""

    __props__ = ()

    def __init__(self, number):
        self.number = number

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] + self.number


@pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.GraphBreakWarning")
def test_ops_of_the_users_are_not_kept():
    def make(number):
        return lambda: ([x := pt.dvector("x")], [Plus(number)(x) * 2])

    for number in (1.0, 2.0):
        f, was_found = compiled(make(number))
        assert not was_found
        np.testing.assert_array_equal(f(VECTOR), [(VECTOR + number) * 2])


def test_it_can_be_left_out():
    mode = pjl.JAXPR.excluding(REWRITE_CACHE)
    looked = STORE.hits + STORE.misses
    assert not is_found(graph_of, mode=mode)
    assert STORE.hits + STORE.misses == looked


def test_inputs_and_constants_stay_as_they_are():
    """PyTensor's rewrites write names, tags and lines into the user's variables: more with each compilation."""
    x, c = pt.dvector("x"), pt.constant(np.array([1.0, 2.0]))
    y = pt.switch(pt.constant(True), c, x) + x
    y.name = "y"
    before = [(v.name, dict(vars(v.tag))) for v in (x, c)]
    pytensor.function([x], [y, pytensor.grad(y.sum(), x)], mode="JAXPR")
    after = [(v.name, {k: t for k, t in vars(v.tag).items() if not k.startswith("is_")}) for v in (x, c)]
    assert after == before


def test_lines_are_those_of_the_present_graph():
    def here():
        x = pt.dvector("x")
        return [x], [x.reshape((2, 2)) * 1]  # here

    def elsewhere():
        x = pt.dvector("x")
        return [x], [x.reshape((2, 2)) * 1]  # elsewhere

    for make, was_found in ((here, False), (elsewhere, True)):
        f, found = compiled(make)
        assert found == was_found
        with pytest.raises(ValueError, match=f"Made at .*# {make.__name__}"):
            f(np.ones(3))


#: Compiles functions and prints how many graphs were found, and what the functions are and return.
PROGRAM = """
import json, os, re, warnings
import jax, numpy as np
import pytensor
import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.graph.rewritten.store import STORE
from tests.frontend.test_kept_graphs import GRAPHS

texts = []
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", pjl.CacheWarning)
    pjl.cache(os.environ["FOLDER"])
    for make, values in GRAPHS.items():
        inputs, outputs = make()
        f = pytensor.function(inputs, outputs, mode="JAXPR", on_unused_input="ignore")
        texts += [make.__name__, str(pjl.make_jaxpr(f, *values)), str(f.maker.fgraph)]
        texts.append(re.sub(r"[0-9.,]+ (µs|ms|s|min)\\b", "", str(pjl.explain(f))))
        texts += [np.asarray(r).tolist() for r in f(*values)]
print(json.dumps([STORE.hits, STORE.misses, [str(w.message) for w in caught if w.category is pjl.CacheWarning], texts]))
"""


def run(folder: Path, hash_seed: str = "0"):
    """Return what `PROGRAM` prints in a process of its own."""
    return json.loads(
        run_python(PROGRAM, PYTHONHASHSEED=hash_seed, FOLDER=str(folder), PYTHONPATH=os.pathsep.join(sys.path))
    )


def test_a_second_process_finds_all_graphs(tmp_path):
    """However sets are ordered; entries that are damaged or of another key are made again, with one warning."""
    with ThreadPoolExecutor() as pool:  # at the same time
        first, other = pool.map(lambda seed: run(tmp_path, seed), ("0", "1"))
    assert first[2] == other[2] == []
    assert first[3] == other[3]
    assert run(tmp_path, "random") == [len(GRAPHS), 0, [], first[3]]
    kept = sorted((tmp_path / "graphs").iterdir())
    assert len(kept) == len(GRAPHS)
    held = [path.read_bytes() for path in kept]
    kept[0].write_bytes(held[0][:100])
    kept[1].write_bytes(held[2])
    kept[3].write_bytes(b"")
    hits, misses, warned, texts = run(tmp_path)
    assert (hits, misses, len(warned), texts) == (len(GRAPHS) - 3, 3, 1, first[3])
    assert "is damaged. It is made again" in warned[0]
    assert run(tmp_path)[:2] == [len(GRAPHS), 0]


def test_a_folder_that_is_taken_away(tmp_path):
    STORE.use(tmp_path / "graphs")
    (tmp_path / "graphs").rmdir()
    with pytest.warns(pjl.CacheWarning, match="can't be kept in .*graphs: .* To do") as caught:
        compiled(graph_of)
    assert caught[0].filename == compiled.__code__.co_filename
    compiled(vectors)  # warns no more
    assert is_found(graph_of)
