"""Fourier transforms, and convolutions as a sum over the kernel's taps of the shifted, weighted signal.

XLA's own convolution pads with zeros first, which turns an infinite tap into NaN at the ends; it is slower on CPUs,
too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from jax.lax import FftType
from pytensor.graph.basic import Apply
from pytensor.tensor.fft import IRFFTOp, RFFTOp
from pytensor.tensor.fourier import Fourier
from pytensor.tensor.signal.conv import Convolve1d, Convolve2d

from pytensor_jaxpr_linker.base.errors import CannotEmit
from pytensor_jaxpr_linker.base.rules import emits
from pytensor_jaxpr_linker.emit.blocks import Span, make_block, read_box
from pytensor_jaxpr_linker.emit.indexing import add_or_any
from pytensor_jaxpr_linker.emit.scalar import number, numpy_astype
from pytensor_jaxpr_linker.emit.shape import as_lengths, check_length
from pytensor_jaxpr_linker.emit.tensor_basic import slice_axis
from pytensor_jaxpr_linker.graph.static_values import larger, smaller
from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.builder import Atom, JaxprBuilder, Shape
from pytensor_jaxpr_linker.jaxpr.nested import row_of

# -- Fourier transforms ------------------------------------------------------------------------------------------------


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
    """The transform of real last axes (`numpy.fft.rfftn`), real and imaginary parts in a new last axis."""
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
    lengths = [*x.aval.shape[:axis], n, *x.aval.shape[axis + 1 :]]
    z = fit_lengths(b, prims.convert(b, x, node.outputs[0].type.dtype), lengths)
    return transform(b, z, axis, (n,), FftType.FFT)


# -- convolutions ------------------------------------------------------------------------------------------------------


#: The largest number of taps to write out, so that XLA fuses them into one loop.
FEW_TAPS = 16
#: The number of taps from which a transform is faster; SciPy's choice depends on more, and is of the same order.
MANY_TAPS = 512


@emits(Convolve1d, Convolve2d, static=(2,), batched=True)
def emit_convolution(op, node, b, x, kernel, full):
    """Convolve the last axes (`scipy.signal.convolve`): all, or where the shorter lies in the longer."""
    x, kernel = (numpy_astype(b, v, node.outputs[0].type.dtype) for v in (x, kernel))
    if full.any() != full.all():
        raise CannotEmit("full and valid convolutions are in one batch, and differ in size")
    n, k = (v.aval.shape[-op.ndim :] for v in (x, kernel))
    check_lengths(n, k, full.all())
    if is_longer(prod(k), prod(n)):
        x, kernel = kernel, x
    is_large = prod(kernel.aval.shape[-op.ndim :]) > MANY_TAPS and x.aval.dtype.kind == "f"
    by_transform = op.ndim > 1 and (op.method == "fft" or (op.method == "auto" and is_large))
    result = (transformed if by_transform else summed)(b, x, kernel, op.ndim)
    if not full.all():
        shape = result.aval.shape
        spans = [Span(0, length) for length in shape[: -op.ndim]]
        spans += [Span(smaller(i, j) - 1, larger(i, j) - smaller(i, j) + 1) for i, j in zip(n, k, strict=True)]
        result = read_box(b, result, make_block(b, shape, spans, range(len(shape))))
    return result


def is_longer(k: int, n: int) -> bool:
    """Return whether the kernel has more elements, `k`, than the signal, `n`; a symbolic number is the larger."""
    if type(k) is type(n) is int:
        return k > n
    if type(k) is type(n):
        reason = "of signal and kernel are symbolic: JAX can't decide how many taps there are"
        raise CannotEmit(f"the lengths {k} and {n} {reason}")
    return type(n) is int


def check_lengths(n: Shape, k: Shape, is_full: bool) -> None:
    """Raise NumPy's or SciPy's ValueError if there is nothing to convolve."""
    if 0 in n + k:
        if len(n) > 1:
            raise CannotEmit("SciPy gives a vector when it convolves empty matrices")
        raise ValueError("a cannot be empty" if 0 in n else "v cannot be empty")
    if is_full or len(n) == 1:
        return
    if any(a < c for a, c in zip(n, k, strict=True)) and any(a > c for a, c in zip(n, k, strict=True)):
        raise ValueError("For 'valid' mode, one must be at least as large as the other in every dimension")


def summed(b: JaxprBuilder, x: Atom, kernel: Atom, ndim: int) -> Atom:
    """Emit the full convolution of the last `ndim` axes as a sum over the taps."""
    batch, n, k = x.aval.shape[:-ndim], x.aval.shape[-ndim:], kernel.aval.shape[-ndim:]
    shape = (*batch, *(i + j - 1 for i, j in zip(n, k, strict=True)))
    taps = prims.reshape(b, kernel, (*batch, prod(k)))
    taps = prims.transpose(b, taps, [len(batch), *range(len(batch))])
    result = prims.broadcast_to(b, number(b, x, 0), shape)
    offsets = np.stack(np.unravel_index(np.arange(prod(k)), k), -1).astype("int32")
    if prod(k) > FEW_TAPS:
        return summed_in_a_loop(b, x, taps, offsets, result)
    for i, offset in enumerate(offsets):
        product = weighted(b, x, row_of(b, taps, i))
        room = [(0, 0, 0)] * len(batch) + [(int(o), m - int(o) - 1, 0) for o, m in zip(offset, k, strict=True)]
        result = add_or_any(b, result, prims.pad(b, product, number(b, x, 0), room))
    return result


def weighted(b: JaxprBuilder, x: Atom, tap: Atom) -> Atom:
    """Emit the product of arrays and a number for each."""
    return prims.mul(b, x, prims.broadcast_in_dim(b, tap, x.aval.shape, range(len(tap.aval.shape))))


def summed_in_a_loop(b: JaxprBuilder, x: Atom, taps: Atom, offsets: np.ndarray, start: Atom) -> Atom:
    """Emit the sum with one step a tap, which adds to the part of the result that the tap reaches."""
    count, ndim = offsets.shape
    rows = [b.aval(taps.aval.shape[1:], taps.aval.dtype), b.aval((ndim,), np.dtype("int32"))]
    body, (signal, result, tap, offset) = b.sub_jaxpr([x.aval, start.aval, *rows])
    zeros = [body.constant(0, "int32")] * (len(x.aval.shape) - ndim)
    place = zeros + [row_of(body, offset, i) for i in range(ndim)]
    part = prims.dynamic_slice(body, result, place, x.aval.shape)
    part = prims.add(body, part, weighted(body, signal, tap))
    jaxpr = body.build([prims.dynamic_update_slice(body, result, part, place)])
    return prims.scan(b, jaxpr, [x], [start], [taps, b.constant(offsets)], count)[0]


def transformed(b: JaxprBuilder, x: Atom, kernel: Atom, ndim: int) -> Atom:
    """Emit the full convolution of the last `ndim` axes as a product of Fourier transforms."""
    shapes = (v.aval.shape[-ndim:] for v in (x, kernel))
    lengths = tuple(i + j - 1 for i, j in zip(*shapes, strict=True))
    spectra = [prims.fft(b, fit_lengths(b, v, lengths), FftType.RFFT, lengths) for v in (x, kernel)]
    return prims.fft(b, prims.mul(b, *spectra), FftType.IRFFT, lengths)
