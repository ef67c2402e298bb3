"""The emission rules by Op class. Knows nothing of JAX, so that the analysis can ask what a rule needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from pytensor.graph.basic import Apply
from pytensor.graph.fg import AbstractFunctionGraph
from pytensor.graph.op import Op

type StaticOperands = Callable[[Apply], Iterable[int]]
type Refusal = Callable[[Apply], str | None]


class InnerGraph(NamedTuple):
    """A graph inside an Op, which is planned with the node, and whose equations the Op's rule emits.

    Attributes
    ----------
    graph
        The graph.
    where
        What messages say of it: "in the loop".
    first
        The position of the node's operand that its first input stands for; the others follow.
    varying
        How many of its inputs, the first, differ from step to step, so that their values are not known before it runs.
    """

    graph: AbstractFunctionGraph
    where: str
    first: int = 0
    varying: int = 0


type InnerGraphs = Callable[[Apply], Sequence[InnerGraph]]


@dataclass(frozen=True)
class Rule:
    """How the nodes of one Op become equations.

    Parameters
    ----------
    emit
        The emission rule, called as ``emit(op, node, b, *operands)``, or ``emit(op, node, b, inner, *operands)`` if it has inner
        graphs: ``inner[i](b, operands)`` emits one of them at an insertion point and returns its outputs. An operand is an atom, or its NumPy value if it is
        static. Returns the atom of the output, or a sequence of one for each output, with the dtypes, ranks and known lengths that the
        node declares: see `checked_results`.
    static
        Positions of the node's inputs whose values must be known when a region is specialized.
    refuse
        Returns why the rule cannot take a node, or None if it can.
    inner
        Returns the inner graphs of a node. What these need static is static, and if one of them can't be one program, neither
        can the node. None if there are none whatever the node.
    """

    emit: Callable[..., Any]
    static: StaticOperands
    refuse: Refusal
    inner: InnerGraphs | None = None


#: The key of an Op that a library may or may not have is the name of its class, see `class_name`.
RULES: dict[type | str, Rule] = {}


def emits(
    *op_types: type | str,
    static: Iterable[int] | StaticOperands = (),
    refuse: Refusal = lambda node: None,
    inner: InnerGraphs | None = None,
) -> Callable[[Callable], Callable]:
    """Register the decorated emission rule for `op_types` and their subclasses.

    Parameters
    ----------
    *op_types
        Classes of Ops, or, for those of a library that need not be installed, their names as `class_name` gives them.
    static
        Positions of inputs that must be known when a region is specialized, or a function from a node to them.
    refuse
        A function from a node to the reason why the rule can't take it, or None.
    inner
        A function from a node to its inner graphs, which the rule then gets as its argument after `b`: see `Rule`.

    Examples
    --------
    A rule for an Op of your own:

    >>> import pytensor, pytensor.tensor as pt
    >>> from pytensor.graph import Apply, Op
    >>> from pytensor_jaxpr_linker import emits, prims
    >>> class Twice(Op):
    ...     def make_node(self, x):
    ...         return Apply(self, [x], [x.type()])
    ...     def perform(self, node, inputs, outputs):
    ...         outputs[0][0] = inputs[0] * 2
    >>> @emits(Twice)
    ... def emit_Twice(op, node, b, x):
    ...     return prims.add(b, x, x)
    >>> x = pt.vector("x", dtype="float64")
    >>> pytensor.function([x], Twice()(x), mode="JAXPR")([1.0, 2.0])
    array([2., 4.])
    """
    positions = static if callable(static) else lambda node, fixed=frozenset(static): fixed

    def register(emit: Callable) -> Callable:
        for op_type in op_types:
            RULES[op_type] = Rule(emit, positions, refuse, inner)
        rule_of_class.cache_clear()
        return emit

    return register


def find_rule(op: Op) -> Rule | None:
    """Return the rule of the most specific class of `op` that has one."""
    return rule_of_class(type(op))


@cache
def rule_of_class(op_class: type) -> Rule | None:
    """Return the rule of the most specific base of a class, or of itself."""
    for op_type in op_class.__mro__:
        if (rule := registered(RULES, op_type)) is not None:
            return rule
    return None


def registered[T](table: Mapping[type | str, T], op_class: type) -> T | None:
    """Return the entry of a class itself, which may be under its name."""
    return table[op_class] if op_class in table else table.get(class_name(op_class))


def class_name(op_class: type) -> str:
    """Return the name of a class with its module's, ``"pymc.distributions.continuous.RiceRV"``."""
    return f"{op_class.__module__}.{op_class.__qualname__}"
