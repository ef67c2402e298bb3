"""Small measurements: what building a Jaxpr costs for each equation, and what a call costs beyond its arithmetic."""

from collections.abc import Callable
from time import perf_counter

from backends import as_compile, as_numpy, on_device, prepare, scope, take_apart, waiter
from clock import Clock, median_us
from models import chain, small
from pytensor.graph.fg import FunctionGraph


def build_chain(nodes: int, backend: str) -> dict:
    """Time to get from a graph of `nodes` elementwise operations, taken as rewritten, to its Jaxpr.

    Returns
    -------
    dict
        `build_us` and `trace_us`: µs a node. Building is funcify in mode JAX, nothing in hand-written JAX, and all there
        is in mode JAXPR.
    """
    problem = chain(nodes)
    prepare(backend, Clock())
    fgraph = FunctionGraph(problem.inputs, problem.outputs, clone=True)
    build = {"jax": jax_build, "hand": lambda *_: problem.hand, "jaxpr": jaxpr_build}[backend]
    build(FunctionGraph(problem.inputs, [problem.inputs[0] + 1.0], clone=True), problem.values)
    start = perf_counter()
    fn = build(fgraph, problem.values)
    built = perf_counter()
    if backend != "jaxpr":
        import jax

        jax.jit(fn).trace(*on_device(problem.values))
    traced = perf_counter()
    return {"build_us": (built - start) / nodes * 1e6, "trace_us": (traced - built) / nodes * 1e6}


def jax_build(fgraph: FunctionGraph, _values) -> Callable:
    """Mode JAX's way: generate Python source that calls `jax.numpy`."""
    from pytensor.link.jax.dispatch import jax_funcify

    return jax_funcify(fgraph)


def jaxpr_build(fgraph: FunctionGraph, values):
    """This package's way: analysis and one walk that makes the equations; nothing is left to trace."""
    from pytensor_jaxpr_linker.inline import inline
    from pytensor_jaxpr_linker.lower import lower_region
    from pytensor_jaxpr_linker.partition import partition
    from pytensor_jaxpr_linker.registry import find_rule

    def rule(node):
        return find_rule(node.op)

    [region] = partition(inline(fgraph, rule), rule).regions
    return lower_region(region, values)


def host_step(size: int, backend: str, seconds: float) -> dict:
    """What a call costs in µs that computes on the device, sorts with NumPy, and computes on the device again.

    Returns
    -------
    dict
        `call`: NumPy array in and out. By hand: two functions of `jax.jit` and the transfers between them. `thunk`: what mode JAXPR
        runs of that, without PyTensor's own `Function.__call__`.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np
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

    prepare(backend, Clock())
    value = np.linspace(0.0, 1.0, size)
    if backend == "hand":
        first, second = jax.jit(lambda x: before(x, jnp)), jax.jit(lambda y: after(y, jnp))

        def call():
            with jax.enable_x64(True):
                return np.array(second(np.sort(np.asarray(first(value)))[::-1].copy()))
    else:
        x = pt.vector("x", shape=(size,), dtype="float64")
        f = pytensor.function([x], after(Descending()(before(x, pt)), pt), mode="JAXPR")

        def call():
            return f(value)

        def thunk():
            f.input_storage[0].storage[0] = value
            return f.vm()

    call()
    result = {"call": median_us(call, seconds)}
    return result if backend == "hand" else result | {"thunk": median_us(thunk, seconds)}


def dispatch(backend: str, seconds: float) -> dict:
    """What a warm call costs in µs for three inputs, two outputs and hardly any arithmetic.

    Returns
    -------
    dict
        `jit_device` and `jit_numpy`: the compiled part with device and with NumPy arrays, until results are ready;
        `thunk`: `f.vm()`, that is storage, the compiled part and results stored; `function`: the whole `Function`, and
        `trusted`: the same with `trust_input=True`. The last three until results are NumPy arrays.
    """
    problem = small()
    values = problem.values
    prepare(backend, Clock())
    fn = as_compile(backend, problem)
    wait, result = waiter(backend), {}
    as_numpy(fn(*values))
    part = fn if backend == "hand" else fn.vm.jit_fn
    with scope(backend):
        if backend != "numba":
            args = on_device(values)
            result["jit_device"] = median_us(lambda: wait(part(*args)), seconds)
        result["jit_numpy"] = median_us(lambda: wait(part(*values)), seconds)
        result["jit_results"] = median_us(lambda: as_numpy(part(*values)), seconds)
    if backend == "hand":
        return result
    result["function"] = median_us(lambda: as_numpy(fn(*values)), seconds)
    fn.trust_input = True
    result["trusted"] = median_us(lambda: as_numpy(fn(*values)), seconds)
    for container, value in zip(fn.input_storage, values, strict=True):
        container.storage[0] = value
    outputs = [container.storage for container in fn.output_storage]

    def thunk():
        fn.vm()
        return as_numpy([storage[0] for storage in outputs])

    result["thunk"] = median_us(thunk, seconds)
    return result


def scan(subject: str, seconds: float) -> dict:
    """Compare a loop in three backends within one process, for their ratio is what counts.

    The calls take turns, and the least time of each counts: what else the machine does only adds to it.

    Returns
    -------
    dict
        By backend: `call`, the least time of the compiled part in µs, and `first`, the time to the first result in s.
    """
    import jax
    import numpy as np
    from scans import parse

    problem, result, parts = parse(subject), {}, {}
    backends = ("jaxpr", "jax", "hand")
    want = None
    for backend in backends:
        prepare(backend, Clock())
        with jax.enable_x64(True):
            start = perf_counter()
            fn = as_compile(backend, problem)
            got = as_numpy(fn(*problem.values))
            result[backend] = {"first": perf_counter() - start, "call": float("inf")}
        want = want or got
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-9)
        parts[backend] = take_apart(backend, fn, problem.values)
    until, rounds = perf_counter() + 3 * seconds, 0
    while rounds < 20 or perf_counter() < until:
        rounds += 1
        for backend in backends:
            part, wait = parts[backend], waiter(backend)
            with scope("jaxpr"):
                for _ in range(3):
                    start = perf_counter()
                    wait(part.part(*part.part_args))
                    result[backend]["call"] = min(result[backend]["call"], 1e6 * (perf_counter() - start))
    return result
