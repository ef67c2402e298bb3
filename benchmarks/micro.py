"""Small measurements: what planning and building cost for each node, and what calls of several backends take."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from time import perf_counter

import numpy as np
from backends import as_compile, as_numpy, on_device, prepare, take_apart, waiter
from clock import SETTLE_SECONDS_OF_SMALL, Clock, least_us, median_of_turns_us, pin_to_one_core
from models import chain, small
from pytensor.graph.fg import FunctionGraph
from scans import make_problem


def build_chain(nodes: int, backend: str) -> dict:
    """Time to get from a graph of `nodes` elementwise operations, taken as rewritten, to its Jaxpr.

    Returns
    -------
    dict
        `build_us` and `trace_us`: µs a node, those of the fastest time of a second's worth, and of three at least. Building is funcify in mode
        JAX, nothing in hand-written JAX, and all there is in mode JAXPR, the plan included.
    """
    problem = chain(nodes)
    prepare(backend, Clock())
    # By hand there is nothing to build. JAX remembers functions that it knows, so each is a new one.
    by_hand = lambda *_: lambda *args: problem.hand(*args)  # noqa: E731
    build = {"jax": jax_build, "hand": by_hand, "jaxpr": jaxpr_build}[backend]
    build(FunctionGraph(problem.inputs, [problem.inputs[0] + 1.0], clone=True), problem.values)
    found = []
    while len(found) < 3 or sum(total for total, _ in found) < 1:
        fgraph = FunctionGraph(problem.inputs, problem.outputs, clone=True)
        fn = None  # to free what was built before takes time, too
        start = perf_counter()
        fn = build(fgraph, problem.values)
        built = perf_counter()
        if backend != "jaxpr":
            import jax

            jax.jit(fn).trace(*on_device(problem.values))
        found.append((perf_counter() - start, built - start))
    total, built = (1e6 * seconds / nodes for seconds in min(found))
    return {"build_us": built, "trace_us": total - built}


def jax_build(fgraph: FunctionGraph, _values) -> Callable:
    """Mode JAX's way: generate Python source that calls `jax.numpy`."""
    from pytensor.link.jax.dispatch import jax_funcify

    return jax_funcify(fgraph)


def jaxpr_build(fgraph: FunctionGraph, values):
    """This package's way: analysis and one walk that makes the equations; nothing is left to trace."""
    from pytensor_jaxpr_linker.base.rules import find_rule
    from pytensor_jaxpr_linker.graph.prepare import prepare
    from pytensor_jaxpr_linker.jaxpr.lower import lower_region
    from pytensor_jaxpr_linker.plan.partition import partition

    def rule(node):
        return find_rule(node.op)

    [region] = partition(prepare(fgraph, rule), rule).regions
    return lower_region(region, values)


def planning(nodes: int) -> dict:
    """Seconds to plan a graph of `nodes` nodes and to explain its plan, in all its breaks.

    Returns
    -------
    dict
        `plan` and `explain` with no break, and `plan_breaks` and `explain_breaks` where each thousandth node is a host step: the least
        of three times.
    """
    import pytensor.tensor as pt
    from pytensor.printing import Print

    from pytensor_jaxpr_linker.report.explain import report
    from pytensor_jaxpr_linker.report.nodes import Provenance
    from pytensor_jaxpr_linker.run.program import make_graph, make_plan

    prepare("jaxpr", Clock())
    result = {}
    for name, every in (("", 0), ("_breaks", 1000)):
        v = x = pt.dvector("x")
        for i in range(nodes):
            v = Print(str(i))(v) if every and i % every == every - 1 else pt.sin(v) if i % 2 else pt.exp(v)
        fgraph = FunctionGraph([x], [v], clone=False)
        found = []
        for _ in range(3):
            start = perf_counter()
            graph = make_graph(fgraph)
            plan = make_plan(graph)
            planned = perf_counter()
            str(report(graph, plan, {}, [], {}, None, Provenance(graph, None)))
            found.append((planned - start, perf_counter() - planned))
        result |= dict(zip((f"plan{name}", f"explain{name}"), map(min, zip(*found, strict=True)), strict=True))
    return result


def host_step(size: int, backends: list[str], seconds: float) -> dict:
    """What a call costs in µs that computes on the device, sorts with NumPy, and computes on the device again.

    Returns
    -------
    dict
        By backend, `call`: NumPy array in and out. By hand: two functions of `jax.jit` and the transfers between them. `thunk`: what
        mode JAXPR runs of that, without PyTensor's own `Function.__call__`.
    """
    pin_to_one_core()
    import jax
    import jax.numpy as jnp
    import pytensor
    import pytensor.tensor as pt
    from pytensor.graph import Apply, Op

    class Descending(Op):
        def make_node(self, x):
            return Apply(self, [x], [x.type()])

        def perform(self, node, inputs, outputs):
            outputs[0][0] = np.sort(inputs[0])[::-1].copy()

    def before(x, namespace):
        return namespace.exp(namespace.sin(x)) + 1

    def after(y, namespace):
        return namespace.log1p(y * y).sum() + namespace.tanh(y)

    for backend in backends:
        prepare(backend, Clock())
    value = np.linspace(0.0, 1.0, size)
    first, second = jax.jit(lambda x: before(x, jnp)), jax.jit(lambda y: after(y, jnp))

    def hand():
        with jax.enable_x64(True):
            return np.array(second(np.sort(np.asarray(first(value)))[::-1].copy()))

    x = pt.vector("x", shape=(size,), dtype="float64")
    f = pytensor.function([x], after(Descending()(before(x, pt)), pt), mode="JAXPR")

    def thunk():
        f.input_storage[0].storage[0] = value
        return f.vm()

    calls = {("hand", "call"): hand, ("jaxpr", "call"): lambda: f(value), ("jaxpr", "thunk"): thunk}
    return by_backend(least_us(calls, seconds))


def dispatch(backends: list[str], seconds: float) -> dict:
    """What a warm call costs in µs for three inputs, two outputs and hardly any arithmetic.

    Returns
    -------
    dict
        By backend, `jit_device` and `jit_numpy`: the compiled part with device and with NumPy arrays, until results are ready;
        `thunk`: `f.vm()`, that is storage, the compiled part and results stored; `function`: the whole `Function`, and
        `trusted`: the same with `trust_input=True`. The last three until results are NumPy arrays.
    """
    pin_to_one_core()
    calls = {(backend, step): call for backend in backends for step, call in dispatch_calls(backend).items()}
    with x64():
        return by_backend(least_us(calls, seconds))


def dispatch_calls(backend: str) -> dict[str, Callable]:
    """The calls of one backend that `dispatch` times."""
    problem = small()
    values = problem.values
    prepare(backend, Clock())
    fn = as_compile(backend, problem)
    wait, calls = waiter(backend), {}
    as_numpy(fn(*values))
    part = fn if backend == "hand" else fn.vm.jit_fn
    if backend != "numba":
        args = on_device(values)
        calls["jit_device"] = lambda: wait(part(*args))
    calls |= {"jit_numpy": lambda: wait(part(*values)), "jit_results": lambda: as_numpy(part(*values))}
    if backend == "hand":
        return calls
    trusting, storing = fn.copy(), fn.copy()
    trusting.trust_input = True
    for container, value in zip(storing.input_storage, values, strict=True):
        container.storage[0] = value
    outputs = [container.storage for container in storing.output_storage]

    def thunk():
        storing.vm()
        return as_numpy([storage[0] for storage in outputs])

    return calls | {
        "thunk": thunk,
        "function": lambda: as_numpy(fn(*values)),
        "trusted": lambda: as_numpy(trusting(*values)),
    }


def later_calls(subject: str, backends: list[str], seconds: float, is_pinned: bool) -> dict:
    """Later calls of a problem, in turns: µs by backend.

    Parameters
    ----------
    is_pinned
        Whether to pin the process to one core. Then the least times count. On all cores the median does: calls wait for threads.

    Returns
    -------
    dict
        `call` with NumPy arrays in and out, and `part`, the compiled part alone, or `call_pinned` and `part_pinned`.
    """
    if is_pinned and not pin_to_one_core():
        return {}
    problem, calls, end = make_problem(subject), {}, "_pinned" if is_pinned else ""
    for backend in backends:
        prepare(backend, Clock())
        fn = as_compile(backend, problem)
        as_numpy(fn(*problem.values))
        calls[backend, f"call{end}"] = partial(call_with_numpy, fn, problem.values)
        calls[backend, f"part{end}"] = part_alone(backend, fn, problem.values)
    with x64():
        if is_pinned:
            return by_backend(least_us(calls, seconds))
        return by_backend(median_of_turns_us(calls, seconds, settle=SETTLE_SECONDS_OF_SMALL))


def call_with_numpy(fn: Callable, values) -> list:
    """Call as a user does."""
    return as_numpy(fn(*values))


def part_alone(backend: str, fn: Callable, values) -> Callable[[], None]:
    """Return a function that calls the compiled part, and waits for it."""
    part, wait = take_apart(backend, fn, values), waiter(backend)
    return lambda: wait(part.part(*part.part_args))


def scan(subject: str, backends: list[str], seconds: float) -> dict:
    """Compare a loop in three backends within one process, for their ratio is what counts.

    Returns
    -------
    dict
        By backend: `call`, the least time of the compiled part in µs, and `first`, the time to the first result in s.
    """
    pin_to_one_core()
    problem, calls, first, results = make_problem(subject), {}, {}, []
    for backend in backends:
        prepare(backend, Clock())
        with x64():
            start = perf_counter()
            fn = as_compile(backend, problem)
            results.append(as_numpy(fn(*problem.values)))
            first[backend] = {"first": perf_counter() - start}
        for x, y in zip(results[-1], results[0], strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-9)
        calls[backend, "call"] = part_alone(backend, fn, problem.values)
    with x64():
        return {backend: found | first[backend] for backend, found in by_backend(least_us(calls, seconds)).items()}


def x64() -> AbstractContextManager:
    """The context in which all backends compute with 64 bits."""
    import jax

    return jax.enable_x64(True)


def by_backend(times: dict[tuple[str, str], float]) -> dict[str, dict[str, float]]:
    """Sort times by their backends."""
    result: dict = {}
    for (backend, name), time in times.items():
        result.setdefault(backend, {})[name] = time
    return result
