"""Names of a package that are imported when they are first used, so that its import stays quick."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_first_use(package: str, module_of: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package, from the full name of each public name's module."""

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return find
