"""``docs``: the section of a break code, which a wheel holds a copy of, or where the site has other words."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote_plus

from pytensor_jaxpr_linker.base.words import page_url

PACKAGE = Path(__file__).parents[1]
#: Where setup.py copies the page of the break codes to in a wheel, and where it is in a clone.
COPIES = (PACKAGE / "breaks.md", PACKAGE.parent / "docs" / "breaks.md")
BREAK_CODE = re.compile(r"JX\d{3}", re.IGNORECASE)


def page_text(name: str | None) -> str:
    """Return the section of a break code, else the address of the site, or of its search for a word."""
    if name is None:
        return page_url("index")
    if not BREAK_CODE.fullmatch(name):
        return f"{page_url('search')}?q={quote_plus(name)}"
    page = next((path for path in COPIES if path.is_file()), None)
    if page is None:
        raise FileNotFoundError(f"This installation has no copy of the documentation. It is at {page_url('index')}.")
    _, *parts = re.split(r"^(?=## )", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = {part.partition("\n")[0].removeprefix("## ").strip(): part.rstrip() for part in parts}
    if (wanted := name.upper()) not in sections:
        codes = [title for title in sections if BREAK_CODE.fullmatch(title)]
        raise LookupError(f"There is no break code {wanted}; there are {', '.join(codes)}.")
    return f"{sections[wanted]}\n\n{page_url('breaks', wanted.lower())}"
