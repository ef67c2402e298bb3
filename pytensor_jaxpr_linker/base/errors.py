"""Exceptions and the template of their messages: what happened, where in the user's graph, why, what to do."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from pytensor import gradient
from pytensor.graph.basic import Apply, Variable

from pytensor_jaxpr_linker.base import logs
from pytensor_jaxpr_linker.base.words import OFFLINE, page_url

#: The folder of this package.
OURS = str(Path(__file__).parents[1]) + os.sep


class BreakCode(NamedTuple):
    """A reason why a node can't be part of the program, and what the user can do."""

    code: str
    why: str
    hint: str

    @property
    def documentation(self) -> str:
        """The address of the page that explains the code."""
        return page_url("breaks", self.code.lower())

    @property
    def offline(self) -> str:
        """The command that prints the explanation without a network."""
        return f"{OFFLINE} {self.code}"


NO_RULE = BreakCode(
    "JX001", "no emission rule is registered for this Op", "register a rule with `pytensor_jaxpr_linker.emits`"
)
RUNTIME_STATIC = BreakCode(
    "JX002",
    "its shape depends on numbers that are known only when the program runs",
    "compute the size from input shapes, or pass it as an integer input or shared variable",
)
REFUSED = BreakCode(
    "JX003", "the emission rule does not take this form of the Op", "rewrite the expression as the reason says"
)
INNER_GRAPH = BreakCode(
    "JX004", "its inner graph can't be one program", "see to the nodes of the inner graph that the reason names"
)
NOT_ARRAY = BreakCode(
    "JX005",
    "it reads or makes a value that is no array",
    "compute with the arrays that the value is made of, or do this outside of the function; on the host it runs as it"
    " is",
)
SIDE_EFFECT = BreakCode(
    "JX006",
    "it is there for what it does in Python, such as printing, at its place among the other nodes",
    "take it out of the graph when you have seen what you wanted; one more output of the function shows a value without"
    " a break",
)
DYNAMIC_VALUE = BreakCode(
    "JX010",
    "it must know, while the program is built, a value that is marked dynamic",
    "take the mark off (`mark_dynamic`), or do without a shape that depends on it",
)
DYNAMIC_AXIS = BreakCode(
    "JX011",
    "it reads an axis whose length is marked dynamic",
    "say how long it gets (`mark_dynamic(x, axis, longest=n)`), pad it to a fixed length, or take the mark off",
)


class Reason(str):
    """Why a node can't be part of a region, with a break code of its own."""

    code: BreakCode

    def __new__(cls, text: str, code: BreakCode) -> Reason:
        """Return the text with its code."""
        reason = super().__new__(cls, text)
        reason.code = code
        return reason


class Break(NamedTuple):
    """Why a node is not part of a region."""

    code: BreakCode
    node: Apply
    variable: Variable | None
    reason: str


#: How many breaks the message of one error describes.
SHOWN_BREAKS = 20


class GraphBreakError(NotImplementedError):
    """The graph can't be one program. `breaks` lists every reason.

    It is a `NotImplementedError`, as PyTensor's other backends raise for an Op that they can't translate.
    """

    def __init__(self, breaks: Sequence[Break]):
        self.breaks = tuple(breaks)
        shown = [describe_break(b) for b in self.breaks[:SHOWN_BREAKS]]
        if len(self.breaks) > SHOWN_BREAKS:
            shown.append(f"... and {len(self.breaks) - SHOWN_BREAKS} more, see the error's `breaks`")
        super().__init__("\n".join(shown))

    def __reduce__(self) -> tuple:
        """Return the message and the notes: a pool of processes waits forever for an error that does not unpickle."""
        return break_error, (str(self),), {"__notes__": getattr(self, "__notes__", [])}


def break_error(message: str) -> GraphBreakError:
    """Return the error that another process raised, without its breaks."""
    error = GraphBreakError(())
    error.args = (message,)
    return error


def describe_break(b: Break) -> str:
    """Return the message of a break."""
    operand = "" if b.variable is None else f" Its operand {variable_name(b.variable)} is the one that must be known."
    return (
        f"[{b.code.code}] mode JAXPR cannot put {describe_node(b.node)} into one XLA program: {b.reason}.{operand}"
        f" To do: {b.code.hint} ({b.code.documentation}, or `{b.code.offline}`).{user_line(b.node)}"
    )


def variable_name(variable: Variable) -> str:
    """Return how messages call a variable: the user's name, else the expression's head."""
    if variable.name:
        return f"'{variable.name}'"
    if variable.owner is None:
        return f"<{variable.type}>"
    return f"the output of {variable.owner.op}"


def describe_node(node: Apply) -> str:
    """Return how messages call a node: its Op and the names around it."""
    named = [v.name for v in node.outputs if v.name]
    inputs = ", ".join(v.name or str(v.type) for v in node.inputs)
    return f"{node.op}({inputs})" + (f" = '{named[0]}'" if named else "")


def user_line(node: Apply) -> str:
    """Return a sentence with the line of the user's program that made the node, if PyTensor recorded it."""
    line = source_line(node)
    return f" Made at {line}" if line else ""


def source_line(node: Apply) -> str:
    """Return file, number and text of the line of the user's program that made the node.

    Where PyTensor recorded none of the user's, it is the line of a library, such as PyMC; nothing for
    PyTensor itself, which makes the nodes of gradients.
    """
    return lines_of(node)[0] or lines_of(node)[1]


def lines_of(node: Apply) -> tuple[str, str]:
    """Return the user's line that applies a node's Op, and a library's, such as PyMC's; each is empty if unknown."""
    pytensors, *others = library_folders()
    of_library = ""
    for frames in traces_of(node):
        for filename, line, _, text in reversed(outside_of_op(node, frames)):
            if filename.startswith(OURS):
                break  # a pass or a report of ours made the node; whoever asked for it did not
            if filename.startswith((pytensors, ROLE)) or is_of_python(filename):
                continue
            found = f"{filename}:{line}" + (f": {text}" if text else "")  # Python has no text of a terminal's lines
            if not (filename.startswith(tuple(others)) or is_in_package(filename)):
                return found, of_library
            of_library = of_library or found
    return "", of_library


def traces_of(node: Apply) -> list[Sequence[Any]]:
    """Return the traces of a node's outputs that PyTensor recorded."""
    return [frames for variable in node.outputs for frames in getattr(variable.tag, "trace", None) or ()]


def outside_of_op(node: Apply, frames: Sequence[Any]) -> Sequence[Any]:
    """Return the frames of a trace, outermost first, without the Op's own `make_node` and `__call__`."""
    made = [i for i, (_, _, name, _) in enumerate(frames) if name == "make_node"]
    outside = frames[: made[-1]] if made else frames
    methods = [vars(kind)["__call__"] for kind in type(node.op).__mro__ if "__call__" in vars(kind)]
    codes = [method.__code__ for method in methods if hasattr(method, "__code__")]
    while outside and any(is_in(code, outside[-1]) for code in codes):
        outside = outside[:-1]
    return outside


def is_in(code: CodeType, frame: Any) -> bool:
    """Return whether a frame of a trace is one of a function."""
    filename, line, name, _ = frame
    return (filename, name) == (code.co_filename, code.co_name) and any(line == n for *_, n in code.co_lines())


#: In place of a file in a variable's trace, which rewrites hand on: the frame's text is the role of the variable,
#: "log density of y".
ROLE = "<role>"
#: The role of a node that PyTensor's gradient made.
GRADIENT = "gradient"


def role_of(node: Apply) -> str:
    """Return the role noted for a node before rewrites, "gradient" if PyTensor's gradient made it, or nothing."""
    roles = (text for frames in traces_of(node) for filename, _, _, text in frames if filename == ROLE)
    return next(roles, GRADIENT if is_of_gradient(node) else "")


def is_of_gradient(node: Apply) -> bool:
    """Return whether PyTensor's gradient made a node. Users call `zero_grad` and other functions of its module."""
    files = {filename for frames in traces_of(node) for filename, *_ in frames}
    return type(node.op).__module__ != gradient.__name__ and gradient.__file__ in files


def library_folders() -> tuple[str, ...]:
    """Return the folders whose lines a user can't change: PyTensor's first."""
    packages = [sys.modules[name].__file__ for name in NOT_THE_USER if name in sys.modules]
    return tuple(os.path.dirname(file) + os.sep for file in packages if file)


def is_in_package(filename: str) -> bool:
    """Return whether a file is part of an installed package."""
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(filename).parts)


def is_of_python(filename: str) -> bool:
    """Return whether a file is one of Python's own modules, also frozen ones, and not of an installed package."""
    return filename.startswith("<frozen ") or (
        filename.startswith(STDLIB) and not filename[len(STDLIB) :].startswith(("site-packages", "dist-packages"))
    )


def mask_mismatch(axis: int, n: int, m: int) -> IndexError:
    """Return NumPy's error about an axis of length `n` that is indexed by a mask of length `m`."""
    return IndexError(
        f"boolean index did not match indexed array along axis {axis}; size of axis is {n}"
        f" but size of corresponding boolean axis is {m}"
    )


def empty_reduction(name: str) -> ValueError:
    """Return NumPy's error about the extremum of no elements."""
    return ValueError(f"zero-size array to reduction operation {name} which has no identity")


def note_node(error: BaseException, node: Apply) -> None:
    """Add to an error which node of the user's graph it comes from."""
    types = ", ".join(f"{v.name or '-'}: {v.type}" for v in node.inputs)
    error.add_note(f"Apply node that caused the error: {describe_node(node)}\nInputs: {types}.{user_line(node)}")


class GraphBreakWarning(UserWarning):
    """A graph takes several programs, or Ops that run on the host."""


def report_breaks(
    breaks: Sequence[Break], how: str, summary: str = "The graph can't be one XLA program and runs in several steps."
) -> None:
    """Tell the user of the breaks of one graph. `how` is a value of the option `on_break`, `summary` the first line.

    With "raise" that is a `GraphBreakError`. Else the logger gets them, too: with level WARNING for "log", else INFO.
    """
    level = logging.WARNING if how == "log" else logging.INFO
    logged = logs.breaks.isEnabledFor(level)
    if not breaks or (how in ("ignore", "log") and not logged):
        return
    error = GraphBreakError(breaks)
    if how == "raise":
        raise error
    if logged:
        logs.breaks.log(level, "%s\n%s", summary, error)
    if how == "warn":
        warn_user(f"{summary}\n{error}", GraphBreakWarning)


class CacheWarning(UserWarning):
    """Compiled programs or rewritten graphs can't be kept in the folder that the user named."""


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn with the line of the user's program that called PyTensor."""
    warnings.warn(message, category, skip_file_prefixes=library_folders())


#: The packages whose lines a user can't change.
NOT_THE_USER = ("pytensor", "pytensor_jaxpr_linker", "jaxpr_artifact", "pymc", "jax")
#: The folder of Python's own modules.
STDLIB = os.path.dirname(contextlib.__file__) + os.sep


#: What a rule raises if shapes or known values don't fit an Op, as PyTensor does when it runs the node.
MISFITS = (ValueError, IndexError, TypeError, AssertionError)


class WrongResult(TypeError):
    """The results of an emission rule are not as its node declares: a fault of the rule, even if nothing reads them."""


class CannotEmit(Exception):
    """Raised by an emission rule that finds, for the shapes at hand, that it can't emit a node.

    The node then runs on the host, or the operand at `position` becomes static: its value is computed before the node's
    region is built. `node`, which is of the region, is filled in where the rule was called.
    """

    def __init__(self, reason: str, position: int | None = None):
        super().__init__(reason)
        self.position = position
        self.node: Apply | None = None


def refused_by_rule(error: CannotEmit) -> GraphBreakError:
    """Return the error of a graph that must be one program and has a node that its rule can't emit."""
    assert error.node is not None
    return GraphBreakError([Break(REFUSED, error.node, None, str(error))])


#: The message of modules that only pickles of older versions name.
OLD_PICKLE = (
    "This was pickled by an older version of pytensor_jaxpr_linker, which this one can't read: compile the function"
    " again, by `pytensor.function(..., mode='JAXPR')`, and pickle it anew."
)


class RuntimeTracerError(TypeError):
    """An input whose value must be static is a tracer of an outer JAX transformation."""
