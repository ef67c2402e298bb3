"""Exports what a fitted model is used for: its log density and gradient, its predictions, a whole run of a sampler."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np
import pymc as pm
from jax.flatten_util import ravel_pytree
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import graph_inputs

from pytensor_jaxpr_linker.artifacts.exportable import exportable
from pytensor_jaxpr_linker.artifacts.files import check_kind, is_for_iree, platforms_of, write_file
from pytensor_jaxpr_linker.artifacts.iree.targets import CompileTarget
from pytensor_jaxpr_linker.artifacts.lowering import PLATFORMS, checked_platforms
from pytensor_jaxpr_linker.artifacts.shapes import Input, Spec, as_texts, inputs_of
from pytensor_jaxpr_linker.artifacts.writing import Exportable
from pytensor_jaxpr_linker.base.jax_compat import with_x64_restored
from pytensor_jaxpr_linker.emit.random.sampler import KEY_DTYPE, KEY_SHAPE
from pytensor_jaxpr_linker.frontend.pregrad import value_and_gradient
from pytensor_jaxpr_linker.frontend.targets import Target
from pytensor_jaxpr_linker.pymc.arguments import (
    Names,
    as_names,
    check_fraction,
    check_integer,
    check_model,
    did_you_mean,
    require,
)
from pytensor_jaxpr_linker.pymc.chains.random_keys import KEYS
from pytensor_jaxpr_linker.pymc.export_shapes import Shapes
from pytensor_jaxpr_linker.pymc.functions.constrained import Constrain
from pytensor_jaxpr_linker.pymc.functions.density import LogDensity
from pytensor_jaxpr_linker.pymc.functions.differentiable import check_variables
from pytensor_jaxpr_linker.pymc.functions.graph import ModelFunction, data_names, model_mode
from pytensor_jaxpr_linker.pymc.options import TARGET_ACCEPTS

#: What the argument for a random key is called.
KEY = Input("key", jax.ShapeDtypeStruct(KEY_SHAPE, KEY_DTYPE), True)


@with_x64_restored
def export_logdensity(
    model: pm.Model | None = None,
    *,
    path: str | os.PathLike,
    symbolic: str | Sequence[str] = (),
    dims: Mapping[str, Spec] | None = None,
    constraints: str | Sequence[str] = (),
    platforms: Sequence[str] = PLATFORMS,
    target: CompileTarget = "host",
    vjp_order: Literal[0, 1, 2] = 0,
    batched: bool = False,
) -> Any:
    """Write a model's log density and its gradient into a file that runs with JAX alone.

    Parameters
    ----------
    model : pymc.Model, optional
        By default that of the context.
    symbolic : str or sequence of str
        Dims of the model that may have any length: of the shared data, and of parameters, that are declared with them.
    path, dims, constraints, platforms, target, vjp_order, batched
        As for `pytensor_jaxpr_linker.export`. Lengths that neither `symbolic` nor `dims` says are those that the model has now.

    Returns
    -------
    jaxpr_artifact.LoadedFunction or jaxpr_artifact.IreeFunction
        Its arguments are the unconstrained variables and then the shared data (`pymc.Data`) by name, whose integers may have any dtype. It
        returns the log density, and its gradient by each continuous variable.

    Examples
    --------
    >>> import tempfile, numpy as np, pymc as pm
    >>> from pytensor_jaxpr_linker.pymc import export_logdensity
    >>> with pm.Model() as model:
    ...     model.add_coord("row", range(3))
    ...     y = pm.Data("y_data", np.zeros(3), dims="row")
    ...     mu = pm.Normal("mu")
    ...     _ = pm.Normal("y", mu, observed=y, dims="row")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     logp = export_logdensity(model, path=f"{folder}/logp.jaxpr", symbolic=["row"])
    >>> value, gradient = logp(mu=0.5, y_data=[1.0, 2.0])  # two observations
    >>> float(gradient)
    1.5
    """
    model, platforms, constraints = checked_options(model, path, platforms, constraints)
    continuous = list(model.continuous_value_vars)
    logp, gradient = value_and_gradient(model.logp(), continuous)
    for v, g in zip(continuous, gradient, strict=True):
        g.name = f"gradient_{v.name}"
    logp.name = "logp"
    point = model.initial_point()
    shapes = Shapes(model, [logp], model.value_vars, [point[v.name] for v in model.value_vars])
    found = exportable(
        Target(None, shapes.inputs, shapes.without_lengths([logp, *gradient]), model_mode(model)),
        platforms=platforms_of(path, platforms),
        dims=shapes.dims(as_texts(symbolic), dims),
        examples=shapes.examples,
        constraints=constraints,
        with_derivatives=vjp_order > 0,
        name="logp",
        note="log density of a PyMC model, and its gradient",
    )
    return write_file(path, with_integers(found), platforms, target, vjp_order, batched, constraints)


@with_x64_restored
def export_predictive(
    model: pm.Model | None = None,
    var_names: Names | None = None,
    *,
    path: str | os.PathLike,
    symbolic: str | Sequence[str] = (),
    dims: Mapping[str, Spec] | None = None,
    constraints: str | Sequence[str] = (),
    platforms: Sequence[str] = PLATFORMS,
    target: CompileTarget = "host",
    batched: bool | None = None,
) -> Any:
    """Write predictions of a model, given a draw of its parameters, into a file that runs with JAX alone.

    Parameters
    ----------
    model : pymc.Model, optional
        By default that of the context.
    var_names : str, variable or sequence of them, optional
        What to predict: observed variables, whose values are drawn, and Deterministics. By default the observed variables.
    path, symbolic, dims, constraints, platforms, target, batched
        As for `export_logdensity`. By default the file has a batched program, unless IREE compiles it.

    Returns
    -------
    jaxpr_artifact.LoadedFunction or jaxpr_artifact.IreeFunction
        Its arguments are a random key, the parameters (as in a posterior, not unconstrained) and the shared data that the predictions
        depend on. ``batched`` of it takes a key and the parameters of every draw; data are given once, or for every draw.
    """
    model, platforms, constraints = checked_options(model, path, platforms, constraints)
    known = [str(v.name) for v in (*model.observed_RVs, *model.deterministics)]
    names = [str(v.name) for v in model.observed_RVs] if var_names is None else as_names(var_names)
    if unknown := sorted(set(names) - set(known)):
        question = did_you_mean(unknown[0], known)
        raise ValueError(
            f"The model predicts no {unknown[0]!r}; it has {', '.join(known) or 'nothing to predict'}.{question}"
        )
    if not names:
        raise ValueError("The model has no observed variables: name what to predict by var_names.")
    free = list(model.free_RVs)
    parameters = [v.type(v.name) for v in free]
    outputs = graph_replace([model[n] for n in names], dict(zip(free, parameters, strict=True)), strict=False)
    outputs = [under_name(v, name) for v, name in zip(outputs, names, strict=True)]
    used = set(graph_inputs(outputs))
    values = model.compile_fn(free, inputs=[], mode="FAST_COMPILE", point_fn=False)()
    taken = [(p, value) for p, value in zip(parameters, values, strict=True) if p in used]
    shapes = Shapes(model, outputs, [p for p, _ in taken], [value for _, value in taken])
    found = exportable(
        Target(None, shapes.inputs, shapes.without_lengths(outputs), "JAXPR"),
        platforms=platforms_of(path, platforms),
        dims=shapes.dims(as_texts(symbolic), dims),
        examples=shapes.examples,
        constraints=constraints,
        name="predict",
        note=f"predictions of a PyMC model: {', '.join(names)}",
    )
    return write_file(
        path, with_key(with_integers(found)), platforms, target, 0, is_batched(path, batched), constraints
    )


@with_x64_restored
def export_sampler(
    model: pm.Model | None = None,
    *,
    path: str | os.PathLike,
    draws: int = 1000,
    tune: int = 1000,
    target_accept: float | None = None,
    max_treedepth: int = 10,
    var_names: Names | None = None,
    symbolic: str | Sequence[str] = (),
    dims: Mapping[str, Spec] | None = None,
    constraints: str | Sequence[str] = (),
    platforms: Sequence[str] = PLATFORMS,
    batched: bool = True,
) -> Any:
    """Write a whole run of BlackJAX's NUTS, with its warm-up, into a file that runs with JAX alone.

    Parameters
    ----------
    model : pymc.Model, optional
        By default that of the context.
    draws, tune : int
        How many draws a chain keeps, and how many transitions before them adapt it.
    target_accept, max_treedepth
        As for `sample`.
    var_names : str, variable or sequence of them, optional
        Which variables to return, by default all that are no data.
    path, symbolic, dims, constraints, platforms, batched
        As for `export_logdensity`.

    Returns
    -------
    jaxpr_artifact.LoadedFunction or jaxpr_artifact.IreeFunction
        Its arguments are a random key, the unconstrained point where a chain starts and the shared data. It returns the draws of each variable
        and then the statistics, with an axis of draws in front. ``batched`` of it runs several chains as one program, on data that are given
        once.
    """
    model, platforms, constraints = checked_options(model, path, platforms, constraints)
    check_integer("draws", draws, 1)
    check_integer("tune", tune, 1)
    if target_accept is not None:
        check_fraction("target_accept", target_accept)
    if is_for_iree(path):
        raise NotImplementedError(
            "IREE 3.13 does not run BlackJAX's NUTS (docs/notes/iree.md). Export it for JAX, by a path that does not end in .vmfb."
        )
    require("blackjax")
    check_variables(model, "NUTS", "export its log density, for a sampler of your own")
    logp = LogDensity(model, "pytensor", None)
    make_kernel = importlib.import_module(f"{__package__}.kernels.nuts").make_kernel
    shown = Constrain(model, var_names)
    constrained = ModelFunction(model, shown._outputs)
    point = model.initial_point()
    shapes = Shapes(model, [model.logp(), *shown._outputs], model.value_vars, [point[v.name] for v in model.value_vars])
    count = len(model.value_vars)
    names = [*(str(v.name) for v in model.value_vars), *data_names(model, shapes.inputs[count:]).values()]
    examples = dict(zip(names, shapes.examples, strict=True))
    inputs = inputs_of(shapes.inputs, names, shapes.dims(as_texts(symbolic), dims), examples, constraints)

    def run(key: Any, *args: Any) -> list[Any]:
        position, data = (
            dict(zip(names[:count], args, strict=False)),
            dict(zip(names[count:], args[count:], strict=True)),
        )
        of_logp = {name: data[name] for name in logp.current_data() if name in data}
        vector, unravel = ravel_pytree(position)

        def position_at(vector_of_chain: Any) -> Any:
            return unravel(vector_of_chain.astype(vector.dtype))  # chains move in float64

        kernel = make_kernel(
            lambda q, data: logp(position_at(q), data).astype("float64"),
            tune,
            target_accept or TARGET_ACCEPTS["nuts"],
            max_treedepth,
        )
        chain = kernel.start(of_logp, jax.random.wrap_key_data(key, impl=KEYS), vector.astype("float64"))
        chain, _ = jax.lax.scan(
            lambda c, _: (kernel.transition(of_logp, c)[0], None), chain, length=tune + kernel.first_evaluates
        )
        _, (vectors, stats) = jax.lax.scan(lambda c, _: kernel.transition(of_logp, c), chain, length=draws)
        positions = jax.vmap(position_at)(vectors)
        of_shown = {name: data[name] for name in constrained.data if name in data}
        found = jax.vmap(lambda q: constrained(q, of_shown))(positions)
        return [*found, *[stats[name] for name in sorted(stats)]]

    given = Exportable(
        run,
        "sample",
        [KEY, *inputs],
        [(name, False) for name in (*shown.names, *STATISTICS)],
        note=f"NUTS of BlackJAX on a PyMC model: {draws} draws after {tune} of warm-up",
    )
    return write_file(path, with_integers(given), platforms, "host", 0, batched, constraints)


def checked_options(
    model: Any, path: str | os.PathLike, platforms: Sequence[str], constraints: str | Sequence[str]
) -> tuple[pm.Model, tuple[str, ...], tuple[str, ...]]:
    """Return the model, by default that of the context, the platforms and the constraints, or raise what is wrong with one, or with the path."""
    model = check_model(model)
    check_kind(path)
    return model, checked_platforms(platforms), as_texts(constraints)


def is_batched(path: str | os.PathLike, asked: bool | None) -> bool:
    """Return whether a file gets a batched program: what is asked for, else whether files of its kind have one."""
    return not is_for_iree(path) if asked is None else asked


#: The statistics of the kernel, in the order of their names.
STATISTICS = (
    "acceptance_rate",
    "diverging",
    "energy",
    "energy_error",
    "index_in_trajectory",
    "lp",
    "max_energy_error",
    "n_steps",
    "reached_max_treedepth",
    "step_size",
    "step_size_bar",
    "tree_depth",
)


def under_name(variable: Variable, name: str) -> Any:
    """Return a variable under a name; one that is an input is copied."""
    variable = variable if variable.owner is not None else variable.copy()  # type: ignore[attr-defined]
    variable.name = name
    return variable


def with_integers(given: Exportable) -> Exportable:
    """Return a function that takes integers of any dtype, as `pymc.Data` does, if the dtypes of its arguments have their values."""
    arguments = [x._replace(by_value=np.issubdtype(x.aval.dtype, np.integer) and not x.is_key) for x in given.arguments]
    return given._replace(arguments=arguments)


def with_key(given: Exportable) -> Exportable:
    """Return a function whose random generators all get their keys from one argument."""
    generators = [i for i, kept in enumerate(given.state) if kept.input.is_key]
    rest = [kept for kept in given.state if not kept.input.is_key]
    count = len(given.arguments)

    def call(key: Any, *args: Any) -> Sequence[Any]:
        keys = jax.random.split(jax.random.wrap_key_data(key, impl=KEYS), max(1, len(generators)))
        data = jax.random.key_data(keys)
        others = iter(args[count : count + len(rest)])
        state = [data[generators.index(i)] if i in generators else next(others) for i in range(len(given.state))]
        return given.fn(*args[:count], *state, *args[count + len(rest) :])

    return given._replace(fn=call, arguments=[KEY, *given.arguments], key_of=(), state=rest, jaxpr=None)
