"""Words of messages: numbers of things, and addresses of the documentation."""

from __future__ import annotations

#: Plurals that are not made by adding an s.
PLURALS = {"axis": "axes", "batch": "batches", "branch": "branches"}


def counted(n: int, what: str) -> str:
    """Return a number of things.

    Examples
    --------
    >>> from pytensor_jaxpr_linker.base.words import counted
    >>> counted(1, "axis"), counted(2, "axis"), counted(3, "host step")
    ('1 axis', '2 axes', '3 host steps')
    """
    return f"{n} {what if n == 1 else PLURALS.get(what, what + 's')}"


#: The project URL "Documentation" of setup.cfg; tests/house/test_packaging.py compares the two.
SITE = "https://pytensor-jaxpr-linker.readthedocs.io/en/latest/"
OFFLINE = "python -m pytensor_jaxpr_linker docs"


def page_url(page: str, anchor: str = "") -> str:
    """Return the address of a page of `docs/`, by its path without suffix, and of one of its headings."""
    return f"{SITE}{page}.html" + (f"#{anchor}" if anchor else "")
