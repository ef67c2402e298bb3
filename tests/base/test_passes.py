"""Lists of passes and their records."""

from __future__ import annotations

import pytensor.tensor as pt
import pytest
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.elemwise import Elemwise

from pytensor_jaxpr_linker.base.errors import WrongResult
from pytensor_jaxpr_linker.base.passes import Pass, record_passes, run_passes
from pytensor_jaxpr_linker.base.rules import Table
from pytensor_jaxpr_linker.graph.walk import Graph, rewritten

DOUBLE = Pass("double", lambda values, _: values * 2)
NOTHING = Pass("nothing", lambda values, _: values)
APPEND = Pass("append", lambda values, given: [*values, given])


def run(passes, values):
    """Return what passes make of a list."""
    return run_passes(passes, values, 7, parts=lambda values: values, show=str)


def test_passes_run_in_order():
    assert run([DOUBLE, NOTHING, APPEND], [1]) == [1, 1, 7]


def test_a_pass_runs_where_it_finds_a_part_and_all_conditions_hold():
    asked = []

    def condition(name, holds):
        return lambda given: asked.append((name, given)) or holds

    of_two = Pass("of two", DOUBLE.run, of=lambda value, given: value == given - 5, when=(condition("a", True),))
    assert run([of_two], [1, 3]) == [1, 3] and asked == []  # nobody asks for conditions
    assert run([of_two], [1, 2]) == [1, 2, 1, 2] and asked == [("a", 7)]
    refused = of_two._replace(when=(condition("b", False), condition("c", True)))
    assert run([refused, APPEND], [2]) == [2, 7] and asked == [("a", 7), ("b", 7)]


def test_records_say_what_each_pass_did():
    with record_passes() as runs:
        run([DOUBLE, NOTHING, APPEND], [1])
    (records,) = runs
    assert [(r.name, r.before, r.after, r.changed) for r in records] == [
        ("double", 1, 2, True),
        ("nothing", 2, 2, False),
        ("append", 2, 3, True),
    ]
    assert [r.show() for r in records] == ["[1, 1]", "[1, 1]", "[1, 1, 7]"]
    assert all(r.seconds >= 0 for r in records)


def test_inner_runs_come_first():
    outer = Pass("outer", lambda values, given: run([APPEND], values))
    with record_passes() as runs:
        run([outer], [1])
    assert [[r.name for r in records] for records in runs] == [["append"], ["outer"]]


def test_nothing_is_recorded_outside():
    with record_passes() as runs:
        pass
    assert run([DOUBLE], [1]) == [1, 1] and runs == []


@pytest.mark.parametrize(
    ("replace", "message"),
    [
        (lambda x: x, "returned a bare variable, but must return a sequence with one for each of 1 outputs"),
        (lambda x: [x, x], "returned 2 values"),
        (
            lambda x: [x.astype("float32")],
            r"returned a Vector\(float32, shape=\(\?,\)\) for .*, which is a Vector\(float64",
        ),
        (lambda x: [x.sum()], r"returned a Scalar\(float64, shape=\(\)\)"),
    ],
)
def test_a_wrong_replacement_names_the_rewrite(replace, message):
    x = pt.dvector("x")
    graph = FunctionGraph([x], [pt.exp(x)], clone=False)
    rewrites = Table()

    def exponential(known, node):
        return replace(node.inputs[0])

    rewrites[Elemwise] = exponential
    with pytest.raises(WrongResult, match=rf"exponential {message}.*The node is"):
        rewritten(Graph(graph.inputs, graph.outputs, graph.toposort()), lambda node: None, rewrites)
