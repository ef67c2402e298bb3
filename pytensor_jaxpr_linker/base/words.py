"""Words for numbers of things in messages and reports."""

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
