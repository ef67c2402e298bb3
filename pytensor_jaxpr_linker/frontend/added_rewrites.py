"""Rewrites of PyTensor graphs that PyTensor lacks: numbers are folded early, and two forms of gradients are mended.

**Early folding.** Two of five changes that PyTensor's `canonicalize` makes in the graph of a PyMC model fold one
number, such as `log(sqrt(2 * pi))` or the condition ``5 > 0``, one node at a time, and every feature of the graph hears
of each. Here whole expressions are folded at once, before any feature is attached, in a third of the time. A result
that its dtype rounds or wraps around, such as ``3 * 10**2`` of int8 constants, is left to PyTensor: it combines factors
of a product before it folds, so that ``x / (3 * 10**2)`` is ``x / 300``, where early folding would give ``x / 44``.

**Fixed maxima.** PyTensor computes ``logsumexp(x)`` as ``log(sum(exp(x - m))) + m`` with the maximum `m`, on which the
result does not depend. Its pullback follows `m` all the same: it compares each element with `m`, and selects a
difference that is 0 but for rounding. The rewrites drop this term.

**Stable logarithms.** These keep the logarithm of a probability near 0 and 1, before `grad` sees it. The patterns of
PyTensor's `stabilize` want a factor that nothing else reads, and none sees through `stack`. Mixtures and hidden Markov
models are written as ``log(stack([1 - p, p]))``, where ``p`` is read twice: without these rewrites the gradient is NaN
where ``p`` rounds to 1, at log odds of 37.

**Eigenvectors.** PyTensor's gradient of `eigh` divides ``V.T @ gV`` by differences of eigenvalues. A function that
depends on the matrix alone has an antisymmetric numerator where they agree; its symmetric part cancels in the end, when
the gradient is made symmetric. Divided by rounding errors of eigenvalues, it leaves noise as large as the gradient:
that of a smooth kernel's covariance was off by 80 %. The rewrite drops the symmetric part before the division.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FrozenFunctionGraph, FunctionGraph, Output
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.rewriting.basic import GraphRewriter, NodeRewriter, copy_stack_trace, dfs_rewriter, node_rewriter
from pytensor.scalar.basic import Maximum, ScalarOp, ScalarType, Sub, Switch
from pytensor.tensor.basic import Eye, Join, MakeVector, matrix_transpose
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.linalg.decomposition.eigen import Eigh
from pytensor.tensor.math import Dot, Max, exp
from pytensor.tensor.shape import Shape
from pytensor.tensor.special import LogAddExp, LogSumExp, Softmax
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

from pytensor_jaxpr_linker.graph.static_values import perform

#: The name of the rewrite.
EARLY_FOLDING = "jaxpr_early_folding"


class EarlyFolding(GraphRewriter):
    """Replaces each number that constants determine by a constant, where the number's readers need more than constants.

    PyTensor's `constant_folding` folds the same nodes later, and arrays of more numbers, for which other rewrites may
    find a shorter form first.
    """

    def add_requirements(self, fgraph: FunctionGraph) -> None:
        """Fold, before features of other rewrites are attached."""
        known = known_numbers(fgraph)
        pairs = []
        for variable, value in known.items():
            clients = [client for client, _ in fgraph.clients[variable]]
            if any(isinstance(client.op, Output) or client.outputs[0] not in known for client in clients):
                constant: Any = variable.type.make_constant(value)
                copy_stack_trace(variable, constant)
                pairs.append((variable, constant))
        fgraph.replace_all(pairs, reason=EARLY_FOLDING)

    def apply(self, fgraph: FunctionGraph) -> None:
        """Do nothing."""


def known_numbers(fgraph: FunctionGraph) -> dict[Variable, Any]:
    """Return the values of all results of a graph that are one number and depend on constants alone."""
    known: dict[Variable, Any] = {}
    for node in fgraph.toposort():
        is_constant = all(v in known or (v.owner is None and isinstance(v, Constant)) for v in node.inputs)
        if is_constant and gives_numbers(node):
            operands = [v.data if isinstance(v, Constant) else known[v] for v in node.inputs]
            try:
                results = perform(node, operands)
                if is_exact(node, operands, results):
                    known.update(zip(node.outputs, results, strict=True))
            except Exception:
                continue  # an error is PyTensor's to report, when it folds the node or the function is called
    return known


def gives_numbers(node: Apply) -> bool:
    """Return whether each result of a node is one number, and its Op leaves the decision to fold it to PyTensor."""
    decides = type(node.op).do_constant_folding is not Op.do_constant_folding or isinstance(node.op, HasInnerGraph)
    return not decides and all(is_number(v.type) for v in node.outputs)


def is_exact(node: Apply, operands: list[Any], results: list[Any]) -> bool:
    """Return whether results are in double precision, or what double precision gives."""
    if not isinstance(node.op, Elemwise | ScalarOp) or all(
        v.type.dtype in ("float64", "complex128") for v in node.outputs
    ):
        return True
    op = node.op.scalar_op if isinstance(node.op, Elemwise) else node.op
    exact = op.impl(*(np.float64(np.asarray(x).item()) for x in operands))
    return bool(np.array_equal(np.ravel(results[0]), np.ravel(exact), equal_nan=True))


def is_number(of_type: Any) -> bool:
    """Return whether values of a type are one number, whatever their dimensions."""
    return all(n == 1 for n in of_type.shape) if isinstance(of_type, pt.TensorType) else isinstance(of_type, ScalarType)


@node_rewriter([OpFromGraph])
def fix_maxima(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace PyTensor's own pullback of ``logsumexp`` or ``logaddexp`` by the same with the maximum held fixed."""
    for v in node.inputs:
        of = v.owner
        if of is None or type(of.op) not in (LogSumExp, LogAddExp) or node.inputs[:-1] != [*of.inputs, v]:
            continue
        cotangent = node.inputs[-1]
        found = of.op.pullback(of.inputs, of.outputs, [cotangent])
        if all(g.owner is not None and g.owner.op == node.op for g in found):
            return pullback_at_fixed_maxima(of, cotangent)
    return None


def pullback_at_fixed_maxima(node: Apply, cotangent: Variable) -> list[Variable]:
    """Return the cotangents of a node's inputs, by its inner graph, in which maxima are taken for constants."""
    inner = node.op.fgraph.unfreeze()
    maxima = [v.out for v in inner.apply_nodes if isinstance(getattr(v.op, "scalar_op", None), Maximum)]
    of_inner = cotangent.type()
    known = dict(zip(inner.outputs, [of_inner], strict=True))
    found: Any = pt.grad(None, inner.inputs, known_grads=known, consider_constant=maxima)
    pullback = FrozenFunctionGraph.from_io([*inner.inputs, of_inner], found)
    return pullback.bind([*node.inputs, cotangent])  # `clone_replace` would copy all ancestors of the inputs


@node_rewriter([Softmax])
def undo_softmax(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace `Softmax` of `z` by ``exp(z) / sum(exp(z))`` if `z` has its maximum subtracted already.

    That is the gradient of ``logsumexp``, which has a value where `Softmax` has none: of no elements, and where another
    element is infinite.
    """
    (z,) = node.inputs
    if not is_below_maximum(z):
        return None
    e: Any = exp(z)
    return [e / e.sum(axis=node.op.axis, keepdims=True)]


def is_below_maximum(z: Variable) -> bool:
    """Return whether a variable is the ``x - m`` of ``logsumexp``: `m` is the maximum of `x`, 0 for an infinite one."""
    match z.owner_op_and_inputs:
        case Elemwise(Sub()), x, shift:
            match shift.owner_op_and_inputs:
                case Elemwise(Switch()), _, _, top:
                    match without_views(top).owner_op_and_inputs:
                        case Max(initial=True), operand:
                            return operand is x
    return False


#: The tag by which `pregrad` asks for them.
STABLE_LOGARITHMS = "jaxpr_stable_logarithms"
#: PyTensor's rewrite that one of them replaces.
REPLACED = "local_log_erfc"


def operands(variable: Any, op: Elemwise) -> list[Any]:
    """Return the operands of an Op where it makes the variable."""
    return variable.owner.inputs if variable.owner is not None and variable.owner.op == op else []


def number_of(variable: Any) -> float | None:
    """Return the number of a constant with one element, None for any other variable."""
    data = getattr(variable, "data", None)
    return float(data.item()) if isinstance(data, np.ndarray) and data.size == 1 and data.dtype.kind in "biuf" else None


def constant_and_rest(variable: Any, op: Elemwise, neutral: float) -> tuple[float, Any]:
    """Return the constant and the rest of a sum or product of two; else `neutral` and the variable itself."""
    found = operands(variable, op)
    for constant, rest in permutations(found) if len(found) == 2 else ():
        if (number := number_of(constant)) is not None:
            return number, rest
    return neutral, variable


def factor_and_rest(variable: Any) -> tuple[float, Any]:
    """Return the constant factors and the rest of products, with -1 for a change of sign."""
    found = operands(variable, pt.neg)
    factor, rest = (-1.0, found[0]) if found else constant_and_rest(variable, pt.mul, 1.0)
    if rest is variable:
        return 1.0, variable
    more, rest = factor_and_rest(rest)
    return factor * more, rest


def one_minus(variable: Any) -> tuple[float, Any]:
    """Return the factor and the rest of a product `p` where a variable is ``1 - p``; a factor of 0 where it is not."""
    match operands(variable, pt.sub):
        case [one, p] if number_of(one) == 1:
            return factor_and_rest(p)
    one, rest = constant_and_rest(variable, pt.add, 0.0)
    factor, p = factor_and_rest(rest)
    return (-factor, p) if one == 1 else (0.0, p)


def with_trace(node: Apply, new: Any) -> list[Variable] | None:
    """Return a replacement with the user's lines of the replaced variable, None if the type would be another."""
    (old,) = node.outputs
    if new is None or new.type.dtype != old.type.dtype or not old.type.is_super(new.type):
        return None
    copy_stack_trace(old, new)
    return [new]


@node_rewriter([pt.sub, pt.add])
def one_minus_probability(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Rewrite ``1 - erfc(x) / 2`` to ``erfc(-x) / 2``.

    ``1 - sigmoid(x)`` stays: PyTensor's gradient of ``sigmoid(-x)`` has no digits for a small ``sigmoid(x)``.
    """
    factor, p = one_minus(node.outputs[0])
    for x in operands(p, pt.erfc) if factor == 0.5 else ():
        return with_trace(node, 0.5 * pt.erfc(-x))
    return None


def log_of_half_erfc(x: Any) -> Any:
    """Return ``log(erfc(x) / 2)``. No branch is infinite where the other one is taken."""
    right, left, log_2 = pt.maximum(x, 0), pt.maximum(-x, 0), np.asarray(np.log(2), x.type.dtype)
    return pt.switch(x > 0, pt.log(pt.erfcx(right)) - (right**2 + log_2), pt.log1p(-0.5 * pt.erfc(left)))


@node_rewriter([pt.log, pt.log1p])
def log_of_probability(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Rewrite ``log(erfc(x) / 2)``, and ``log1p(-p)`` where `p` is ``erfc(x) / 2`` or ``sigmoid(x)``.

    The first is the logarithm of the normal distribution function, which underflows from 27 on. PyTensor's
    `local_log_erfc` has a series from there on, with a gradient of 0 / 0.
    """
    factor, p = factor_and_rest(node.inputs[0])
    if node.op == pt.log1p:
        for x in operands(p, pt.sigmoid) if factor == -1 else ():
            return with_trace(node, -pt.softplus(x))
        for x in operands(p, pt.erfc) if factor == -0.5 else ():
            if not operands(x, pt.maximum):  # of `log_of_half_erfc` itself
                return with_trace(node, log_of_half_erfc(-x))
        return None
    for x in operands(p, pt.erfc) if factor > 0 else ():
        return with_trace(node, log_of_half_erfc(x) + np.asarray(np.log(2 * factor), x.type.dtype))
    return None


def without_views(variable: Any) -> Any:
    """Return the variable without changes of the order of axes, and of axes of length 1."""
    while variable.owner is not None and isinstance(variable.owner.op, DimShuffle):
        variable = variable.owner.inputs[0]
    return variable


def may_be_simpler(part: Any) -> bool:
    """Return whether the logarithm of a part may be simpler than that of any number."""
    owner = without_views(part).owner
    return owner is not None and isinstance(owner.op, Elemwise | Softmax | MakeVector | Join)


def has_finite_log(part: Any) -> bool:
    """Return whether the logarithm of a part is finite, however small the part: of `exp` and sigmoids."""
    part = without_views(part)
    factor, p = one_minus(part)
    if part.owner is None or part.owner.op in (pt.exp, pt.sigmoid):
        return True
    return factor == 1 and bool(operands(p, pt.sigmoid))


@node_rewriter([pt.log])
def log_of_stack(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Rewrite ``log(stack([a, b]))`` to ``stack([log(a), log(b)])`` and ``log(exp(x)[i])`` to ``x[i]``.

    An index of a stack may leave out a part that is 0, and 0 times the slope of its logarithm is NaN: so with an index
    all parts are of `exp` and sigmoids.
    """
    (x,), views = node.inputs, []
    while x.owner is not None and isinstance(x.owner.op, DimShuffle | Subtensor | AdvancedSubtensor):
        views.append(x.owner)
        x = x.owner.inputs[0]
    made, dtype = x.owner, node.outputs[0].type.dtype
    if made is None or x.type.dtype != dtype:
        return None
    if made.op == pt.exp:
        new = made.inputs[0]
    elif isinstance(made.op, MakeVector | Join):
        has_axis = isinstance(made.op, Join)
        parts = [v for v in made.inputs if not has_axis or v.type.ndim]
        if all(isinstance(view.op, DimShuffle) for view in views):
            is_simpler = any(map(may_be_simpler, parts))
        else:
            is_simpler = any(v.owner is not None for v in parts) and all(map(has_finite_log, parts))
        if not is_simpler:
            return None  # there may be many parts
        axis = made.inputs[: len(made.inputs) - len(parts)]
        new = made.op(*axis, *(pt.log(pt.cast(v, dtype)) for v in parts))
    else:
        return None
    for view in reversed(views):
        new = view.op(new, *view.inputs[1:])
    return with_trace(node, new)


#: The rewrites that join `stabilize`, by name.
STABILIZING: dict[str, NodeRewriter] = {
    "jaxpr_one_minus_probability": one_minus_probability,
    "jaxpr_log_of_probability": log_of_probability,
    "jaxpr_log_of_parts": log_of_stack,
}


@node_rewriter([pt.mul])
def drop_symmetric_part(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Replace ``F * C``, ``F`` antisymmetric, in PyTensor's pullback of `eigh` by ``F * (C - C.T) / 2``."""
    if len(node.inputs) != 2 or op_class(node.inputs[1]) is not Dot:
        return None
    ratios, product = node.inputs
    found = eigenvalues_of(ratios)
    if found is None or not is_made_symmetric(fgraph, node.outputs[0], found):
        return None
    return with_trace(node, ratios * ((product - matrix_transpose(product)) / 2))


def op_class(variable: Variable) -> type | None:
    """Return the class of the Op that a variable is of, in a batch or not."""
    return None if variable.owner is None else type(getattr(variable.owner.op, "core_op", variable.owner.op))


def eigenvalues_of(ratios: Any) -> Apply | None:
    """Return the node of `eigh` of whose eigenvalues a matrix has the inverse differences, 0 in the diagonal."""
    if ratios.owner is None or ratios.owner.op != pt.switch or op_class(ratios.owner.inputs[0]) is not Eye:
        return None
    quotient = ratios.owner.inputs[2]
    if quotient.owner is None or quotient.owner.op != pt.true_div:
        return None
    difference = without_views(quotient.owner.inputs[1])
    if difference.owner is None or difference.owner.op != pt.sub:
        return None
    sources = {without_views(v) for v in difference.owner.inputs}
    (source,) = sources if len(sources) == 1 else (None,)
    return source.owner if source is not None and op_class(source) is Eigh and len(source.owner.inputs) == 1 else None


def is_made_symmetric(fgraph: FunctionGraph, part: Variable, found: Apply) -> bool:
    """Return whether all that reads a part is ``V @ (diagonal + part) @ V.T``, of which the triangles are added."""
    vectors, v = found.outputs[1], part
    for is_next in (
        lambda node: node.op == pt.add,
        lambda node: op_class(node.outputs[0]) is Dot and node.inputs[0] is vectors,
        lambda node: op_class(node.outputs[0]) is Dot and without_views(node.inputs[1]) is vectors,
    ):
        readers = read_by(fgraph, v)
        if len(readers) != 1 or not is_next(readers[0]):
            return False
        v = readers[0].outputs[0]
    triangles = read_by(fgraph, v)
    ends = [end for node in triangles for end in read_by(fgraph, node.outputs[0])]
    ends = [end for node in ends for end in ([node] if node.op == pt.add else read_by(fgraph, node.outputs[0]))]
    return len(ends) == len(triangles) == 2 and len({*ends}) == 1 and all(n.op == pt.mul for n in triangles)


def read_by(fgraph: FunctionGraph, variable: Variable) -> list[Apply]:
    """Return the nodes that read a variable, apart from its shape."""
    return [node for node, _ in fgraph.clients[variable] if not isinstance(node.op, Shape)]


#: The name of a rewrite of gradients of sums of exponentials.
FIXED_MAXIMA = "jaxpr_fixed_maxima"
#: The rewrites of whole graphs, by their positions among PyTensor's.
ADDED_REWRITES = (
    (-1.5, EARLY_FOLDING, EarlyFolding()),
    (-1.4, "jaxpr_eigenvectors", dfs_rewriter(drop_symmetric_part)),  # in the form that PyTensor's pullback has
    (-0.02, FIXED_MAXIMA, dfs_rewriter(fix_maxima)),  # before `inline_ofg_expansion`
    (1.501, "jaxpr_plain_ratios", dfs_rewriter(undo_softmax)),  # after `stabilize`
)
