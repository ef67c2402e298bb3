"""Numbers that constants determine are computed before other rewrites see them."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import compare
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import graph_inputs
from pytensor.raise_op import Assert
from pytensor.scan.basic import scan
from scipy import stats

from pytensor_jaxpr_linker.frontend.added_rewrites import EARLY_FOLDING, EarlyFolding
from pytensor_jaxpr_linker.frontend.kept_graphs import REWRITE_CACHE
from pytensor_jaxpr_linker.pymc import logdensity


def folded(inputs, *outputs) -> FunctionGraph:
    """Return a graph after the rewrite."""
    fgraph = FunctionGraph(inputs, list(outputs), clone=True)
    EarlyFolding().rewrite(fgraph)
    return fgraph


def ops(fgraph: FunctionGraph) -> list[str]:
    """Return the names of the Ops of a graph."""
    return [str(node.op) for node in fgraph.toposort()]


def constants(fgraph: FunctionGraph) -> list:
    """Return the values of the constants that nodes read."""
    return [v.data for node in fgraph.toposort() for v in node.inputs if isinstance(v, Constant)]


def numbers():
    x = pt.dvector("x")
    half = pt.log(pt.sqrt(pt.constant(2.0) * np.pi))
    return [x], [x - half, pt.switch(pt.constant(5.0) > 0, x, -np.inf)]


def test_an_expression_is_one_constant():
    inputs, outputs = numbers()
    fgraph = folded(inputs, *outputs)
    assert ops(fgraph) == ["Sub", "Switch"] or ops(fgraph) == ["Switch", "Sub"]
    values = {np.asarray(c).item() for c in constants(fgraph)}
    assert {np.log(np.sqrt(2 * np.pi)), True} <= values
    compare(inputs, outputs, [np.arange(3.0)])


@pytest.mark.parametrize("dtype", ["float64", "float32", "int8", "bool", "complex128"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_each_dtype_and_number_of_dimensions(dtype, shape):
    x = pt.vector("x", dtype="float64")
    c = pt.constant(np.ones(shape, dtype))
    outputs = [x.sum() + (c * c).sum(), abs(c) * x]
    assert len(folded([x], *outputs).apply_nodes) <= 4
    compare([x], outputs, [np.arange(3.0)])


def test_scalars_and_reductions():
    x, data = pt.dvector("x"), pt.constant(np.arange(6.0).reshape(2, 3))
    length = pt.scalar_from_tensor(pt.constant(2) + 1)
    assert ops(folded([x], data.sum() * x.sum())) == ["Sum{axes=None}", "Mul"]
    fgraph = folded([x], x[:length])
    assert ops(fgraph) == ["Subtensor{:stop}"]
    compare([x], [x[:length], data.sum() * x], [np.arange(5.0)])


def test_longer_arrays_are_left_to_pytensor():
    """``second(ones(300), 2)`` as an array would hide that it is one number."""
    x, ones = pt.dvector("x"), pt.constant(np.ones(300))
    fgraph = folded([x], x * pt.second(ones, pt.constant(2.0)) * pt.exp(pt.constant(0.0)))
    assert "Second" in str(ops(fgraph))
    assert "Exp" not in str(ops(fgraph))


def test_what_is_not_folded():
    """Draws, loops, inner graphs and what decides for itself."""
    x, one = pt.dscalar("x"), pt.constant(1.0, dtype="float64")
    loop = scan(lambda s: s * 2, outputs_info=one, n_steps=3, return_updates=False)[-1]
    inner = OpFromGraph([x], [x * 3])(one)
    asserted = Assert("no")(one, pt.constant(False))
    rng = pytensor.shared(np.random.default_rng(1))
    y = pt.random.normal(one, 1.0, rng=rng, return_next_rng=True)[1] + loop + inner + asserted + x
    generators = [v for v in graph_inputs([y]) if isinstance(v, SharedVariable)]
    found = str(ops(folded([x, *generators], y)))
    assert all(name in found for name in ("normal", "Scan", "OpFromGraph", "Assert"))


def test_errors_are_pytensors():
    x, values = pt.dscalar("x"), pt.constant(np.arange(3.0))
    outside = values[pt.constant(7)]
    assert "Subtensor" in str(ops(folded([x], x + outside)))
    with pytest.raises(IndexError), pytensor.config.change_flags(on_opt_error="ignore"):
        pytensor.function([x], x + outside, mode="JAXPR")(1.0)


def test_lines_and_names():
    x = pt.dvector("x")
    two = pt.exp(pt.constant(0.0)) + 1
    two.name = "two"
    fgraph = folded([x], x * two)
    (constant,) = [v for node in fgraph.toposort() for v in node.inputs if isinstance(v, Constant)]
    assert constant.name is None
    assert "test_added_rewrites_early_folding" in str(constant.tag.trace)


def test_outputs_may_be_numbers():
    x = pt.dscalar("x")
    outputs = [pt.exp(pt.constant(0.0)), x, pt.exp(pt.constant(0.0)) + 1]
    fgraph = folded([x], *outputs)
    assert not fgraph.apply_nodes
    compare([x], outputs, [2.0])


def test_it_can_be_left_out():
    inputs, outputs = numbers()
    mode = pytensor.compile.mode.get_mode("JAXPR").excluding(EARLY_FOLDING, REWRITE_CACHE)
    f, g = (pytensor.function(inputs, outputs, mode=m) for m in (mode, "JAXPR"))
    for a, b in zip(f(np.arange(3.0)), g(np.arange(3.0)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_a_dtype_wraps_around_or_rounds_is_left_to_pytensor():
    x, nu, sigma = pt.dscalar("x"), pt.as_tensor(3), pt.as_tensor(10)  # of int8
    assert (nu * sigma**2).type.dtype == "int8"
    assert ops(folded([x], x**2 / (nu * sigma**2))) == ["Mul", "Pow", "True_div"]
    assert ops(folded([x], x * (1.0 / nu))) == ["True_div", "Mul"]  # of float32
    assert ops(folded([x], x * (nu + sigma))) == ["Mul"]


@pytest.mark.parametrize("nu, sigma", [(3, 10), (3, 7), (100, 11)])
def test_the_density_of_a_half_t_with_integers(nu, sigma):
    """``nu * sigma**2`` is beyond int8: the density was that of another distribution, or NaN."""
    with pm.Model() as model:
        pm.HalfStudentT("x", nu=nu, sigma=sigma)
    x = np.array([0.1, 2.0, 30.0, 500.0])
    expected = stats.t.logpdf(x / sigma, nu) + np.log(x)
    slope = 1 - (nu + 1) * x**2 / (nu * sigma**2 + x**2)
    value = model.value_vars[0]
    function = pytensor.function([value], [model.logp(), model.dlogp()[0]], mode="JAXPR")
    found = np.array([np.ravel(function(u)) for u in np.log(x)], dtype=float)
    np.testing.assert_allclose(found[:, 1], slope, rtol=1e-12)
    log_density = logdensity(model)
    for values in (found[:, 0], [log_density({value.name: u}) for u in np.log(x)]):
        np.testing.assert_allclose(np.diff(values), np.diff(expected), rtol=1e-12)


#: Continuous distributions with parameters whose squares or products are beyond int8.
WITH_INTEGERS = {
    "Normal": (10, 20),
    "Beta": (3, 100),
    "Gamma": (20, 30),
    "InverseGamma": (20, 30),
    "Weibull": (3, 50),
    "Laplace": (10, 20),
    "AsymmetricLaplace": (3, 10, 20),
    "SkewNormal": (3, 10, 20),
    "Gumbel": (10, 20),
    "Logistic": (10, 20),
    "Rice": (10, 20),
    "Moyal": (10, 20),
    "Kumaraswamy": (3, 20),
    "Wald": (10, 20),
    "Cauchy": (10, 20),
    "LogNormal": (2, 30),
}


@pytest.mark.parametrize("name", WITH_INTEGERS)
def test_a_density_with_integers_has_the_slope_of_the_one_with_floats(name):
    slopes = []
    for number in (int, float):
        x = pt.dscalar("x")
        parameters = map(number, WITH_INTEGERS[name])
        slope = pytensor.grad(pm.logp(getattr(pm, name).dist(*parameters), x), x)
        function = pytensor.function([x], slope, mode="JAXPR")
        slopes.append([function(v) for v in ((0.2, 0.7) if name in ("Beta", "Kumaraswamy") else (0.2, 3.0, 40.0))])
    np.testing.assert_allclose(*slopes, rtol=1e-6)  # PyTensor's constants are of float32
