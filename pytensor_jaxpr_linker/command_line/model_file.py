"""Finds the subject of a report in a file: a PyMC model, a compiled function, a JAX function, an exported function."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from pytensor.compile.executor import Function
from pytensor.compile.mode import predefined_modes

from jaxpr_artifact import ArtifactError, load
from pytensor_jaxpr_linker.frontend.targets import Target
from pytensor_jaxpr_linker.report.text import duration


class ModelInFile(NamedTuple):
    """The subject of a report, and its name."""

    name: str
    value: Any


def is_model_file(text: str) -> bool:
    """Return whether an argument names a Python file: ``model.py``, or ``model.py:name``."""
    return split_target(text)[0].suffix == ".py"


def split_target(text: str) -> tuple[Path, str]:
    """Return the file that an argument names, and the name within it, or nothing."""
    head, colon, name = text.rpartition(":")
    return (Path(head), name) if colon and head.endswith(".py") else (Path(text), "")


def read_reportable(text: str) -> ModelInFile:
    """Return the subject for `explain` and `stages`: defined by a Python file, or the function of an exported file."""
    if is_model_file(text):
        return read_model(text)
    if not (path := Path(text)).is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        return ModelInFile(path.stem, load(path))
    except ArtifactError as error:
        raise ValueError(f"{path} is no model file, which is called model.py or model.py:NAME. {error}") from None


def read_model(text: str) -> ModelInFile:
    """Run a file, as an import would, and return the value of a name, or its only value that `explain` takes.

    The name may be of a function without arguments that makes the value.
    """
    path, name = split_target(text)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    folder = str(path.resolve().parent)
    try:
        sys.path.insert(0, folder)
        namespace = runpy.run_path(str(path), run_name=path.stem)
    finally:
        sys.path.pop(0)
    if name:
        return ModelInFile(name, value_named(namespace, name, path))
    found = {key: value for key, value in namespace.items() if is_reportable(value)}
    names = list({id(value): key for key, value in reversed(found.items())}.values())[::-1]
    if len(names) == 1:
        return ModelInFile(names[0], found[names[0]])
    if names:
        raise LookupError(f"{path} defines {', '.join(names)}: name one of them, as in {path}:{names[0]}")
    raise LookupError(
        f"{path} defines no PyMC model and no function of mode JAXPR at its top level. If a function makes one, name"
        f" it: {path}:build_model"
    )


def value_named(namespace: dict[str, Any], name: str, path: Path) -> Any:
    """Return the value of a name in a file; if it is a function that makes such a value, call it."""
    if name not in namespace:
        near = get_close_matches(name, namespace)
        raise LookupError(f"{path} defines no {name!r}" + (f"; did you mean {near[0]!r}?" if near else "."))
    value = namespace[name]
    if not is_reportable(value) and callable(value):
        value = value()
    if not is_reportable(value):
        raise TypeError(f"{name} of {path} is no PyMC model and no function of mode JAXPR, but {type(value).__name__}.")
    return value


def is_reportable(value: Any) -> bool:
    """Return whether `explain` takes a value."""
    if pymc := sys.modules.get("pymc"):
        classes = pymc.Model, pymc.pytensorf.PointFunc, pymc.model.core.ValueGradFunction
        if isinstance(value, classes):
            return True
    if isinstance(value, Function):
        return hasattr(getattr(value, "vm", None), "runner")
    return isinstance(getattr(value, "source", None), Target)


def time_model(found: ModelInFile, modes: Sequence[str], calls: int) -> str:
    """Return a table of the times of the log density and gradient of a model in each mode, at first and later."""
    import pymc

    model = found.value
    if not isinstance(model, pymc.Model):
        raise TypeError(f"bench takes a PyMC model, and {found.name} is {type(model).__name__}.")
    for mode in modes:
        check_mode_name(mode)
    outputs = [model.logp()]
    if model.continuous_value_vars:
        outputs.append(model.dlogp())
    point = [model.initial_point()[v.name] for v in model.value_vars]
    rows: list[tuple[str, ...]] = [("mode", "first result", "median call", "fastest call")]
    for mode in modes:
        started = perf_counter()
        function = pymc.compile(model.value_vars, outputs, mode=None if mode == "default" else mode)
        function(*point)
        first = perf_counter() - started
        times = []
        for _ in range(calls):
            started = perf_counter()
            function(*point)
            times.append(perf_counter() - started)
        rows.append((mode, *(duration(seconds) for seconds in (first, median(times), min(times)))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:<{n}}" for cell, n in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([f"Log density and gradient of {found.name}, at its initial point:", *lines])


def check_mode_name(name: str) -> None:
    """Raise a LookupError that names the nearest modes if PyTensor knows none of this name."""
    known = ["default", *predefined_modes]
    if name not in known:
        near = get_close_matches(name.upper(), known)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}."
        raise LookupError(f"There is no mode {name!r}: {hint}")
