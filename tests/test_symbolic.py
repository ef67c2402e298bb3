"""Symbolic lengths: a graph is exported once by `jax.export` and called at several lengths."""

from __future__ import annotations

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from symbolic_graphs import GRAPHS

import pytensor_jaxpr_linker as pjl


def make_inputs(graph):
    """Return the variables, and their abstract values."""
    n, m = jax.export.symbolic_shape("n, m")
    dims = {"n": n, "m": m}
    variables, avals = [], []
    for text in graph.inputs:
        kind, *lengths = text.split()
        lengths = lengths * 2 if kind == "s" else lengths
        dtype = "int64" if kind in "ik" else "float64"
        shape = tuple(dims.get(v) or int(v) for v in lengths)
        variables.append(pt.tensor(kind + str(len(avals)), dtype=dtype, shape=(None,) * len(shape)))
        avals.append(jax.ShapeDtypeStruct(shape, dtype))
    return variables, avals


def make_values(graph, lengths, seed=0):
    rng = np.random.default_rng(seed)
    values = []
    for text in graph.inputs:
        kind, *names = text.split()
        shape = [lengths.get(v) or int(v) for v in names]
        if kind == "s":
            root = rng.normal(size=(shape[0], shape[0]))
            values.append(root @ root.T + shape[0] * np.eye(shape[0]))
        elif kind == "x":
            values.append(rng.normal(size=shape))
        else:
            values.append(np.asarray(rng.integers(0, 2 if kind == "i" else 1, size=shape)))
    return values


def outputs_of(graph, variables):
    outputs = graph.make(*variables)
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]


def cost_of(outputs):
    return pt.add(*[(pt.cos(x * 1.5) if x.type.dtype[0] == "f" else x).sum().astype("float64") for x in outputs], 0.0)


def floats_of(variables):
    return [i for i, v in enumerate(variables) if v.type.dtype == "float64"]


def check(graph, fn, avals, outputs, variables):
    """Compare an exported function with PyTensor's own evaluation, at each of the graph's lengths."""
    exported = jax.export.export(jax.jit(fn))(*avals)
    reference = pytensor.function(variables, outputs, mode="FAST_COMPILE", on_unused_input="ignore")
    for seed, lengths in enumerate(graph.lengths):
        values = make_values(graph, lengths, seed)
        for got, want in zip(jax.tree.leaves(exported.call(*values)), reference(*values), strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", GRAPHS)
def test_values(name, x64):
    graph = GRAPHS[name]
    variables, avals = make_inputs(graph)
    outputs = outputs_of(graph, variables)
    check(graph, pjl.as_jax_function(variables, outputs), avals, outputs, variables)


def gradients(name):
    graph = GRAPHS[name]
    variables, avals = make_inputs(graph)
    cost = cost_of(outputs_of(graph, variables))
    places = floats_of(variables)
    grads = pt.grad(cost, [variables[i] for i in places], disconnected_inputs="ignore")
    return graph, variables, avals, cost, places, grads


DIFFERENTIABLE = [name for name, graph in GRAPHS.items() if graph.gradient]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradient_graph(name, x64):
    """The graph of `pt.grad`."""
    graph, variables, avals, cost, _, grads = gradients(name)
    fn = pjl.as_jax_function(variables, [cost, *grads])
    check(graph, fn, avals, [cost, *grads], variables)


@pytest.mark.parametrize("gradient", ["pytensor", "jax"])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradient_of_the_function(name, gradient, x64):
    """`jax.grad`, by PyTensor's rules and by JAX's."""
    graph, variables, avals, cost, places, grads = gradients(name)
    fn = pjl.as_jax_function(variables, [cost], gradient=gradient)
    check(graph, jax.grad(lambda *args: fn(*args)[0], argnums=tuple(places)), avals, grads, variables)


@pytest.mark.parametrize("name", GRAPHS)
def test_batches(name, x64):
    """`jax.vmap` over a batch of symbolic length, before the export."""
    graph = GRAPHS[name]
    variables, avals = make_inputs(graph)
    outputs = outputs_of(graph, variables)
    reference = pytensor.function(variables, outputs, mode="FAST_COMPILE", on_unused_input="ignore")
    fn = jax.vmap(pjl.as_jax_function(variables, outputs))
    (size,) = jax.export.symbolic_shape(
        "batch", scope=next(n.scope for a in avals for n in a.shape if hasattr(n, "scope"))
    )
    batched = [jax.ShapeDtypeStruct((size, *aval.shape), aval.dtype) for aval in avals]
    exported = jax.export.export(jax.jit(fn))(*batched)
    for lengths in graph.lengths[:2]:
        rows = [make_values(graph, lengths, seed) for seed in range(3)]
        results = exported.call(*map(np.stack, zip(*rows, strict=True)))
        for i, row in enumerate(rows):
            for got, want in zip(jax.tree.leaves(results), reference(*row), strict=True):
                np.testing.assert_allclose(got[i], want, rtol=1e-8, atol=1e-10)
