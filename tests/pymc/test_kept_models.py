"""Kept functions belong to the current state of a model: after any change the next call is as in a new process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType
from typing import NamedTuple

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.distributions.transforms import Interval
from pymc.logprob.abstract import _logprob
from pymc.logprob.transforms import Transform
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import AbstractFunctionGraph
from pytensor.graph.op import Op
from pytensor.tensor.random.type import RandomType

from pytensor_jaxpr_linker import emits, prims
from pytensor_jaxpr_linker.graph.rewritten.store import STORE
from pytensor_jaxpr_linker.pymc.kept_models import KeptModel, KeptModels

X = np.linspace(-1.0, 1.0, 5)
FACTORS = np.array([1.0, 1.5, 2.0])
WEIGHTS = np.array([1.0, 2.0, 3.0])


class Scaled(Transform):
    """A transform of the user's, with parameters."""

    name = "scaled"

    def __init__(self, scale, shift):
        self.scale, self.parameters = scale, {"shift": shift}

    def forward(self, value, *inputs):
        return value / self.scale + self.parameters["shift"]

    def backward(self, value, *inputs):
        return (value - self.parameters["shift"]) * self.scale

    def log_jac_det(self, value, *inputs):
        return pt.zeros_like(value) + np.log(self.scale)


class Table(Op):
    """An Op of the user's with an array that no property names."""

    __props__ = ("power",)

    def __init__(self, power, table):
        self.power, self.table = power, table

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] ** self.power * self.table

    def pullback(self, inputs, outputs, cotangents):
        return [cotangents[0] * self.power * inputs[0] ** (self.power - 1) * self.table]


@emits(Table)
def emit_Table(op, node, b, x):
    return prims.mul(b, prims.integer_pow(b, x, op.power), b.constant(op.table))


def regression():
    """Data, dims, coordinates, transforms with parameters, a Deterministic, a Potential, initial values, constants."""
    with pm.Model(coords={"row": list("abcde")}) as model:
        x, more = pm.Data("x", X, dims="row"), pt.constant(X + 2.0)
        slope = pm.Normal("slope", np.array([0.5, 1.5]), 2.0, initval=np.array([0.1, 0.2]), shape=2)
        level = pm.Uniform("level", -3.0, 3.0, transform=Interval(-3.0, 3.0), initval=0.3)
        cuts = pm.Normal("cuts", 0, 1, shape=3, transform=pm.distributions.transforms.ordered, initval=[-1.0, 0.0, 1.0])
        mean = pm.Deterministic("mean", slope[0] * x + slope[1] * more + level, dims="row")
        pm.Potential("weighted", -(cuts * pt.constant(np.array([0.1, 0.2, 0.3]))).sum())
        pm.Normal("y", mean, 0.5, observed=X * 2.0, dims="row")
    return model


def parts_of_the_user():
    """A transform and an Op of the user's."""
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1, shape=3, transform=Scaled(2.0, np.array([0.1, 0.2, 0.3])), default_transform=None)
        pm.Normal("y", Table(2, np.array([1.0, 2.0, 0.5]))(a), 1, observed=np.ones(3))
    return model


def densities_of_the_user():
    """Functions that read arrays by a captured variable, a default, a global and a container."""
    captured, held = np.array([0.5, 0.6, 0.7]), {"factors": [0.1, 0.2, 0.3]}

    def logp(value, mu, default=FACTORS):
        return -((value - mu - captured) ** 2) * default * WEIGHTS + held["factors"]

    def dist(mu, size):
        return pm.Exponential.dist(pt.exp(mu) + pt.constant(WEIGHTS), size=size)

    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.CustomDist("y", mu, logp=logp, observed=np.ones(3))
        pm.CustomDist("z", mu, dist=dist, observed=np.ones(3))
    return model


def inner_graphs():
    """Constants in the graph inside an Op, and in the body of a loop."""
    v = pt.dvector("v")
    inner = OpFromGraph([v], [v * pt.constant(np.array([1.0, 2.0, 4.0])) + 0.5])
    with pm.Model() as model:
        a = pm.Normal("a", shape=3)
        rows = pytensor.scan(
            lambda s: s * pt.constant(np.array([0.9, 0.8, 0.7])), outputs_info=a, n_steps=3, return_updates=False
        )
        pm.Normal("y", inner(a) + rows[-1], 1, observed=np.ones(3))
    return model


def missing_values():
    """Observations of which some are missing, and data that others mask."""
    with pm.Model() as model:
        mu = pm.Normal("mu", pytensor.shared(0.5), pytensor.shared(1.5, name="scale"))
        with pytest.warns(pm.exceptions.ImputationWarning):
            pm.Normal("y", mu, 1, observed=np.ma.masked_invalid([1.0, np.nan, 2.0]))
    return model


def shared_without_names():
    """Shared variables that have no names, or one name; one gives a shape, and one is read by a Deterministic alone."""
    x, one, other = (pytensor.shared(np.ones(3) * k, name=name) for k, name in ((1, None), (2, None), (3, "mu")))
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Deterministic("d", mu + other.sum())
        pm.Normal("y", mu * x + one, 1, observed=np.ones(3), shape=x.shape)
    return model


MODELS = [
    regression,
    parts_of_the_user,
    densities_of_the_user,
    inner_graphs,
    missing_values,
    shared_without_names,
]


class Place(NamedTuple):
    """Something that can be changed in place: what it is called, the change, and the way back."""

    name: str
    change: Callable[[], object]
    undo: Callable[[], object]


def places(value, name="model", seen=None) -> Iterator[Place]:
    """Give what of a value, and of all that it refers to, can be changed in place."""
    seen = {} if seen is None else seen
    if id(value) in seen or isinstance(value, str | bytes | bool | int | float | np.generic):
        return
    seen[id(value)] = value
    if isinstance(value, np.ndarray):
        yield from place_of_array(value, name)
    elif isinstance(value, SharedVariable):
        if not isinstance(value.type, RandomType):
            before = value.get_value()
            yield Place(f"{name}.set_value", lambda: value.set_value(before + 1), lambda: value.set_value(before))
    elif isinstance(value, Variable):
        inner = [value.data] if isinstance(value, Constant) else [value.owner] if value.owner is not None else []
        for x in inner:
            yield from places(x, f"{name}:{value.name}", seen)
    elif isinstance(value, Apply):
        for x in (value.op, *value.inputs):
            yield from places(x, f"{name}/{value.op}", seen)
    elif isinstance(value, AbstractFunctionGraph):
        for x in value.outputs:
            yield from places(x, f"{name}.graph", seen)
    elif isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        read = [
            value.__globals__[n] for n in value.__code__.co_names if value.__module__ == __name__ and n == "WEIGHTS"
        ]
        for i, x in enumerate((*cells, *(value.__defaults__ or ()), *read)):
            yield from places(x, f"{name}.{value.__name__}[{i}]", seen)
    elif isinstance(value, list | tuple | dict):
        items = list(value.items() if isinstance(value, dict) else enumerate(value))
        for key, x in items:
            if not isinstance(value, tuple) and (other := changed(x)) is not None:
                yield Place(
                    f"{name}[{key!r}]",
                    lambda k=key, o=other: value.__setitem__(k, o),
                    lambda k=key, x=x: value.__setitem__(k, x),
                )
            yield from places(x, f"{name}[{key!r}]", seen)
    else:
        yield from places_of_attributes(value, name, seen)


def place_of_array(array, name):
    """Give an array of numbers as one place."""
    if array.size and array.dtype.kind in "fiub" and array.flags.writeable:
        before = array.copy()
        other = ~array if array.dtype.kind == "b" else array + 1
        yield Place(f"{name}[{array.dtype}]", lambda: np.copyto(array, other), lambda: np.copyto(array, before))


def places_of_attributes(value, name, seen):
    """Return the attributes that determine the behaviour of an object: its properties or, for the user's, all."""
    if isinstance(value, Op):
        yield from places(_logprob.dispatch(type(value)), f"{name}.logprob", seen)
        if isinstance(value, OpFromGraph) or hasattr(value, "fgraph"):
            yield from places(value.fgraph, name, seen)
    if not isinstance(value, Op | Transform):
        return
    is_users = type(value).__module__ == __name__
    names = vars(value) if is_users or isinstance(value, Transform) else getattr(type(value), "__props__", ())
    for attribute in list(names):
        held = getattr(value, attribute, None)
        if (other := changed(held)) is not None and attribute in getattr(value, "__dict__", {}):
            set_to = lambda x, a=attribute: object.__setattr__(value, a, x)  # noqa: E731
            yield Place(f"{name}.{attribute}", lambda s=set_to, o=other: s(o), lambda s=set_to, h=held: s(h))
        if is_users or isinstance(value, Transform):
            yield from places(held, f"{name}.{attribute}", seen)


def changed(value):
    """Return another value of the same kind, or None."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return value + "x" if isinstance(value, str) else None


def parts(model):
    """Return what a model consists of."""
    return {
        "variables": [*model.basic_RVs, *model.potentials, *model.deterministics],
        "values": list(model.rvs_to_values.values()),
        "transforms": [t for t in model.rvs_to_transforms.values() if t is not None],
        "initial values": [v for v in model.rvs_to_initial_values.values() if v is not None],
    }


def results(model, models: KeptModels):
    """Return a starting point of a kept model, its log density by a program, and its constrained values."""
    kept = models.find(model, "pytensor")
    (start,) = kept.starts(1, [3], None, True)
    with jax.enable_x64(True):
        args = dict(start.point), dict(kept.data)
        shapes = jax.tree.map(lambda x: (x.shape, str(x.dtype)), args)
        program = kept.programs.compiled(("density", str(shapes)), lambda q, data: kept.logp(q, data), args)
        return [*start.point.values(), np.asarray(program(*args)), *kept.constrain(None)(start.point).values()]


@pytest.fixture
def models():
    """An empty set of kept models."""
    STORE.clear()
    return KeptModels()


@pytest.mark.parametrize("make", MODELS)
def test_each_change_in_place_is_seen(make, models):
    """Another model is kept, or the values are read anew: the results are the same as in a process without caches."""
    model = make()
    results(model, models)
    before: KeptModel = models.find(model, "pytensor")
    model.compile_logp(mode="FAST_COMPILE")  # whose rewrites write tags and names into the model's graph
    found = list(places(parts(model)))
    assert before.is_of(model, "pytensor")
    shared, unseen = 0, []
    for place in found:
        place.change()
        try:
            if before.is_of(model, "pytensor"):
                shared += 1
                now, new = results(model, models), results(model, KeptModels())
                if not all(map(np.array_equal, now, new)):
                    unseen.append(place.name)
        finally:
            place.undo()
        assert before.is_of(model, "pytensor"), place.name
    assert not unseen
    assert len(found) > 5 and shared >= (make in (regression, missing_values, shared_without_names))


@pytest.mark.parametrize("make", [parts_of_the_user, densities_of_the_user, inner_graphs])
def test_programs_are_of_the_new_values(make, models):
    """After a change of an array the programs of a kept model are not shared, unless these read the array."""
    model = make()
    first = results(model, models)
    for place in places(parts(model)):
        if place.name.endswith(("[float64]", "set_value")):  # integers are lengths and axes
            place.change()
            try:
                now, new = results(model, models), results(model, KeptModels())
                for a, b in zip(now, new, strict=True):
                    np.testing.assert_array_equal(a, b, err_msg=place.name)
            finally:
                place.undo()
    for a, b in zip(first, results(model, models), strict=True):
        np.testing.assert_array_equal(a, b)
