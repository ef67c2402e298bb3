"""The exception of the package."""

from __future__ import annotations

import os


class ArtifactError(ValueError):
    """A file can't be used as an artifact: damaged, truncated, foreign, newer, or of parts that do not fit together.

    Its message says which file, what is wrong, and what to do.
    """

    def __init__(self, path: str | os.PathLike, what: str, remedy: str = "Export it again, or copy it again."):
        super().__init__(f"{os.fspath(path)}: {what} {remedy}")
        self.path, self.what, self.remedy = os.fspath(path), what, remedy

    def __reduce__(self) -> tuple:
        return type(self), (self.path, self.what, self.remedy)
