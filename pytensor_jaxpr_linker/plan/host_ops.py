"""PyTensor's own Ops that run on the host by decision, each with the reason.

Such an Op is never traced, even if somebody registers a JAX function for it: no program can do what it does, or it belongs to
another backend. A rule that is registered with `emits` is used all the same.
"""

from __future__ import annotations

from pytensor.graph.op import Op

from pytensor_jaxpr_linker.base.errors import SIDE_EFFECT, Reason
from pytensor_jaxpr_linker.base.rules import class_name

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
