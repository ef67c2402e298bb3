"""Graphs whose inputs have symbolic lengths, for `whole/test_symbolic.py`.

A `Graph` says what its inputs are in a few letters: ``"x n"`` is a float64 array of length n, ``"i n"`` integers from 0 to 2,
``"s n"`` a positive definite matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt

LENGTHS = ({"n": 5, "m": 3}, {"n": 1, "m": 1}, {"n": 2, "m": 4})


class Graph(NamedTuple):
    """A graph, its inputs, and the lengths at which it is called."""

    make: Callable
    inputs: tuple[str, ...] = ("x n",)
    lengths: tuple[dict[str, int], ...] = LENGTHS
    gradient: bool = True


def scan(step, **kwargs):
    return pytensor.scan(step, return_updates=False, **kwargs)


def zero():
    return pt.constant(np.float64(0))


def radon(b, mu, g, y, x):
    """The log density of a hierarchical model: groups of symbolic number, observations of symbolic number."""
    sigma, tau = pt.exp(b[0]), pt.exp(b[1])
    prior = (-0.5 * (mu / tau) ** 2 - pt.log(tau)).sum() - 0.5 * (b**2).sum()
    mean = mu[g] + b[2] * x
    return prior + (-0.5 * ((y - mean) / sigma) ** 2 - pt.log(sigma)).sum()


def gaussian_process(x, y, b):
    """The marginal log density of a Gaussian process."""
    distance = (x[:, None] - x[None, :]) ** 2
    cov = pt.exp(-distance / (1 + b[0] ** 2)) + (0.1 + b[1] ** 2) * pt.eye(x.shape[0])
    chol = pt.linalg.cholesky(cov)
    z = pt.linalg.solve_triangular(chol, y, lower=True)
    return -0.5 * (z**2).sum() - pt.log(pt.diagonal(chol)).sum() - 0.5 * x.shape[0] * np.log(2 * np.pi)


def ar1(x):
    return scan(lambda v, a: 0.5 * a + pt.tanh(v), sequences=[x], outputs_info=[zero()])


def garch(x, b):
    """The log density of a GARCH model, whose variance a loop computes."""
    variance = scan(lambda r, v: 0.1 + 0.2 * r**2 + pt.sigmoid(b[0]) * v, sequences=[x], outputs_info=[zero() + 1])
    return (-0.5 * pt.log(variance) - 0.5 * x**2 / variance).sum()


def hidden_markov(x):
    """The log density of a hidden Markov model of two states: a loop over the observations."""
    transition = pt.log(pt.constant(np.array([[0.9, 0.1], [0.2, 0.8]])))
    emission = pt.stack([-0.5 * x**2, -0.5 * (x - 1) ** 2], axis=1)
    forward = scan(
        lambda e, a: pt.logsumexp(a[:, None] + transition, axis=0) + e, sequences=[emission], outputs_info=[pt.zeros(2)]
    )
    return pt.logsumexp(forward[-1])


def mixed(x, i):
    return x[i, 1:]


TWO = ("x n", "x m")
MATRIX = ("x n m",)
FROM_TWO = ({"n": 5, "m": 3}, {"n": 2, "m": 4})
ODD = ({"n": 3, "m": 5}, {"n": 2, "m": 3})

GRAPHS = {
    # arithmetic of lengths
    "mean": Graph(lambda x: x.mean()),
    "mean-axis": Graph(lambda x: x.mean(axis=0), MATRIX),
    "var": Graph(lambda x: x.var()),
    "std": Graph(lambda x: x.std(), lengths=FROM_TWO),
    "length": Graph(lambda x: x.shape[0] * 2 + x.sum()),
    "size": Graph(lambda x: x.sum() / x.size, MATRIX),
    "shape": Graph(lambda x: x.shape * 1.0, MATRIX, gradient=False),
    "log-length": Graph(lambda x: x.sum() * pt.log(x.shape[0])),
    "sqrt-length": Graph(lambda x: x / pt.sqrt(x.shape[0].astype("float64"))),
    "half-length": Graph(lambda x: x * (x.shape[0] // 2) + x.shape[0] % 3),
    "length-condition": Graph(lambda x: pt.switch(pt.gt(x.shape[0], 2), x, -x)),
    "length-maximum": Graph(lambda x: x * pt.maximum(x.shape[0], 3)),
    "product-of-shape": Graph(lambda x: x.sum() * pt.prod(x.shape), MATRIX),
    "two-lengths": Graph(lambda x, y: x.sum() * y.shape[0] + (x.shape[0] + y.shape[0]), TWO),
    # arrays of a length
    "zeros": Graph(lambda x: pt.zeros(x.shape[0]) + x),
    "zeros-double": Graph(lambda x: pt.zeros(2 * x.shape[0] + 1) + x[0]),
    "full": Graph(lambda x, y: pt.full((x.shape[0], y.shape[0]), 2.0) * x[:, None] + y, TWO),
    "arange": Graph(lambda x: pt.arange(x.shape[0]) * x),
    "arange-from": Graph(lambda x: pt.arange(2, x.shape[0] + 2) * x),
    "arange-step": Graph(lambda x: pt.arange(0, 2 * x.shape[0], 2) * x),
    "arange-down": Graph(lambda x: pt.arange(x.shape[0], 0, -1) * x),
    "arange-float": Graph(lambda x: pt.arange(x.shape[0], dtype="float64") * x),
    "linspace": Graph(lambda x: x * pt.arange(x.shape[0]) / x.shape[0]),
    "eye": Graph(lambda x: pt.eye(x.shape[0]) * x),
    "eye-two": Graph(lambda x: pt.eye(x.shape[0], x.shape[1], 1) * x, MATRIX),
    "identity-like": Graph(lambda x: pt.identity_like(x) + x, ("x n n",)),
    "tril": Graph(lambda x: pt.tril(x), MATRIX),
    "triu": Graph(lambda x: pt.triu(x, 1), MATRIX),
    "tri": Graph(lambda x: pt.tri(x.shape[0]) * x),
    "diag": Graph(lambda x: pt.diag(x)),
    "diag-above": Graph(lambda x: pt.diag(x, 1)),
    "diagonal": Graph(lambda x: pt.diagonal(x), ("x n n",)),
    "diagonal-rectangular": Graph(lambda x: pt.diagonal(x), MATRIX),
    "diagonal-above": Graph(lambda x: pt.diagonal(x, offset=1), ("x n n",)),
    "diagonal-below": Graph(lambda x: pt.diagonal(x, offset=-1), MATRIX),
    "trace": Graph(lambda x: pt.trace(x), ("x n n",)),
    "fill-diagonal": Graph(lambda x: pt.fill_diagonal(x, 2.0), MATRIX),
    # indices
    "first": Graph(lambda x: x[0]),
    "last": Graph(lambda x: x[-1]),
    "third": Graph(lambda x: x[2], lengths=({"n": 3}, {"n": 5})),
    "third-last": Graph(lambda x: x[-3], lengths=({"n": 3}, {"n": 5})),
    "index": Graph(lambda x, k: x[k], ("x n", "k")),
    "middle": Graph(lambda x: x[x.shape[0] // 2]),
    "row": Graph(lambda x: x[0], MATRIX),
    "column": Graph(lambda x: x[:, -1], MATRIX),
    "element": Graph(lambda x: x[0, -1], MATRIX),
    "take": Graph(lambda x, i: x[i], ("x n", "i m"), lengths=({"n": 3, "m": 5}, {"n": 4, "m": 2})),
    "take-known": Graph(lambda x: x[np.array([0, -1, 0])]),
    "take-rows": Graph(lambda x, i: x[i], ("x n 2", "i m"), lengths=({"n": 3, "m": 5}, {"n": 4, "m": 2})),
    "take-columns": Graph(lambda x, i: x[:, i], ("x n 3", "i m")),
    "take-and-slice": Graph(mixed, ("x 3 n", "i m")),
    "take-points": Graph(lambda x, i, j: x[i, j], ("x n n", "i m", "i m"), lengths=ODD),
    "take-outer": Graph(lambda x, i: x[i[:, None], i], ("x n n", "i m"), lengths=ODD),
    "take-between": Graph(lambda x, i: x[i, :, 0], ("x 3 n m", "i m")),
    # slices
    "rest": Graph(lambda x: x[1:]),
    "rest-of-three": Graph(lambda x: x[3:]),
    "without-last": Graph(lambda x: x[:-1]),
    "without-two": Graph(lambda x: x[:-2]),
    "inner": Graph(lambda x: x[1:-1]),
    "first-two": Graph(lambda x: x[:2]),
    "last-two": Graph(lambda x: x[-2:]),
    "half": Graph(lambda x: x[: x.shape[0] // 2]),
    "other-half": Graph(lambda x: x[x.shape[0] // 2 :]),
    "by-other-length": Graph(lambda x, y: x[: y.shape[0]], TWO),
    "even": Graph(lambda x: x[::2]),
    "odd": Graph(lambda x: x[1::2]),
    "even-and-odd": Graph(lambda x: (x[::2] * 2).sum() + x[1::2].sum()),
    "reversed": Graph(lambda x: x[::-1]),
    "reversed-even": Graph(lambda x: x[::-2]),
    "reversed-rest": Graph(lambda x: x[:0:-1]),
    "two-steps": Graph(lambda x: x[::2, ::-3], MATRIX),
    "slice-of-slice": Graph(lambda x: x[1:][::-1][:-1]),
    "difference": Graph(lambda x: x[1:] - x[:-1]),
    "second-difference": Graph(lambda x: x[2:] - 2 * x[1:-1] + x[:-2]),
    "diff": Graph(lambda x: pt.diff(x)),
    "diff-rows": Graph(lambda x: pt.diff(x, axis=1), MATRIX),
    "roll": Graph(lambda x: pt.roll(x, 1)),
    # writes
    "set-first": Graph(lambda x: pt.set_subtensor(x[0], 2.0)),
    "set-last": Graph(lambda x: pt.set_subtensor(x[-1], 2.0)),
    "set-index": Graph(lambda x, k: pt.set_subtensor(x[k], 2.0), ("x n", "k")),
    "set-rest": Graph(lambda x: pt.set_subtensor(x[1:], 2.0)),
    "add-rest": Graph(lambda x: pt.inc_subtensor(x[1:], x[:-1])),
    "set-even": Graph(lambda x: pt.set_subtensor(x[::2], 2.0)),
    "add-odd": Graph(lambda x: pt.inc_subtensor(x[1::2], 2.0)),
    "set-reversed": Graph(lambda x: pt.set_subtensor(x[::-1], x * 2)),
    "set-reversed-even": Graph(lambda x: pt.set_subtensor(x[::-2], 3.0)),
    "add-two-steps": Graph(lambda x: pt.inc_subtensor(x[::2, ::-2], 2.0), MATRIX),
    "set-take": Graph(lambda x, i: pt.set_subtensor(x[i], 1.0), ("x n", "i m"), lengths=ODD),
    "add-take": Graph(lambda x, i: pt.inc_subtensor(x[i], 1.0), ("x n", "i m"), lengths=ODD),
    "add-take-of-rows": Graph(lambda x, i: pt.inc_subtensor(x[i, 1:], 1.0), ("x n 3", "i m"), lengths=ODD),
    "add-take-of-steps": Graph(lambda x, i: pt.inc_subtensor(x[i, ::2], 1.0), ("x 3 n", "i m")),
    "set-column": Graph(lambda x: pt.set_subtensor(x[:, 0], 1.0), MATRIX),
    "set-block": Graph(lambda x, y: pt.set_subtensor(pt.zeros(x.shape[0] + y.shape[0])[: x.shape[0]], x), TWO),
    # masks
    "mask": Graph(lambda x: x[x > 0].sum()),
    "mask-mean": Graph(lambda x: x[x > -9].mean()),
    "mask-rows": Graph(lambda x: x[x[:, 0] > 0].sum(axis=0), MATRIX),
    "mask-matrix": Graph(lambda x: pt.exp(x[x > 0]).sum(), MATRIX),
    "mask-of-rest": Graph(lambda x: x[1:][x[1:] > 0].sum()),
    "mask-set": Graph(lambda x: pt.set_subtensor(x[x > 0], 0.5)),
    "mask-add": Graph(lambda x: pt.inc_subtensor(x[x > 0], 0.5)),
    "mask-other": Graph(lambda x, y: (x[y > 0] ** 2).sum(), ("x n", "x n")),
    "switch": Graph(lambda x: pt.switch(x > 0, x, 0.0)),
    "nonzero": Graph(lambda x: x[(x > 0).nonzero()].sum()),
    # shapes
    "reshape": Graph(lambda x: x.reshape((x.shape[0], 1))),
    "reshape-flat": Graph(lambda x: x.reshape((-1,)), MATRIX),
    "reshape-computed": Graph(lambda x: x.reshape((x.shape[1], x.shape[0])), MATRIX),
    "reshape-minus": Graph(lambda x: x.reshape((x.shape[0], -1)), ("x n m 2",)),
    "flatten": Graph(lambda x: x.flatten(2), ("x n m 2",)),
    "ravel": Graph(lambda x: pt.exp(x.ravel()), MATRIX),
    "join": Graph(lambda x, y: pt.join(0, x, y, x), TWO),
    "join-rows": Graph(lambda x: pt.concatenate([x, x[:, :1]], axis=1), MATRIX),
    "stack": Graph(lambda x: pt.stack([x, 2 * x], axis=1)),
    "split": Graph(lambda x: pt.split(x, [x.shape[0] // 2, x.shape[0] - x.shape[0] // 2], n_splits=2), gradient=False),
    "split-rows": Graph(lambda x: pt.split(x, [1, 2], n_splits=2, axis=1), ("x n 3",)),
    "repeat": Graph(lambda x: pt.repeat(x, 3)),
    "repeat-rows": Graph(lambda x: pt.repeat(x, 2, axis=1), MATRIX),
    "tile": Graph(lambda x: pt.tile(x, 2)),
    "tile-rows": Graph(lambda x: pt.tile(x, (2, 1)), MATRIX),
    "pad": Graph(lambda x: pt.pad(x, 2)),
    "broadcast": Graph(lambda x, y: pt.broadcast_to(y[0], x.shape) * x, TWO),
    "broadcast-row": Graph(lambda x, y: x + y[None, :], ("x n m", "x m")),
    "outer": Graph(lambda x, y: pt.outer(x, y), TWO),
    "centered": Graph(lambda x: x - x.mean(axis=0, keepdims=True), MATRIX),
    "specify-shape": Graph(lambda x, y: pt.specify_shape(x, (y.shape[0],)) * y, ("x n", "x n")),
    "squeeze": Graph(lambda x: pt.squeeze(x[None]), MATRIX),
    "moveaxis": Graph(lambda x: pt.moveaxis(x, 0, 2), ("x n m 2",)),
    # orders and sums
    "cumsum": Graph(lambda x: pt.cumsum(x)),
    "cumprod": Graph(lambda x: pt.cumprod(x, axis=0), MATRIX),
    "sort": Graph(lambda x: pt.sort(x)),
    "argsort": Graph(lambda x: x[pt.argsort(x)]),
    "argmax": Graph(lambda x: pt.argmax(x), gradient=False),
    "argmax-rows": Graph(lambda x: pt.argmax(x, axis=1), MATRIX, gradient=False),
    "max": Graph(lambda x: x.max()),
    "min-rows": Graph(lambda x: x.min(axis=1), MATRIX),
    "take-along": Graph(lambda x: pt.take_along_axis(x, pt.argsort(x, axis=1), 1), MATRIX),
    "softmax": Graph(lambda x: pt.special.softmax(x, axis=-1), MATRIX),
    "logsumexp": Graph(lambda x: pt.logsumexp(x)),
    "median": Graph(lambda x: pt.sort(x)[x.shape[0] // 2]),
    "searchsorted": Graph(lambda x, y: pt.searchsorted(pt.sort(x), y), TWO, gradient=False),
    "ravel-index": Graph(lambda x, i: pt.ravel_multi_index((i, i), x.shape), ("x n n", "i m"), ODD, gradient=False),
    "unravel-index": Graph(lambda x, i: pt.unravel_index(i, x.shape), ("x n n", "i m"), ODD, gradient=False),
    # products
    "matvec": Graph(lambda x, y: x @ y, ("x n m", "x m")),
    "gram": Graph(lambda x: x @ x.T, MATRIX),
    "batched-product": Graph(lambda x: x @ x.transpose((0, 2, 1)), ("x n m 2",)),
    "cholesky": Graph(lambda x: pt.linalg.cholesky(x), ("s n",)),
    "log-determinant": Graph(lambda x: pt.log(pt.diagonal(pt.linalg.cholesky(x))).sum(), ("s n",)),
    # Of one matrix that is symmetric: the gradient by the matrix that `solve` takes may lie in one triangle, or in both.
    "solve": Graph(lambda x, y: pt.linalg.solve((x + x.mT) / 2, y, assume_a="pos"), ("s n", "x n")),
    "solve-triangular": Graph(lambda x, y: pt.linalg.solve_triangular(x, y, lower=True), ("s n", "x n")),
    "convolve-same": Graph(lambda x: pt.signal.convolve1d(x, np.ones(3), mode="same")),
    "convolve-full": Graph(lambda x: pt.signal.convolve1d(x, np.array([1.0, 2.0]), mode="full")),
    "convolve-valid": Graph(
        lambda x: pt.signal.convolve1d(x, np.array([1.0, 2.0, 3.0]), mode="valid"), lengths=({"n": 3}, {"n": 6})
    ),
    # loops
    "scan": Graph(ar1),
    "scan-last": Graph(lambda x: ar1(x)[-1]),
    "scan-sum": Graph(lambda x: ar1(x).sum()),
    "map": Graph(lambda x: pytensor.map(lambda v: v**2 + 1, [x], return_updates=False)),
    "scan-rows": Graph(
        lambda x: scan(lambda v, a: 0.5 * a + v, sequences=[x], outputs_info=[pt.zeros(x.shape[1])]), MATRIX
    ),
    "scan-fixed": Graph(lambda x: scan(lambda a, v: 0.5 * a + v, outputs_info=[x * 0], non_sequences=[x], n_steps=4)),
    "scan-of-length": Graph(lambda x: scan(lambda a: 0.5 * a + 1, outputs_info=[x[0]], n_steps=x.shape[0])),
    "scan-twice-as-long": Graph(lambda x: scan(lambda a: 0.5 * a + 1, outputs_info=[x[0]], n_steps=2 * x.shape[0])),
    "scan-backwards": Graph(
        lambda x: scan(lambda v, a: 0.5 * a + v, sequences=[x], outputs_info=[zero()], go_backwards=True)
    ),
    "scan-two-states": Graph(
        lambda x: scan(lambda v, a, b: [0.5 * a + v, a * b], sequences=[x], outputs_info=[zero(), zero() + 1])
    ),
    "scan-two-sequences": Graph(lambda x, y: scan(lambda u, v: u * v, sequences=[x, y]), ("x n", "x n")),
    "scan-taps": Graph(
        lambda x: scan(lambda a, b: a - b, sequences=[{"input": x, "taps": [0, -1]}]), lengths=FROM_TWO, gradient=False
    ),
    "scan-two-taps": Graph(
        lambda x: scan(
            lambda v, a, b: 0.5 * a - 0.2 * b + v,
            sequences=[x],
            outputs_info=[{"initial": pt.zeros(2), "taps": [-1, -2]}],
        )
    ),
    "cumsum-by-scan": Graph(lambda x: scan(lambda v, a: a + v, sequences=[x], outputs_info=[zero()])),
    # densities
    "mse": Graph(lambda b, x, y: ((y - x * b[0] - b[1]) ** 2).mean(), ("x 2", "x n", "x n")),
    "normal": Graph(lambda b, x: (-0.5 * ((x - b[0]) / pt.exp(b[1])) ** 2 - b[1]).sum(), ("x 2", "x n")),
    "radon": Graph(radon, ("x 3", "x m", "i n", "x n", "x n"), lengths=({"n": 5, "m": 3}, {"n": 2, "m": 4})),
    "gaussian-process": Graph(gaussian_process, ("x n", "x n", "x 2")),
    "regression": Graph(lambda x, y, b: ((y - x @ b) ** 2).sum() / x.shape[0], ("x n 3", "x n", "x 3")),
    "logistic": Graph(lambda x, i, b: pt.log1p(pt.exp((1 - 2 * i) * (x @ b))).mean(), ("x n 3", "i n", "x 3")),
    "random-walk": Graph(lambda x, b: (-0.5 * ((x[1:] - x[:-1]) / pt.exp(b[0])) ** 2 - b[0]).sum(), ("x n", "x 1")),
    "zero-sum": Graph(lambda x: pt.concatenate([x, -x.sum(keepdims=True)]) ** 2),
    "simplex": Graph(lambda x: pt.special.softmax(pt.concatenate([x, pt.zeros(1)]))),
    "noncentered": Graph(lambda b, z, g: (b[0] + pt.exp(b[1]) * z)[g].sum(), ("x 2", "x m", "i n"), FROM_TWO),
    "garch": Graph(garch, ("x n", "x 1")),
    "hidden-markov": Graph(hidden_markov),
    "autocorrelation": Graph(lambda x: ((x[1:] - x.mean()) * (x[:-1] - x.mean())).sum() / x.var(), lengths=FROM_TWO),
    "stick-breaking": Graph(lambda x: pt.concatenate([pt.ones(1), pt.cumprod(1 - pt.sigmoid(x))[:-1]]), gradient=False),
    "mixture": Graph(
        lambda x, b: pt.logsumexp(pt.stack([-((x - b[0]) ** 2), -((x - b[1]) ** 2)], 1), axis=1).sum(), ("x n", "x 2")
    ),
    "gammaln": Graph(lambda x: pt.gammaln(x**2 + 1).sum()),
    "crossed": Graph(lambda u, v, g, h: (u[g] * v[h]).sum(), ("x m", "x 3", "i n", "i n"), lengths=FROM_TWO),
    "poisson": Graph(lambda b, i: (i * b[0] - pt.exp(b[0]) - pt.gammaln(i + 1)).sum(), ("x 1", "i n")),
}
