"""Fourier transforms of any length, as products of real matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jax import lax

from pytensor_jaxpr_linker.jaxpr import prims
from pytensor_jaxpr_linker.jaxpr.formula import apply
from pytensor_jaxpr_linker.jaxpr.portable.arrays import Array, joined_arrays

#: Shorter transforms are one product with a matrix of roots of unity; longer ones are split by factors of at most this
#: size.
LONGEST_PRODUCT = 64

#: Transforms of prime length up to this are one product, too.
LONGEST_PRIME = 256


class RealParts(NamedTuple):
    """Complex numbers as two real arrays; without an imaginary part they are real."""

    re: Array
    im: Array | None = None

    def each(self, change: Callable[[Array], Array]) -> RealParts:
        """Return a function of both parts."""
        return RealParts(change(self.re), None if self.im is None else change(self.im))

    def reshape(self, *shape: int) -> RealParts:
        """Return the numbers in another shape."""
        return self.each(lambda x: x.reshape(*shape))

    @property
    def mT(self) -> RealParts:
        """The last two axes exchanged."""
        return self.each(lambda x: x.mT)

    def times(self, factors: np.ndarray) -> RealParts:
        """Return the product with constant complex numbers, element by element."""
        c, s = self.re.like(factors.real), self.re.like(factors.imag)
        if self.im is None:
            return RealParts(self.re * c, self.re * s)
        return RealParts(self.re * c - self.im * s, self.re * s + self.im * c)

    def product(self, matrix: np.ndarray) -> RealParts:
        """Return the product of the last axis with a constant complex matrix."""
        c, s = self.re.like(matrix.real), self.re.like(matrix.imag)
        if self.im is None:
            return RealParts(last_axis_product(self.re, c), last_axis_product(self.re, s))
        re = last_axis_product(self.re, c) - last_axis_product(self.im, s)
        return RealParts(re, last_axis_product(self.re, s) + last_axis_product(self.im, c))


def last_axis_product(x: Array, matrix: Array) -> Array:
    """Return the product of the last axis of an array with a matrix."""
    return Array(x.b, prims.dot_general(x.b, x.atom, matrix.atom, ([len(x.shape) - 1], [0])))


def roots(numerators: np.ndarray, n: int, sign: int) -> np.ndarray:
    """Return n-th roots of unity by their numbers, reduced before the division: long transforms lose no digits."""
    return np.exp(sign * 2j * np.pi * (numerators % n) / n)


def discrete_fourier(x: RealParts, sign: int) -> RealParts:
    """Return the discrete Fourier transform of the last axis, not divided by its length.

    It is a product if it is short. Else it takes the four steps of Cooley and Tukey's algorithm if the length has a
    factor of at most `LONGEST_PRODUCT`, and Bluestein's convolution if not. The error is some eps times the root of the
    mean square.
    """
    *batch, n = x.re.shape
    j = np.arange(n)
    divisor = max((d for d in range(2, LONGEST_PRODUCT + 1) if n % d == 0), default=1)
    if n <= LONGEST_PRODUCT or (divisor == 1 and n <= LONGEST_PRIME):
        return x.product(roots(np.outer(j, j), n, sign))
    if divisor == 1:
        return convolved(x, sign)
    rest = n // divisor
    first = discrete_fourier(x.reshape(*batch, divisor, rest).mT, sign)
    twiddles = roots(np.outer(np.arange(rest), np.arange(divisor)), n, sign)
    second = discrete_fourier(first.times(twiddles).mT, sign)
    return second.mT.reshape(*batch, n)


def convolved(x: RealParts, sign: int) -> RealParts:
    """Return the transform as a convolution with a chirp (Bluestein, 1970), as long as the next power of two."""
    *_, n = x.re.shape
    size = 2 ** math.ceil(math.log2(2 * n - 1))
    j = np.arange(n, dtype=object)
    chirp = roots(np.array(j * j % (2 * n), "int64"), 2 * n, sign)
    kernel = np.zeros(size, complex)
    kernel[:n] = chirp.conj()
    kernel[size - n + 1 :] = chirp[:0:-1].conj()
    config = [(0, 0, 0)] * (len(x.re.shape) - 1) + [(0, size - n, 0)]
    padded = x.times(chirp).each(lambda part: Array(part.b, prims.pad(part.b, part.atom, part.like(0).atom, config)))
    spectrum = discrete_fourier(padded, -1).times(np.fft.fft(kernel))
    return discrete_fourier(spectrum, 1).each(lambda part: part[..., :n]).times(chirp / size)


def transformed_axis(x: RealParts, axis: int, sign: int) -> RealParts:
    """Return the transform of an axis."""
    order = [i for i in range(len(x.re.shape)) if i != axis] + [axis]
    back = np.argsort(order).tolist()
    return discrete_fourier(x.each(lambda part: part.transpose(order)), sign).each(lambda part: part.transpose(back))


def fourier(x: Array, kind: lax.FftType, lengths: Sequence[int]) -> Array:
    """Return the result of the primitive ``fft``."""
    lengths = tuple(lengths)
    axes = range(len(x.shape) - len(lengths), len(x.shape))
    if kind == lax.FftType.IRFFT:
        return inverse_of_real(x, lengths)
    sign = 1 if kind == lax.FftType.IFFT else -1
    parts = RealParts(x) if kind == lax.FftType.RFFT else RealParts(x.real, x.imag)
    for axis in reversed(axes):
        parts = transformed_axis(parts, axis, sign)
        if kind == lax.FftType.RFFT and axis == axes[-1]:
            parts = parts.each(lambda part: part[..., : lengths[-1] // 2 + 1])
    if sign == 1:
        parts = parts.each(lambda part: part * (1.0 / math.prod(lengths)))
    return apply(prims.complex_, *parts)


def inverse_of_real(x: Array, lengths: Sequence[int]) -> Array:
    """Return the real inverse of half a spectrum; of numbers that stand for themselves alone the real parts count."""
    parts = RealParts(x.real, x.imag)
    for axis in range(len(x.shape) - len(lengths), len(x.shape) - 1):
        parts = transformed_axis(parts, axis, 1)
    n = lengths[-1]
    # Each of the other numbers stands for itself and its conjugate.
    k = np.arange(n // 2 + 1)
    weights = np.where((k == 0) | (2 * k == n), 1.0, 2.0)[:, None]
    angles = roots(np.outer(k, np.arange(n)), n, 1) * weights
    assert parts.im is not None
    if n <= LONGEST_PRIME:
        real = parts.product(angles).re
    else:
        mirrored = slice(1, (n + 1) // 2)
        re = joined_arrays([parts.re, parts.re[..., mirrored].flip(-1)], -1)
        im = parts.im * np.where((k == 0) | (2 * k == n), 0.0, 1.0)
        im = joined_arrays([im, -im[..., mirrored].flip(-1)], -1)
        real = discrete_fourier(RealParts(re, im), 1).re
    return real * (1.0 / math.prod(lengths))
