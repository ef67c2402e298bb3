"""JAX functions of programs: `jax.grad` and `jax.vmap` of them call the programs of derivatives and batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import export

#: The highest order of derivatives that an artifact has programs for.
MOST_DERIVATIVES = 2


def function_of(
    programs: Sequence[export.Exported],
    batched: Sequence[export.Exported],
    has_batch: Sequence[bool],
    constants: range,
    order: int = 0,
) -> Callable[..., Any]:
    """Return the first of some programs as a JAX function.

    Parameters
    ----------
    programs
        A program and its derivatives: each takes what the one before takes, and cotangents of its inexact results; it returns cotangents of
        the inexact operands, without constants.
    batched
        The same over a batch, or none.
    has_batch
        Which operands of the first program have the axis of a batch in the batched one.
    constants
        The positions of operands that are constants.
    order
        Of which order the first program is a derivative.
    """
    program, *derivatives = programs
    call = over_batches(program, batched[0] if batched else None, has_batch)
    of = [i for i, aval in enumerate(program.out_avals) if is_inexact(aval)]
    wrt = [i for i, aval in enumerate(program.in_avals) if is_inexact(aval) and i not in constants]

    def no_pullback(*_: Any) -> Any:
        remedy = (
            f"export it with vjp_order={order + 1}, if JAX is to differentiate it further"
            if order < MOST_DERIVATIVES
            else "no artifact has more. Export a gradient that pytensor.grad makes as a function of its own"
        )
        raise TypeError(
            f"The function {program.fun_name!r} was exported with derivatives up to order {order}: {remedy}."
        )

    more = [*has_batch, *[True] * len(of)]
    pullback = function_of(derivatives, batched[1:], more, constants, order + 1) if derivatives else no_pullback

    def forward(*args: Any) -> tuple[Any, Any]:
        return function(*args), args  # not `call`: a second derivative differentiates this

    def backward(args: Any, cotangents: Sequence[Any]) -> tuple:
        found = dict(zip(wrt, pullback(*args, *[cotangents[i] for i in of]), strict=True))
        return tuple(found.get(i) for i in range(len(args)))

    function = jax.custom_vjp(lambda *args: call(*args))
    function.defvjp(forward, backward)
    return function


def over_batches(
    program: export.Exported, batched: export.Exported | None, has_batch: Sequence[bool]
) -> Callable[..., Any]:
    """Return a program as a function whose `jax.vmap` calls the batched one, or says that there is none."""

    @jax.custom_batching.custom_vmap
    def call(*args: Any) -> Any:
        return program.call(*args)

    if batched is None:

        @call.def_vmap
        def _(*_: Any) -> Any:
            raise NotImplementedError(
                f"The function {program.fun_name!r} was exported without a batched program: export it with batched=True for jax.vmap."
            )

        return call

    @jax.custom_batching.custom_vmap
    def call_batched(*args: Any) -> Any:
        return batched.call(*args)

    def rows(size: int, in_batched: Sequence[bool], args: Sequence[Any]) -> list[Any]:
        """Return the operands, with the axis where the batched program takes it."""
        if any(is_batched and not may for is_batched, may in zip(in_batched, has_batch, strict=True)):
            raise NotImplementedError(
                "A loaded function can be batched over its arguments (jax.vmap), not over its state."
            )
        return [
            jax.numpy.broadcast_to(x, (size, *x.shape)) if may and not is_batched else x
            for x, is_batched, may in zip(args, in_batched, has_batch, strict=True)
        ]

    @call.def_vmap
    def _(size: int, in_batched: Sequence[bool], *args: Any) -> tuple[Any, Any]:
        results = call_batched(*rows(size, in_batched, args))
        return results, jax.tree.map(lambda _: True, results)

    @call_batched.def_vmap
    def _(size: int, in_batched: Sequence[bool], *args: Any) -> tuple[Any, Any]:
        """Make one axis of two."""
        operands = rows(size, in_batched, args)
        inner = next(x.shape[1] for x, may in zip(operands, has_batch, strict=True) if may)
        flat = [x.reshape(-1, *x.shape[2:]) if may else x for x, may in zip(operands, has_batch, strict=True)]
        results = jax.tree.map(lambda x: x.reshape(size, inner, *x.shape[1:]), call_batched(*flat))
        return results, jax.tree.map(lambda _: True, results)

    return call


def with_shared(batched: export.Exported, has_batch: Sequence[bool]) -> Callable[..., Any]:
    """Return a batched program as a function whose operands may lack the axis of the batch: those are the same in each row."""
    ranks = [len(aval.shape) if may else None for aval, may in zip(batched.in_avals, has_batch, strict=True)]

    def call(*args: Any) -> Any:
        size = next(x.shape[0] for x, rank in zip(args, ranks, strict=True) if x.ndim == rank)
        return batched.call(
            *[
                x if rank in (None, x.ndim) else jax.numpy.broadcast_to(x, (size, *x.shape))
                for x, rank in zip(args, ranks, strict=True)
            ]
        )

    return call


def is_inexact(aval: Any) -> bool:
    """Return whether an array has real or complex numbers."""
    return jax.numpy.issubdtype(aval.dtype, jax.numpy.inexact)
