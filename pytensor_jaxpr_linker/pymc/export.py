"""Exports of a fitted model: its log density and gradient, its predictions, a whole run of a sampler."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from jax.flatten_util import ravel_pytree
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.random.type import RandomType

from pytensor_jaxpr_linker.artifacts.export import check_kind, is_for_iree, platforms_of, write_file
from pytensor_jaxpr_linker.artifacts.exportable import exportable
from pytensor_jaxpr_linker.artifacts.iree import CompileTarget
from pytensor_jaxpr_linker.artifacts.shapes import Input, Spec, as_texts, inputs_of, unique_names
from pytensor_jaxpr_linker.artifacts.writing import PLATFORMS, Exportable, checked_platforms
from pytensor_jaxpr_linker.base.jax_compat import with_x64_restored
from pytensor_jaxpr_linker.emit.random.sampler import KEY_DTYPE, KEY_SHAPE
from pytensor_jaxpr_linker.frontend.pregrad import value_and_gradient
from pytensor_jaxpr_linker.frontend.targets import Target
from pytensor_jaxpr_linker.pymc import arguments
from pytensor_jaxpr_linker.pymc.arguments import Names
from pytensor_jaxpr_linker.pymc.chains.kernel import KEYS
from pytensor_jaxpr_linker.pymc.functions.constrained import Constrain
from pytensor_jaxpr_linker.pymc.functions.density import LogDensity
from pytensor_jaxpr_linker.pymc.functions.differentiable import check_variables
from pytensor_jaxpr_linker.pymc.functions.graph import ModelFunction, data_names, model_mode
from pytensor_jaxpr_linker.pymc.options import TARGET_ACCEPTS, kernel_module


class Shapes:
    """The inputs of an exported function: parameters and shared data, with shapes by the model's dims.

    `parameters` are the inputs other than data, and `values` are of their present shapes.
    """

    def __init__(self, model: pm.Model, outputs: Sequence[Variable], parameters: Sequence[Any], values: Sequence[Any]):
        self._model = model
        self._lengths = {v: dim for dim, v in model.dim_lengths.items()}
        shared = {v for v in graph_inputs(outputs) if isinstance(v, SharedVariable) and v.name} - self._lengths.keys()
        data = sorted((v for v in shared if not isinstance(v.type, RandomType)), key=lambda v: str(v.name))
        self.inputs: list[Any] = [*parameters, *data]
        self.examples: list[np.ndarray] = [np.asarray(x) for x in (*values, *[v.get_value(borrow=True) for v in data])]
        by_value = {v: rv for rv, v in model.rvs_to_values.items()}
        declared = [model.named_vars_to_dims.get(str(by_value.get(v, v).name), ()) for v in self.inputs]
        #: The dims of each input. A transform may change the shape of a parameter: then it has none.
        self._dims = [d if self._fits(d, x) else (None,) * x.ndim for d, x in zip(declared, self.examples, strict=True)]

    def _fits(self, dims: Sequence[str | None], value: np.ndarray) -> bool:
        """Return whether an array has the lengths of dims."""
        lengths = [None if d is None else int(self._model.dim_lengths[d].eval()) for d in dims]
        return len(dims) == value.ndim and all(n in (None, m) for n, m in zip(lengths, value.shape, strict=True))

    def dims(self, symbolic: Sequence[str], given: Mapping[str, Spec] | None) -> dict[str, Spec]:
        """Return the shapes of inputs with a symbolic dim, and the `given` shapes."""
        symbols = dict(zip(symbolic, unique_names(symbolic, "dim"), strict=True))
        for dim in symbolic:
            if not any(dim in dims for dims in self._dims):
                known = sorted({d for dims in self._dims for d in dims if d})
                raise ValueError(
                    f"No shared data and no parameter of the export has the dim {dim!r}; their dims are"
                    f" {', '.join(known) or 'none'}. Declare the data as pm.Data(..., dims=...), not as arrays."
                )
        found = {
            str(v.name): [symbols.get(d or "", "_") for d in dims]
            for v, dims in zip(self.inputs, self._dims, strict=True)
            if any(d in symbols for d in dims)
        }
        return {**found, **(given or {})}

    def without_lengths(self, outputs: Sequence[Variable]) -> list[Variable]:
        """Return the outputs with lengths of dims in terms of the inputs' shapes, or as their current numbers."""
        replaced: dict[Any, Any] = {}
        for length, dim in self._lengths.items():
            places = [(v, dims.index(dim)) for v, dims in zip(self.inputs, self._dims, strict=True) if dim in dims]
            if isinstance(length, SharedVariable):
                number = places[0][0].shape[places[0][1]] if places else pt.constant(length.get_value())
                replaced[length] = length.type.filter_variable(number.astype(length.type.dtype))
        return graph_replace(list(outputs), replaced, strict=False) if replaced else list(outputs)


#: The argument for a random key.
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
        By default the context's model.
    symbolic : str or sequence of str
        Dims of the model that may have any length: of the shared data, and of parameters, that are declared with them.
    path, dims, constraints, platforms, target, vjp_order, batched
        As for `pytensor_jaxpr_linker.export`. Other lengths are the current lengths of the model.

    Returns
    -------
    jaxpr_artifact.LoadedFunction or jaxpr_artifact.IreeFunction
        Its arguments are the unconstrained variables and then the shared data (`pymc.Data`) by name. Integers may have
        any dtype. It returns the log density, and its gradient by each continuous variable.

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
        By default the context's model.
    var_names : str, variable or sequence of them, optional
        The variables to predict: observed variables, which are drawn, and Deterministics. By default the observed
        variables.
    path, symbolic, dims, constraints, platforms, target, batched
        As for `export_logdensity`. By default the file has a batched program, unless IREE compiles it.

    Returns
    -------
    jaxpr_artifact.LoadedFunction or jaxpr_artifact.IreeFunction
        Its arguments are a random key, the parameters (as in a posterior, not unconstrained) and the shared data that
        the predictions depend on. Its ``batched`` takes a key and the parameters of every draw; data are given once, or
        for every draw.
    """
    model, platforms, constraints = checked_options(model, path, platforms, constraints)
    known = [str(v.name) for v in (*model.observed_RVs, *model.deterministics)]
    names = [str(v.name) for v in model.observed_RVs] if var_names is None else arguments.as_names(var_names)
    if unknown := sorted(set(names) - set(known)):
        question = arguments.did_you_mean(unknown[0], known)
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
    is_batched = not is_for_iree(path) if batched is None else batched
    return write_file(path, with_key(with_integers(found)), platforms, target, 0, is_batched, constraints)


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
    """Write a whole run of the default NUTS, with its warm-up, into a file that runs with JAX alone.

    Parameters
    ----------
    model : pymc.Model, optional
        By default the context's model.
    draws, tune : int
        The number of draws that a chain keeps, and the number of transitions before them, which adapt it.
    target_accept, max_treedepth
        As for `sample`.
    var_names : str, variable or sequence of them, optional
        Which variables to return, by default all except data.
    path, symbolic, dims, constraints, platforms, batched
        As for `export_logdensity`.

    Returns
    -------
    jaxpr_artifact.LoadedFunction or jaxpr_artifact.IreeFunction
        Its arguments are a random key, the unconstrained starting point of a chain and the shared data. It returns the
        draws of each variable and then the statistics, with an axis of draws in front. Its ``batched`` runs several
        chains as one program, on data that are given once.
    """
    model, platforms, constraints = checked_options(model, path, platforms, constraints)
    arguments.check_integer("draws", draws, 1)
    arguments.check_integer("tune", tune, 1)
    if target_accept is not None:
        arguments.check_fraction("target_accept", target_accept)
    if is_for_iree(path):
        raise NotImplementedError(
            "IREE 3.13 does not run this NUTS (docs/notes/iree.md). Export it for JAX, by a path that does not"
            " end in .vmfb."
        )
    check_variables(model, "NUTS", "export its log density, for a sampler of your own")
    logp = LogDensity(model, "pytensor", None)
    make_kernel = kernel_module("nuts").make_kernel
    shown = Constrain(model, var_names)
    constrained = ModelFunction(model, shown._outputs)
    point = model.initial_point()
    shapes = Shapes(model, [model.logp(), *shown._outputs], model.value_vars, [point[v.name] for v in model.value_vars])
    count = len(model.value_vars)
    names = [*(str(v.name) for v in model.value_vars), *data_names(model, shapes.inputs[count:]).values()]
    examples = dict(zip(names, shapes.examples, strict=True))
    inputs = inputs_of(shapes.inputs, names, shapes.dims(as_texts(symbolic), dims), examples, constraints)

    def run(key: Any, *args: Any) -> list[Any]:
        position = dict(zip(names[:count], args, strict=False))
        data = dict(zip(names[count:], args[count:], strict=True))
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
        note=f"NUTS on a PyMC model: {draws} draws after {tune} of warm-up",
    )
    return write_file(path, with_integers(given), platforms, "host", 0, batched, constraints)


def checked_options(
    model: Any, path: str | os.PathLike, platforms: Sequence[str], constraints: str | Sequence[str]
) -> tuple[pm.Model, tuple[str, ...], tuple[str, ...]]:
    """Return the model, by default of the context, the platforms and the constraints; check them and the path."""
    model = arguments.check_model(model)
    check_kind(path)
    return model, checked_platforms(platforms), as_texts(constraints)


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
    """Return a variable under a name; an input is copied."""
    variable = variable if variable.owner is not None else variable.copy()  # type: ignore[attr-defined]
    variable.name = name
    return variable


def with_integers(given: Exportable) -> Exportable:
    """Return a function whose integer arguments may have any dtype, as for `pymc.Data`, if their values fit."""
    return given._replace(
        arguments=[
            x._replace(by_value=np.issubdtype(x.aval.dtype, np.integer) and not x.is_key) for x in given.arguments
        ]
    )


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
