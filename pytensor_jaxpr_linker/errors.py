"""Exceptions and the template of their messages: what happened, where in the user's graph, why, what to do."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import NamedTuple

from pytensor.graph.basic import Apply, Variable

logger = logging.getLogger("pytensor_jaxpr_linker.breaks")


class BreakCode(NamedTuple):
    """A reason why a node can't be part of the program, and what the user can do."""

    code: str
    why: str
    hint: str


NO_RULE = BreakCode(
    "JX001",
    "no emission rule is registered for this Op",
    "register one with `pytensor_jaxpr_linker.emits`",
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


class Reason(str):
    """Why a rule refuses a node, with a break code of its own."""

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


def describe_break(b: Break) -> str:
    """Return the message of a break."""
    operand = "" if b.variable is None else f" Its operand {variable_name(b.variable)} is the one that must be known."
    return (
        f"[{b.code.code}] mode JAXPR cannot put {describe_node(b.node)} into one XLA program: {b.reason}.{operand}"
        f" To do: {b.code.hint}.{user_line(b.node)}"
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
    """Return the line of the user's program that made the node, if PyTensor recorded it."""
    for variable in node.outputs:
        for frames in getattr(variable.tag, "trace", None) or ():
            if frames:
                filename, line, _, text = frames[-1]
                return f" Made at {filename}:{line}: {text}"
    return ""


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


def report_breaks(breaks: Sequence[Break], how: str) -> None:
    """Tell the user of breaks.

    Parameters
    ----------
    breaks
        The breaks of one graph.
    how : {"ignore", "log", "warn", "raise"}
        What to do.

    Raises
    ------
    GraphBreakError
        If `how` is "raise".
    """
    if not breaks or how == "ignore":
        return
    error = GraphBreakError(breaks)
    if how == "raise":
        raise error
    if how == "log":
        logger.warning("%s", error)
    else:
        warnings.warn(
            f"The graph can't be one XLA program and runs in several steps.\n{error}", GraphBreakWarning, stacklevel=3
        )


class CannotEmit(Exception):
    """Raised by an emission rule that finds, for the shapes at hand, that it can't emit a node.

    The node then runs on the host, or the operand at `position` becomes static: its value is computed before the node's
    region is built.

    Attributes
    ----------
    node
        The node of the region, filled in where the rule was called.
    position
        Which operand must be static, or None.
    """

    def __init__(self, reason: str, position: int | None = None):
        super().__init__(reason)
        self.position = position
        self.node: Apply | None = None


class RuntimeTracerError(TypeError):
    """An input whose value must be static is a tracer of an outer JAX transformation."""
