"""Checks the arguments of samplers: each error names the remedy."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import pymc as pm
from pymc.util import _get_seeds_per_chain
from pytensor.graph.basic import Variable

from pytensor_jaxpr_linker.base.errors import GraphBreakError
from pytensor_jaxpr_linker.base.words import counted
from pytensor_jaxpr_linker.pymc.functions.graph import model_mode
from pytensor_jaxpr_linker.report.explain import explain

#: Variables of a model, as a user may name them.
type Names = str | Variable | Iterable[str | Variable]

#: The extra of this package that installs a sampler's package.
EXTRAS = {"blackjax": "pymc", "pymc": "pymc", "numpyro": "numpyro", "nutpie": "nutpie"}
#: The derivatives that a sampler may follow: PyTensor's, or JAX's.
GRADIENTS = ("pytensor", "jax")


def check_model(model: Any) -> pm.Model:
    """Return a model, by default that of the context, or raise a TypeError."""
    if model is not None and not isinstance(model, pm.Model):
        raise TypeError(f"A PyMC model is needed, or none inside `with model:`, not {model!r:.100}.")
    return pm.modelcontext(model)


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Raise an error unless the argument is one of the choices."""
    if value not in choices:
        raise ValueError(f"Unknown {name} {value!r}: choose one of {', '.join(map(repr, choices))}.")


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
    """Return the names of one or several variables, which may be names; `instead` replaces variables by others."""
    several = [names] if isinstance(names, str | Variable) else names
    found = ((instead or {}).get(v, v) for v in several)
    return [str(v.name) if isinstance(v, Variable) else v for v in found]


def chain_seeds(random_seed: Any, count: int, of: str = "chain") -> list[int]:
    """Return one seed for each chain: those of a sequence, else PyMC's for one number, a generator or None."""
    if isinstance(random_seed, list | tuple | np.ndarray) and np.size(random_seed) != count:
        given = counted(np.size(random_seed), "seed")
        raise ValueError(f"random_seed has {given} for {counted(count, of)}: give one number, or one seed for each.")
    return [int(seed) for seed in _get_seeds_per_chain(random_seed, count)]


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
    """Raise an error for a model that has nothing to sample."""
    if not model.value_vars:
        raise ValueError("The model has no free variables: draw from it with pm.sample_prior_predictive.")


def one_program[T](
    model: pm.Model, method: str, make: Callable[[], T], remedy: str = "sampler='nutpie' and 'pymc' run"
) -> T:
    """Call `make`, which compiles the log density; a `GraphBreakError` gets a note that explains the breaks."""
    try:
        return make()
    except GraphBreakError as error:
        error.add_note(
            f"{method} needs a log density that is one XLA program: {remedy} it with host"
            f" steps.\n{explain([model.logp(), model.dlogp()], mode=model_mode(model))}"
        )
        raise
