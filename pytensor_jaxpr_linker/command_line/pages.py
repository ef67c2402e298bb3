"""``docs``: pages of the documentation, printed. A wheel holds a copy of them; in a clone they are in `docs/`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from pytensor_jaxpr_linker.base.documentation import page_url

PACKAGE = Path(__file__).parents[1]
#: Where setup.py copies the pages of a wheel to, and where they are in a clone.
FOLDERS = (PACKAGE / "pages", PACKAGE.parent / "docs")
#: The folders of pages for users, beside the pages that are in none.
SUBFOLDERS = ("guides", "reference", "tutorials")
BREAK_CODE = re.compile(r"JX\d{3}", re.IGNORECASE)
#: What only the site needs: the settings at the top of a page, and the directive of a block that it runs.
SETTINGS = re.compile(r"\A---\n.*?\n---\n\s*", re.DOTALL)
CODE_CELL = re.compile(r"^```\{code-cell\} \w+\n(?::.*\n)*", re.MULTILINE)


def page_paths() -> dict[str, Path]:
    """Return the files of the pages, by the names that `docs` takes: "options", "guides/faq"."""
    folder = next((folder for folder in FOLDERS if folder.is_dir()), None)
    if folder is None:
        raise FileNotFoundError(f"This installation has no copy of the documentation. It is at {page_url('index')}.")
    found = sorted(path for within in ("", *SUBFOLDERS) for path in (folder / within).glob("*.md"))
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in found if is_text(path)}


def is_text(path: Path) -> bool:
    """Return whether a page has more than a list of pages, or of what Sphinx reads from docstrings."""
    return path.stem != "index" and "\n.. auto" not in path.read_text(encoding="utf-8")


def page_text(name: str | None) -> str:
    """Return what `docs NAME` prints: a section for a break code, else a page; without a name the list of pages."""
    pages = page_paths()
    if name is None:
        width = max(map(len, pages))
        listed = [f"  {page:<{width}}  {title_of(path)}" for page, path in pages.items()]
        return "\n".join(["python -m pytensor_jaxpr_linker docs JX002, or the name of a page:", "", *listed])
    if BREAK_CODE.fullmatch(name):
        sections = sections_of(pages["breaks"])
        wanted, names = name.upper(), [title for title in sections if BREAK_CODE.fullmatch(title)]
        if wanted not in sections:
            raise LookupError(f"There is no break code {wanted}; there are {', '.join(names)}.")
        return f"{sections[wanted]}\n\n{page_url('breaks', wanted.lower())}"
    text = pages[page_named(name, list(pages))].read_text(encoding="utf-8")
    return CODE_CELL.sub("```python\n", SETTINGS.sub("", text))


def page_named(name: str, pages: Sequence[str]) -> str:
    """Return the page that a name means: its path, or the last part of it if no other page has the same."""
    wanted = spelled_alike(name.removesuffix(".md"))
    found = [page for page in pages if wanted in (spelled_alike(page), spelled_alike(page.rpartition("/")[2]))]
    if len(found) == 1:
        return found[0]
    if found:
        raise LookupError(f"There are several pages {name!r}: name one of {', '.join(found)}.")
    near = get_close_matches(wanted, [*map(spelled_alike, pages), *(page.rpartition("/")[2] for page in pages)])
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(pages)}."
    raise LookupError(f"There is no page {name!r}: {hint}")


def spelled_alike(name: str) -> str:
    """Return a name in the spelling that counts."""
    return name.lower().replace("_", "-")


def title_of(path: Path) -> str:
    """Return the first heading of a page."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            return line[2:].strip()
    return path.stem


def sections_of(path: Path) -> dict[str, str]:
    """Return the second-level sections of a page, with their headings, by their titles."""
    _, *parts = re.split(r"^(?=## )", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {part.partition("\n")[0].removeprefix("## ").strip(): part.rstrip() for part in parts}
