"""`Explanation`: the data of `explain`, and how it is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytensor_jaxpr_linker.report.mermaid import as_mermaid
from pytensor_jaxpr_linker.report.model import ExplanationData
from pytensor_jaxpr_linker.report.page import as_notebook, as_page
from pytensor_jaxpr_linker.report.profile import Profile
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
        """Write the report as one HTML page with the graph; return its path.

        Mermaid draws the graph: the browser loads it from the network. All else is on the page, also the graph in
        Mermaid's language. With a name that ends in ``.mmd`` the file has only this text, which GitHub draws, too.

        Each node has its Jaxpr equations and StableHLO if the function has been called, was given example arguments, or
        declares every shape.

        Parameters
        ----------
        path
            Where to write it, with the suffix ``.html`` or ``.mmd``.
        compile
            Whether the optimized HLO and XLA's analyses are on the page: each region is compiled for them.
        profile
            What ``stages(f, *args).profile()`` measured: the graph says how long each region and host step takes.
        """
        calls = {} if profile is None else profile.batch_microseconds
        path = Path(path)
        if path.suffix.lower() not in (".html", ".htm", ".mmd"):
            raise ValueError(
                "An explanation is saved as an HTML page or as the Mermaid text of its graph, so its name must end in"
                f" .html or .mmd, not {path.suffix or path.name!r}."
            )
        text = as_mermaid(self, calls) if path.suffix.lower() == ".mmd" else as_page(self, compile, calls)
        path.write_text(text, encoding="utf-8")
        return path

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def __rich__(self) -> Any:
        return as_tree(self)

    def _repr_html_(self) -> str:
        return as_notebook(self)
