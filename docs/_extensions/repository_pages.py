"""Links of the pages to files outside of `docs/` stay links on the site.

Markdown files of the repository (CHANGELOG.md, benchmarks/RESULTS.md) become pages in `docs/repository/`, which is made anew by each
build. Other files (modules, data) become pages of numbered, highlighted lines, to which links like ``plan/model.py#L29`` lead.
"""

import re
import shutil
from html import escape
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
COPIES = "repository"
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
FENCE = re.compile(r"^( *```.*?^ *```\s*$)", re.MULTILINE | re.DOTALL)
PATTERN = re.compile(r"^/([\w-]+\*)\n", re.MULTILINE)
#: Markdown files that are pages of the site, beside those in docs/.
MARKDOWN = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    "benchmarks/RESULTS.md",
    "examples/README.md",
    "tests/whole/clients/README.md",
    "tests/whole/pytensor_suite/README.md",
)
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
:root {{ color-scheme: light; }} body {{ margin: 1rem; font-family: system-ui, sans-serif; background: #fff; color: #1b1f24; }}
h1 {{ font-size: 1.2rem; overflow-wrap: anywhere; }} .scroll {{ overflow-x: auto; }} .target {{ background: #fff3bf; }} :target {{ background: #fff3bf; }}
{style}
</style></head><body><main><h1>{title}</h1><p>Of version {version}. <a href="{home}">Documentation</a></p>
<div class="scroll" tabindex="0" role="region" aria-label="{title}">{code}</div></main></body></html>
"""


class Linked:
    """The files that pages link to, found while pages are read."""

    def __init__(self):
        self.files: set[str] = set()


LINKED = Linked()


def setup(app):
    """Register the extension."""
    app.connect("builder-inited", write_copies)
    app.connect("source-read", rewrite_page)
    app.connect("build-finished", write_files)
    for language in ("hlo", "jaxpr", "mlir", "stablehlo"):  # Pygments knows no lexer of these names
        app.add_lexer(language, TextLexer)
    return {"version": "1", "parallel_read_safe": False}


def write_copies(app):
    """Copy the Markdown files of the repository into a folder of pages, with links to where things are on the site."""
    shutil.rmtree(DOCS / COPIES, ignore_errors=True)
    for path in MARKDOWN:
        if (ROOT / path).exists():
            text = with_links((ROOT / path).read_text(encoding="utf-8"), path, f"{COPIES}/{path}")
            (DOCS / COPIES / path).parent.mkdir(parents=True, exist_ok=True)
            (DOCS / COPIES / path).write_text(text, encoding="utf-8")


def rewrite_page(app, name, source):
    """Rewrite the links of a page to what is outside of `docs/`."""
    path = PurePosixPath(name).with_suffix(".md").as_posix()
    if not path.startswith(f"{COPIES}/") and (DOCS / path).exists():
        source[0] = PATTERN.sub(kept_pattern, with_links(source[0], f"docs/{path}", path))


def kept_pattern(pattern: re.Match) -> str:
    """Return a line of a list of pages, ``/gpu*``, or nothing if no page of this version has such a name."""
    return pattern[0] if list(DOCS.glob(f"{pattern[1]}.md")) else ""


def with_links(text: str, path: str, place: str) -> str:
    """Return the text of a file of the repository, for a page at `place`, a path within `docs/`."""
    parts = FENCE.split(text)
    return "".join(
        part if i % 2 else LINK.sub(lambda link: link_on_site(link, path, place), part) for i, part in enumerate(parts)
    )


def link_on_site(link: re.Match, path: str, place: str) -> str:
    """Return a link as it is on the site."""
    target, _, anchor = link["target"].partition("#")
    if "://" in target or not target:
        return link[0]
    found = normpath(f"{PurePosixPath(path).parent}/{target}")
    here = str(PurePosixPath(place).parent)
    tail = f"#{anchor}" if anchor else ""
    if (ROOT / found).is_dir():
        found += "/README.md"
    if link["image"]:
        if found.startswith("docs/"):
            return f"![{link['text']}]({relpath(found.removeprefix('docs/'), here)})"
        copy = DOCS / COPIES / found
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / found, copy)
        return f"![{link['text']}]({relpath(f'{COPIES}/{found}', here)})"
    if found == "README.md":
        return f"[{link['text']}]({relpath('index.md', here)})"
    if found.startswith("docs/") and found.endswith(".md"):
        return f"[{link['text']}]({relpath(found.removeprefix('docs/'), here)}{tail})"
    if found in MARKDOWN:
        return f"[{link['text']}]({relpath(f'{COPIES}/{found}', here)}{tail})"
    LINKED.files.add(found)
    line = re.sub(r"^#L(\d+)$", r"#L-\1", tail)
    # As HTML: Sphinx does not know these pages, which are written when the build is done.
    return f'<a href="{relpath(f"{COPIES}/{found}", here)}.html{line}">{link["text"]}</a>'


def write_files(app, error):
    """Write a page for each linked file."""
    if error is not None or app.builder.format != "html":
        return
    for found in LINKED.files | {"LICENSE"}:
        page = Path(app.outdir, COPIES, f"{found}.html")
        page.parent.mkdir(parents=True, exist_ok=True)
        home = relpath("index.html", str(PurePosixPath(COPIES, found).parent))
        page.write_text(listing(found, app.config.release, home), encoding="utf-8")


def listing(found: str, version: str, home: str) -> str:
    """Return the page of a file: its lines, with numbers and anchors."""
    text = (ROOT / found).read_text(encoding="utf-8")
    try:
        lexer = get_lexer_for_filename(found)
    except ClassNotFound:
        lexer = TextLexer()
    formatter = HtmlFormatter(style="a11y-high-contrast-light", linenos="inline", lineanchors="L", anchorlinenos=False)
    return PAGE.format(
        title=escape(found),
        style=formatter.get_style_defs(),
        version=escape(version),
        home=home,
        code=highlight(text, lexer, formatter),
    )
