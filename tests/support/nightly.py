"""Chooses the tests that only the nightly run has, and the usual ones that are not quick, by how long they took.

It writes their ids to `nightly.txt` and `slow.txt`, which `conftest.py` reads.

    pytest -q -n 2 --junitxml=durations.xml
    python tests/support/nightly.py durations.xml

Tests that the reports don't have keep the duration of the list; `-m ""` measures them again.
A test that takes longer than `LONGEST` seconds is nightly. Of each test function the quickest case stays if it takes less than `LONGEST_ALONE`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

LIST, SLOW = (Path(__file__).with_name(f"{name}.txt") for name in ("nightly", "slow"))
LONGEST, LONGEST_ALONE = 0.8, 2.0
#: A usual test that takes longer is not quick.
QUICK = 0.07
#: Nor are the other cases of its function if it takes longer than this: they share a program or a reference.
LONG_SHARED = 1.0
#: Files whose tests take as long as the run allows, and files that have to see each change.
ALWAYS = {"tests/whole/test_random_graphs", "tests/house/test_imports", "tests/whole/test_smoke"}
#: Functions whose cases share what takes long, so the quickest one takes as long as the slowest.
SHARED = {"tests/whole/test_processes.py::test_several_processes_find_what_one_finds"}


def durations(path: Path) -> dict[str, float]:
    """Return how long each test took, by its id, from a report that pytest wrote."""
    found = {}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        module = (case.get("classname") or "").replace(".", "/")
        if module.startswith("tests/"):
            found[f"{module}.py::{case.get('name')}"] = float(case.get("time", 0))
    return found


def chosen(seconds: dict[str, float]) -> dict[str, float]:
    """Return the tests that are nightly, with their durations."""
    functions = defaultdict(list)
    for test, duration in seconds.items():
        if test.partition(".py::")[0] in ALWAYS:
            continue
        functions[test.partition("[")[0]].append((duration, test))
    found = {}
    for function, cases in functions.items():
        quickest, *others = sorted(cases)
        if function in SHARED:
            found |= {test: duration for duration, test in cases}
            continue
        slow = [case for case in others if case[0] > LONGEST]
        found |= {test: duration for duration, test in slow + [quickest] * (quickest[0] > LONGEST_ALONE)}
    return found


def listed(path: Path = LIST) -> dict[str, float]:
    """Return the seconds of each test of a list, by its id."""
    lines = [line.partition(" ") for line in path.read_text().splitlines() if not line.startswith("#")]
    return {test: float(seconds) for seconds, _, test in lines}


def functions_that_share() -> set[str]:
    """Return the functions of tests with a usual case of `LONG_SHARED` seconds: the first case takes it, whichever."""
    return {test.partition("[")[0] for test, seconds in listed(SLOW).items() if seconds > LONG_SHARED}


def main() -> None:
    seconds = listed() | listed(SLOW)
    for path in sys.argv[1:]:
        seconds |= durations(Path(path))
    nightly = chosen(seconds)
    slow = {test: duration for test, duration in seconds.items() if duration > QUICK and test not in nightly}
    for path, found in ((LIST, nightly), (SLOW, slow)):
        lines = [f"{duration:.1f} {test}" for test, duration in sorted(found.items())]
        path.write_text("\n".join([f"# Seconds and id of each {path.stem} test: see nightly.py.", *lines, ""]))
    print(
        f"{len(nightly)} of {len(seconds)} tests are nightly: {sum(nightly.values()):.0f} of {sum(seconds.values()):.0f} s"
    )


if __name__ == "__main__":
    main()
