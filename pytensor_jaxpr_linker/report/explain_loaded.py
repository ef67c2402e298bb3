"""What `explain` tells of a function that was loaded from a file: it has a program, and no graph of PyTensor's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jaxpr_artifact import LoadedFunction
from pytensor_jaxpr_linker.report.explanation import Explanation
from pytensor_jaxpr_linker.report.model import Batch, Guard, Node, PassedValue

#: The node that an operation was made of, in the name of its location: the Op, and in brackets the user's name of the result.
LOCATED = re.compile(r'^#loc\d+ = loc\("(?:[^"]*/)?eval_jaxpr/([^/"]+)/', re.MULTILINE)
NAMED = re.compile(r"(.+?)\[([^\]]*)\]")


def explain_loaded(loaded: LoadedFunction) -> Explanation:
    """Return what a file says of its function: one region, with the nodes that its operations name, each once."""
    header = loaded.header
    names = [NAMED.fullmatch(text) or text for text in dict.fromkeys(LOCATED.findall(loaded.stablehlo))]
    parts = [(name, "") if isinstance(name, str) else (name[1], name[2]) for name in names]
    nodes = tuple([Node(i, op, name, "", (), "", 0, False, False, "") for i, (op, name) in enumerate(parts)])
    inputs = [PassedValue(a.name, array_text(a.dtype, a.shape)) for a in header.arguments]
    inputs += [PassedValue(s.name, array_text(s.dtype, s.symbolic or s.shape)) for s in header.state]
    outputs = [PassedValue(a.name, array_text(a.dtype, a.shape)) for a in header.outputs]
    outputs += [
        PassedValue(s.name, array_text(s.dtype, s.symbolic or s.shape)) for s in header.state if s.output is not None
    ]
    open_shapes = [a.name for a in header.arguments if any(isinstance(n, str) for n in a.shape)]
    region = Batch(
        0,
        "region",
        tuple(range(len(nodes))),
        tuple(inputs),
        tuple(outputs),
        tuple([Guard("shape", name) for name in open_shapes]),
        checks=tuple([f"{c.type}: {c.message}" + (f" in {c.node}" if c.node else "") for c in header.checks]),
    )
    return Explanation(nodes, (region,), (), (), {})


def array_text(dtype: str, shape: Sequence[Any]) -> str:
    """Return dtype and shape as text."""
    return f"{dtype}[{', '.join(map(str, shape))}]"
