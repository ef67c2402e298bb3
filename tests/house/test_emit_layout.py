"""A rule is in the file of room `emit` that is named as PyTensor's module of the Op."""

from __future__ import annotations

import re

import pytest

from pytensor_jaxpr_linker.base.rules import RULES, SCALAR_RULES, class_name
from pytensor_jaxpr_linker.jaxpr import prims

#: The words of a file's name are among those of PyTensor's module, in the same order: `linalg/tridiagonal.py` has the Ops of
#: `pytensor.tensor.linalg.solvers.tridiagonal`. Below is where else rules are, by a prefix of the class's name, and why.
ELSEWHERE = {
    "pytensor.compile.ops": ("tensor_basic", "beside the other Ops that pass their operand on"),
    "pytensor.raise_op": ("tensor_basic", "beside the other Ops that pass their operand on"),
    "pytensor.scalar.basic.Composite": (
        "scalar",
        "the rules of scalar Ops are called from its inner graph, and call it",
    ),
    "pytensor.scalar.basic.ScalarOp": ("elemwise", "a scalar Op by itself is an Elemwise of numbers"),
    "pytensor.scalar.basic": ("scalar_primitives", "a table for what is one primitive; `scalar_basic` has the rest"),
    "pytensor.scalar.math.Erf": ("scalar_primitives", "one primitive"),
    "pytensor.scalar.math.Log1mexp": ("scalar_basic", "a few primitives"),
    "pytensor.scalar.math.Sigmoid": ("scalar_primitives", "one primitive"),
    "pytensor.scalar.math.Softplus": ("scalar_basic", "a few primitives"),
    "pytensor.scalar.math": ("scalar_math", "a folder with one file for each family of special functions"),
    "pytensor.tensor.blas.batched": ("math", "the rule of Dot takes batch axes"),
    "pytensor.tensor.fft": ("signal", "beside the convolutions, some of which are transforms"),
    "pytensor.tensor.fourier": ("signal", "beside the convolutions, some of which are transforms"),
    "pytensor.tensor.linalg.constructors": ("linalg.products", "one Op, like a Kronecker product of an identity"),
    "pytensor.tensor.linalg.summary": ("linalg.inverse", "by the factors of an inverse"),
    "pytensor.tensor.random.basic": ("random", "a folder: one file would have 1,000 lines"),
    "pytensor.tensor.reshape": ("shape", "beside `Reshape`"),
    "pytensor.tensor.sort": ("math", "beside the positions of maxima"),
    "pytensor.tensor.special": ("math", "softmax, a few lines beside the reductions"),
    "pymc.distributions.dist_math": ("pymc_math", "not PyTensor's"),
    "pymc.": ("random", "not PyTensor's"),
    "pytensor_jaxpr_linker.graph.lanes.ops.LstsqParts": ("linalg.solvers", "a part of PyTensor's Lstsq"),
    "pytensor_jaxpr_linker.graph.lanes": ("lanes", "our own Op"),
    "pytensor_jaxpr_linker.graph.loops": ("scan", "our own Op, a Scan"),
    "pytensor_jaxpr_linker.graph.sparse": ("sparse", "our own Op"),
}

PLACES = {
    (op_type if isinstance(op_type, str) else class_name(op_type)): rule.emit.__module__
    for table in (RULES, SCALAR_RULES)
    for op_type, rule in table.items()
    if rule.emit.__module__.startswith("pytensor_jaxpr_linker.")  # tests have rules, too
}
#: The room, as the start of the name of a module.
ROOM = "pytensor_jaxpr_linker.emit."
#: Where Ops of later rooms are, with their rules; another test of this process may have imported it.
OWN_OPS = "pytensor_jaxpr_linker.pymc."


def words(module: str) -> list[str]:
    return re.split(r"[._]", module)


def is_named_after(file: str, module: str) -> bool:
    """Return whether the words of a file's name are among those of a module, in order."""
    following = iter(words(module))
    return all(word in following for word in words(file))


@pytest.mark.parametrize("name", sorted(name for name in PLACES if PLACES[name].startswith(ROOM)))
def test_a_rule_is_in_the_file_that_is_named_after_the_module_of_its_op(name):
    file = PLACES[name].removeprefix(ROOM)
    elsewhere = [place for prefix, (place, _) in ELSEWHERE.items() if name.startswith(prefix)]
    assert is_named_after(file, name.rpartition(".")[0]) or any(file.startswith(place) for place in elsewhere)


def test_other_rules_are_rows_of_tables():
    """A primitive is registered for an Op as it is, in `scalar_primitives`, `scalar_basic` or `pymc_math`."""
    others = [module for module in PLACES.values() if not module.startswith((ROOM, OWN_OPS))]
    assert others and all(module.startswith(f"{prims.__name__}.") for module in others)


@pytest.mark.parametrize("prefix", ELSEWHERE)
def test_what_is_elsewhere_is_needed(prefix):
    assert any(name.startswith(prefix) for name in PLACES)
