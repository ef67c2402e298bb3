"""Lists of passes and their records."""

from __future__ import annotations

from pytensor_jaxpr_linker.base.passes import Pass, record_passes, run_passes

DOUBLE = Pass("double", lambda values, _: values * 2)
NOTHING = Pass("nothing", lambda values, _: values)
APPEND = Pass("append", lambda values, given: [*values, given])


def run(passes, values):
    """Return what passes make of a list."""
    return run_passes(passes, values, 7, size=len, show=str)


def test_passes_run_in_order():
    assert run([DOUBLE, NOTHING, APPEND], [1]) == [1, 1, 7]


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
