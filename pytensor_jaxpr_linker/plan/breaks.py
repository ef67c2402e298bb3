"""Why a node runs on the host, and why a graph has more than one batch."""

from __future__ import annotations

from collections.abc import Mapping

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.tensor.type import TensorType

from pytensor_jaxpr_linker.base import errors, marks
from pytensor_jaxpr_linker.base.errors import SIDE_EFFECT, Reason
from pytensor_jaxpr_linker.base.rules import class_name
from pytensor_jaxpr_linker.graph import facts
from pytensor_jaxpr_linker.graph.sparse.ops import TakeApart, is_transfer
from pytensor_jaxpr_linker.graph.walk import Graph
from pytensor_jaxpr_linker.plan.model import Step
from pytensor_jaxpr_linker.plan.schedule import Schedule

# -- Ops that run on the host by decision ------------------------------------------------------------------------------

#: Reasons by module, and the names of the classes that they hold for.
REASONS: dict[str, dict[str, str]] = {
    "pytensor.breakpoint": {Reason("it starts the debugger", SIDE_EFFECT): "PdbBreakpoint"},
    "pytensor.compile.ops": {"it calls a Python function (`wrap_py`), which may do anything": "FromFunctionOp"},
    "pytensor.printing": {Reason("it prints, or calls a Python function, as a side effect", SIDE_EFFECT): "Print"},
    "pytensor.sparse.rewriting": {
        "a rewrite for the C backend makes it, which mode JAXPR leaves out": """
            AddSparseDenseC CSMGradC MulSDCSC MulSDCSR MulSVCSR SamplingDotCSR
            StructuredAddSparseDenseVectorCSR StructuredDotCSC StructuredDotCSR UsmmCscDense
        """,
    },
    "pytensor.tensor.linalg.decomposition.schur": {"XLA has no generalized Schur decomposition": "QZ"},
    "pytensor.tensor.linalg.solvers.linear_control": {
        "it is a part of `SolveSylvester`, which is emitted as a whole": "TRSYL"
    },
    "pytensor.tensor.optimize": {
        "SciPy's optimizer calls Python functions": "MinimizeOp MinimizeScalarOp RootOp RootScalarOp"
    },
    "pytensor.tensor.random.op": {"it makes a generator, which is no array": "DefaultGeneratorMakerOp"},
    "pytensor.tensor.type_other": {"it makes a slice object, which is no array": "MakeSlice"},
    "pytensor.typed_list.basic": {
        "typed lists are no arrays": "Append Count Extend GetItem Index Insert Length MakeList Remove Reverse"
    },
}

#: Why an Op runs on the host, by the name of its class as `class_name` gives it.
HOST: dict[str, str] = {
    f"{module}.{name}": reason
    for module, reasons in REASONS.items()
    for reason, names in reasons.items()
    for name in names.split()
}

#: The base of Ops on named dimensions, which nothing evaluates.
NAMED_OP = "pytensor.xtensor.basic.XOp"
NOT_LOWERED = (
    "PyTensor's rewrite `lower_xtensor`, which this mode leaves out, has to replace it: no backend evaluates it"
)


def host_reason(op: Op) -> str | None:
    """Return why an Op runs on the host by decision, or None; a class derived from it is another Op."""
    if NAMED_OP in map(class_name, type(op).__mro__):
        return NOT_LOWERED
    return HOST.get(class_name(type(op)))


# -- breaks ------------------------------------------------------------------------------------------------------------


#: The errors that emission rules raised for nodes when regions were built before.
type Fallbacks = Mapping[Apply, errors.CannotEmit]


def host_break(step: Step, fallbacks: Fallbacks) -> errors.Break | None:
    """Return why a node must run on the host, or None."""
    node, rule = step.node, step.rule
    if rule is None:
        if isinstance(node.op, TakeApart) and not is_transfer(node):
            return errors.Break(errors.REFUSED, node, None, UNKNOWN_PATTERN)
        if (decided := host_reason(node.op)) is not None:
            return errors.Break(getattr(decided, "code", errors.NO_RULE), node, None, decided)
        if (found := not_array(node)) is not None:
            is_sparse = getattr(found.type, "format", None) is not None
            kind = f"{errors.variable_name(found)} is of type {found.type}, which is no array"
            kind += "; this Op is not lowered to the arrays of sparse matrices" * is_sparse
            return errors.Break(errors.NOT_ARRAY, node, None, kind)
        return errors.Break(errors.NO_RULE, node, None, errors.NO_RULE.why)
    if (reason := rule.refuse(node)) is not None:
        return errors.Break(getattr(reason, "code", errors.REFUSED), node, None, reason)
    if node in fallbacks and fallbacks[node].position is None:
        return errors.Break(errors.REFUSED, node, None, str(fallbacks[node]))
    return None


#: Why a sparse matrix is put together and taken apart again.
UNKNOWN_PATTERN = "which entries the matrix has follows from numbers, and an Op reads its indices or only its entries"


def not_array(node: Apply) -> Variable | None:
    """Return an operand or a result of a node that a region can't hold, or None."""
    for v in (*node.inputs, *node.outputs):
        if type(v.type) is not TensorType and not facts.is_array(v):
            return v
    return None


def list_breaks(
    graph: Graph, on_host: Mapping[Apply, errors.Break], found: Schedule, steps: Mapping[Apply, Step]
) -> list[errors.Break]:
    """Return every reason for more than one batch, in the order of the nodes."""
    breaks = []
    roots = dynamic_roots(graph)
    for node in graph.nodes:
        if node in on_host:
            if is_transfer(node):
                continue
            breaks.append(on_host[node])
        elif node in found.on_host:
            marked = next((roots[v] for i in steps[node].static if (v := node.inputs[i]) in roots), None)
            code = errors.RUNTIME_STATIC if marked is None else errors.DYNAMIC_VALUE
            breaks.append(errors.Break(code, node, marked, code.why))
        for i in found.crossing.get(node, ()):
            breaks.append(errors.Break(errors.RUNTIME_STATIC, node, node.inputs[i], errors.RUNTIME_STATIC.why))
    return breaks


def dynamic_roots(graph: Graph) -> dict[Variable, Variable]:
    """Map each variable that depends on an input that the user marked dynamic to such an input."""
    roots = {v: v for v in graph.inputs if marks.is_dynamic(v) and not marks.is_varying(v)}
    for node in graph.nodes if roots else ():
        if not isinstance(node.op, facts.SHAPE_READERS):
            marked = next((roots[v] for v in node.inputs if v in roots), None)
            if marked is not None:
                roots.update(dict.fromkeys(node.outputs, marked))
    return roots
