"""Checks the arguments of samplers: each error names the remedy."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pymc as pm
from pymc.util import _get_seeds_per_chain
from pytensor.graph.basic import Variable

from pytensor_jaxpr_linker.base.words import counted

#: Variables of a model, as a user may name them.
type Names = str | Variable | Iterable[str | Variable]

#: The extra of this package that installs a sampler's package.
EXTRAS = {"blackjax": "pymc", "pymc": "pymc", "numpyro": "numpyro", "nutpie": "nutpie"}
#: The derivatives that a sampler may follow: PyTensor's, or JAX's.
GRADIENTS = ("pytensor", "jax")


def check_model(model: Any) -> pm.Model:
    """Return a model, by default the context's, or raise a TypeError."""
    if model is not None and not isinstance(model, pm.Model):
        raise TypeError(f"A PyMC model is needed, or none inside `with model:`, not {model!r:.100}.")
    return pm.modelcontext(model)


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Raise an error unless the argument is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"Unknown {name} {shown(value)}: choose one of {', '.join(map(repr, choices))}.")


def check_flag(name: str, value: Any) -> None:
    """Raise an error unless the argument is true or false."""
    if not isinstance(value, bool | np.bool_ | int) or value not in (0, 1):
        raise TypeError(f"{name} must be True or False, not {shown(value)}.")


def check_dict(name: str, value: Any) -> None:
    """Raise an error unless the argument is a dict, or None."""
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a dict, not {shown(value)}.")


def shown(value: Any) -> str:
    """Return a value in one short line."""
    return f"{' '.join(repr(value).split()):.100}"


def check_integer(name: str, value: Any, least: int) -> None:
    """Raise an error unless the argument is an integer and large enough."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be an integer and at least {least}, not {value!r}.")


def check_fraction(name: str, value: Any) -> None:
    """Raise an error unless the argument is between 0 and 1."""
    if not isinstance(value, int | float | np.number) or not 0 < value < 1:
        raise ValueError(f"{name} must be a number between 0 and 1, not {value!r}.")


def check_above_zero(name: str, value: Any) -> None:
    """Raise an error unless the argument is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < np.inf:
        raise ValueError(f"{name} must be a number above 0, not {value!r}.")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question for the end of a message about an unknown name, or nothing if no known name is close."""
    close = get_close_matches(name, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def as_names(names: Names, instead: Mapping[Any, Any] | None = None) -> list[str]:
    """Return the names of variables, which may be names; `instead` replaces variables by others."""
    one = isinstance(names, str | Variable) or not isinstance(names, Iterable)
    several: list[Any] = [names] if one else list(names)  # type: ignore[arg-type]
    if not all(isinstance(v, str | Variable) for v in several):
        raise TypeError(f"Variables of the model, or their names, are needed, not {shown(names)}.")
    found = ((instead or {}).get(v, v) for v in several)
    return [str(v.name) if isinstance(v, Variable) else v for v in found]


def chain_seeds(random_seed: Any, count: int, of: str = "chain") -> list[int]:
    """Return one seed for each chain: the elements of a sequence, else PyMC's for one number, a generator or None."""
    if isinstance(random_seed, np.random.Generator | np.random.RandomState | None):
        return [int(seed) for seed in _get_seeds_per_chain(random_seed, count)]
    if isinstance(random_seed, jax.Array):
        raise TypeError(
            "random_seed takes no array or key of JAX: give int(jax.random.bits(key)) of a key, or a number for each"
            " chain."
        )
    is_sequence = isinstance(random_seed, Sequence) and not isinstance(random_seed, str)
    if not is_sequence and not np.ndim(random_seed):
        check_seed(random_seed)
        return [int(seed) for seed in _get_seeds_per_chain(random_seed, count)]
    seeds = list(random_seed)
    for seed in seeds:
        check_seed(seed)
    if len(seeds) != count:
        given = counted(len(seeds), "seed")
        raise ValueError(f"random_seed has {given} for {counted(count, of)}: give one number, or one seed for each.")
    return [int(seed) for seed in seeds]


def check_seed(seed: Any) -> None:
    """Raise an error unless this is an integer and not negative."""
    number = seed.item() if isinstance(seed, np.ndarray) and seed.ndim == 0 else seed
    if isinstance(number, bool) or not isinstance(number, int | np.integer):
        raise TypeError(f"random_seed must be an integer, one for each chain, or a NumPy generator, not {shown(seed)}.")
    if number < 0:
        raise ValueError(f"random_seed must be at least 0, not {number}.")


def seed_of(seeds: list[int], words: int = 1) -> list[int]:
    """Return `words` integers below ``2 ** 32``, which depend on all seeds."""
    return [int(word) for word in np.random.SeedSequence(seeds).generate_state(words)]


def require(package: str) -> ModuleType:
    """Return a sampler's package, or raise an error that says how to install it."""
    if find_spec(package) is None:
        raise ImportError(
            f"The sampler {package!r} is not installed: pip install 'pytensor_jaxpr_linker[{EXTRAS[package]}]'."
        )
    return importlib.import_module(package)


def check_free(model: pm.Model) -> None:
    """Raise an error for a model without free variables."""
    if not model.value_vars:
        raise ValueError("The model has no free variables: draw from it with pm.sample_prior_predictive.")
