"""``docs``: pages of the documentation, printed. A wheel holds a copy of them; in a clone they are in `docs/`."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

from pytensor_jaxpr_linker.base.documentation import page_url

PACKAGE = Path(__file__).parents[1]
#: Where setup.py copies the pages of a wheel to, and where they are in a clone.
FOLDERS = (PACKAGE / "pages", PACKAGE.parent / "docs")
BREAK_CODE = re.compile(r"JX\d{3}", re.IGNORECASE)


def page_paths() -> dict[str, Path]:
    """Return the files of the pages, by the names that `docs` takes."""
    folder = next((folder for folder in FOLDERS if folder.is_dir()), None)
    if folder is None:
        raise FileNotFoundError(f"This installation has no copy of the documentation. It is at {page_url('index')}.")
    return {path.stem: path for path in sorted(folder.glob("*.md"))}


def page_text(name: str | None) -> str:
    """Return what `docs NAME` prints: a section for a break code, else a page; without a name the list of pages."""
    pages = page_paths()
    if name is None:
        width = max(map(len, pages))
        listed = [f"  {stem:<{width}}  {title_of(path)}" for stem, path in pages.items()]
        return "\n".join(["python -m pytensor_jaxpr_linker docs JX002, or the name of a page:", "", *listed])
    if BREAK_CODE.fullmatch(name):
        sections = sections_of(pages["breaks"])
        wanted, names = name.upper(), [title for title in sections if BREAK_CODE.fullmatch(title)]
        if wanted not in sections:
            raise LookupError(f"There is no break code {wanted}; there are {', '.join(names)}.")
        return f"{sections[wanted]}\n\n{page_url('breaks', wanted.lower())}"
    wanted = name.lower().removesuffix(".md").replace("_", "-")
    found = {stem.replace("_", "-"): path for stem, path in pages.items()}
    if wanted not in found:
        near = get_close_matches(wanted, found)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(pages)}."
        raise LookupError(f"There is no page {name!r}: {hint}")
    return found[wanted].read_text(encoding="utf-8")


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
