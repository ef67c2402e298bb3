"""The emission rules by Op class. The planner asks here for the needs of a rule.

| table | keyed by the class of | filled by |
|---|---|---|
| `RULES` | an Op of a graph | `emits`, and `emits_draws` in `emit/random/sampler.py` for random variables |
| `SCALAR_RULES` | a scalar Op of an `Elemwise`, a reduction or a loop | `emits_scalar` in `emit/scalar.py` |
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pytensor.graph.basic import Apply
from pytensor.graph.fg import AbstractFunctionGraph
from pytensor.graph.op import Op

type StaticOperands = Callable[[Apply], Iterable[int]]
type Refusal = Callable[[Apply], str | None]
type ScalarRefusal = Callable[[Any, Sequence[str]], str | None]


class InnerGraph(NamedTuple):
    """A graph inside an Op. It is planned with the node, and the Op's rule emits its equations."""

    graph: AbstractFunctionGraph
    where: str  #: its place in messages: "in the loop"
    first: int = 0  #: the position of the node's operand for the first input; the others follow
    varying: int = 0  #: the number of leading inputs that differ from step to step, whose values only run time knows


type InnerGraphs = Callable[[Apply], Sequence[InnerGraph]]


@dataclass(frozen=True)
class Rule:
    """How the nodes of one Op become equations.

    Parameters
    ----------
    emit
        The emission rule, called as ``emit(op, node, b, *operands)``, or ``emit(op, node, b, inner, *operands)`` if it
        has inner graphs: ``inner[i](b, operands)`` emits one of them and returns its outputs. An operand is an atom, or
        a NumPy value if it is static. The rule returns an atom, or a sequence of one for each output, as the node
        declares them: see `checked_results`.
    static
        Positions of the node's inputs whose values must be known when a region is specialized.
    refuse
        Returns why the rule cannot take a node, or None if it can.
    inner
        Returns the inner graphs of a node. What they need static is static, and the node is refused if one of them
        can't be one program.
    batched
        Whether the operands may have leading batch axes of equal lengths: a `Blockwise` of the Op is then one call of
        the rule.
    """

    emit: Callable[..., Any]
    static: StaticOperands
    refuse: Refusal
    inner: InnerGraphs | None = None
    batched: bool = False


@dataclass(frozen=True)
class ScalarRule:
    """How a scalar Op becomes equations, whatever applies it.

    Parameters
    ----------
    emit
        The emission rule, called as ``emit(op, b, dtype, *xs)``: operands of equal shapes, or 0-d, in their own dtypes.
        Its result is converted to `dtype`.
    refuse
        Returns, for the Op and the dtypes of the operands, why the rule cannot take them, or None if it can.
    plain
        The rule for operands of one shape in the dtype of the result, called as ``plain(b, *xs)``. Most nodes have such
        operands, and take a third of the time to build.
    several
        The rule of an Op that may have several results, called as ``several(op, b, dtypes, *xs)``; returns a list of
        atoms.
    """

    emit: Callable[..., Any]
    refuse: ScalarRefusal | None = None
    plain: Callable[..., Any] | None = None
    several: Callable[..., Any] | None = None


#: The package, whose modules register its own rules, and the modules with the decorators that do so.
OWN = f"{__name__.partition('.')[0]}."
REGISTERING = frozenset({__name__, f"{OWN}emit.scalar", f"{OWN}emit.random.sampler"})


def is_own_registration() -> bool:
    """Return whether a module of this package changes a table, as it is imported, and not the user's code."""
    frame: Any = sys._getframe(2)
    while frame.f_globals.get("__name__") in REGISTERING and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).startswith(OWN)


class Table[T](dict[type | str, T]):
    """Rules, or rewrites, by class of Op. The key of a class in an optional library is its name, see `class_name`.

    `foreign` are the keys whose rules somebody else has ever changed: a kept program may be of another rule.
    """

    def __init__(self, rules: Mapping[type | str, T] | None = None) -> None:
        super().__init__(rules or {})
        self._found: dict[type, T | None] = {}
        self.foreign: set[type | str] = set()

    def __setitem__(self, op_type: type | str, rule: T) -> None:
        super().__setitem__(op_type, rule)
        self._found.clear()
        if not is_own_registration():
            self.foreign.add(op_type)

    def __delitem__(self, op_type: type | str) -> None:
        super().__delitem__(op_type)
        self._found.clear()
        self.foreign.add(op_type)

    # A dict's own would go past the two methods above.
    pop, popitem, clear, update, setdefault = (
        getattr(MutableMapping, name) for name in ("pop", "popitem", "clear", "update", "setdefault")
    )

    def exact(self, op_class: type) -> T | None:
        """Return the rule of a class itself."""
        return self[op_class] if op_class in self else self.get(class_name(op_class))

    def of(self, op_class: type) -> T | None:
        """Return the rule of a class, or of the most specific one of its bases that has one."""
        if op_class not in self._found:
            rules = map(self.exact, op_class.__mro__)
            self._found[op_class] = next((rule for rule in rules if rule is not None), None)
        return self._found[op_class]


RULES: Table[Rule] = Table()
SCALAR_RULES: Table[ScalarRule] = Table()


def emits(
    *op_types: type | str,
    static: Iterable[int] | StaticOperands = (),
    refuse: Refusal = lambda node: None,
    inner: InnerGraphs | None = None,
    batched: bool = False,
) -> Callable[[Callable], Callable]:
    """Register the decorated emission rule for `op_types` and their subclasses.

    Parameters
    ----------
    *op_types
        Classes of Ops, or, for a library that need not be installed, their names as `class_name` gives them.
    static
        Positions of inputs that must be known when a region is specialized, or a function from a node to them.
    refuse
        A function from a node to the reason why the rule can't take it, or None.
    inner
        A function from a node to its inner graphs, which the rule then gets as its argument after `b`: see `Rule`.
    batched
        Whether the rule takes leading batch axes, which all operands then have, of equal lengths. In a `Blockwise` it
        gets the core Op as `op`, and the node of the `Blockwise`. Any other rule is applied to one element and batched
        as `jax.vmap` does.

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
    check_op_types("emits", op_types)
    positions = static if callable(static) else lambda node, fixed=frozenset(static): fixed

    def register(emit: Callable) -> Callable:
        for op_type in op_types:
            RULES[op_type] = Rule(emit, positions, refuse, inner, batched)
        return emit

    return register


def check_op_types(decorator: str, op_types: Sequence[Any]) -> None:
    """Raise a TypeError unless these are classes of Ops, or names as `class_name` gives them."""
    for given in op_types:
        is_class = isinstance(given, type) and issubclass(given, Op)
        if not is_class and not (isinstance(given, str) and DOTTED.fullmatch(given)):
            raise TypeError(
                f"{decorator} takes classes of Ops, as in @{decorator}(MyOp), or their names with the module's, as in"
                f" @{decorator}('package.module.MyOp'), not {given!r:.100}."
            )
    if not op_types:
        raise TypeError(f"{decorator} takes the class of an Op at least, as in @{decorator}(MyOp).")


#: The name of a class with its module's.
DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


def find_rule(op: Op) -> Rule | None:
    """Return the rule of `op`'s class, or of its most specific base that has one."""
    return RULES.of(type(op))


def class_name(op_class: type) -> str:
    """Return the name of a class with its module's, ``"pymc.distributions.continuous.RiceRV"``."""
    return f"{op_class.__module__}.{op_class.__qualname__}"
