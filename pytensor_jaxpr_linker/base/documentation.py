"""Where the documentation is: the address of the site, and how to read a page without a network."""

from __future__ import annotations

#: The project URL "Documentation" of setup.cfg; tests/house/test_packaging.py compares the two.
SITE = "https://pytensor-jaxpr-linker.readthedocs.io/en/latest/"
OFFLINE = "python -m pytensor_jaxpr_linker docs"


def page_url(page: str, anchor: str = "") -> str:
    """Return the address of a page of `docs/`, by its path without suffix, and of one of its headings."""
    return f"{SITE}{page}.html" + (f"#{anchor}" if anchor else "")
