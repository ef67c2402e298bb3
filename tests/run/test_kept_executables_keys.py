"""What kept programs depend on: graphs, shapes, options, rules, versions, the machine."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import run_python
from kept import compiled, is_kept, twice
from pymc.distributions.dist_math import SplineWrapper
from pytensor.scalar.basic import Sinh
from pytensor.tensor.extra_ops import CumOp
from scipy.interpolate import InterpolatedUnivariateSpline

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base import rules
from pytensor_jaxpr_linker.graph.rewritten import environment
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.run import kept_executables

x = pt.dvector("x")


def others():
    """Yield changes of what a program depends on: a graph, values, and a context."""
    y = pt.dvector("y")
    yield [x], pt.exp(x) + 2.0, [np.ones(2)], pjl.options()
    yield [x], pt.exp(x) + np.nextafter(1.0, 2.0), [np.ones(2)], pjl.options()
    yield [x], pt.exp(x) + 1.0, [np.ones(3)], pjl.options()
    yield [y], pt.exp(y) + 1.0, [np.ones(2)], pjl.options()
    yield [x], pt.exp(x) + 1.0, [np.ones(2)], pjl.options(checks="skip")
    yield [x], pt.exp(x) + 1.0, [np.ones(2)], pytensor.config.change_flags(floatX="float32")
    yield [v := pt.fvector("x")], pt.exp(v) + 1.0, [np.ones(2, "float32")], pjl.options()


@pytest.mark.parametrize("changed", range(len(list(others()))))
def test_what_a_program_depends_on(folder, changed):
    f = compiled([x], pt.exp(x) + 1.0)
    f(np.ones(2))
    inputs, outputs, values, context = list(others())[changed]
    with context:
        other = compiled(inputs, outputs)
        other(*values)
    assert not is_kept(other)


def test_splines_of_scipy(folder):
    """An Op of PyMC's holds one, and a spline through other points, or beyond them, is another program."""
    points, values, t = np.arange(6.0), np.sin(np.arange(6.0)), np.linspace(-1.0, 6.0, 15)

    def result(y, **arguments):
        spline = InterpolatedUnivariateSpline(points, y, **arguments)
        f = compiled([x], SplineWrapper(spline)(x))
        np.testing.assert_allclose(f(t), spline(t), rtol=1e-12, atol=1e-14)
        return is_kept(f)

    assert [result(values), result(values), result(values + 1e-9), result(values, k=2)] == [False, True, False, False]
    assert [result(values, ext="zeros"), result(values, ext="zeros")] == [False, True]


@pytest.mark.parametrize("name", ["XLA_FLAGS", "NPROC"])
def test_variables_that_xla_reads(folder, monkeypatch, name):
    compiled([x], x * 3)(np.ones(2))
    monkeypatch.setenv(name, "--xla_cpu_enable_fast_math=false" if name == "XLA_FLAGS" else "7")
    f = compiled([x], x * 3)
    f(np.ones(2))
    assert not is_kept(f)


@pytest.mark.parametrize("other", ["cpu", "versions"])
def test_another_machine_or_version(folder, monkeypatch, other):
    compiled([x], x * 5)(np.ones(2))
    monkeypatch.setattr(kept_executables if other == "cpu" else environment, other, lambda: "another")
    f = compiled([x], x * 5)
    f(np.ones(2))
    assert not is_kept(f)


def test_a_cpu_is_described():
    """By its instructions, and by nothing that changes from one moment to the next."""
    found = kept_executables.cpu()
    kept_executables.cpu.cache_clear()
    assert kept_executables.cpu() == found


def test_a_cpu_without_the_file_of_linux(monkeypatch):
    monkeypatch.setattr(kept_executables, "CPU_FILE", "/nowhere")
    kept_executables.cpu.cache_clear()
    assert len(kept_executables.cpu()) == 64
    kept_executables.cpu.cache_clear()


class Twice(pytensor.graph.Op):
    """An Op of a user, whose rule no text describes."""

    __props__ = ()

    def make_node(self, x):
        return pytensor.graph.Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] * 2


def test_ops_and_rules_of_the_users_are_not_kept(folder, monkeypatch):
    rule = rules.Rule(lambda op, node, b, x: prims.add(b, x, x), lambda node: (), lambda node: None)
    monkeypatch.setitem(rules.RULES, Twice, rule)
    for _ in range(2):
        f = compiled([x], Twice()(x))
        f(np.ones(2))
        assert not is_kept(f)


def test_the_package_registers_its_own_rules():
    """Whoever imports the package, PyMC's half and sparse matrices has changed no rule."""
    code = """
    import pytensor.sparse, pymc, pytensor_jaxpr_linker.pymc
    from pytensor_jaxpr_linker.base.rules import RULES, SCALAR_RULES
    print(len(RULES) > 100, len(SCALAR_RULES) > 50, RULES.foreign | SCALAR_RULES.foreign)
    """
    assert run_python(code) == "True True set()\n"


@pytest.mark.parametrize("changed_first", [True, False])
def test_a_rule_of_the_packages_for_another_op(folder, monkeypatch, changed_first):
    """A function of this package is a foreign rule where somebody registers it for another Op."""
    own, results = rules.SCALAR_RULES[Sinh], []
    for changed in (changed_first, not changed_first):
        for table in (rules.RULES, rules.SCALAR_RULES):
            monkeypatch.setattr(table, "foreign", set())  # as in another process
        if changed:
            pjl.emits_scalar(Sinh)(prims.tanh)
        results.append((changed, compiled([x], pt.sinh(x))(np.ones(1)).item()))
        if changed:
            rules.SCALAR_RULES[Sinh] = own
    assert dict(results) == {True: pytest.approx(np.tanh(1.0)), False: pytest.approx(np.sinh(1.0))}


@pytest.mark.parametrize("changed_first", [True, False])
def test_a_rule_that_is_there_while_a_function_is_made(folder, monkeypatch, changed_first):
    """A function has the rules of its compilation, whatever is registered at its first call."""
    own, results = rules.RULES[CumOp], []
    for changed in (changed_first, not changed_first):
        monkeypatch.setattr(rules.RULES, "foreign", set())
        if changed:
            pjl.emits(CumOp)(lambda op, node, b, operand: prims.add(b, operand, operand))
        f = compiled([x], pt.cumsum(x, axis=0))
        rules.RULES[CumOp] = own
        if not changed:
            monkeypatch.setattr(rules.RULES, "foreign", set())
        results.append((changed, f(np.array([1.0, 2.0])).tolist()))
    assert dict(results) == {True: [2.0, 4.0], False: [1.0, 3.0]}


@pytest.mark.parametrize("change", ["update", "pop", "clear", "patch"])
def test_tables_that_are_changed_in_other_ways(change):
    table = rules.Table({Sinh: "own"})
    assert table.of(Sinh) == "own" and not table.foreign
    if change == "patch":
        with mock.patch.dict(table, {Sinh: "other"}):
            assert table.of(Sinh) == "other"
    else:
        getattr(table, change)(*{"update": [{Sinh: "other"}], "pop": [Sinh], "clear": []}[change])
        assert table.of(Sinh) == ("other" if change == "update" else None)
    assert table.foreign == {Sinh}


def test_a_function_of_pytensors_jax_backend(folder, monkeypatch):
    from pytensor.link.jax.dispatch import basic

    f = compiled([x], x * 17)
    f(np.ones(1))
    monkeypatch.setattr(kept_executables, "jax_functions", lambda: [(Sinh, basic.jax_funcify)])
    f = compiled([x], x * 17)
    f(np.ones(1))
    assert not is_kept(f)


def test_logs_show_what_is_made(folder, caplog):
    """With a log of Jaxprs there is one for each program."""
    twice([x], x - 1, np.ones(2))
    with caplog.at_level("DEBUG", "pytensor_jaxpr_linker.jaxpr"):
        compiled([x], x - 1)(np.ones(2))
    assert "add -1.0" in caplog.text
