"""Proofs that two lengths are equal, though the graph computes them in different ways.

PyTensor computes the length of ``x[:k]``, and of a gradient with respect to it, by comparing `k` with 0 and with the length of `x`.
Whether that is the length of a slice is a question of linear arithmetic over the integers. A proof goes by cases. In each case every
comparison has one outcome, so both lengths are linear forms. The lengths are equal if the forms are equal in all possible cases.
Fourier-Motzkin elimination with rounded bounds (Pugh, The Omega test, 1991, its real shadow) refutes the impossible cases. A number that
is not followed may be any number of its dtype. A proof that takes too long is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import product
from math import gcd, prod
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pytensor.scalar as ps
from pytensor.compile.ops import TypeCastingOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.basic import Alloc, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Shape_i
from pytensor.tensor.subtensor import AdvancedIncSubtensor, IncSubtensor, Subtensor

from pytensor_jaxpr_linker.graph.lanes.ops import DynamicUpdate, SliceBounds, WriteLanes

#: The largest integer. As the bound of a slice it stands for the end of an axis.
END = np.iinfo("int64").max

#: The number of operations through which a number is followed to its sources.
LONGEST_CHAIN = 40

#: The most cases of a proof, and the most inequalities of an elimination.
MOST_CASES, MOST_INEQUALITIES = 512, 256

#: The key of the constant of a linear form.
UNIT = "1"

#: A linear form: the coefficient of each unknown number, and the constant, which has the key `UNIT`. No coefficient is 0.
type Linear = Mapping[Hashable, int]


def plus(x: Linear, y: Linear, times: int = 1) -> Linear:
    """Return ``x + times * y``."""
    total = {key: x.get(key, 0) + times * y.get(key, 0) for key in (*x, *y)}
    return {key: value for key, value in total.items() if value}


def constant(value: int) -> Linear:
    """Return a number."""
    return {UNIT: int(value)} if value else {}


def value_of(x: Linear) -> int | None:
    """Return the value of a form without unknown numbers, or None."""
    return x.get(UNIT, 0) if x.keys() <= {UNIT} else None


# -- impossible cases -------------------------------------------------------------------------------------------------------


def is_impossible(inequalities: Iterable[Linear]) -> bool:
    """Return whether there is a proof that no integers make all forms at least 0."""
    left = {frozenset(tightened(x).items()) for x in inequalities}
    while True:
        forms = [dict(x) for x in left]
        if any(value_of(x) is not None and x.get(UNIT, 0) < 0 for x in forms):
            return True
        unknown = {key for x in forms for key in x if key != UNIT}
        if not unknown or len(forms) > MOST_INEQUALITIES:
            return False
        key = min(unknown, key=lambda k: (sum(k in x for x in forms), str(k)))
        below, above = ([x for x in forms if x.get(key, 0) * sign > 0] for sign in (1, -1))
        combined = (plus({k: v * -y[key] for k, v in x.items()}, y, x[key]) for x, y in product(below, above))
        left = {frozenset(x.items()) for x in forms if key not in x}
        left |= {frozenset(tightened(x).items()) for x in combined}


def tightened(x: Linear) -> Linear:
    """Return a form that is at least 0 for the same integers, with coefficients that have no common divisor."""
    divisor = reduce(gcd, (value for key, value in x.items() if key != UNIT), 0)
    return {key: found for key, value in x.items() if (found := value // divisor)} if divisor > 1 else x


# -- cases -------------------------------------------------------------------------------------------------------------


class Undecided(Exception):
    """Raised where `form` is at least 0 for some integers of a case, and below 0 for others."""

    def __init__(self, form: Linear):
        self.form = form


class Unknown(NamedTuple):
    """A number that is not followed further. Numbers of the same source are equal."""

    source: Hashable
    lowest: int
    highest: int

    @property
    def limits(self) -> list[Linear]:
        """Forms that are at least 0."""
        return [{self: 1, UNIT: -self.lowest}, {self: -1, UNIT: self.highest}]


class Case:
    """The integers for which all `assumptions` are at least 0.

    `decided` tells whether some forms, keyed by their terms, are at least 0 in a case that includes this one.
    """

    def __init__(self, assumptions: Sequence[Linear] = (), decided: Mapping[frozenset, bool] = MappingProxyType({})):
        self.assumptions, self._decided = assumptions, dict(decided)
        self._values: dict[Variable, Linear] = {}

    def split(self, form: Linear) -> list[Case]:
        """Return the cases in which a form is at least 0, and in which it is not."""
        return [Case([*self.assumptions, side], self._decided) for side in (form, below_zero(form))]

    def is_empty(self, *more: Linear) -> bool:
        """Return whether there is a proof that the case has no integers, or none for which `more` forms are at least 0."""
        forms = [*self.assumptions, *more]
        unknown = {key for x in forms for key in x if isinstance(key, Unknown)}
        return is_impossible([*forms, *(x for u in unknown for x in u.limits)])

    def is_nonnegative(self, x: Linear) -> bool:
        """Return whether a form is at least 0, or raise `Undecided`."""
        if (known := value_of(x)) is not None:
            return known >= 0
        key = frozenset(x.items())
        if key not in self._decided:
            if self.is_empty(below_zero(x)):
                self._decided[key] = True
            elif self.is_empty(x):
                self._decided[key] = False
            else:
                raise Undecided(x)
        return self._decided[key]

    def is_zero(self, x: Linear) -> bool:
        """Return whether a form is 0, or raise `Undecided`."""
        return self.is_nonnegative(x) and self.is_nonnegative(negative(x))

    def value(self, variable: Variable, depth: int = 0) -> Linear:
        """Return the form of an integer of the graph, `depth` operations away from the length that is to be proved."""
        if variable not in self._values:
            found = constant(variable.data) if isinstance(variable, Constant) else self._computed(variable, depth)
            self._values[variable] = {unknown(variable): 1} if found is None else found
        return self._values[variable]

    def _computed(self, variable: Variable, depth: int) -> Linear | None:
        node = variable.owner
        if node is None or depth > LONGEST_CHAIN:
            return None
        if isinstance(node.op, Shape_i):
            source, axis = length_source(node.inputs[0], node.op.i)
            known = source.type.shape[axis]
            return {Unknown((source, axis), 0, END): 1} if known is None else constant(known)
        rule = rule_of(node)
        if rule is None:
            return None
        return rule(self, node.outputs.index(variable), *(self.value(v, depth + 1) for v in node.inputs))


def below_zero(x: Linear) -> Linear:
    """Return the form that is at least 0 where `x` is not."""
    return plus(negative(x), constant(-1))


def negative(x: Linear) -> Linear:
    """Return ``-x``."""
    return plus({}, x, -1)


def unknown(variable: Variable) -> Unknown:
    """Return a variable as an unknown number of its dtype."""
    if variable.type.dtype == "bool":
        return Unknown(variable, 0, 1)
    limits = np.iinfo(variable.type.dtype)
    return Unknown(variable, int(limits.min), int(limits.max))


def are_equal(x: Variable, y: Variable) -> bool:
    """Return whether there is a proof that two integers are equal, whatever numbers they are computed from.

    The proof is about integers: it does not follow a sum around the limits of int64.
    """
    if x is y:
        return True
    cases, count = [Case()], 0
    while cases:
        case, count = cases.pop(), count + 1
        if count > MOST_CASES:
            return False
        try:
            difference = plus(case.value(x), case.value(y), -1)
        except Undecided as found:
            cases += case.split(found.form)
            continue
        if difference and not all(
            case.is_empty(plus(sign, constant(-1))) for sign in (difference, negative(difference))
        ):
            return False
    return True


# -- operations that are followed --------------------------------------------------------------------------------------------------

#: Returns the form of an output of a node, at the given position, for its operands; or None.
type LinearRule = Callable[..., Linear | None]


def rule_of(node: Apply) -> LinearRule | None:
    """Return the rule by which a node computes integers, or None."""
    if isinstance(node.op, ScalarFromTensor | TensorFromScalar | TypeCastingOp):
        return lambda case, i, x: x
    if isinstance(node.op, SliceBounds):
        return slice_bounds
    if not all(map(is_integer, (*node.inputs, *node.outputs))):
        return None
    kind, (output,) = type(node.op.scalar_op if isinstance(node.op, Elemwise) else node.op), node.outputs
    if kind in SUMS:  # in a narrower dtype they wrap around
        return SUMS[kind] if output.type.dtype == "int64" else None
    if kind is ps.Cast and not np.can_cast(node.inputs[0].type.dtype, output.type.dtype):
        return None
    return CHOICE_RULES.get(kind)


def is_integer(variable: Variable) -> bool:
    """Return whether a variable is one integer, or a truth value."""
    dtype = getattr(variable.type, "dtype", "")
    return getattr(variable.type, "ndim", 1) == 0 and dtype.startswith(("int", "uint", "bool"))


def multiple(case: Case, i: int, *xs: Linear) -> Linear | None:
    """Return a product with at most one unknown factor."""
    known = [value_of(x) for x in xs]
    factor = prod(value for value in known if value is not None)
    rest = [x for x, value in zip(xs, known, strict=True) if value is None]
    return plus({}, rest[0], factor) if len(rest) == 1 else None if rest else constant(factor)


def slice_bounds(case: Case, i: int, start: Linear, stop: Linear, n: Linear) -> Linear:
    """Return what `SliceBounds` does."""

    def clipped(bound: Linear) -> Linear:
        if case.is_nonnegative(bound):
            return bound if case.is_nonnegative(plus(n, bound, -1)) else n
        from_end = plus(bound, n)
        return from_end if case.is_nonnegative(from_end) else {}

    first = clipped(start)
    if i == 0:
        return first
    length = plus(clipped(stop), first, -1)
    return length if case.is_nonnegative(length) else {}


def at_least(case: Case, x: Linear, y: Linear) -> bool:
    """Return whether ``x >= y``."""
    return case.is_nonnegative(plus(x, y, -1))


def truth(compare: Callable[[Case, Linear, Linear], bool]) -> LinearRule:
    """Return the rule of a comparison."""
    return lambda case, i, x, y: constant(compare(case, x, y))


#: Operations whose results are linear in their operands.
SUMS: dict[type, LinearRule] = {
    ps.Add: lambda case, i, *xs: reduce(plus, xs),
    ps.Mul: multiple,
    ps.Neg: lambda case, i, x: negative(x),
    ps.Sub: lambda case, i, x, y: plus(x, y, -1),
}

#: Operations that compare, or choose an operand.
CHOICE_RULES: dict[type, LinearRule] = {
    ps.Cast: lambda case, i, x: x,
    ps.EQ: truth(lambda case, x, y: case.is_zero(plus(x, y, -1))),
    ps.GE: truth(at_least),
    ps.GT: truth(lambda case, x, y: not at_least(case, y, x)),
    ps.LE: truth(lambda case, x, y: at_least(case, y, x)),
    ps.LT: truth(lambda case, x, y: not at_least(case, x, y)),
    ps.Maximum: lambda case, i, x, y: x if at_least(case, x, y) else y,
    ps.Minimum: lambda case, i, x, y: y if at_least(case, x, y) else x,
    ps.NEQ: truth(lambda case, x, y: not case.is_zero(plus(x, y, -1))),
    ps.Switch: lambda case, i, condition, x, y: y if case.is_zero(condition) else x,
}


# -- where lengths come from -------------------------------------------------------------------------------------------


def lengths_read(variable: Variable) -> list[Variable]:
    """Return the lengths of axes from which a number is computed by few operations."""
    found, seen = [], {variable}
    for v in (stack := [variable]):
        if v.owner is None or len(stack) > LONGEST_CHAIN:
            continue
        if isinstance(v.owner.op, Shape_i):
            found.append(v)
        else:
            new = [u for u in dict.fromkeys(v.owner.inputs) if is_integer(u) and u not in seen]
            seen.update(new)
            stack += new
    return found


def length_source(x: Variable, axis: int) -> tuple[Variable, int]:
    """Return the first variable that has the length of an axis of `x`, and its axis."""
    while x.type.shape[axis] is None and (node := x.owner) is not None:
        if isinstance(node.op, Elemwise):  # which does not broadcast lengths that are not declared to be 1
            x = next(u for u in node.inputs if u.type.shape[axis] is None)
        elif isinstance(node.op, DimShuffle):
            x, axis = node.inputs[0], int(node.op.new_order[axis])
        elif isinstance(node.op, AdvancedIncSubtensor | DynamicUpdate | IncSubtensor | TypeCastingOp | WriteLanes):
            x = node.inputs[0]
        elif isinstance(node.op, Subtensor):
            indices = [*node.op.idx_list, *[slice(None)] * node.inputs[0].type.ndim]
            source = [i for i, entry in enumerate(indices) if isinstance(entry, slice)][axis]
            if indices[source] != slice(None):
                break
            x, axis = node.inputs[0], source
        elif isinstance(node.op, Alloc) and isinstance(getattr(node.inputs[1 + axis].owner, "op", None), Shape_i):
            n = node.inputs[1 + axis].owner
            x, axis = n.inputs[0], n.op.i
        else:
            break
    return x, axis
