"""Checks that each link within the built site leads to a file, and to an anchor of it that exists.

sphinx-build -W docs site && python tests/support/site_links.py site
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Read(HTMLParser):
    """Collects the links and the anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: dict[str, None] = {}
        self.anchors = {"", "top"}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take what the tag links to, and its anchor."""
        given = dict(attrs)
        self.links |= {given[name] or "": None for name in ("href", "src") if name in given}
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}


@cache
def read(path: Path) -> Read:
    """Return what is on a page."""
    page = Read()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def broken(site: Path) -> Iterator[str]:
    """Yield each link that leads nowhere."""
    for path in sorted(site.rglob("*.html")):
        if "_static" in path.relative_to(site).parts:
            continue
        for link in read(path).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                yield f"{path.relative_to(site)}: {link}: no such file"
            elif target.suffix == ".html" and unquote(parts.fragment) not in read(target).anchors:
                yield f"{path.relative_to(site)}: {link}: no such anchor"


def main() -> int:
    """Print the broken links, and return 1 if there are any."""
    site = Path(sys.argv[1])
    found = [*broken(site)]
    print("\n".join(found))
    print(f"{len([*site.rglob('*.html')])} pages: {len(found)} broken links")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
