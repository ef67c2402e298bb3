"""Rows of distributions of vectors and matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from densities import textbook as book
from densities.links import sigmoid
from densities.row import Row
from densities.textbook import Number, Terms
from mpmath import matrix, mp, mpf


def observed_row(distribution: str, name: str, make: Callable[[str, Any], Any], terms: Any, *others: float) -> Row:
    """Return the row of an observed value whose parameters depend on a flat vector."""

    def build(label: str, shape: tuple[int, ...]) -> Any:
        free = pm.Flat(f"{label}_a", shape=1 + len(others))
        make(f"{label}_y", free)
        return free

    return Row(distribution, name, build, lambda *u: terms(list(u)), others)


def free_row(distribution: str, name: str, make: Callable[[str], Any], terms: Any, *others: float) -> Row:
    return Row(
        distribution, f"{name}; free", lambda label, shape: make(f"{label}_x"), lambda *u: terms(list(u)), others
    )


def log_sum_exp(u: Sequence[Number]) -> Number:
    return mp.log(sum(map(mp.exp, u)))


def log_softmax(u: Sequence[Number]) -> list[Terms]:
    """Return the logs of the probabilities, as two terms each."""
    total = log_sum_exp(u)
    return [[x, -total] for x in u]


def categorical(y: int) -> Callable[[list[Number]], Terms]:
    return lambda u: log_softmax(u)[y]


def multinomial(y: Sequence[int]) -> Callable[[list[Number]], Terms]:
    def terms(u: list[Number]) -> Terms:
        logs = log_softmax(u)
        counts = [n * t for n, two in zip(y, logs, strict=True) for t in two]
        return [book.gammaln(mpf(sum(y) + 1)), *(-book.gammaln(mpf(n + 1)) for n in y), *counts]

    return terms


def dirichlet(x: Sequence[Number], a: Sequence[Number]) -> Terms:
    powers = [(k - 1) * mp.log(v) for k, v in zip(a, x, strict=True)]
    return [book.gammaln(sum(a)), *(-book.gammaln(k) for k in a), *powers]


def dirichlet_multinomial(y: Sequence[int], a: Sequence[Number]) -> Terms:
    n, total = mpf(sum(y)), sum(a)
    each = [
        t for k, v in zip(y, a, strict=True) for t in (book.gammaln(k + v), -book.gammaln(v), -book.gammaln(mpf(k + 1)))
    ]
    return [book.gammaln(total), book.gammaln(n + 1), -book.gammaln(n + total), *each]


def simplex(v: Sequence[Number]) -> tuple[list[Number], Terms]:
    """Return the softmax of values that sum to zero, and the log of the volume: N times the product of all shares."""
    logs = log_softmax([*v, -sum(v)])
    return [mp.exp(sum(two)) for two in logs], [mp.log(len(logs)), *(t for two in logs for t in two)]


def free_dirichlet(v: list[Number]) -> Terms:
    x, slope = simplex(v)
    return [*dirichlet(x, [mpf(2.25), mpf(1.5), mpf(0.75)]), *slope]


def stick_breaking(x: Sequence[Number], alpha: Number) -> Terms:
    """Return the density of weights of which each takes a Beta(1, alpha) share of what is left."""
    left = [sum(x[k:]) for k in range(1, len(x) - 1)]
    return [(len(x) - 1) * mp.log(alpha), (alpha - 1) * mp.log(x[-1]), *(-mp.log(r) for r in left)]


def free_sticks(v: list[Number]) -> Terms:
    x, slope = simplex(v)
    return [*stick_breaking(x, mpf(1.75)), *slope]


A = np.array([2.25, 1.5, 0.75])
SHARES = np.array([0.25, 0.5, 0.25])
SIMPLEXES = [
    *(
        observed_row(
            "Categorical",
            f"p=softmax(a); y = {y}",
            lambda name, a, y=y: pm.Categorical(name, p=pt.special.softmax(a), observed=y),
            categorical(y),
            0.25,
            -0.5,
        )
        for y in (0, 2)
    ),
    *(
        observed_row(
            "Categorical",
            f"logit_p=a; y = {y}",
            lambda name, a, y=y: pm.Categorical(name, logit_p=a, observed=y),
            categorical(y),
            0.25,
            -0.5,
        )
        for y in (0, 2)
    ),
    *(
        observed_row(
            "Multinomial",
            f"n=7, p=softmax(a); y = {y}",
            lambda name, a, y=y: pm.Multinomial(name, n=7, p=pt.special.softmax(a), observed=np.array(y)),
            multinomial(y),
            0.25,
            -0.5,
        )
        for y in ([2, 4, 1], [0, 7, 0])
    ),
    observed_row(
        "DirichletMultinomial",
        "n=7, a=exp(a); y = [2, 4, 1]",
        lambda name, a: pm.DirichletMultinomial(name, n=7, a=pt.exp(a), observed=np.array([2, 4, 1])),
        lambda u: dirichlet_multinomial([2, 4, 1], list(map(mp.exp, u))),
        0.25,
        -0.5,
    ),
    observed_row(
        "Dirichlet",
        "a=exp(a); y = [0.25, 0.5, 0.25]",
        lambda name, a: pm.Dirichlet(name, a=pt.exp(a), observed=pm.floatX(SHARES)),
        lambda u: dirichlet([mpf(x) for x in SHARES], list(map(mp.exp, u))),
        0.25,
        -0.5,
    ),
    free_row("Dirichlet", f"a={A.tolist()}", lambda name: pm.Dirichlet(name, a=pm.floatX(A)), free_dirichlet, 0.25),
    observed_row(
        "StickBreakingWeights",
        "alpha=exp(a), K=2; y = [0.25, 0.5, 0.25]",
        lambda name, a: pm.StickBreakingWeights(name, alpha=pt.exp(a[0]), K=2, observed=pm.floatX(SHARES)),
        lambda u: stick_breaking([mpf(x) for x in SHARES], mp.exp(u[0])),
    ),
    free_row(
        "StickBreakingWeights",
        "alpha=1.75, K=2",
        lambda name: pm.StickBreakingWeights(name, alpha=1.75, K=2),
        free_sticks,
        0.25,
    ),
]

COV = np.array([[2.0, 0.5], [0.5, 1.0]])
CHOL = np.array([[1.5, 0.0], [0.5, 1.25]])
Y = np.array([0.75, -1.25])


def gaussian(x: Sequence[Number], cov: Any) -> Terms:
    """Return the density of a normal vector around zero."""
    n, column = len(x), matrix(list(x))
    quadratic = (column.T * mp.inverse(cov) * column)[0]
    return [-quadratic / 2, -mp.log(mp.det(cov)) / 2, -n * mp.log(2 * mp.pi) / 2]


def exact(x: np.ndarray) -> Any:
    return matrix([[mpf(v) for v in row] for row in x.tolist()])


def away(mu: Sequence[Number], y: Sequence[float] = tuple(Y)) -> list[Number]:
    return [mpf(v) - m for v, m in zip(y, mu, strict=True)]


def scaled_chol(a: Any) -> Any:
    """Return a Cholesky factor whose first standard deviation is exp(a)."""
    lower = pt.constant(pm.floatX(CHOL))
    return pt.set_subtensor(lower[0, 0], pt.exp(a))


def scaled_chol_terms(u: Number) -> Terms:
    """Return the density by forward substitution: the covariance of a tiny standard deviation has too many digits."""
    (y1, y2), scale = away([0, 0]), mp.exp(u)
    first = y1 / scale
    second = (y2 - mpf(CHOL[1, 0]) * first) / mpf(CHOL[1, 1])
    return [-(first**2) / 2, -(second**2) / 2, -u, -mp.log(mpf(CHOL[1, 1])), -mp.log(2 * mp.pi)]


def student(x: Sequence[Number], nu: Number, cov: Any) -> Terms:
    n, column = len(x), matrix(list(x))
    quadratic = (column.T * mp.inverse(cov) * column)[0]
    return [
        book.gammaln((nu + n) / 2),
        -book.gammaln(nu / 2),
        -n * mp.log(nu * mp.pi) / 2,
        -mp.log(mp.det(cov)) / 2,
        -(nu + n) / 2 * mp.log1p(quadratic / nu),
    ]


def lkj_cholesky(v: list[Number]) -> Terms:
    """Two dimensions: the correlation r has (1 - r**2)**(eta - 1), both standard deviations Exponential(0.75)."""
    eta, first, across, second = mpf(1.5), mp.exp(v[0]), v[1], mp.exp(v[2])
    sd = mp.sqrt(across**2 + second**2)
    left = mp.log(second / sd)  # log sqrt(1 - r**2)
    beta = (2 * eta - 1) * mp.log(2) + sum(book.log_beta(eta, eta))
    deviations = [*book.exponential(first, mpf(0.75)), *book.exponential(sd, mpf(0.75))]
    return [2 * (eta - 1) * left, -beta, left, -mp.log(sd), *deviations, v[0], v[2]]


def lkj_correlation(v: list[Number]) -> Terms:
    """Two dimensions: r = v / sqrt(1 + v**2)."""
    eta = mpf(1.5)
    beta = (2 * eta - 1) * mp.log(2) + sum(book.log_beta(eta, eta))
    left = -mp.log1p(v[0] ** 2)
    return [(eta - 1) * left, -beta, 3 * left / 2]


def wishart(x: Any, nu: int, scale: Any) -> Terms:
    """Matrices of two rows."""
    inverse = mp.inverse(scale) * x
    gammas = [-mp.log(mp.pi) / 2, -book.gammaln(mpf(nu) / 2), -book.gammaln(mpf(nu - 1) / 2)]
    determinants = [(nu - 3) * mp.log(mp.det(x)) / 2, -nu * mp.log(mp.det(scale)) / 2]
    return [*determinants, -(inverse[0, 0] + inverse[1, 1]) / 2, -nu * mp.log(2), *gammas]


def zero_sum(v: list[Number]) -> Terms:
    """An orthogonal basis of the plane in which values sum to zero: the squared norm is that of the two unconstrained values."""
    sigma, (a, b) = mpf(1.5), v
    squares = [-((a + b) ** 2) / (4 * sigma**2), -((a - b) ** 2) / (4 * sigma**2)]
    return [*squares, *([-mp.log(sigma), -mp.log(2 * mp.pi) / 2] * 2)]


ADJACENT = np.array([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]])
AREAS = np.array([0.75, -1.25, 0.5])


def conditional_autoregression(y: Sequence[Number], alpha: Any, tau: Number) -> Terms:
    """CAR: the precision is tau (D - alpha W), whose determinant for a chain of three is 2 tau**3 (1 - alpha**2).

    PyMC leaves out the constants, log 2 and log 2 pi.
    """
    pairs, n = y[0] * y[1] + y[1] * y[2], len(y)
    squares = sum(d * x * x for d, x in zip((1, 2, 1), y, strict=True))
    determinant = [n * mp.log(tau) / 2, mp.log1p(alpha.p) / 2, mp.log(alpha.q) / 2]
    return [*determinant, -tau * squares / 2, tau * alpha.p * pairs]


def kronecker(a: Number) -> Any:
    """Return the covariance of a Kronecker product with noise exp(a)."""
    one, two = exact(COV), exact(CHOL @ CHOL.T)
    cov = matrix(4, 4)
    for i in range(4):
        for j in range(4):
            cov[i, j] = one[i // 2, j // 2] * two[i % 2, j % 2] + (mp.exp(2 * a) if i == j else 0)
    return cov


FOUR = np.array([0.75, -1.25, 0.5, 1.75])
GAUSSIANS = [
    observed_row(
        "MvNormal",
        "mu=a, cov; y of 2",
        lambda name, a: pm.MvNormal(name, mu=a, cov=pm.floatX(COV), observed=pm.floatX(Y)),
        lambda u: gaussian(away(u), exact(COV)),
        0.25,
    ),
    observed_row(
        "MvNormal",
        "mu=a, tau; y of 2",
        lambda name, a: pm.MvNormal(name, mu=a, tau=pm.floatX(COV), observed=pm.floatX(Y)),
        lambda u: gaussian(away(u), mp.inverse(exact(COV))),
        0.25,
    ),
    observed_row(
        "MvNormal",
        "mu, chol with exp(a); y of 2",
        lambda name, a: pm.MvNormal(name, mu=np.zeros(2, Y.dtype), chol=scaled_chol(a[0]), observed=pm.floatX(Y)),
        lambda u: scaled_chol_terms(u[0]),
    ),
    observed_row(
        "MvNormal",
        "mu, cov with exp(a); y of 2",
        lambda name, a: pm.MvNormal(
            name, mu=np.zeros(2, Y.dtype), cov=pt.constant(pm.floatX(COV)) * pt.exp(a[0]), observed=pm.floatX(Y)
        ),
        lambda u: gaussian(away([0, 0]), exact(COV) * mp.exp(u[0])),
    ),
    observed_row(
        "MvStudentT",
        "nu=exp(a), scale; y of 2",
        lambda name, a: pm.MvStudentT(
            name, nu=pt.exp(a[0]), mu=np.zeros(2, Y.dtype), scale=pm.floatX(COV), observed=pm.floatX(Y)
        ),
        lambda u: student(away([0, 0]), mp.exp(u[0]), exact(COV)),
    ),
    observed_row(
        "MvStudentT",
        "nu=4.5, mu=a, scale; y of 2",
        lambda name, a: pm.MvStudentT(name, nu=4.5, mu=a, scale=pm.floatX(COV), observed=pm.floatX(Y)),
        lambda u: student(away(u), mpf(4.5), exact(COV)),
        0.25,
    ),
    free_row(
        "LKJCholeskyCov",
        "eta=1.5, n=2, sd_dist=Exponential(0.75)",
        lambda name: pm.LKJCholeskyCov(name, eta=1.5, n=2, sd_dist=pm.Exponential.dist(0.75), compute_corr=False),
        lkj_cholesky,
        0.25,
        -0.5,
    ),
    observed_row(
        "Wishart",
        "nu=5, V with exp(a); y of 2 x 2",
        lambda name, a: pm.Wishart(
            name, nu=5, V=pt.constant(pm.floatX(COV)) * pt.exp(a[0]), observed=pm.floatX(CHOL @ CHOL.T)
        ),
        lambda u: wishart(exact(CHOL) * exact(CHOL).T, 5, exact(COV) * mp.exp(u[0])),
    ),
    free_row("LKJCorr", "eta=1.5, n=2", lambda name: pm.LKJCorr(name, n=2, eta=1.5), lkj_correlation),
    observed_row(
        "MatrixNormal",
        "mu=a, rowcov, colcov; y of 2 x 2",
        lambda name, a: pm.MatrixNormal(
            name,
            mu=a[0] * pt.ones((2, 2)),
            rowcov=pm.floatX(COV),
            colcov=pm.floatX(COV),
            observed=pm.floatX(FOUR.reshape(2, 2)),
        ),
        lambda u: gaussian(away([u[0]] * 4, FOUR), kronecker_of(COV, COV)),
    ),
    observed_row(
        "KroneckerNormal",
        "mu=0, covs, sigma=exp(a); y of 4",
        lambda name, a: pm.KroneckerNormal(
            name,
            mu=np.zeros(4, Y.dtype),
            covs=[pm.floatX(COV), pm.floatX(CHOL @ CHOL.T)],
            sigma=pt.exp(a[0]),
            observed=pm.floatX(FOUR),
        ),
        lambda u: gaussian(away([0] * 4, FOUR), kronecker(u[0])),
    ),
    observed_row(
        "CAR",
        "alpha=0.5, tau=exp(a); y of 3",
        lambda name, a: pm.CAR(name, np.zeros(3), W=ADJACENT, alpha=0.5, tau=pt.exp(a[0]), observed=pm.floatX(AREAS)),
        lambda u: conditional_autoregression([mpf(x) for x in AREAS], sigmoid(mpf(0)), mp.exp(u[0])),
    ),
    observed_row(
        "CAR",
        "alpha=invlogit(a), tau=0.375; y of 3",
        lambda name, a: pm.CAR(
            name, np.zeros(3), W=ADJACENT, alpha=pt.sigmoid(a[0]), tau=0.375, observed=pm.floatX(AREAS)
        ),
        lambda u: conditional_autoregression([mpf(x) for x in AREAS], sigmoid(u[0]), mpf(0.375)),
    ),
    free_row(
        "ZeroSumNormal", "sigma=1.5, shape=3", lambda name: pm.ZeroSumNormal(name, sigma=1.5, shape=3), zero_sum, 0.25
    ),
]


def kronecker_of(one: np.ndarray, two: np.ndarray) -> Any:
    return exact(np.kron(one, two))


def two_softmax(u: list[Number]) -> Terms:
    """A mixture of two normal distributions with weights softmax(a)."""
    densities = [sum(book.normal(mpf(0.75), mpf(m), mpf(1.5))) for m in (0.375, -1.25)]
    return [log_sum_exp([x + d for x, d in zip(u, densities, strict=True)]), -log_sum_exp(u)]


MIXED = [
    observed_row(
        "NormalMixture",
        "w=softmax(a), mu=[0.375, -1.25], sigma=1.5; y = 0.75",
        lambda name, a: pm.NormalMixture(
            name, w=pt.special.softmax(a), mu=pm.floatX(np.array([0.375, -1.25])), sigma=1.5, observed=0.75
        ),
        two_softmax,
        0.25,
    ),
]

MULTIVARIATE = [*SIMPLEXES, *GAUSSIANS, *MIXED]
