"""Exceptions and the template of their messages: what happened, where in the user's graph, why, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pytensor.graph.basic import Apply, Variable


class BreakCode(NamedTuple):
    """A reason why a node can't be part of the program, and what the user can do."""

    code: str
    why: str
    hint: str


NO_RULE = BreakCode(
    "JX001",
    "no emission rule is registered for this Op",
    "register one with `pytensor_jaxpr_linker.emits`, or compile this part with another mode",
)
RUNTIME_STATIC = BreakCode(
    "JX002",
    "its shape depends on numbers that are known only when the program runs",
    "compute the size from input shapes, or pass it as an integer input or shared variable",
)
REFUSED = BreakCode(
    "JX003", "the emission rule does not take this form of the Op", "rewrite the expression as the reason says"
)


class Break(NamedTuple):
    """Why a node is not part of a region."""

    code: BreakCode
    node: Apply
    variable: Variable | None
    reason: str


class GraphBreakError(NotImplementedError):
    """The graph can't be one program. `breaks` lists every reason.

    It is a `NotImplementedError`, as PyTensor's other backends raise for an Op that they can't translate.
    """

    def __init__(self, breaks: Sequence[Break]):
        self.breaks = tuple(breaks)
        super().__init__("\n".join(describe_break(b) for b in self.breaks))


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


def note_node(error: BaseException, node: Apply) -> None:
    """Add to an error which node of the user's graph it comes from."""
    types = ", ".join(f"{v.name or '-'}: {v.type}" for v in node.inputs)
    error.add_note(f"Apply node that caused the error: {describe_node(node)}\nInputs: {types}.{user_line(node)}")


class RuntimeTracerError(TypeError):
    """An input whose value must be static is a tracer of an outer JAX transformation."""
