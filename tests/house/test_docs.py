"""The documentation's links lead somewhere."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from line_links import DOCS, LINK, pages, with_lines

ROOT = DOCS.parent
PAGES = sorted([*pages(), *ROOT.glob("*.md")])


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
    """``python tests/support/line_links.py`` mends them."""
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
    """The changelog names files of its time, and texts for others name their files."""
    if page.name == "CHANGELOG.md" or page.parent.name == "upstream":
        pytest.skip("names files of earlier versions, or of other projects")
    named = NAMED.findall(page.read_text(encoding="utf-8"))
    known = {*FILES, *(path.name for path in ROOT.iterdir())}
    assert not [name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in known)]


LISTED = re.compile(r"^```\{toctree\}\n(.*?)^```", re.MULTILINE | re.DOTALL)


def listed_pages() -> set[Path]:
    """Return the pages that the lists of pages of the site name, some by patterns."""
    found = set()
    for page in pages():
        for block in LISTED.findall(page.read_text(encoding="utf-8")):
            for line in block.splitlines():
                if line and not line.startswith(":"):
                    folder = DOCS if line.startswith("/") else page.parent
                    found |= set(folder.glob(f"{line.removeprefix('/')}.md"))
    return found


def test_each_page_is_in_the_contents_of_the_site():
    """Else the site does not build: add the page to ``docs/guides/index.md``, ``docs/reference/index.md`` or another list."""
    assert set(pages()) - listed_pages() == {DOCS / "index.md"}


@pytest.mark.parametrize(
    ("page", "module"),
    [("api", "pytensor_jaxpr_linker"), ("pymc", "pytensor_jaxpr_linker.pymc")],
    ids=["package", "pymc"],
)
def test_the_reference_has_all_that_is_public(page, module):
    public = set(pytest.importorskip(module).__all__)
    text = (DOCS / "reference" / f"{page}.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^\.\. auto(?:function|class|data|exception):: (\w+)$", text, re.MULTILINE))
    described |= {name.rpartition(".")[2] for name in re.findall(r"^\.\. automodule:: (\S+)$", text, re.MULTILINE)}
    assert public == described


#: Pages for those who work on the package: their blocks are parts of a program that the text tells of.
FOR_DEVELOPERS = {"architecture.md", "CONTRIBUTING.md", "CHANGELOG.md"}
#: A block of Python, or a cell that the site's build runs, with its settings.
PROGRAM = re.compile(r"^```(?:python|\{code-cell\} \w+)\n(:[^\n]*\n)*(.*?)^```", re.MULTILINE | re.DOTALL)
#: How a block begins that goes on with the names of the block before.
CONTINUES = "# continues"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_each_program_imports_and_makes_what_it_uses(page):
    """A reader pastes one block, or sees that it continues the one before."""
    if page.name in FOR_DEVELOPERS or page.parent.name in ("notes", "upstream"):
        pytest.skip("parts of programs")
    assert not list(incomplete_programs(page.read_text(encoding="utf-8")))


def incomplete_programs(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the programs of a page that need names which neither they make nor, if they say that they continue, the ones before."""
    known: set[str] = set()
    for settings, program in PROGRAM.findall(text):
        if "-input]" in settings:  # hidden or folded: it makes the page, and is not for readers to paste
            continue
        bound, read = names_of(ast.parse(program))
        known = known | bound if program.lstrip().startswith(CONTINUES) else bound
        if missing := sorted(read - known - BUILTINS):
            yield program, missing


def test_incomplete_programs_are_found():
    first, cell = "```python\nx = 1\n```\n", "```{code-cell} python\n:tags: [a]\n\n# continues\nx + y\n```\n"
    assert [missing for _, missing in incomplete_programs(first + cell)] == [["y"]]
    assert [missing for _, missing in incomplete_programs(first + cell.replace("# continues\n", ""))] == [["x", "y"]]
    assert not list(incomplete_programs(first + cell.replace("y", "x") + cell.replace("y", "2")))


#: Names that a program has from the start.
BUILTINS = {*dir(builtins), "__name__", "__file__", "get_ipython"}


def names_of(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Return the names that a program binds, and those that it reads."""
    bound, read = set(), set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case ast.Import() | ast.ImportFrom():
                bound |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return bound, read
