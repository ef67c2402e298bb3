"""`Explanation`: the data of `explain`, and how it is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytensor_jaxpr_linker.report.model import ExplanationData
from pytensor_jaxpr_linker.report.notebook import as_notebook
from pytensor_jaxpr_linker.report.page import as_page
from pytensor_jaxpr_linker.report.profile import Profile
from pytensor_jaxpr_linker.report.svg import as_svg
from pytensor_jaxpr_linker.report.text import as_text, as_tree, summary


class Explanation(ExplanationData):
    """What mode JAXPR makes of a graph, and why, with the attributes of `ExplanationData`.

    Prints as text; a notebook shows it as HTML.
    """

    @property
    def summary(self) -> str:
        """The first line: how many programs, nodes and breaks."""
        return summary(self)

    def text(self, most: int = 12) -> str:
        """Return the report as text.

        Parameters
        ----------
        most
            How many entries of each list are shown: batches, nodes of each, breaks, programs.
        """
        return as_text(self, most)

    def save(self, path: str | Path, compile: bool = True, profile: Profile | None = None) -> Path:
        """Write one HTML page, without anything from the network, in which the graph is drawn; return its path.

        With a name that ends in ``.svg`` it is the drawing alone.

        Each node opens its Jaxpr equations and StableHLO. They are there for functions that have been called, were given
        example arguments, or declare every shape.

        Parameters
        ----------
        path
            Where to write it, with the suffix ``.html`` or ``.svg``.
        compile
            Whether the optimized HLO and XLA's analyses are on the page: each region is compiled for them.
        profile
            What ``stages(f, *args).profile()`` measured: the drawing says how long each region and host step takes in a call.
        """
        calls = {} if profile is None else profile.batch_microseconds
        path = Path(path)
        if path.suffix.lower() == ".svg":
            path.write_text(as_svg(self, calls), encoding="utf-8")
            return path
        if path.suffix.lower() not in (".html", ".htm"):
            raise ValueError(
                "An explanation is saved as an HTML page or as a drawing, so its name must end in .html or .svg, not"
                f" {path.suffix or path.name!r}."
            )
        path.write_text(as_page(self, compile, calls), encoding="utf-8")
        return path

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def __rich__(self) -> Any:
        return as_tree(self)

    def _repr_html_(self) -> str:
        return as_notebook(self)
