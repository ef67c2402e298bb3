"""Links of the documentation to lines of the package: ``[`partition`](../pytensor_jaxpr_linker/plan/partition.py#L68)``.

``python tests/support/line_links.py`` writes the line numbers anew.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
LINK = re.compile(r"\[`(?P<name>\w+)`\]\((?P<path>[\w./]+\.py)#L\d+\)")


def pages() -> list[Path]:
    """Return the pages of the documentation, without the copies that a build of the site makes."""
    return [page for page in DOCS.rglob("*.md") if "repository" not in page.relative_to(DOCS).parts]


def line_of(path: Path, name: str) -> int:
    """Return the line in which a module defines a function or a class."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return next(node.lineno for node in tree.body if getattr(node, "name", None) == name)


def with_lines(page: Path) -> str:
    """Return a page in which each link to a definition has the definition's line."""

    def renewed(link: re.Match) -> str:
        name, path = link["name"], link["path"]
        return f"[`{name}`]({path}#L{line_of(page.parent / path, name)})"

    return LINK.sub(renewed, page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for page in pages():
        page.write_text(with_lines(page), encoding="utf-8")
