"""Sampling by rejection: one `while` for all elements, with a mask of those that have no accepted proposal yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.extend.core as jex

from pytensor_jaxpr_linker import prims
from pytensor_jaxpr_linker.builder import Atom, JaxprBuilder
from pytensor_jaxpr_linker.emit.random.sampler import split

#: Emits proposals for all elements: ``propose(b, key, *params)`` returns which are accepted, and the proposals.
type Proposal = Callable[..., tuple[Atom, Atom]]


def reject(
    b: JaxprBuilder, key: Atom, propose: Proposal, params: Sequence[Atom], otherwise: Atom, possible: Atom
) -> Atom:
    """Emit proposals until each element has an accepted one, and return these.

    Parameters
    ----------
    b, key
        Where to emit, and the key that is used up.
    propose
        Emits proposals, in a builder of its own. An element that goes on has to be accepted with a probability that is
        bounded from below, or the loop does not end.
    params
        What `propose` reads.
    otherwise
        The values of elements that are not `possible`. Its shape and dtype are those of the draws.
    possible
        A boolean, 0-d or of that shape: the elements that proposals are made for. One with a NaN among its parameters
        would never be accepted.
    """
    shape = otherwise.aval.shape
    passed = list(dict.fromkeys(x for x in params if isinstance(x, jex.Var)))
    carry = [key, prims.broadcast_to(b, possible, shape), otherwise]
    body, atoms = b.sub_jaxpr([x.aval for x in (*passed, *carry)])
    inner = dict(zip(passed, atoms, strict=False))
    old_key, active, old = atoms[len(passed) :]
    next_key, proposal_key = split(body, old_key)
    accepted, proposed = propose(body, proposal_key, *[inner[x] if isinstance(x, jex.Var) else x for x in params])
    new = prims.select(body, active, proposed, old)
    goes_on = prims.and_(body, active, prims.not_(body, accepted))
    condition, atoms = b.sub_jaxpr([x.aval for x in carry])
    is_open = prims.reduce_or(condition, atoms[1], range(len(shape))) if shape else atoms[1]
    step = body.build([next_key, goes_on, new])
    return prims.while_loop(b, condition.build([is_open]), [], step, passed, carry)[2]
