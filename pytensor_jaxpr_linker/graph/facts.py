"""Binding-time analysis: when is each value, and each shape, of a graph known? From which generator is a number drawn?

The four times and the analysis come from partial evaluation (Jones, Gomard and Sestoft, *Partial Evaluation and
Automatic Program Generation*, 1993): constant < shape-known < value-known < run time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from pytensor.compile.ops import DeepCopyOp, TypeCastingOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import toposort
from pytensor.scalar.basic import ScalarType, discrete_dtypes
from pytensor.scan.op import Scan
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.type import TensorType

from pytensor_jaxpr_linker.base import marks
from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.base.pytensor_compat import IfElse
from pytensor_jaxpr_linker.graph.loops import UntilScan

#: Ops whose output depends on the shape of their operand, not on its numbers.
SHAPE_READERS = (Shape, Shape_i)

#: Ops whose results are known at run time only: NumPy would take too long to evaluate them for a static value.
LOOPS = (Scan, UntilScan)

#: Ops with results that may be known at another time than their latest operand.
OWN_TIMES = frozenset((*SHAPE_READERS, *LOOPS, IfElse))


class BindingTime(IntEnum):
    """When a value is known."""

    CONSTANT = 0  #: before anything is compiled
    SHAPE = 1  #: once the shapes of the inputs are
    VALUE = 2  #: once the values of integer inputs or shared variables are
    RUNTIME = 3  #: when the program has computed it


CONSTANT, RUNTIME = BindingTime.CONSTANT, BindingTime.RUNTIME


class Times(dict[Variable, BindingTime]):
    """When each variable is known. Variables that are not held, which most are, are known at the time `others`."""

    def __init__(self, others: BindingTime, held: Mapping[Variable, BindingTime] = MappingProxyType({})):
        super().__init__(held)
        self.others = others

    def __missing__(self, variable: Variable) -> BindingTime:
        return self.others


class Facts(NamedTuple):
    """The results of `analyze`."""

    inputs: frozenset[Variable]  #: the inputs of the graph, which other graphs may compute
    value: Times  #: when the value of each variable is known
    shape: Times  #: when the shape of each variable is known
    #: When the value of each variable is known if a rule must know it. Then the branches of an `IfElse` must agree.
    #: They do for lengths: both branches must return one shape.
    static: Times
    objects: set[Variable]  #: the variables that a region can't hold
    has_generators: bool  #: whether an input or a constant is a random generator


def is_array(variable: Variable) -> bool:
    """Return whether a region can hold a value: a number, a dense array or a generator, but no other object."""
    if is_tensor(variable.type) or isinstance(variable.type, ScalarType | RandomType):
        return True
    return isinstance(variable, Constant) and (variable.data is None or isinstance(variable.data, slice))


def may_be_static(variable: Variable) -> bool:
    """Return whether a value may key a specialization: a number or a vector of integers that is not marked dynamic."""
    ndim = getattr(variable.type, "ndim", 2)
    if ndim > 1 or getattr(variable.type, "dtype", "object") not in (VECTOR_KEYS if ndim else NUMBER_KEYS):
        return False
    return not marks.is_dynamic(variable)


def follows_from_numbers(variable: Variable) -> bool:
    """Return whether a number follows from shapes and number inputs, and so may be known before the program runs."""
    stack, seen = [variable], set()
    while stack:
        v = stack.pop()
        if v in seen or isinstance(v, Constant):
            continue
        seen.add(v)
        if v.owner is None:
            if not may_be_static(v):
                return False
        elif isinstance(v.owner.op, LOOPS):
            return False
        elif not isinstance(v.owner.op, SHAPE_READERS):
            stack += v.owner.inputs
    return True


#: The dtypes of vectors, and of numbers, that may key a specialization.
VECTOR_KEYS = frozenset(("bool", *discrete_dtypes))
NUMBER_KEYS = VECTOR_KEYS | {"float16", "float32", "float64"}


def input_facts(variable: Variable) -> tuple[BindingTime, BindingTime]:
    """Return when value and shape of a graph's input are known."""
    if not is_array(variable):
        return RUNTIME, RUNTIME
    value = BindingTime.VALUE if may_be_static(variable) else RUNTIME
    return value, BindingTime.SHAPE if None in getattr(variable.type, "shape", ()) else CONSTANT


def analyze(
    inputs: Sequence[Variable], nodes: Iterable[Apply], static: Callable[[Apply], Iterable[int] | None]
) -> Facts:
    """Find when each value and each shape is known; `static` gives the inputs whose values the rule of a node needs."""
    value, shape = Times(RUNTIME), Times(CONSTANT)
    fixed = value  # a mapping of its own from the first `IfElse` on: before, both agree
    objects = {variable for variable in inputs if not is_array(variable)}
    has_generators = any(isinstance(variable.type, RandomType) for variable in inputs)
    for variable in inputs:
        value[variable], shape[variable] = input_facts(variable)
    for node in nodes:
        op_type, known = type(node.op), CONSTANT
        for variable in node.inputs:
            time = value.get(variable)
            if time is None:
                time = RUNTIME
                if variable.owner is None and isinstance(variable, Constant):
                    if not is_array(variable):
                        shape[variable] = RUNTIME
                        objects.add(variable)
                    if isinstance(variable.type, RandomType):
                        # It is known, but NumPy and the program draw different numbers from it.
                        has_generators = True
                    else:
                        value[variable] = fixed[variable] = time = CONSTANT
            if time > known:
                known = time
        if op_type in OWN_TIMES:
            if op_type in SHAPE_READERS:
                known = shape[node.inputs[0]]
            elif op_type in LOOPS:
                known = RUNTIME
            elif fixed is value:
                fixed = Times(RUNTIME, value)
        for i, variable in enumerate(node.outputs):
            if known < RUNTIME:
                value[variable] = fixed[variable] = known
            elif fixed is not value and (earlier := fixed_time(node, i, fixed)) < RUNTIME:
                fixed[variable] = earlier  # a value known at run time only may be known before as a static value
            of_type = variable.type
            if type(of_type) is TensorType and None not in of_type.shape:
                continue
            if not is_array(variable):
                shape[variable] = RUNTIME
                objects.add(variable)
            elif None in getattr(of_type, "shape", ()):
                has_object = objects and not objects.isdisjoint((*node.inputs, *node.outputs))
                shape[variable] = RUNTIME if has_object else shape_time(node, static(node), shape, fixed)
    return Facts(frozenset(inputs), value, shape, fixed, objects, has_generators)


def nothing_known(inputs: Sequence[Variable], has_generators: bool) -> Facts:
    """Return the facts of a graph without static operands and without numbers that follow from shapes."""
    at_run_time = Times(RUNTIME)
    return Facts(frozenset(inputs), at_run_time, at_run_time, at_run_time, set(), has_generators)


def shape_time(node: Apply, needs: Iterable[int] | None, shape: Times, fixed: Times) -> BindingTime:
    """Return when the shapes of a node's outputs are known. Its rule needs the values of inputs `needs`."""
    if needs is None:
        return RUNTIME
    latest = CONSTANT
    for v in node.inputs:
        if getattr(v.type, "ndim", 0) and (time := shape.get(v, CONSTANT)) > latest:
            latest = time
    for i in needs:
        latest = max(latest, fixed[node.inputs[i]])
    return latest


def fixed_time(node: Apply, output: int, fixed: Times) -> BindingTime:
    """Return when an output of a node is known, if a rule must know it."""
    if type(node.op) in (*SHAPE_READERS, *LOOPS):
        return BindingTime.RUNTIME
    operands = node.inputs
    if type(node.op) is IfElse and fixed[node.inputs[0]] == BindingTime.RUNTIME:
        operands = node.inputs[1 + output :: node.op.n_outs]
    return max([fixed[v] for v in operands], default=BindingTime.CONSTANT)


def value_roots(variables: Iterable[Variable], facts: Facts) -> dict[Variable, None]:
    """Return the inputs whose values determine `variables`."""
    roots: dict[Variable, None] = {}
    seen: set[Variable] = set()
    stack = list(variables)
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        if v.owner is None or v in facts.inputs:
            if facts.static.get(v) == BindingTime.VALUE:
                roots[v] = None
        elif not isinstance(v.owner.op, SHAPE_READERS):
            # The node that makes an array of that shape demands the values that the shape depends on.
            stack.extend(u for u in v.owner.inputs if facts.static[u] == BindingTime.VALUE)
    return roots


def not_from_inputs(variables: Collection[Variable], facts: Facts) -> list[Variable]:
    """Return the static values that do not follow from values and shapes of inputs alone.

    They follow from the shape of a computed variable, or from an `IfElse`, whose branches may have to agree: both are
    known only while the region is built.
    """
    unclear: set[Variable] = set()
    for node in toposort(variables, blockers=facts.inputs):
        if isinstance(node.op, SHAPE_READERS):
            is_unclear = node.inputs[0] not in facts.inputs
        else:
            is_unclear = isinstance(node.op, IfElse) or not unclear.isdisjoint(node.inputs)
        if is_unclear:
            unclear.update(node.outputs)
    return [v for v in variables if v in unclear]


# -- random generators -------------------------------------------------------------------------------------------------

# A draw uses 64 bits of its generator's stream as its key. So does a loop, however many draws its steps make. Each draw
# of a region gets the key at its own place in the stream. So the numbers do not depend on how a graph is cut.


class Ancestor(NamedTuple):
    """An ancestor of a generator, and the number of draws between them."""

    generator: Variable
    draws: int


def generator_ancestor(variable: Variable, inputs: Collection[Variable]) -> Ancestor:
    """Return the generator, an input or one without an owner, from which a variable descends. Copies draw nothing."""
    draws = 0
    while variable not in inputs and variable.owner is not None:
        draws += is_draw(variable.owner)
        variable = parent_generator(variable)
    return Ancestor(variable, draws)


def generators_read(inputs: Collection[Variable], nodes: Iterable[Apply]) -> dict[Variable, Ancestor]:
    """Return the ancestor of each generator that nodes read: a generator that they do not compute."""
    known = {v: Ancestor(v, 0) for v in inputs if isinstance(v.type, RandomType)}
    read = {}
    for node in nodes:
        for v in node.inputs:
            if isinstance(v.type, RandomType):
                read[v] = known.setdefault(v, Ancestor(v, 0))
        for v in node.outputs:
            if isinstance(v.type, RandomType):
                source = known.setdefault(parent_generator(v), Ancestor(parent_generator(v), 0))
                known[v] = Ancestor(source.generator, source.draws + is_draw(node))
    return read


def key_counts(inputs: Collection[Variable], nodes: Iterable[Apply]) -> dict[Variable, int]:
    """Return the number of keys that nodes use of each generator."""
    counts: dict[Variable, int] = {}
    for generator, draws in generators_read(inputs, nodes).values():
        counts[generator] = max(counts.get(generator, 0), draws + 1)
    return counts


def is_draw(node: Apply) -> bool:
    """Return whether a node that returns a generator uses a key: all but copies do."""
    return not isinstance(node.op, DeepCopyOp | TypeCastingOp)


def parent_generator(variable: Variable) -> Variable:
    """Return the operand from which a computed generator descends."""
    node = variable.owner
    op = node.op.scan if isinstance(node.op, UntilScan) else node.op
    if isinstance(op, Scan):
        states = op.outer_untraced_sit_sot(node.inputs)
        return states[node.outputs.index(variable) - op.info.n_outer_outputs + len(states)]
    return next(v for v in node.inputs if isinstance(v.type, RandomType))
