"""`Explanation`: the data of `explain`, and how it is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytensor_jaxpr_linker.report.model import ExplanationData
from pytensor_jaxpr_linker.report.notebook import as_notebook
from pytensor_jaxpr_linker.report.page import as_page
from pytensor_jaxpr_linker.report.text import as_text, as_tree


class Explanation(ExplanationData):
    """What mode JAXPR makes of a graph, and why, with the attributes of `ExplanationData`.

    Prints as text; a notebook shows it as HTML.
    """

    def text(self, most: int = 12) -> str:
        """Return the report as text.

        Parameters
        ----------
        most
            How many entries of each list are shown: batches, nodes of each, breaks, programs.
        """
        return as_text(self, most)

    def save(self, path: str | Path, compile: bool = True) -> Path:
        """Write one HTML page, without anything from the network, in which the graph is drawn; return its path.

        Each node opens its Jaxpr equations and StableHLO. They are there for functions that have been called, were given
        example arguments, or declare every shape.

        Parameters
        ----------
        path
            Where to write it, with the suffix ``.html``.
        compile
            Whether the optimized HLO and XLA's analyses are on the page: each region is compiled for them.
        """
        path = Path(path)
        if path.suffix.lower() not in (".html", ".htm"):
            raise ValueError(
                f"An explanation is saved as an HTML page, so its name must end in .html, not {path.suffix or path.name!r}."
            )
        path.write_text(as_page(self, compile), encoding="utf-8")
        return path

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def __rich__(self) -> Any:
        return as_tree(self)

    def _repr_html_(self) -> str:
        return as_notebook(self)
