"""The documentation's links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from line_links import DOCS, LINK, with_lines

ROOT = DOCS.parent
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page):
    missing = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        found = (page.parent / path).resolve() if path else page
        if not found.exists() or (anchor and found.suffix == ".md" and anchor not in headings(found)):
            missing.append(target)
    assert not missing


@pytest.mark.parametrize("page", [p for p in PAGES if LINK.search(p.read_text(encoding="utf-8"))], ids=lambda p: p.stem)
def test_links_lead_to_the_lines_of_definitions(page):
    """``python tests/line_links.py`` mends them."""
    assert page.read_text(encoding="utf-8") == with_lines(page)


#: Paths of the code that a page names: ``plan/partition.py``, ``docs/ops.md``.
NAMED = re.compile(r"`([\w./]+\.(?:py|md))`")
FILES = {
    path.relative_to(ROOT).as_posix()
    for folder in ("pytensor_jaxpr_linker", "tests", "benchmarks", "examples", "docs")
    for path in (ROOT / folder).rglob("*.*")
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_a_page_names_exist(page):
    """The changelog names files of its time."""
    if page.name == "CHANGELOG.md":
        pytest.skip("tells of earlier versions")
    named = NAMED.findall(page.read_text(encoding="utf-8"))
    known = {*FILES, *(path.name for path in ROOT.iterdir())}
    assert not [name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in known)]
