"""Proofs that two lengths are equal, though the graph computes them in different ways.

PyTensor computes the length of ``x[:k]``, and of a gradient with respect to it, by comparing `k` with 0 and with the
length of `x`. A proof that such a number is the length of a slice goes by cases. In each case every comparison has one
outcome, so both lengths are linear forms over the integers, and they must be equal wherever the case is possible.
Fourier-Motzkin elimination with rounded bounds (Pugh, The Omega test, 1991, its real shadow) refutes the impossible
cases: slices between two computed bounds combine three assumptions and more. A number that is not followed may be any
number of its dtype. A proof that takes too long is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import product
from math import gcd, prod
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

#: A linear form: the coefficient of each unknown number, and the constant under the key `UNIT`. No coefficient is 0.
type Linear = Mapping[Hashable, int]


def plus(x: Linear, y: Linear, times: int = 1) -> Linear:
    """Return ``x + times * y``."""
    total = {key: x.get(key, 0) + times * y.get(key, 0) for key in (*x, *y)}
    return {key: value for key, value in total.items() if value}


def constant(value: int) -> Linear:
    """Return a number as a form."""
    return {UNIT: int(value)} if value else {}


def value_of(x: Linear) -> int | None:
    """Return the value of a form without unknown numbers, or None."""
    return x.get(UNIT, 0) if x.keys() <= {UNIT} else None


def below_zero(x: Linear) -> Linear:
    """Return the form that is at least 0 where `x` is below 0."""
    return plus(constant(-1), x, -1)


# -- cases -------------------------------------------------------------------------------------------------------------


class Unknown(NamedTuple):
    """A number that is not followed further. Numbers of the same source are equal."""

    source: Hashable
    lowest: int
    highest: int

    @property
    def limits(self) -> list[Linear]:
        """Forms that are at least 0."""
        return [{self: 1, UNIT: -self.lowest}, {self: -1, UNIT: self.highest}]


class Undecided(Exception):
    """Raised with a form that is at least 0 for some integers of a case, and below 0 for others."""


class Case:
    """The integers for which all `assumptions` are at least 0.

    `decided` has the outcomes, by the terms of a form, of whether it is at least 0 in a case that includes this one.
    """

    def __init__(self, assumptions: Sequence[Linear], decided: Mapping[frozenset, bool]):
        self.assumptions, self.decided = assumptions, dict(decided)
        self._values: dict[Variable, Linear] = {}

    def excludes(self, form: Linear) -> bool:
        """Return whether there is a proof that `form` is below 0 in the whole case."""
        forms = [*self.assumptions, form]
        unknown = {key for x in forms for key in x if isinstance(key, Unknown)}
        return is_impossible([*forms, *(limit for u in unknown for limit in u.limits)])

    def is_at_least(self, x: Linear, y: Linear) -> bool:
        """Return whether ``x >= y``, or raise `Undecided`."""
        form = plus(x, y, -1)
        if (known := value_of(form)) is not None:
            return known >= 0
        key = frozenset(form.items())
        if key not in self.decided:
            if not (is_true := self.excludes(below_zero(form))) and not self.excludes(form):
                raise Undecided(form)
            self.decided[key] = is_true
        return self.decided[key]

    def are_equal(self, x: Linear, y: Linear) -> bool:
        """Return whether ``x == y``, or raise `Undecided`."""
        return self.is_at_least(x, y) and self.is_at_least(y, x)

    def value(self, variable: Variable, depth: int = 0) -> Linear:
        """Return the form of an integer, `depth` operations away from the length that is to be proved."""
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
    cases, count = [Case([], {})], 0
    while cases:
        case, count = cases.pop(), count + 1
        if count > MOST_CASES:
            return False
        try:
            difference = plus(case.value(x), case.value(y), -1)
        except Undecided as found:
            (form,) = found.args
            cases += [Case([*case.assumptions, side], case.decided) for side in (form, below_zero(form))]
            continue
        signs = (difference, plus({}, difference, -1))
        if difference and not all(case.excludes(below_zero(sign)) for sign in signs):
            return False
    return True


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


# -- operations that are followed --------------------------------------------------------------------------------------

#: Returns the form of an output of a node, at the given position, for its operands; or None.
type LinearRule = Callable[..., Linear | None]


def rule_of(node: Apply) -> LinearRule | None:
    """Return the rule that says how a node computes integers, or None."""
    if isinstance(node.op, ScalarFromTensor | TensorFromScalar | TypeCastingOp):
        return LINEAR_RULES[ps.Cast]
    if isinstance(node.op, SliceBounds):
        return slice_bounds
    if not all(map(is_integer, (*node.inputs, *node.outputs))):
        return None
    kind, (output,) = type(node.op.scalar_op if isinstance(node.op, Elemwise) else node.op), node.outputs
    if kind in SUMS and output.type.dtype != "int64":  # in a narrower dtype they wrap around
        return None
    if kind is ps.Cast and not np.can_cast(node.inputs[0].type.dtype, output.type.dtype):
        return None
    return LINEAR_RULES.get(kind)


def is_integer(variable: Variable) -> bool:
    """Return whether a variable is one integer, or a truth value."""
    dtype = getattr(variable.type, "dtype", "")
    return getattr(variable.type, "ndim", 1) == 0 and dtype.startswith(("int", "uint", "bool"))


def multiple(case: Case, i: int, *xs: Linear) -> Linear | None:
    """Return a product with at most one unknown factor."""
    factor = prod(known for x in xs if (known := value_of(x)) is not None)
    rest = [x for x in xs if value_of(x) is None]
    return plus({}, rest[0], factor) if len(rest) == 1 else None if rest else constant(factor)


def slice_bounds(case: Case, i: int, start: Linear, stop: Linear, n: Linear) -> Linear:
    """Return an output of `SliceBounds`."""

    def clipped(bound: Linear) -> Linear:
        if case.is_at_least(bound, {}):
            return bound if case.is_at_least(n, bound) else n
        return larger_form(case, i, plus(bound, n), {})

    first = clipped(start)
    return first if i == 0 else larger_form(case, i, plus(clipped(stop), first, -1), {})


def larger_form(case: Case, i: int, x: Linear, y: Linear) -> Linear:
    """Return the larger of two numbers."""
    return x if case.is_at_least(x, y) else y


#: Operations whose results are linear in their operands.
SUMS = frozenset((ps.Add, ps.Mul, ps.Neg, ps.Sub))

#: The operations that are followed, by scalar Op.
LINEAR_RULES: dict[type, LinearRule] = {
    ps.Add: lambda case, i, *xs: reduce(plus, xs),
    ps.Cast: lambda case, i, x: x,
    ps.EQ: lambda case, i, x, y: constant(case.are_equal(x, y)),
    ps.GE: lambda case, i, x, y: constant(case.is_at_least(x, y)),
    ps.GT: lambda case, i, x, y: constant(not case.is_at_least(y, x)),
    ps.LE: lambda case, i, x, y: constant(case.is_at_least(y, x)),
    ps.LT: lambda case, i, x, y: constant(not case.is_at_least(x, y)),
    ps.Maximum: larger_form,
    ps.Minimum: lambda case, i, x, y: y if case.is_at_least(x, y) else x,
    ps.Mul: multiple,
    ps.Neg: lambda case, i, x: plus({}, x, -1),
    ps.NEQ: lambda case, i, x, y: constant(not case.are_equal(x, y)),
    ps.Sub: lambda case, i, x, y: plus(x, y, -1),
    ps.Switch: lambda case, i, condition, x, y: y if case.are_equal(condition, {}) else x,
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
