"""What runs inside the processes that measure a file whose `build_model` returns a PyMC model and an initial point.

Errors of the file or of a mode are results, too: their kind and first line.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
from backends import as_numpy
from calls import timed_first
from clock import SETTLE_SECONDS_OF_SMALL, count_equations, median_of_turns_us
from micro import call_with_numpy

#: Files in the folder of the processes of a model: points with our results, the results of FAST_COMPILE, kept programs.
POINTS, REFERENCE, PROGRAMS = "points.npz", "reference.npz", "programs"
#: Transitions of the walk, steps of each; how many points are compared, and how many where we are not finite.
TRANSITIONS, STEPS, COMPARED, NOT_FINITE = 60, 4, 20, 5


class Density(NamedTuple):
    """The graph of a model's log density, alone or with its gradient by one vector, and an initial point.

    Attributes
    ----------
    model
        The PyMC model.
    kind
        "gradient", "discrete" (free variables have no gradient) or "no gradient" (PyTensor has none for an Op).
    inputs
        One vector, or a variable for each value of the model.
    outputs
        The scalar, and the gradient where there is one.
    values
        The initial point, an array for each input.
    start
        The same by the names of the model's values.
    why
        Why there is no gradient, if PyTensor should have one.
    """

    model: Any
    kind: str
    inputs: list
    outputs: list
    values: list[np.ndarray]
    start: dict[str, np.ndarray]
    why: str


def told(function: Callable[..., dict]) -> Callable[..., dict]:
    """Return a function that returns an error as a result: the last line of a traceback may be a hint of PyTensor's."""

    @wraps(function)
    def telling(*args: Any, **options: Any) -> dict:
        try:
            return function(*args, **options)
        except Exception as error:
            return {"failed": described(error)}

    return telling


def described(error: BaseException) -> str:
    """Return the kind of an error and its first line, without addresses of objects, which differ from run to run."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return re.sub(r" at 0x[0-9a-f]+", "", f"{type(error).__name__}: {line}" if line else type(error).__name__)[:300]


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise a TimeoutError after so many seconds, where Python code runs then or later."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"no result after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def load(file: str) -> tuple[Any, dict[str, Any]]:
    """Import a file, and return the model and what its `build_model` returns. Modules beside it can be imported.

    Data that it draws without a seed are the same in each process.
    """
    path = Path(file)
    np.random.seed(1)  # noqa: NPY002  SciPy's distributions draw from this one
    sys.path.append(str(path.parent))
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    if not hasattr(module, "build_model"):
        raise AttributeError("no build_model")
    return module.build_model()


def density(file: str) -> Density:
    """Return the graph of the log density of a file's model, with its gradient by one vector if it has one."""
    model, start = load(file)
    from pymc.pytensorf import join_nonshared_inputs

    start = {v.name: np.asarray(start[v.name], dtype=v.dtype) for v in model.value_vars}
    values = list(start.values())
    if not values:
        raise ValueError("no free variable")
    kind, why = ("discrete" if model.discrete_value_vars else "gradient"), ""
    if kind == "gradient":
        try:
            outputs = [model.logp(), model.dlogp()]
        except Exception as error:
            kind, why = "no gradient", described(error)
    if kind == "gradient":
        outputs, joined = join_nonshared_inputs(point=start, outputs=outputs, inputs=model.value_vars)
        vector = np.concatenate([np.ravel(x) for x in values]).astype(joined.dtype)
        return Density(model, kind, [joined], outputs, [vector], start, why)
    return Density(model, kind, model.value_vars, [model.logp()], values, start, why)


@told
def first(file: str, side: str, limit: float = 120.0) -> dict:
    """Return the seconds of the first result of a side, and for mode JAXPR its program and a walk.

    An error before there is a log density, also that the limit of seconds has passed, is one `at` the model.
    """
    try:
        with limited(limit):
            target = density(file)
    except Exception as error:
        return {"failed": described(error), "at": "model"}
    fn, seconds = timed(target, side)
    found: dict[str, Any] = {"seconds": seconds}
    if side == "jaxpr":
        size = int(sum(x.size for x in target.values))
        found |= {"kind": target.kind, "why": target.why, "size": size, "program": program(fn, target.values)}
        found["points"] = len(walk(fn, target.values))
    return found


def timed(target: Density, side: str) -> tuple[Callable, float]:
    """Return a compiled function and the processor seconds of its first result, which other work changes little."""
    fn, _, seconds = timed_first(side, target.inputs, target.outputs, target.values, PROGRAMS, process_time)
    return fn, seconds


@told
def program(fn: Any, values: list[np.ndarray]) -> dict:
    """Return how many regions and host steps a function has, why, its equations, and the bytes of its StableHLO."""
    import pytensor_jaxpr_linker as pjl

    explanation, stages = pjl.explain(fn), pjl.stages(fn, *values)
    kinds = [batch.kind for batch in explanation.batches]
    breaks = [
        f"{found.code}, {explanation.nodes[found.node].op.partition('{')[0]}: {found.why}"
        for found in explanation.breaks
    ]
    equations = [sum(count_equations(jaxpr)) for jaxpr in stages.jaxpr if jaxpr is not None]
    size = sum(len(code.encode()) for code in stages.stablehlo if code is not None)
    found = {"regions": kinds.count("region"), "host": kinds.count("host"), "equations": sum(equations), "bytes": size}
    return found | {"breaks": list(dict.fromkeys(breaks))}


def walk(fn: Callable, start: list[np.ndarray]) -> list[list[np.ndarray]]:
    """Walk from a point by random proposals, save points of the walk with their results, and return the points.

    A proposal is some leapfrog steps where there is a gradient, and a step of each value at random where there is none.
    The length of the steps grows with each proposal that is taken and shrinks with each that is not. The saved points
    are the first, some later ones at even distances, and some proposals at which the results are not finite.
    """
    rng, step, at = np.random.default_rng(1), 0.1, start
    here = as_numpy(fn(*at))
    taken, not_finite = [(at, here)], []
    propose = leapfrog if len(here) > 1 else stride
    for _ in range(TRANSITIONS):
        there, results, gain = propose(fn, at, here, step, rng)
        if not all(np.isfinite(x).all() for x in results):
            not_finite.append((there, results))
        elif np.log(rng.random()) < gain:
            at, here, step = there, results, step * 1.3
            taken.append((at, here))
            continue
        step *= 0.6
    places = np.unique(np.linspace(1, len(taken) - 1, COMPARED).astype(int)) if len(taken) > 1 else []
    chosen = [taken[0], *(taken[i] for i in places), *not_finite[:NOT_FINITE]]
    inputs, outputs = (
        {f"{name}{i}": np.stack(column) for i, column in enumerate(zip(*side, strict=True))}
        for name, side in zip(("input", "output"), zip(*chosen, strict=True), strict=True)
    )
    np.savez(POINTS, **inputs, **outputs)
    return [point for point, _ in chosen]


type Proposal = tuple[
    list[np.ndarray], list[np.ndarray], float
]  #: A point, the results there, the logarithm of its weight.


def leapfrog(fn: Callable, at: list, here: list, step: float, rng: np.random.Generator) -> Proposal:
    """Return a proposal of a Hamiltonian trajectory; it ends where results are not finite."""
    [x], (value, slope) = at, here
    momentum = rng.standard_normal(x.shape)
    energy = value - momentum @ momentum / 2
    for _ in range(STEPS):
        momentum = momentum + step / 2 * slope
        x = x + step * momentum
        value, slope = evaluated(fn, [x]) or nothing_like(here)
        if not (np.isfinite(value) and np.isfinite(slope).all()):
            break
        momentum = momentum + step / 2 * slope
    return [x], [value, slope], float(value - momentum @ momentum / 2 - energy)


def stride(fn: Callable, at: list, here: list, step: float, rng: np.random.Generator) -> Proposal:
    """Return a proposal of a random walk: normal steps of numbers, steps of some integers, other truth values."""

    def moved(x: np.ndarray) -> np.ndarray:
        if x.dtype.kind == "f":
            return np.asarray(x + step * rng.standard_normal(x.shape), dtype=x.dtype)
        moves = rng.random(x.shape) < min(step, 0.5)
        return np.asarray(x ^ moves if x.dtype.kind == "b" else x + moves * rng.choice([-1, 1], x.shape), dtype=x.dtype)

    there = [moved(x) for x in at]
    results = evaluated(fn, there) or nothing_like(here)
    return there, results, float(results[0] - here[0])


def saved(file: str) -> tuple[list[list[np.ndarray]], list[np.ndarray]]:
    """Return the points of the walk, and the results at all of them in a file, an array for each output."""
    with np.load(POINTS) as points, np.load(file) as found:
        inputs = [points[key] for key in points if key.startswith("input")]
        return [*map(list, zip(*inputs, strict=True))], [found[key] for key in found if key.startswith("output")]


@told
def later(file: str, side: str, seconds: float) -> dict:
    """Return the seconds of the first result where programs are kept, and for mode JAXPR its errors."""
    target = density(file)
    fn, needed = timed(target, side)
    return {"seconds": needed} | ({"errors": errors(target, fn, seconds)} if side == "jaxpr" else {})


@told
def errors(target: Density, ours_at: Callable, seconds: float) -> dict:
    """Return the largest errors beside mode FAST_COMPILE, relative, and in units in the last place of a sum of terms.

    `apart` is the number of points at which one of the two is finite and the other is not. Where mode FAST_COMPILE
    cannot compile the function, mode NUMBA is in its place.
    """
    import pymc as pm

    points, _ = saved(POINTS)
    ours = at_all(ours_at, points)  # in this process, for a file may draw other data in each
    mode = "FAST_COMPILE"
    with limited(seconds):
        try:
            theirs = at_all(pm.compile(target.inputs, target.outputs, mode=mode), points)
        except NotImplementedError:  # PyTensor's Python implementation of a sum takes 32 operands
            mode = "NUMBA"
            theirs = at_all(pm.compile(target.inputs, target.outputs, mode=mode), points)
    np.savez(REFERENCE, **{f"output{i}": x for i, x in enumerate(theirs)})
    return relative(ours, theirs) | {"beside": mode, "ulps": in_ulps(target, points, ours, theirs, seconds)}


def evaluated(fn: Callable, point: list[np.ndarray]) -> list[np.ndarray] | None:
    """Return the results at a point, or None where the function raises an error, as of a matrix or a parameter."""
    try:
        return as_numpy(fn(*point))
    except (ArithmeticError, ValueError, AssertionError, np.linalg.LinAlgError):
        return None


def at_all(fn: Callable, points: Sequence[list[np.ndarray]]) -> list[np.ndarray]:
    """Return the results at all points, an array for each output, NaN at later points where there is an error."""
    first = as_numpy(fn(*points[0]))
    rows = [first, *(evaluated(fn, point) or nothing_like(first) for point in points[1:])]
    return [np.stack(column) for column in zip(*rows, strict=True)]


def nothing_like(results: list[np.ndarray]) -> list[np.ndarray]:
    """Return results of the same shapes that are NaN."""
    return [np.full_like(x, np.nan) for x in results]


def finite(outputs: list[np.ndarray]) -> np.ndarray:
    """Return at which points all outputs are finite."""
    return np.all([np.isfinite(x.reshape(len(x), -1)).all(1) for x in outputs], axis=0)


def relative(ours: list[np.ndarray], theirs: list[np.ndarray]) -> dict:
    """Return the largest error of each output, relative to its largest element at the same point, and `apart`."""
    both, found = finite(ours) & finite(theirs), {"apart": int((finite(ours) != finite(theirs)).sum())}
    found["compared"] = int(both.sum())
    for name, x, y in zip(("value", "gradient"), ours, theirs, strict=False):
        x, y = (z[both].reshape(both.sum(), -1) for z in (x, y))
        scale = np.abs(y).max(1, initial=0)
        found[name] = largest(np.abs(x - y).max(1, initial=0), scale)
    return found


def largest(differences: np.ndarray, scale: np.ndarray) -> float:
    """Return the largest quotient; the scale is that of the smallest normal number at least."""
    return float(np.max(differences / np.maximum(scale, np.finfo(float).tiny), initial=0.0))


@told
def in_ulps(
    target: Density, points: Sequence, ours: list[np.ndarray], theirs: list[np.ndarray], seconds: float
) -> dict:
    """Return the largest errors in units in the last place of a sum of terms.

    The terms of the log density are the elements of its factors, which PyMC sums up. Those of an element of the gradient
    are the gradients of the factors, and the unit is that of the element with the largest sum of their magnitudes.
    """
    import pymc as pm
    import pytensor.tensor as pt
    from pymc.pytensorf import join_nonshared_inputs, rewrite_pregrad

    model = target.model
    factors = model.logp(sum=False)
    sums = [sum(pt.abs(factor).sum() for factor in factors)]
    if target.kind == "gradient":
        totals = [rewrite_pregrad(factor.sum()) for factor in factors]
        slopes = [pt.grad(t, model.value_vars, disconnected_inputs="ignore") for t in totals]
        sums.append(sum(pt.abs(pt.concatenate([g.ravel() for g in gradient])) for gradient in slopes).max())
        sums, joined = join_nonshared_inputs(point=target.start, outputs=sums, inputs=model.value_vars)
        inputs = [joined]
    else:
        inputs = target.inputs
    with limited(seconds):
        scales = at_all(pm.compile(inputs, sums, mode="FAST_COMPILE"), points)
    both, found = finite(ours) & finite(theirs) & finite(scales), {}
    for name, x, y, scale in zip(("value", "gradient"), ours, theirs, scales, strict=False):
        x, y = (z[both].reshape(both.sum(), -1) for z in (x, y))
        found[name] = largest(np.abs(x - y).max(1, initial=0), np.finfo(x.dtype).eps * scale[both])
    return found


@told
def in_turns(file: str, sides: list[str], seconds: float, limit: float) -> dict:
    """Return by side the median µs of a call and its errors at the points of the walk.

    The first side is the first in this process, so it also has the seconds of its first result.
    """
    target, calls, found = density(file), {}, {}
    for number, side in enumerate(sides):
        found[side] = compiled = side_of_turns(target, side, limit, calls)
        if number:
            compiled.pop("seconds", None)
    for side, us in median_of_turns_us(calls, seconds, settle=SETTLE_SECONDS_OF_SMALL).items():
        found[side]["call"] = us
    return found


@told
def side_of_turns(target: Density, side: str, limit: float, calls: dict[str, Callable]) -> dict:
    """Compile for a side, add its call to others, and return its seconds and errors."""
    with limited(limit):
        fn, seconds = timed(target, side)
        calls[side] = partial(call_with_numpy, fn, target.values)
        if side == "jaxpr" or not Path(REFERENCE).exists():
            return {"seconds": seconds}
        points, theirs = saved(REFERENCE)
        return {"seconds": seconds, "errors": relative(at_all(fn, points), theirs)}
