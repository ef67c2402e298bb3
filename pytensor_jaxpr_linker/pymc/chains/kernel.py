"""A Markov chain as a pair of JAX functions, which all samplers that are JAX programs give.

`ChainFunctions` are its functions as programs have them. BlackJAX's adaptations of MCLMC and ChEES make thousands of
steps in one call: `CutFunction` runs them some steps at a time, so that a bar can follow and Ctrl-C can stop them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import numpy as np

from pytensor_jaxpr_linker.base.jax_compat import make_jaxpr_object, scan_counts
from pytensor_jaxpr_linker.jaxpr.builder import is_variable

#: The generator whose keys chains have, by its name in JAX.
KEYS = "threefry2x32"
#: Scans of fewer steps run as a whole.
LEAST_STEPS = 20

#: Values, or other operands, by the variables of a Jaxpr.
type ByVariable = dict[Any, Any]
#: The structure of a state, and which of its leaves are random keys.
type StateLayout = tuple[Any, list[bool]]


class Kernel(NamedTuple):
    """A Markov chain that adapts itself.

    Its arguments may be inputs of programs, so it is made where its functions are traced.
    """

    start: Callable[[Any, Any, Any], Any]
    """Maps data, a key and a position to the state of a chain."""
    transition: Callable[[Any, Any], tuple[Any, tuple[dict, dict]]]
    """Maps data and a state to the new state, and the position and statistics of this draw."""
    has_warmup: bool = True
    """Whether the first transitions, as many as ``tune``, adapt the chain, so are not kept. Else `start` adapts it."""
    is_ensemble: bool = False
    """Whether both functions take all chains at once, along a first axis of keys, positions, states and draws."""
    first_evaluates: bool = False
    """Whether the first transition stays where the chain starts, and gives it the log density and its gradient; it is
    neither warm-up nor a draw. Then one program has the model: XLA would compile it once more for a `start` that
    evaluates it."""


class AboutChain(NamedTuple):
    """The facts about a chain that tracing its start shows: two of `Kernel`, and two about its tuning.

    `tuning` steps of the start are left to the function that tunes. Then the first `results` arrays of a state are
    left.
    """

    has_warmup: bool
    first_evaluates: bool
    tuning: int
    results: int


def without_keys(state: Any) -> tuple[list, StateLayout]:
    """Return the leaves of a state, with numbers in place of random keys, for programs and files."""
    leaves, tree = jax.tree.flatten(state)
    are_keys = [is_key(x) for x in leaves]
    return [jax.random.key_data(x) if k else x for x, k in zip(leaves, are_keys, strict=True)], (tree, are_keys)


def with_keys(leaves: list, layout: StateLayout) -> Any:
    """Return a state from the results of `without_keys`."""
    tree, are_keys = layout
    keys = (jax.random.wrap_key_data(x, impl=KEYS) if k else x for x, k in zip(leaves, are_keys, strict=True))
    return jax.tree.unflatten(tree, keys)


class ChainFunctions:
    """The functions that start a chain by the data of its key, tune it, and make transitions.

    Each takes the shared data and the arguments of a kernel that are inputs. Between them a state is a flat list of
    arrays: a kernel has classes and keys of its own in it. `about` is known when `start` has been traced.

    Parameters
    ----------
    make_kernel
        Returns the kernel, from the inputs.
    most
        How many transitions the outputs of `advance` have room for.
    in_steps
        Whether a call makes as many steps of the tuning, or transitions, as are given. Else `start` makes the whole
        tuning, and `advance` makes `most` transitions.
    """

    def __init__(self, make_kernel: Callable[..., Kernel], most: int, in_steps: bool = True):
        self._make, self._most, self._in_steps = make_kernel, most, in_steps
        self._start_args: Any = None
        self._begun: Any = None
        self._ready: Any = None
        self.about: Any = None

    def start(self, given: tuple[dict, dict], key: Any, position: dict) -> list:
        """Return the state of a chain, before the first step of its tuning if it has one."""
        kernel, steps = self._make(**given[1]), 0
        args = jax.random.wrap_key_data(key, impl=KEYS), position
        if kernel.has_warmup or not self._in_steps:
            ready = begun = self._started(given, *args)
        else:
            cut = CutFunction(self._started, given, *args)
            steps, begun = cut.steps, cut.begin()
            ready = jax.tree.unflatten(cut.tree, begun[: cut.results])
        self._start_args = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args)
        (leaves, self._begun), (first, self._ready) = without_keys(begun), without_keys(ready)
        self.about = AboutChain(kernel.has_warmup, kernel.first_evaluates, steps, len(first))
        return leaves

    def _started(self, given: tuple[dict, dict], key: Any, position: dict) -> Any:
        """Return the state that the kernel starts with."""
        data, inputs = given
        return self._make(**inputs).start(data, key, position)

    def tune(self, given: tuple[dict, dict, Any, Any], leaves: list) -> list:
        """Return the state before the last of the given steps of the tuning, from the state before the first."""
        data, inputs, begin, end = given
        cut = CutFunction(self._started, (data, inputs), *self._start_args)
        return without_keys(cut.go_on(begin, end, with_keys(leaves, self._begun)))[0]

    def advance(self, given: tuple[dict, dict, Any], leaves: list) -> tuple[list, tuple[dict, dict]]:
        """Return the state after a given number of transitions, and their positions and statistics.

        The arrays of these have room for `most` transitions.
        """
        data, inputs, count = given
        kernel = self._make(**inputs)
        state = with_keys(leaves, self._ready)
        if not self._in_steps:
            state, outputs = jax.lax.scan(lambda s, _: kernel.transition(data, s), state, length=self._most)
            return without_keys(state)[0], outputs
        transition = jax.jit(kernel.transition)  # is traced once, for the shapes of its outputs and in the loop
        _, one = jax.eval_shape(transition, data, state)
        room = jax.tree.map(lambda x: jax.numpy.zeros((self._most, *x.shape), x.dtype), one)

        def step(i: Any, loop: tuple) -> tuple:
            state, outputs = loop
            state, one = transition(data, state)
            store = jax.lax.dynamic_update_index_in_dim
            return state, jax.tree.map(lambda xs, x: store(xs, x, i, 0), outputs, one)

        state, outputs = jax.lax.fori_loop(0, count, step, (state, room))
        if kernel.is_ensemble:
            outputs = jax.tree.map(lambda x: jax.numpy.swapaxes(x, 0, 1), outputs)
        return without_keys(state)[0], outputs


class CutFunction:
    """A function that is cut at its outermost long scans.

    Between two calls a state holds the arrays that the later call reads. It is a list that has all of them from the
    beginning, of the types `state_avals`, zeros where nothing is computed yet. The `results` of the function, whose
    structure is `tree`, come first, right after the last step. The long scans have `steps` steps together; if there are
    none, `begin` computes everything.

    Parameters
    ----------
    function
        Takes pytrees of arrays.
    given
        Its first argument. Each call takes it anew, so that states hold no copy of it.
    args
        Its other arguments; for `go_on`, their shapes and dtypes do.

    Examples
    --------
    >>> import jax
    >>> from pytensor_jaxpr_linker.pymc.chains.kernel import CutFunction
    >>> def power(base, start):
    ...     return jax.lax.scan(lambda x, _: (base * x, None), start, length=30)[0]
    >>> cut = CutFunction(power, 2.0, 1.0)
    >>> state = cut.begin()
    >>> for first in range(0, cut.steps, 10):
    ...     state = cut.go_on(first, first + 10, state)
    >>> float(state[0])
    1073741824.0
    """

    def __init__(self, function: Callable, given: Any, *args: Any):
        def traced(*args: Any) -> Any:
            # Behind the barrier each result is a variable of its own, not a literal or an argument.
            return jax.lax.optimization_barrier(function(*args))

        closed, shape = jax.make_jaxpr(traced, return_shape=True)(given, *args)
        inputs, known, renamed = closed.jaxpr.invars, jax.tree.leaves(given), dict[Any, Any]()
        self._fixed: ByVariable = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        self._fixed |= zip(inputs, known, strict=False)
        self._arguments: ByVariable = dict(zip(inputs[len(known) :], jax.tree.leaves(args), strict=True))
        self._scans: list[jex.JaxprEqn] = []
        #: The equations before each scan, and after the last one.
        self._between: list[list[jex.JaxprEqn]] = [[]]
        for eqn in inlined(closed.jaxpr, renamed, self._fixed):
            if is_long(eqn):
                self._scans.append(eqn)
                self._between.append([])
            else:
                self._between[-1].append(eqn)
        kept = dict.fromkeys(renamed[x] for x in closed.jaxpr.outvars)
        self.results, self.tree = len(kept), jax.tree.structure(shape)
        for scan, then in zip(self._scans, self._between[1:], strict=True):
            read = [*outer_operands([scan]), *outer_operands(then), *carried(scan)]
            kept |= dict.fromkeys(x for x in read if x not in self._fixed)
        self._kept, self.state_avals = list(kept), [x.aval for x in kept]
        self.steps = sum(scan.params["length"] for scan in self._scans)

    def begin(self) -> list:
        """Return the state before the first step."""
        return self._after(0, [jax.numpy.zeros(x.shape, x.dtype) for x in self.state_avals], self._arguments)

    def go_on(self, begin: Any, end: Any, state: list) -> list:
        """Return the state before step `end` from the state before step `begin`. Both may be traced."""
        before = 0
        for i, scan in enumerate(self._scans, 1):
            length = scan.params["length"]
            first, last = (jax.numpy.clip(n - before, 0, length) for n in (begin, end))
            state = self._scanned(scan, first, last, state)
            has_ended = (first < last) & (last == length)
            state = jax.lax.cond(has_ended, partial(self._after, i), lambda x: x, state)
            before += length
        return state

    def _values(self, state: list) -> ByVariable:
        """Return the values in a state, and the fixed ones."""
        return self._fixed | dict(zip(self._kept, state, strict=True))

    def _scanned(self, scan: jex.JaxprEqn, first: Any, last: Any, state: list) -> list:
        """Return the state after some steps of a scan."""
        values, (n_consts, n_carried) = self._values(state), scan_counts(scan.params)
        body, operands = jex.jaxpr_as_fun(scan.params["jaxpr"]), [operand_value(x, values) for x in scan.invars]
        consts, xs = operands[:n_consts], operands[n_consts + n_carried :]
        stacked = [i for i, x in enumerate(scan.outvars) if i >= n_carried and x in values]

        def step(i: Any, now: tuple[list, list]) -> tuple[list, list]:
            row = scan.params["length"] - 1 - i if scan.params["reverse"] else i
            x = [jax.lax.dynamic_index_in_dim(x, row, 0, keepdims=False) for x in xs]
            found = body(*consts, *now[0], *x)
            rows = [
                jax.lax.dynamic_update_index_in_dim(y, found[j], row, 0) for y, j in zip(now[1], stacked, strict=True)
            ]
            return found[:n_carried], rows

        changing = carried(scan), [scan.outvars[i] for i in stacked]
        found = jax.lax.fori_loop(first, last, step, jax.tree.map(values.__getitem__, changing))
        values |= zip(jax.tree.leaves(changing), jax.tree.leaves(found), strict=True)
        return [values[x] for x in self._kept]

    def _after(self, i: int, state: list, arguments: ByVariable | None = None) -> list:
        """Return the state after the equations before the i-th scan, ready for that scan."""
        values, eqns = self._values(state) | (arguments or {}), self._between[i]
        inputs, outputs = outer_operands(eqns), [x for eqn in eqns for x in eqn.outvars if x in values]
        jaxpr = make_jaxpr_object([], inputs, outputs, eqns, [], "between_scans")
        values |= zip(outputs, jex.jaxpr_as_fun(jaxpr)(*(values[x] for x in inputs)), strict=True)
        for scan in self._scans[i : i + 1]:
            initial = scan.invars[scan_counts(scan.params)[0] :]
            values |= {x: operand_value(y, values) for x, y in zip(carried(scan), initial, strict=False)}
        # Values of exactly these dtypes, not weakly typed, as literals are.
        found = [(values[x], x.aval.dtype) for x in self._kept]
        return [x if is_key(x) else jax.lax.convert_element_type(x, dtype) for x, dtype in found]


def operand_value(atom: Any, values: ByVariable) -> Any:
    """Return the value of an operand."""
    return values[atom] if is_variable(atom) else atom.val


def is_key(value: Any) -> bool:
    """Return whether a value is a key of `jax.random`, or several."""
    return jax.dtypes.issubdtype(getattr(value, "dtype", np.float64), jax.dtypes.prng_key)


def carried(scan: jex.JaxprEqn) -> list[jex.Var]:
    """Return the results that a scan carries from step to step."""
    return scan.outvars[: scan_counts(scan.params)[1]]


def is_long(eqn: jex.JaxprEqn) -> bool:
    """Return whether an equation is a long scan."""
    return eqn.primitive.name == "scan" and eqn.params["length"] >= LEAST_STEPS


def has_long_scan(eqn: jex.JaxprEqn) -> bool:
    """Return whether an equation calls a Jaxpr that has a long scan."""
    return eqn.primitive.name == "jit" and any(
        is_long(inner) or has_long_scan(inner) for inner in eqn.params["jaxpr"].jaxpr.eqns
    )


def inlined(jaxpr: Any, renamed: ByVariable, consts: ByVariable) -> Iterator[jex.JaxprEqn]:
    """Yield the equations of a Jaxpr. Calls of Jaxprs that have long scans are inlined.

    Each variable gets a new one in `renamed`, for a Jaxpr may be called twice. Constants of the calls are added to
    `consts`.
    """

    def rename(atom: Any) -> Any:
        return renamed.get(atom, atom) if is_variable(atom) else atom

    for eqn in jaxpr.eqns:
        operands = [rename(x) for x in eqn.invars]
        if has_long_scan(eqn):
            called = eqn.params["jaxpr"]
            inner = dict(zip(called.jaxpr.invars, operands, strict=True))
            inner |= {x: jex.Var(x.aval) for x in called.jaxpr.constvars}
            consts |= {inner[x]: value for x, value in zip(called.jaxpr.constvars, called.consts, strict=True)}
            yield from inlined(called.jaxpr, inner, consts)
            results = [inner.get(x, x) if is_variable(x) else x for x in called.jaxpr.outvars]
            renamed |= zip(eqn.outvars, results, strict=True)
        else:
            renamed |= {x: jex.Var(x.aval) for x in eqn.outvars}
            yield eqn.replace(invars=operands, outvars=[renamed[x] for x in eqn.outvars])


def outer_operands(eqns: Iterable[jex.JaxprEqn]) -> list[jex.Var]:
    """Return the variables that equations read and do not compute."""
    found: ByVariable = {}
    computed: set[jex.Var] = set()
    for eqn in eqns:
        found |= dict.fromkeys(x for x in eqn.invars if is_variable(x) and x not in computed)
        computed.update(eqn.outvars)
    return list(found)
