"""How to write an expression so that it needs no break, and what each change to a graph would bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytensor.scalar as ps
from pytensor.compile.ops import DeepCopyOp, FromFunctionOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.printing import Print
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor import subtensor
from pytensor.tensor.basic import Alloc, AllocEmpty, ARange, Nonzero, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape

from pytensor_jaxpr_linker.base.errors import INNER_GRAPH, NO_RULE, SIDE_EFFECT, Break, CannotEmit
from pytensor_jaxpr_linker.base.rules import Rule
from pytensor_jaxpr_linker.graph.lanes.ops import Compact
from pytensor_jaxpr_linker.graph.walk import Graph
from pytensor_jaxpr_linker.plan.breaks import host_reason
from pytensor_jaxpr_linker.plan.partition import best_schedule, make_steps, static_positions


class Hint(NamedTuple):
    """An expression of the user's graph, and one for the same values without a break."""

    before: str
    after: str


#: Reductions by the scalar Op that they repeat: the method's name, and the value in place of an element that is left
#: out.
MASKED_REDUCTIONS = {
    ps.Add: ("sum", "0"),
    ps.Mul: ("prod", "1"),
    ps.Maximum: ("max", "-np.inf"),
    ps.Minimum: ("min", "np.inf"),
    ps.AND: ("all", "True"),
    ps.OR: ("any", "False"),
}
LEAST, GREATEST = "np.iinfo({0!r}).min", "np.iinfo({0!r}).max"

#: Ops that messages look through.
TRANSPARENT = (CheckAndRaise, DeepCopyOp, DimShuffle, ScalarFromTensor, SpecifyShape, TensorFromScalar)
INFIX = dict(
    zip(
        ["add", "sub", "mul", "true_div", "int_div", "mod", "pow", "gt", "ge", "lt", "le", "eq", "neq", "and_", "or_"],
        ["+", "-", "*", "/", "//", "%", "**", ">", ">=", "<", "<=", "==", "!=", "&", "|"],
        strict=True,
    )
)


def find_rewrite(b: Break, clients: Mapping[Variable, Sequence[Apply]]) -> Hint | None:
    """Return how to write a broken node without the break, or None; `clients` has the readers of its outputs."""
    node, op = b.node, b.node.op
    if isinstance(op, Print):
        x = short_expression(node.inputs[0], "x")
        return Hint(f"Print(...)({x})", f"{x} as one more output of the function")
    if b.code is NO_RULE and not isinstance(op, Nonzero):
        return rule_template(node) if host_reason(op) is None or isinstance(op, FromFunctionOp) else None
    if isinstance(op, subtensor.AdvancedSubtensor | Compact):
        return masked_read(node, clients)
    if isinstance(op, subtensor.AdvancedIncSubtensor):
        return masked_write(node)
    if isinstance(op, Nonzero):
        mask = short_expression(node.inputs[0], "mask")
        return Hint(f"x[{mask}.nonzero()].sum()", f"pt.switch({mask}, x, 0).sum()")
    if isinstance(op, subtensor.Subtensor) and b.variable is not None:
        return prefix_read(node, clients)
    if isinstance(op, ARange | Alloc | AllocEmpty | Reshape) and b.variable is not None:
        before, size = expression(node.outputs[0], 5, named=False), expression(b.variable, 4)
        if "..." in before or size not in before:
            return None
        return Hint(before, before.replace(size, "n", 1) + " with an integer input n = pt.lscalar('n')")
    return None


def rule_template(node: Apply) -> Hint:
    """Return the frame of an emission rule for an Op. Ops of `wrap_py` share a class: for them it is `wrap_jax`."""
    name = type(node.op).__name__
    if isinstance(node.op, FromFunctionOp):
        function = str(node.op).partition("{")[2].removesuffix("}")
        return Hint(
            f"pytensor.wrap_py(...)({function})",
            f"pytensor.wrap_jax({function}), where {function} can be written in JAX",
        )
    operands = ", ".join(f"x{i}" for i in range(len(node.inputs)))
    return Hint(name, f"@pytensor_jaxpr_linker.emits({name}) def emit_{name}(op, node, b, {operands}): ...")


def masked_read(node: Apply, clients: Mapping[Variable, Sequence[Apply]]) -> Hint | None:
    """Return the rewrite of ``x[mask]``, with the reduction that follows if one does."""
    masks = [v for v in node.inputs[1:] if getattr(v.type, "dtype", None) == "bool"]
    if len(masks) != 1:
        return None
    x, mask = short_expression(node.inputs[0], "x"), short_expression(masks[0], "mask")
    before = f"{bracketed(x)}[{mask}]"
    if (reduction := only_reduction(node.outputs[0], clients)) is not None:
        name, fill = reduction
        return Hint(f"{before}.{name}()", f"pt.switch({mask}, {x}, {fill}).{name}()")
    return Hint(before, f"pt.switch({mask}, {x}, 0), which keeps the length; {bracketed(mask)}.sum() counts")


def masked_write(node: Apply) -> Hint | None:
    """Return the rewrite of a write by mask of one number."""
    x, y, *indices = node.inputs
    if len(indices) != 1 or getattr(indices[0].type, "dtype", None) != "bool" or not all(y.type.broadcastable):
        return None
    names = [short_expression(*pair) for pair in ((x, "x"), (y, "y"), (indices[0], "mask"))]
    written = names[1] if node.op.set_instead_of_inc else f"{names[0]} + {names[1]}"
    method = "set" if node.op.set_instead_of_inc else "inc"
    before = f"{bracketed(names[0])}[{names[2]}].{method}({names[1]})"
    return Hint(before, f"pt.switch({names[2]}, {written}, {names[0]})")


def prefix_read(node: Apply, clients: Mapping[Variable, Sequence[Apply]]) -> Hint | None:
    """Return the rewrite of a reduction of ``x[:n]``."""
    match node.op.idx_list, only_reduction(node.outputs[0], clients):
        case [slice(start=None, stop=int(place), step=None)], (name, fill):
            x, n = short_expression(node.inputs[0], "x"), short_expression(node.inputs[place + 1], "n")
            mask = f"pt.arange({bracketed(x)}.shape[0]) < {n}"
            return Hint(f"{bracketed(x)}[:{n}].{name}()", f"pt.switch({mask}, {x}, {fill}).{name}()")
    return None


def only_reduction(variable: Variable, clients: Mapping[Variable, Sequence[Apply]]) -> tuple[str, str] | None:
    """Return method and neutral element of the reduction that is the only reader of a vector, or None."""
    readers = clients.get(variable, ())
    if len(readers) != 1 or not isinstance(readers[0].op, CAReduce) or variable.type.ndim != 1:
        return None
    found = MASKED_REDUCTIONS.get(type(readers[0].op.scalar_op))
    if found is not None and "inf" in found[1] and np.dtype(variable.type.dtype).kind in "iu":
        return found[0], (LEAST if found[1].startswith("-") else GREATEST).format(variable.type.dtype)
    return found


#: A rewrite has a placeholder for an expression of more letters.
MOST_LETTERS = 40


def short_expression(variable: Variable, placeholder: str) -> str:
    """Return a variable as a user would write it, or a placeholder where that is long."""
    text = expression(variable, 4)
    return placeholder if len(text) > MOST_LETTERS or "..." in text else text


# -- expressions -------------------------------------------------------------------------------------------------------


def expression(variable: Variable, depth: int = 3, named: bool = True) -> str:
    """Return a variable as a user would write it: its name, else its expression, `depth` Ops deep.

    With ``named=False`` it is the expression even if the variable has a name; names stay inside it.
    """
    if variable.name and named:
        return variable.name
    if isinstance(variable, Constant):
        return constant_text(variable.data)
    node = variable.owner
    if node is None:
        return f"<{variable.type}>"
    is_cast = isinstance(node.op, Elemwise) and str(node.op.scalar_op).startswith("Cast")
    if is_cast or isinstance(node.op, TRANSPARENT):
        return expression(node.inputs[0], depth)
    if depth == 0:
        return "..."
    return node_text(node, [expression(v, depth - 1) for v in node.inputs])


def node_text(node: Apply, operands: list[str]) -> str:
    """Return a node, given its operands as texts."""
    op = node.op
    if isinstance(op, Elemwise | ScalarOp):
        scalar_op = op.scalar_op if isinstance(op, Elemwise) else op
        name = getattr(scalar_op, "name", None) or type(scalar_op).__name__.lower()
        if name in INFIX and len(operands) > 1:
            return f" {INFIX[name]} ".join(map(bracketed, operands))
        return f"pt.{name}({', '.join(operands)})"
    if isinstance(op, CAReduce) and (found := MASKED_REDUCTIONS.get(type(op.scalar_op))):
        axes = "" if op.axis is None else f"axis={op.axis[0] if len(op.axis) == 1 else op.axis}"
        return f"{bracketed(operands[0])}.{found[0]}({axes})"
    if isinstance(op, Shape | Shape_i):
        return f"{bracketed(operands[0])}.shape" + (f"[{op.i}]" if isinstance(op, Shape_i) else "")
    if isinstance(op, ARange):
        return f"pt.arange({operands[1] if operands[0] == '0' and operands[2] == '1' else ', '.join(operands)})"
    if isinstance(op, Alloc):
        return f"pt.full(({', '.join(operands[1:])},), {operands[0]})"
    if isinstance(op, subtensor.Subtensor | subtensor.AdvancedSubtensor):
        return f"{bracketed(operands[0])}[{index_text(operands[1:], op.idx_list)}]"
    if isinstance(op, subtensor.IncSubtensor | subtensor.AdvancedIncSubtensor):
        place = f"{bracketed(operands[0])}[{index_text(operands[2:], op.idx_list)}]"
        return f"{place}.{'set' if op.set_instead_of_inc else 'inc'}({operands[1]})"
    return f"{str(op).split('{')[0]}({', '.join(operands)})"


def index_text(flat: Sequence[str], idx_list: Sequence[object]) -> str:
    """Return the text in the brackets of an index."""

    def entry(i: object) -> str:
        if not isinstance(i, slice):
            return str(i)
        start, stop, step = ("" if v is None else str(v) for v in (i.start, i.stop, i.step))
        return f"{start}:{stop}" + (f":{step}" if step else "")

    return ", ".join(map(entry, subtensor.indices_from_subtensor(flat, idx_list)))  # type: ignore[arg-type]


def constant_text(data: object) -> str:
    """Return a constant, in full where it is one number."""
    if isinstance(data, np.ndarray | np.generic):
        return f"{data.item():.6g}" if data.size == 1 and data.dtype.kind in "iufb" else f"<{data.dtype}{data.shape}>"
    return str(data)


def bracketed(text: str) -> str:
    """Return a text, in brackets if it has a blank outside of brackets: then it has an infix operator."""
    depth = 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == " " and depth == 0:
            return f"({text})"
    return text


#: How many nodes are scheduled in all the trials for one explanation.
MOST_VISITS = 100_000


class Trials(NamedTuple):
    """The results of the trials."""

    alone: dict[int, int]
    """The number of batches that would be left without a break, by the breaks that were tried."""
    changes: list[tuple[str, tuple[int, ...], int]]
    """The changes, the breaks that each removes, and the number of batches that would be left; the best first."""


def try_changes(
    graph: Graph,
    breaks: Sequence[Break],
    host_steps: Mapping[int, Sequence[int]],
    batches: int,
    find_rule: Callable[[Apply], Rule | None],
    fallbacks: Mapping[Apply, CannotEmit],
) -> Trials:
    """Count the batches that each change to a graph would leave, until `MOST_VISITS` is used up.

    The changes that remove most breaks come first. The plan has `batches` batches and these `breaks`; `host_steps` has
    the breaks in each host step, by its number.
    """
    groups: dict[object, list[int]] = {}
    for i, b in enumerate(breaks):
        groups.setdefault(common_cause(b), []).append(i)
    # A node may be looked at once in each batch where values cross, else once.
    visits = len(graph.nodes) * (batches if any(b.variable is not None for b in breaks) else 1)
    budget = MOST_VISITS // max(1, visits) - 1
    if budget < 1:
        return Trials({}, [])
    by_size = sorted(groups.values(), key=lambda members: -len(members))
    candidates = [(describe_change(breaks[members[0]]), tuple(members)) for members in by_size[:budget]]
    candidates += [(f"do without all of host step {i}", tuple(step)) for i, step in host_steps.items() if len(step) > 1]
    candidates += [("", (i,)) for members in by_size if len(members) > 1 for i in members]
    static = static_positions(make_steps(graph.inputs, graph.nodes, find_rule, fallbacks)[0])
    # Both counts are of the schedule: the plan drops and merges batches behind it in each trial alike.
    now = count_without(graph, breaks, frozenset(), static)
    alone: dict[int, int] = {}
    changes = []
    for what, members in candidates[:budget]:
        left = max(1, batches - (now - count_without(graph, breaks, frozenset(members), static)))
        if len(members) == 1:
            alone[members[0]] = left
        if what and left < batches:
            changes.append((what, members, left))
    changes.sort(key=lambda change: (change[2], len(change[1])))
    return Trials(alone, changes)


def common_cause(b: Break) -> object:
    """Return a key: breaks that one change removes share it."""
    if b.code in (NO_RULE, SIDE_EFFECT):
        return type(b.node.op)
    return b.node if b.variable is None else b.variable


def describe_change(b: Break) -> str:
    """Return the change that removes a break, and all others with the same cause."""
    if b.code is NO_RULE:
        return f"register an emission rule for {type(b.node.op).__name__}"
    if b.code is SIDE_EFFECT:
        return f"take out each {type(b.node.op).__name__}"
    if b.variable is not None:
        return f"make the value of {expression(b.variable)} known before the call, or do without it"
    if b.code is INNER_GRAPH:
        return f"make the inner graph of {b.node.op} one program"
    named = next((v.name for v in b.node.outputs if v.name), None)
    return f"rewrite {b.node.op}" + (f" = '{named}'" if named else "")


def count_without(
    graph: Graph, breaks: Sequence[Break], gone: frozenset[int], static: Mapping[Apply, frozenset[int]]
) -> int:
    """Return the number of batches of the graph without some of its breaks."""
    on_host = set()
    changed: dict[Apply, frozenset[int]] = {}
    for i, b in enumerate(breaks):
        if b.variable is None:
            if i in gone:
                changed[b.node] = frozenset()
            else:
                on_host.add(b.node)
        elif i in gone:
            fixed = changed.get(b.node, static.get(b.node, frozenset()))
            changed[b.node] = frozenset(p for p in fixed if b.node.inputs[p] is not b.variable)
    return best_schedule(graph.inputs, graph.nodes, on_host, {**static, **changed}).batch_count
