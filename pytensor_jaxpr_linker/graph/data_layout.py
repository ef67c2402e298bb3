"""Passes that lay out the data of a model: rows in the order of their groups, long matrices in column-major order.

The gradient of an effect adds the rows of each group. If rows stand by group, a processor adds neighbours first
(`jaxpr/optimize/sums.py`). A result that is computed row by row and then added up does not depend on the order
of the rows. So the constants of such a part of the graph are sorted when a function is made.

XLA's CPU compiler computes the product of a matrix and a vector with eight rows of the matrix at a time. If these are
long, a processor reads eight streams of numbers, and adds vectors of them: a product of 1,000,000 x 50 numbers takes 14
ms on one core in column-major order, and 25 to 28 in row-major order. 5 columns of 10,000 rows take half as long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.link.basic import Container
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import All, Dot, Max, Min, Sum
from pytensor.tensor.math import Any as AnyOf
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor

from pytensor_jaxpr_linker.base.array_types import array_key, copy_matrix, in_memory_order
from pytensor_jaxpr_linker.base.rules import Table
from pytensor_jaxpr_linker.graph.walk import FindRule, Graph, is_transpose, made_for, with_other_operands

#: Fewer rows stay as they are: they are in the cache of a core, and sorting takes as long as a thousand calls save.
LEAST_SORTED = 2**13
#: Sorted arrays are copies: more bytes than these stay as they are.
MOST_SORTED_BYTES = 2**28

#: The number of parts of the rows. The rows at one place of all parts almost always belong to one group, so that adding
#: them is adding vectors.
STACKED = 8
#: Groups with fewer rows, on average, are not in parts: neighbours are of one group more often than eight rows are.
LEAST_IN_PARTS = 2 * STACKED

#: The axis along which each variable has the rows.
type Axes = Mapping[Variable, int]


def sort_rows(graph: Graph, find_rule: FindRule) -> Graph:
    """Sort rows by group where nothing but sums and conditions of all rows sees their order."""
    starts = [node for node in graph.nodes if is_by_group(node, find_rule)]
    in_order: dict[Apply, dict[Variable, Variable]] = {}
    seen: set[Apply] = set()
    for start in starts:
        if start not in seen:
            found = rows_with(start, graph)
            seen.update(found or ())
            in_order.update(sorted_constants(found) if found else {})
    return with_other_operands(graph, find_rule, lambda node: in_order.get(node, {})) if in_order else graph


def is_by_group(node: Apply, find_rule: FindRule) -> bool:
    """Return whether a node reads or adds by group, for many rows whose groups are known.

    Reading alone gains little. But then the functions of a model, with a gradient and without, have the same arrays.
    """
    if type(node.op) not in BY_GROUP:
        return False
    index = node.inputs[-1]
    return isinstance(index, Constant) and bool(BY_GROUP[type(node.op)](node, {})) and len(index.data) >= LEAST_SORTED


# -- which nodes compute row by row ------------------------------------------------------------------------------------


def rows_with(start: Apply, graph: Graph) -> dict[Apply, Axes] | None:
    """Return the nodes that compute with the rows that `start` reads, and their axes; None if the order matters."""
    axes: dict[Variable, int] = {}
    found: dict[Apply, Axes] = {}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        rule = AXES_OF.of(type(node.op))
        of_node = rule(node, axes) if rule else None
        if of_node is None or any(v in axes and v not in of_node for v in (*node.inputs, *node.outputs)):
            return None
        found[node] = of_node
        for variable, axis in of_node.items():
            if axes.setdefault(variable, axis) != axis or variable in graph.outputs:
                return None
        for variable in of_node:
            if not isinstance(variable, Constant):
                if variable.owner is None:
                    return None
                nodes = (variable.owner, *graph.readers.get(variable, ()))
                waiting += [n for n in nodes if variable not in found.get(n, ())]
    return found


def elementwise_rows(node: Apply, axes: Axes) -> Axes | None:
    """All variables that are not broadcast along the axis have rows."""
    variables = [*node.inputs, *node.outputs]
    axis = next(axes[v] for v in variables if v in axes)
    return {v: axis for v in variables if not v.type.broadcastable[axis]}


def moved_rows(node: Apply, axes: Axes) -> Axes | None:
    """The axis of the rows moves."""
    (x,), (y,), order = node.inputs, node.outputs, node.op.new_order
    axis = axes[x] if x in axes else order[axes[y]]
    return {x: axis, y: order.index(axis)} if axis in order else None


def reduced_rows(node: Apply, axes: Axes) -> Axes | None:
    """A reduction of the rows has none; one along another axis has."""
    (x,), (y,) = node.inputs, node.outputs
    over = range(x.type.ndim) if node.op.axis is None else node.op.axis
    kept = [axis for axis in range(x.type.ndim) if axis not in over]
    axis = axes[x] if x in axes else kept[axes[y]]
    return {x: axis, y: kept.index(axis)} if axis in kept else {x: axis}


def read_rows(node: Apply, axes: Axes) -> Axes | None:
    """Each row reads the element of its group."""
    index = node.inputs[1]
    return {index: 0, node.outputs[0]: 0} if is_by_first_axis(node, index) else None


def added_rows(node: Apply, axes: Axes) -> Axes | None:
    """Each row is added to the element of its group."""
    x, value, index = node.inputs[0], node.inputs[1], node.inputs[-1]
    if node.op.set_instead_of_inc or node.op.ignore_duplicates:  # of the rows of a group the last one counts
        return None
    if not is_by_first_axis(node, index) or value.type.ndim != x.type.ndim:
        return None
    return {index: 0} if value.type.broadcastable[0] else {index: 0, value: 0}


def is_by_first_axis(node: Apply, index: Variable) -> bool:
    """Return whether one vector of integers indexes the first axis of an array."""
    return node.op.idx_list == (0,) and index.type.ndim == 1 and index.type.dtype != "bool"


def product_of_rows(node: Apply, axes: Axes) -> Axes | None:
    """Rows are multiplied and added, or each is a row of the product."""
    (x, y), (z,) = node.inputs, node.outputs
    x_added, y_added = x.type.ndim - 1, max(y.type.ndim - 2, 0)
    if axes.get(x) == x_added or axes.get(y) == y_added:
        return {x: x_added, y: y_added}
    last = z.type.ndim - 1
    is_left = x in axes or (z in axes and x.type.ndim == 2 and axes[z] == 0)
    return {x: 0, z: 0} if is_left else {y: 1, z: last}


def checked_rows(node: Apply, axes: Axes) -> Axes | None:
    """A checked value has the axes of the value."""
    x, y = node.inputs[0], node.outputs[0]
    axis = axes[x] if x in axes else axes.get(y)
    return None if axis is None else {x: axis, y: axis}


#: Ops whose last operand is the group of each row.
BY_GROUP: dict[type | str, Callable[[Apply, Axes], Axes | None]] = {
    AdvancedIncSubtensor: added_rows,
    AdvancedSubtensor: read_rows,
}
AXES_OF: Table[Callable[[Apply, Axes], Axes | None]] = Table(
    {
        **BY_GROUP,
        CheckAndRaise: checked_rows,
        DimShuffle: moved_rows,
        Dot: product_of_rows,
        Elemwise: elementwise_rows,
        **dict.fromkeys((All, AnyOf, Max, Min, Sum), reduced_rows),
    }
)

# -- sorting -----------------------------------------------------------------------------------------------------------


def sorted_constants(found: Mapping[Apply, Axes]) -> dict[Apply, dict[Variable, Variable]]:
    """Return the sorted constants of nodes that compute row by row, by node and constant; empty if too large."""
    indices = dict.fromkeys(node.inputs[-1] for node in found if type(node.op) in BY_GROUP)
    groups = [v.data for v in indices if isinstance(v, Constant)]
    constants = {v: axis for axes in found.values() for v, axis in axes.items() if isinstance(v, Constant)}
    if min(data.min() for data in groups) < 0 or sum(v.data.nbytes for v in constants) > MOST_SORTED_BYTES:
        return {}
    order, key = order_of_rows(groups), tuple(map(array_key, groups))
    replaced: dict[Variable, Variable] = {v: sorted_constant(v, axis, order, key) for v, axis in constants.items()}
    return {node: {v: replaced[v] for v in axes if v in replaced} for node, axes in found.items()}


def order_of_rows(groups: Sequence[np.ndarray]) -> np.ndarray:
    """Return the order of rows by group, the index with most groups first; 16 bits sort in a fifth of the time."""
    order = np.arange(len(groups[0]))
    for index in sorted(groups, key=np.max):
        short = index.astype("uint16") if index.max() < 2**16 else index
        order = order[np.argsort(short[order], kind="stable")]
    return order if len(order) < LEAST_IN_PARTS * (index.max() + 1) else in_parts(order, index[order])


def in_parts(order: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return sorted rows in eight parts of eight parts, in which groups take turns: no addition waits for another."""
    count = len(order) // STACKED
    blocks = order[: count * STACKED].reshape(count, STACKED)
    count //= STACKED
    larger, rest = blocks[: count * STACKED].reshape(count, STACKED, STACKED), blocks[count * STACKED :]
    of_larger = groups[: count * STACKED**2 : STACKED**2]
    turn = np.arange(count) - np.searchsorted(of_larger, of_larger)
    larger = larger[np.argsort(turn, kind="stable")]
    blocks = np.concatenate([larger.swapaxes(0, 1).reshape(-1, STACKED), rest])
    return np.append(blocks.T, order[blocks.size :])


def sorted_constant(constant: Constant, axis: int, order: np.ndarray, key: tuple) -> Constant:
    """Return a constant with its rows in another order. Views of one array stay views of one array."""
    base, axes = in_memory_order(constant.data)
    place = axes.index(axis)
    made = shared((*array_key(base), place, key), np.take(base, order, place))
    new = type(constant)(constant.type, made.transpose(np.argsort(axes)), name=constant.name)
    new.tag.in_order_given = constant.data
    return new


def in_order_given(node: Apply | None, value: np.ndarray) -> np.ndarray:
    """Return the value of a sorted constant of a node as the user gave it, and any other value as it is."""
    for v in node.inputs if node else ():
        if isinstance(v, Constant) and v.data is value:
            return getattr(v.tag, "in_order_given", value)
    return value


# -- matrices in column-major order ------------------------------------------------------------------------------------

#: Matrices of fewer bytes take the same time in either order.
LEAST_BYTES = 2**18
#: A matrix has long columns if a column has this many times the numbers of a row. A square one takes the same time in
#: either order.
LONG_COLUMNS = 8
#: A constant in another order is a copy: more bytes than these stay as they are.
MOST_COPIED_BYTES = 2**30


def is_large_matrix(value: Any) -> bool:
    """Return whether a value is a matrix of real numbers of at least `LEAST_BYTES`."""
    return isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype.kind == "f" and value.nbytes >= LEAST_BYTES


def gains(value: Any) -> bool:
    """Return whether products of a matrix with vectors are faster in column-major order than in row-major order."""
    return is_large_matrix(value) and len(value) >= LONG_COLUMNS * value.shape[1] and value.shape[1] > 1


def is_only_multiplied(matrix: Variable, graph: Graph) -> bool:
    """Return whether a matrix is used only in matrix-vector products, its own or its transpose's, and for its shape."""
    found = list(readers_through_transposes(matrix, graph))
    others = [node for node, read in found if node is None or not is_product_with_vector(node, read)]
    return len(others) < len(found) and all(
        node is not None and isinstance(node.op, Shape | Shape_i) for node in others
    )


def readers_through_transposes(matrix: Variable, graph: Graph) -> Iterator[tuple[Apply | None, Variable]]:
    """Yield each reader of a matrix or of its transposes, and the variable that it reads. None reads an output."""
    if matrix in graph.outputs:
        yield None, matrix
    for node in graph.readers.get(matrix, ()):
        if is_transpose(node):
            yield from readers_through_transposes(node.outputs[0], graph)
        else:
            yield node, matrix


def is_product_with_vector(node: Apply, matrix: Variable) -> bool:
    """Return whether a node multiplies a matrix and a single column, or a single row and a matrix."""
    if not isinstance(node.op, Dot):
        return False
    x, y = node.inputs
    return (x is matrix and y.type.broadcastable[-1:] == (True,)) or (
        y is matrix and x.type.broadcastable[:1] == (True,)
    )


def reads_gaining_constant(node: Apply, find_rule: FindRule) -> bool:
    """Return whether a node reads a constant matrix of many rows, or a view of one."""
    matrices = [v.data for v in node.inputs if isinstance(v, Constant) and is_large_matrix(v.data)]
    return any(gains(in_memory_order(matrix)[0]) for matrix in matrices)


def lay_constants(graph: Graph, find_rule: FindRule) -> Graph:
    """Lay the constant matrices of a graph in column-major order that gain by it."""
    # PyTensor folds the transpose of a constant into a second constant: both are views of one array.
    views: dict[tuple, list[Constant]] = {}
    for variable in graph.readers:
        if isinstance(variable, Constant) and is_large_matrix(variable.data):
            views.setdefault(array_key(in_memory_order(variable.data)[0]), []).append(variable)
    found = [
        constants
        for constants in views.values()
        if gains(base := in_memory_order(constants[0].data)[0])
        and base.nbytes <= MOST_COPIED_BYTES
        and all(is_only_multiplied(v, graph) for v in constants)
    ]
    if not found:
        return graph
    replaced: dict[Variable, Variable] = {
        old: new for constants in found for old, new in in_column_major_order(constants)
    }
    return with_other_operands(graph, find_rule, lambda _: replaced)


def in_column_major_order(constants: Sequence[Constant]) -> Iterator[tuple[Constant, Constant]]:
    """Yield constants that are views of one array, and the same as views of one in column-major order."""
    base, _ = in_memory_order(constants[0].data)
    made = np.empty(base.shape[::-1], base.dtype)
    copy_matrix(made, base.T)
    made = shared(("column-major", *array_key(base)), made)
    for constant in constants:
        _, order = in_memory_order(constant.data)
        yield constant, type(constant)(constant.type, made.T.transpose(np.argsort(order)), name=constant.name)


def lay_inputs(graph: Graph, find_rule: FindRule, candidates: Sequence[int]) -> Graph:
    """Let a graph take the transposes of shared variables instead, if only products with vectors read them.

    The transpose of a matrix in column-major order is an array in row-major order, as XLA takes it.

    Parameters
    ----------
    candidates
        The positions of the shared variables that may lie in column-major order.
    """
    found = [i for i in candidates if is_only_multiplied(graph.inputs[i], graph)]
    if not found:
        return graph
    inputs = [*graph.inputs]
    replaced = {}
    for i in found:
        old = inputs[i]
        new = inputs[i] = transpose_of(old)
        (replaced[old],) = made_for(graph.readers[old][0], [new], new.transpose().owner.outputs.copy)
        replaced[old].name = old.name
    return with_other_operands(graph._replace(inputs=inputs), find_rule, lambda _: replaced)


def transpose_of(shared: Any) -> Any:
    """Return a shared variable that stands for the transpose of another one, in which functions look for the value."""
    type_ = shared.type.clone(shape=shared.type.shape[::-1])
    container = Container(type_, [None])
    return type(shared)(type=type_, value=None, strict=None, container=container, name=f"{shared.name or 'matrix'}.T")


# -- copies of constants, which the functions of a model share ---------------------------------------------------------

#: The arrays that constants of some graph hold, by where they came from.
MADE: WeakValueDictionary[tuple, np.ndarray] = WeakValueDictionary()


def shared(key: tuple, array: np.ndarray) -> np.ndarray:
    """Return the equal array that a graph has under a key, else this one.

    The key is where the array came from. A constant holds the user's own array, which may have been written to since,
    or freed. So the array that is found is compared bit by bit.
    """
    found, bits = MADE.get(key), f"u{min(array.dtype.itemsize, 8)}"
    if found is not None and np.array_equal(found.view(bits), array.view(bits)):
        return found
    MADE[key] = array
    return array
