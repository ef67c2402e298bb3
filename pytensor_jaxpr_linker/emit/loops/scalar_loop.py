"""`ScalarLoop`: one `while` for all elements; an element keeps its state once it is done."""

from __future__ import annotations

import numpy as np
from pytensor.scalar.loop import ScalarLoop

from pytensor_jaxpr_linker.emit.scalar import emit_inner, emits_scalar, numpy_astype, several_results
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.nested import any_of, nested


@emits_scalar(ScalarLoop, form=several_results)
def emit_ScalarLoop(op, b, dtypes, steps, *xs):
    """Step while any element goes on; without a step `until` is true: as the Op documents, that is no failure."""
    shape = prims.elementwise_shape((steps, *xs))
    state_count = len(op.outputs) - op.is_while
    operands = [numpy_astype(b, x, t.dtype) for x, t in zip(xs, op.inputs_type, strict=True)]
    states = [prims.broadcast_to(b, x, shape) for x in operands[:state_count]]
    if op.is_while:
        states.append(prims.broadcast_to(b, b.constant(True), shape))
    fixed = [steps, *operands[state_count:]]
    zero = b.constant(0, steps.aval.dtype)
    active = prims.broadcast_to(b, prims.lt(b, zero, steps), shape)
    carry = [zero, active, *states]

    body, (step_limit, *constants), (i, active, *old), passed = nested(b, fixed, carry)
    new = emit_inner(op.fgraph, body, [*old[:state_count], *constants])
    new = [prims.broadcast_to(body, numpy_astype(body, x, s.aval.dtype), shape) for x, s in zip(new, old, strict=True)]
    new = [prims.select(body, active, x, s) for x, s in zip(new, old, strict=True)]
    i = prims.add(body, i, body.constant(1, steps.aval.dtype))
    active = prims.and_(body, active, prims.broadcast_to(body, prims.lt(body, i, step_limit), shape))
    if op.is_while:
        active = prims.and_(body, active, prims.not_(body, new[-1]))
    condition, atoms = b.sub_jaxpr([x.aval for x in carry])
    goes_on = condition.build([any_of(condition, atoms[1])])
    results = prims.while_loop(b, goes_on, [], body.build([i, active, *new]), passed, carry)
    return [numpy_astype(b, x, np.dtype(t)) for x, t in zip(results[2:], dtypes, strict=True)]
