"""Checks each link of the finished site that stays on it: the file is there, and what the link names in it is, too.

A link that leads nowhere is a warning, hence with ``sphinx-build -W`` an error.
"""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sphinx.util import logging

LOGGER = logging.getLogger(__name__)
#: What the theme and Sphinx make themselves.
SKIPPED = ("_static", "_sources", "_modules", "reports", "jupyter_execute")


class Page(HTMLParser):
    """The links of a page, and the names that links to it may have."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        """Take note of a link or a name."""
        found = dict(attrs)
        self.names |= {found[key] for key in ("id", "name") if found.get(key)}
        for key in ("href", "src"):
            if found.get(key) and tag in ("a", "img", "script", "link"):
                self.links.append(found[key])


def setup(app):
    """Register the check, to run when all pages are written."""
    app.connect("build-finished", check_links, priority=900)
    return {"version": "1", "parallel_read_safe": True}


def check_links(app, error):
    """Warn of each link that leads nowhere."""
    if error is not None or app.builder.format != "html":
        return
    root = Path(app.outdir)
    pages = {
        path: Page(path.read_text(encoding="utf-8"))
        for path in sorted(root.rglob("*.html"))
        if path.relative_to(root).parts[0] not in SKIPPED
    }
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            found = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            known = pages.get(found)
            if not found.exists() or (known is not None and unquote(parts.fragment) not in known.names):
                LOGGER.warning("%s: the link %s leads nowhere", path.relative_to(root), link)
