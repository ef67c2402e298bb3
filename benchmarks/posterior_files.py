"""Posteriors of a fetched copy of posteriordb: Stan's density of one beside that of its PyMC model, and draws of both.

Every function runs in a process of its own (`processes.py`), because the models of one may exhaust its memory or time.
"""

import json
import math
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import user

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "whole"))

#: Points are at most this far from the initial one, in each unconstrained coordinate; each next try is nearer.
REACH = 1.0
#: Tries for a point at which both densities are finite.
TRIES = 8


class Posterior:
    """A posterior of posteriordb: the Stan program, the data, and the reference draws if there are any."""

    def __init__(self, folder: str, name: str):
        self.folder, self.about = Path(folder), self._json(Path(folder) / "posteriors" / f"{name}.json")
        self.model_name = self.about["model_name"]

    @staticmethod
    def _json(path: Path) -> Any:
        if path.suffix != ".zip":
            return json.loads(path.read_text(encoding="utf-8"))
        with zipfile.ZipFile(path) as archive:
            return json.loads(archive.read(path.stem))

    def data(self) -> dict[str, Any]:
        """Return the data as posteriordb has them: numbers and lists by name."""
        return self._json(self.folder / "data" / "data" / f"{self.about['data_name']}.json.zip")

    def reference(self) -> dict[str, np.ndarray] | None:
        """Return the reference draws by Stan's names such as ``theta[1,2]``, shape (chains, draws)."""
        name = self.about["reference_posterior_name"]
        path = self.folder / "reference_posteriors" / "draws" / "draws" / f"{name}.json.zip"
        if name is None or not path.exists():
            return None
        chains = self._json(path)
        return {key: np.asarray([chain[key] for chain in chains], "float64") for key in chains[0]}

    def stan(self) -> Any:
        """Return stanli's model of the Stan program."""
        import stanli

        code = (self.folder / "models" / "stan" / f"{self.model_name}.stan").read_text(encoding="utf-8")
        return stanli.Model(stan_code=code, data=self.data())

    def pymc(self) -> Any:
        """Return the PyMC model of tests/whole/posteriors."""
        from posteriors import MODELS

        return MODELS[self.model_name]({key: np.asarray(value) for key, value in self.data().items()})


def simplex_coordinates(x: jax.Array) -> jax.Array:
    """Stan's unconstrained coordinates of simplexes in the last axis: the isometric log-ratio by an orthonormal basis."""
    size = x.shape[-1]
    basis = np.zeros((size, size - 1))
    for column in range(size - 1):
        basis[: column + 1, column] = 1 / math.sqrt((column + 1) * (column + 2))
        basis[column + 1, column] = -(column + 1) / math.sqrt((column + 1) * (column + 2))
    return jnp.log(x) @ basis


def correlation_coordinates(x: jax.Array) -> jax.Array:
    """Stan's unconstrained coordinates of the Cholesky factor of a correlation matrix: atanh of partial correlations."""
    taken = jnp.cumsum(x**2, axis=1) - x**2
    places = np.tril_indices(x.shape[0], -1)
    return jnp.arctanh(x[places] / jnp.sqrt(1 - taken[places]))


def ordered_coordinates(x: jax.Array) -> jax.Array:
    """Stan's unconstrained coordinates of positive increasing vectors: the logarithms of the first and of the steps."""
    return jnp.log(jnp.diff(x, prepend=0))


#: Coordinates that Stan may use for a parameter, of its constrained value; None where the shape does not fit.
COORDINATES: dict[str, Callable[[jax.Array], jax.Array | None]] = {
    "identity": lambda x: x,
    "logarithm": jnp.log,
    "positive and ordered": lambda x: ordered_coordinates(x) if x.ndim else None,
    "simplex": lambda x: simplex_coordinates(x) if x.ndim and x.shape[-1] > 1 else None,
    "correlation": lambda x: correlation_coordinates(x) if x.ndim == 2 and x.shape[0] == x.shape[1] else None,
}


class Coordinates:
    """The map from PyMC's unconstrained vector to Stan's, found by comparing their values at one point.

    A parameter's coordinates in PyMC are Stan's in another order, or else one of `COORDINATES` of its constrained value
    is. Whatever fits none of them is an error: nothing is compared that was not first seen to be the same.
    """

    def __init__(self, model: Any, stan: Any, x: np.ndarray):
        from pytensor_jaxpr_linker import as_jax_function

        self.names = list(dict.fromkeys(name.partition("[")[0] for name in stan.constrained_names))
        self.values = model.value_vars
        constrained = model.replace_rvs_by_values([model[name] for name in self.names])
        function = jax.jit(as_jax_function(self.values, constrained))
        parts = np.cumsum([0, *(value.size for value in map(np.asarray, model.initial_point().values()))])
        shapes = [np.shape(value) for value in model.initial_point().values()]

        def split(x: jax.Array) -> list[jax.Array]:
            return [x[a:b].reshape(s) for a, b, s in zip(parts, parts[1:], shapes, strict=False)]

        self.constrained = lambda x: dict(zip(self.names, function(*split(x)), strict=True))
        own = {
            rv.name: model.value_vars.index(value) for rv, value in model.rvs_to_values.items() if value in self.values
        }
        u, offset, pieces = self.unconstrain(stan, x), 0, []
        found, at = self.constrained(x), split(jnp.asarray(x))
        for name in self.names:
            candidates = {"own": at[own[name]]} if name in own else {}
            candidates |= {kind: of(found[name]) for kind, of in COORDINATES.items()}
            for kind, candidate in candidates.items():
                order = None if candidate is None else same_numbers(np.ravel(candidate), u[offset:])
                if order is not None:
                    pieces.append((name, kind, order))
                    offset += len(order)
                    break
            else:
                raise ValueError(f"the coordinates of {name} in Stan are not known")
        if offset != len(u):
            raise ValueError(f"{len(u)} coordinates in Stan, {offset} here")

        def convert(x: jax.Array) -> jax.Array:
            at, values = split(x), self.constrained(x)
            parts = [at[own[n]] if kind == "own" else COORDINATES[kind](values[n]) for n, kind, _ in pieces]
            return jnp.concatenate([jnp.ravel(part)[order] for part, (_, _, order) in zip(parts, pieces, strict=True)])

        self.convert = jax.jit(convert)
        steps = np.random.default_rng(0).uniform(-0.1, 0.1, (2, len(x)))
        curved = convert(x + steps.sum(axis=0)) - convert(x + steps[0]) - convert(x + steps[1]) + convert(x)
        #: Whether the map is affine, as between two systems of coordinates of simplexes: its volume is a constant then.
        self.is_affine = bool(jnp.abs(curved).max() < 1e-10)
        self.volume = jax.jit(jax.value_and_grad(lambda x: jnp.linalg.slogdet(jax.jacrev(convert)(x))[1]))
        self.pull_back = jax.jit(lambda x, g: jax.vjp(convert, x)[1](g)[0])

    def unconstrain(self, stan: Any, x: np.ndarray) -> np.ndarray:
        """Return Stan's unconstrained vector by its own transforms."""
        values = {name: np.ravel(value, order="F").tolist() for name, value in self.constrained(x).items()}
        return stan.unconstrain({name: v if len(v) != 1 else v[0] for name, v in values.items()})

    def density(self, stan: Any, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return Stan's log density and its gradient as functions of PyMC's coordinates."""
        value, gradient = stan.log_prob_grad(np.asarray(self.convert(x)))
        gradient = np.asarray(self.pull_back(x, gradient))
        if self.is_affine:
            return value, gradient
        volume, slope = self.volume(x)
        return value + float(volume), gradient + np.asarray(slope)


def same_numbers(candidate: np.ndarray, target: np.ndarray) -> np.ndarray | None:
    """Return the order in which a candidate has the first numbers of a target, None if it does not have them."""
    if candidate.size > target.size:
        return None
    target = target[: candidate.size]
    mine, theirs = np.argsort(candidate), np.argsort(target)
    if not np.allclose(candidate[mine], target[theirs], rtol=1e-8, atol=1e-10):
        return None
    order = np.empty(candidate.size, int)
    order[theirs] = mine
    return order


def points(model: Any, seed: int = 1) -> Iterator[np.ndarray]:
    """Give unconstrained points about the model's initial one, without end."""
    random = np.random.default_rng(seed)
    start = np.concatenate([np.ravel(value) for value in model.initial_point().values()])
    while True:
        for attempt in range(TRIES):
            yield start + random.uniform(-1, 1, start.size) * REACH / 2**attempt


def check(folder: str, name: str, count: int, mode: str) -> dict:
    """Compare log density and gradient of a PyMC model with stanli's, at some points.

    Returns
    -------
    dict
        The number of coordinates; the spread of the difference of the log densities, relative to the largest of them;
        the worst error of the gradient relative to its norm.
    """
    import pytensor

    import pytensor_jaxpr_linker  # noqa: F401  registers the mode JAXPR

    posterior = Posterior(folder, name)
    jax.config.update("jax_enable_x64", True)
    model, stan = posterior.pymc(), posterior.stan()
    logp = model.logp()
    outputs = [logp, *pytensor.gradient.grad(logp, model.value_vars)]
    function = pytensor.function(model.value_vars, outputs, mode=mode, on_unused_input="ignore")
    shapes = [np.shape(value) for value in model.initial_point().values()]
    coordinates, differences, largest, worst = None, [], 0.0, 0.0
    for tried, x in zip(range(TRIES * count * 4), points(model), strict=False):
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        arrays = [part.reshape(shape) for part, shape in zip(np.split(x, ends[:-1]), shapes, strict=True)]
        value, *gradients = function(*arrays)
        gradient = np.concatenate([np.ravel(g) for g in gradients])
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            continue
        try:
            coordinates = coordinates or Coordinates(model, stan, x)
            their_value, theirs = coordinates.density(stan, x)
        except RuntimeError:  # outside the domain of a function of Stan
            continue
        if not (np.isfinite(their_value) and np.isfinite(theirs).all()):
            continue
        differences.append(float(value) - their_value)
        largest = max(largest, abs(float(value)), abs(their_value))
        worst = max(worst, float(np.linalg.norm(gradient - theirs) / np.linalg.norm(theirs)))
        if len(differences) == count:
            spread = (max(differences) - min(differences)) / largest
            return {"size": len(x), "points": count, "tried": tried + 1, "value": spread, "gradient": worst}
    raise ValueError(f"only {len(differences)} points at which both densities are finite")


def draw(folder: str, name: str, side: str, seed: int) -> dict:
    """Sample a posterior by one sampler with its defaults and 4 chains of 1,000 draws, and judge the draws.

    Returns
    -------
    dict
        Seconds from the model to the draws (for stanli, from the program); the least effective draws (bulk) of a
        parameter; the largest R-hat; divergences; the largest |z| of a mean, and of a mean of squares, beside the
        reference draws (None if there are none), with the name of that parameter.
    """
    posterior = Posterior(folder, name)
    if side == "stanli":
        began = perf_counter()
        fit = posterior.stan().sample(chains=4, samples=1000, seed=seed, refresh=0)
        seconds, divergences = perf_counter() - began, int(fit.divergences.sum())
        names = [key.replace(".", ",") for key in fit.names]
        draws = dict(zip(names, np.moveaxis(fit.draws(), -1, 0), strict=True))
    else:
        seconds, divergences, draws = sample(posterior.pymc(), side, seed)
    reference = posterior.reference()
    parameters = [key for key in draws if key.partition("[")[0] in posterior.about["dimensions"] or reference is None]
    return {"seconds": seconds, "divergences": divergences, **judge(draws, parameters, reference), **user.used()}


def sample(model: Any, side: str, seed: int) -> tuple[float, int, dict[str, np.ndarray]]:
    """Sample a PyMC model with this package or PyMC; draws by Stan's names."""
    import pymc

    run = pymc.sample
    if side == "ours":
        from pytensor_jaxpr_linker.pymc import sample as run
    began = perf_counter()
    found = run(1000, chains=4, random_seed=seed, progressbar=False, model=model)
    seconds = perf_counter() - began
    draws = {}
    for variable, values in found["posterior"].data_vars.items():
        array = values.transpose("chain", "draw", ...).to_numpy()
        for index in np.ndindex(array.shape[2:]):
            inner = ",".join(str(i + 1) for i in index)
            draws[f"{variable}[{inner}]" if inner else str(variable)] = array[:, :, *index]
    return seconds, int(found["sample_stats"]["diverging"].sum()), draws


def judge(draws: dict[str, np.ndarray], parameters: list[str], reference: dict[str, np.ndarray] | None) -> dict:
    """Return effective draws, R-hat and the largest |z| of moments beside the reference draws."""
    from arviz_stats.base import array_stats

    varying = [draws[key] for key in parameters if np.ptp(draws[key])]
    result: dict[str, Any] = {
        "ess": min(float(array_stats.ess(x, chain_axis=0, draw_axis=1)) for x in varying),
        "rhat": max(float(array_stats.rhat(x, chain_axis=0, draw_axis=1)) for x in varying),
        "z": None,
        "of": None,
        "compared": 0,
    }
    shared = [key for key in reference or {} if key in draws and np.ptp(draws[key])]
    for key in shared:
        for power in (1, 2):
            z = z_score(draws[key] ** power, reference[key] ** power)
            if result["z"] is None or z > result["z"]:
                result |= {"z": z, "of": f"{key}{'²' * (power == 2)}"}
    return result | {"compared": len(shared)}


def z_score(draws: np.ndarray, reference: np.ndarray) -> float:
    """Return the difference of two means in units of its standard error.

    Where draws are antithetic the error of their mean is too small to be known from them: it counts as at least that of
    independent draws.
    """
    from arviz_stats.base import array_stats

    variance = 0.0
    for x in (draws, reference):
        effective = min(float(array_stats.ess(x, chain_axis=0, draw_axis=1, method="mean")), x.size)
        variance += float(np.var(x)) / effective
    return float(abs(draws.mean() - reference.mean()) / math.sqrt(variance))
