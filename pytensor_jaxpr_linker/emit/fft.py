"""Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.lax import FftType
from pytensor.graph.basic import Apply
from pytensor.tensor.fft import IRFFTOp, RFFTOp
from pytensor.tensor.fourier import Fourier

from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.lengths import as_lengths, check_length
from pytensor_jaxpr_linker.emit.scalar import number
from pytensor_jaxpr_linker.emit.tensor_basic import slice_axis
from pytensor_jaxpr_linker.graph.symbolic_values import smaller
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder

#: The most axes that one primitive transforms.
MAX_AXES = 3


def fit_lengths(b: JaxprBuilder, x: Atom, lengths: Sequence[int]) -> Atom:
    """Emit `x` with its last axes cut, or filled up with zeros, to these lengths."""
    first = len(x.aval.shape) - len(lengths)
    for axis, n in enumerate(lengths, first):
        x = slice_axis(b, x, axis, 0, smaller(n, x.aval.shape[axis]))
    missing = [n - m for n, m in zip(lengths, x.aval.shape[first:], strict=True)]
    return prims.pad(b, x, number(b, x, 0), [(0, 0, 0)] * first + [(0, n, 0) for n in missing])


def checked_transform(b: JaxprBuilder, node: Apply, lengths: Any) -> tuple[int, ...]:
    """Return the lengths of a transform; ValueError if one is not positive, as NumPy raises."""
    found = as_lengths(lengths)
    for n in found:
        check_length(b, node, n, 1, ValueError(f"Invalid number of FFT data points ({n}) specified."))
    return tuple(found)


def transform(b: JaxprBuilder, z: Atom, first: int, lengths: Sequence[int], kind: FftType) -> Atom:
    """Emit the complex transform of axes of these lengths from the axis `first` on, one after another."""
    for axis, n in enumerate(lengths, first):
        order = [*(i for i in range(len(z.aval.shape)) if i != axis), axis]
        moved = prims.fft(b, prims.transpose(b, z, order), kind, (n,))
        z = prims.transpose(b, moved, [int(i) for i in np.argsort(order)])
    return z


@emits(RFFTOp, static=(1,))
def emit_RFFTOp(op, node, b, x, lengths):
    """The transform of the last axes of real numbers (`numpy.fft.rfftn`), real and imaginary parts in a new last axis."""
    lengths = checked_transform(b, node, lengths)
    result = prims.fft(b, fit_lengths(b, x, lengths), FftType.RFFT, lengths[-MAX_AXES:])
    result = transform(b, result, len(x.aval.shape) - len(lengths), lengths[:-MAX_AXES], FftType.FFT)
    parts = [prims.reshape(b, part(b, result), (*result.aval.shape, 1)) for part in (prims.real, prims.imag)]
    return prims.concatenate(b, parts, len(result.aval.shape))


@emits(IRFFTOp, static=(1,))
def emit_IRFFTOp(op, node, b, x, lengths):
    """The inverse of `RFFTOp` without its normalization (`numpy.fft.irfftn` times the number of elements)."""
    lengths = checked_transform(b, node, lengths)
    *shape, parts = x.aval.shape
    if parts < 2:
        raise IndexError(f"index {parts} is out of bounds for axis {len(shape)} with size {parts}")
    re, im = (prims.reshape(b, slice_axis(b, x, len(shape), i, i + 1), tuple(shape)) for i in range(2))
    z = fit_lengths(b, prims.complex_(b, re, im), (*lengths[:-1], lengths[-1] // 2 + 1))
    z = transform(b, z, len(shape) - len(lengths), lengths[:-MAX_AXES], FftType.IFFT)
    result = prims.fft(b, z, FftType.IRFFT, lengths[-MAX_AXES:])
    return prims.mul(b, result, number(b, result, math.prod(lengths)))


@emits(Fourier, static=(1, 2))
def emit_Fourier(op, node, b, x, length, axis):
    """The complex transform of one axis (`numpy.fft.fft`)."""
    (n,), axis = checked_transform(b, node, [length]), int(axis)
    z = fit_lengths(
        b, prims.convert(b, x, node.outputs[0].type.dtype), [*x.aval.shape[:axis], n, *x.aval.shape[axis + 1 :]]
    )
    return transform(b, z, axis, (n,), FftType.FFT)
