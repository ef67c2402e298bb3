"""Stan programs of some models, with the same priors and parametrization as in PyMC, and their data."""

from collections.abc import Callable

import long_data

EIGHT_SCHOOLS = """
data { int n; vector[n] y; vector[n] sigma; }
parameters { real mu; real<lower=0> tau; vector[n] z; }
transformed parameters { vector[n] theta = mu + tau * z; }
model { mu ~ normal(0, 5); tau ~ cauchy(0, 5); z ~ std_normal(); y ~ normal(theta, sigma); }
"""
LOGISTIC = """
data { int n; int k; matrix[n, k] x; array[n] int y; }
parameters { real intercept; vector[k] beta; }
model { intercept ~ normal(0, 2); beta ~ normal(0, 1); y ~ bernoulli_logit_glm(x, intercept, beta); }
"""
GP = """
data { int n; array[n] real x; vector[n] y; }
parameters { real<lower=0> length; real<lower=0> scale; real<lower=0> sigma; }
model {
  matrix[n, n] k = add_diag(gp_exp_quad_cov(x, scale, length), square(sigma) + 1e-6);
  length ~ inv_gamma(5, 5); scale ~ normal(0, 1); sigma ~ normal(0, 1);
  y ~ multi_normal_cholesky(rep_vector(0, n), cholesky_decompose(k));
}
"""
VOLATILITY = """
data { int n; vector[n] y; }
parameters { real<lower=0> step; real<lower=0> nu; vector[n] z; }
transformed parameters { vector[n] walk = step * cumulative_sum(z); }
model { step ~ exponential(20); nu ~ exponential(0.1); z ~ std_normal(); y ~ student_t(nu, 0, exp(walk)); }
"""
GROUPS = """
data { int n; int g; array[n] int group; vector[n] x; vector[n] y; }
parameters { real mu; real<lower=0> tau; real slope; vector[g] effect; real<lower=0> sigma; }
model {
  mu ~ normal(0, 5); tau ~ normal(0, 1); slope ~ normal(0, 1); sigma ~ normal(0, 1); effect ~ normal(mu, tau);
  y ~ normal(effect[group] + slope * x, sigma);
}
"""


def eight_schools() -> dict:
    """Effects and standard errors."""
    return {"n": 8, "y": [28, 8, -3, 7, -1, 1, 18, 12], "sigma": [15, 10, 16, 11, 9, 11, 10, 18]}


def logistic_50k() -> dict:
    """The data with its lengths."""
    data = long_data.logistic_50k()
    return {"n": len(data["y"]), "k": data["x"].shape[1], **data}


def gp_300() -> dict:
    """The data with its length."""
    return {"n": 300, **long_data.gp_300()}


def volatility_2000() -> dict:
    """The data with its length."""
    return {"n": 2_000, **long_data.volatility_2000()}


def groups_2000() -> dict:
    """The data with its lengths; groups are counted from 1."""
    data = long_data.groups_2000()
    return {"n": len(data["y"]), "g": 2_000, **data, "group": data["group"] + 1}


PROGRAMS: dict[str, tuple[str, Callable[[], dict]]] = {
    "eight_schools": (EIGHT_SCHOOLS, eight_schools),
    "logistic_50k": (LOGISTIC, logistic_50k),
    "gp_300": (GP, gp_300),
    "volatility_2000": (VOLATILITY, volatility_2000),
    "groups_2000": (GROUPS, groups_2000),
}
