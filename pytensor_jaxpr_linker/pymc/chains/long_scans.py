"""Runs a function that has long scans some steps at a time, so that a bar can follow it and Ctrl-C can stop it.

BlackJAX's adaptations of MCLMC and ChEES are such functions: one call makes thousands of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex

from pytensor_jaxpr_linker.base.jax_compat import make_jaxpr_object, scan_counts
from pytensor_jaxpr_linker.jaxpr.builder import is_variable
from pytensor_jaxpr_linker.pymc.chains.random_keys import is_key

#: Scans of fewer steps run as a whole.
LEAST_STEPS = 20

#: Values, or other operands, by the variables of a Jaxpr.
type ByVariable = dict[Any, Any]


class Stage(NamedTuple):
    """A long scan, and the equations between it and the next one."""

    scan: jex.JaxprEqn
    then: list[jex.JaxprEqn]

    @property
    def length(self) -> int:
        """How many steps the scan has."""
        return self.scan.params["length"]

    @property
    def carried(self) -> list[jex.Var]:
        """The results that the scan carries from step to step."""
        return self.scan.outvars[: scan_counts(self.scan.params)[1]]


class CutFunction:
    """A function that is cut at its outermost long scans.

    Between two calls a state holds what the later one reads: it is a list of arrays, which has all of them from the beginning, zeros where nothing
    is computed yet.

    Parameters
    ----------
    function
        Takes pytrees of arrays.
    given
        Its first argument. Each call takes it anew, so that states hold no copy of it.
    args
        Its other arguments; for `go_on`, their shapes and dtypes do.

    Attributes
    ----------
    steps : int
        How many steps the long scans have together; if there are none, `begin` computes everything.
    results : int
        How many arrays the function returns. A state has them first, right after the last step.
    tree : jax.tree_util.PyTreeDef
        The structure of what the function returns.
    state_avals : list
        The types of the arrays of a state.

    Examples
    --------
    >>> import jax
    >>> from pytensor_jaxpr_linker.pymc.chains.long_scans import CutFunction
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
        closed, shape = jax.make_jaxpr(function, return_shape=True)(given, *args)
        inputs, known = closed.jaxpr.invars, jax.tree.leaves(given)
        self._fixed: ByVariable = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        self._fixed |= zip(inputs, known, strict=False)
        self._arguments: ByVariable = dict(zip(inputs[len(known) :], jax.tree.leaves(args), strict=True))
        renamed: ByVariable = {}
        self._first, self._stages = divided_at_scans(inlined(closed.jaxpr, renamed, self._fixed))
        outputs = [renamed.get(x, x) if is_variable(x) else x for x in closed.jaxpr.outvars]
        self._outputs, self._kept = outputs, kept_variables(self._stages, outputs, self._fixed)
        self.steps, self.results = sum(stage.length for stage in self._stages), len(outputs)
        self.tree = jax.tree.structure(shape)
        self.state_avals: list[Any] = [x.aval for x in [*self._outputs, *self._kept]]

    def begin(self) -> list:
        """Return the state before the first step."""
        nothing = [jax.numpy.zeros(x.shape, x.dtype) for x in self.state_avals]
        return self._after(-1, self._first, self._arguments, nothing)

    def go_on(self, begin: Any, end: Any, state: list) -> list:
        """Return the state before step `end`, from that before step `begin`. Both may be traced."""
        before = 0
        for i, stage in enumerate(self._stages):
            first, last = (jax.numpy.clip(n - before, 0, stage.length) for n in (begin, end))
            state = self._scanned(stage, first, last, state)
            has_ended = (first < last) & (last == stage.length)
            state = jax.lax.cond(has_ended, partial(self._ended, i), lambda x: x, state)
            before += stage.length
        return state

    def _values(self, state: list) -> ByVariable:
        """Return the values in a state."""
        return self._fixed | dict(zip(self._kept, state[self.results :], strict=True))

    def _scanned(self, stage: Stage, first: Any, last: Any, state: list) -> list:
        """Return the state after some steps of a scan."""
        scan, values = stage.scan, self._values(state)
        body, (n_consts, n_carried) = jex.jaxpr_as_fun(scan.params["jaxpr"]), scan_counts(scan.params)
        operands = [operand_value(x, values) for x in scan.invars]
        consts, xs = operands[:n_consts], operands[n_consts + n_carried :]
        stacked = [i for i, x in enumerate(scan.outvars) if i >= n_carried and x in values]

        def step(i: Any, now: tuple[list, list]) -> tuple[list, list]:
            row = stage.length - 1 - i if scan.params["reverse"] else i
            x = [jax.lax.dynamic_index_in_dim(x, row, 0, keepdims=False) for x in xs]
            found = body(*consts, *now[0], *x)
            rows = [
                jax.lax.dynamic_update_index_in_dim(y, found[j], row, 0) for y, j in zip(now[1], stacked, strict=True)
            ]
            return found[:n_carried], rows

        changing = [*scan.outvars[:n_carried]], [scan.outvars[i] for i in stacked]
        found = jax.lax.fori_loop(first, last, step, jax.tree.map(values.__getitem__, changing))
        values |= zip(jax.tree.leaves(changing), jax.tree.leaves(found), strict=True)
        return state[: self.results] + [values[x] for x in self._kept]

    def _ended(self, i: int, state: list) -> list:
        """Return the state when a scan has ended."""
        return self._after(i, self._stages[i].then, self._values(state), state)

    def _after(self, i: int, eqns: list[jex.JaxprEqn], values: ByVariable, state: list) -> list:
        """Return the state after the equations that follow the i-th scan, ready for the next one."""
        inputs, wanted = outer_operands(eqns), {*filter(is_variable, self._outputs), *self._kept}
        outputs = [x for eqn in eqns for x in eqn.outvars if x in wanted]
        values = self._fixed | values
        jaxpr = make_jaxpr_object([], inputs, outputs, eqns, [], "between_scans")
        found = jex.jaxpr_as_fun(jaxpr)(*(values[x] for x in inputs))
        values |= zip(outputs, found, strict=True)
        for stage in self._stages[i + 1 : i + 2]:
            initial = stage.scan.invars[scan_counts(stage.scan.params)[0] :]
            values |= {x: operand_value(y, values) for x, y in zip(stage.carried, initial, strict=False)}
        slots = zip([*self._outputs, *self._kept], state, strict=True)
        return [
            old if is_variable(x) and x not in values else as_type(operand_value(x, values), x.aval) for x, old in slots
        ]


def operand_value(atom: Any, values: ByVariable) -> Any:
    """Return the value of an operand."""
    return values[atom] if is_variable(atom) else atom.val


def as_type(value: Any, aval: Any) -> Any:
    """Return a value in exactly one dtype: not weakly typed, as literals are."""
    return value if is_key(value) else jax.lax.convert_element_type(value, aval.dtype)


def is_long(eqn: jex.JaxprEqn) -> bool:
    """Return whether an equation is a long scan."""
    return eqn.primitive.name == "scan" and eqn.params["length"] >= LEAST_STEPS


def has_long_scan(eqn: jex.JaxprEqn) -> bool:
    """Return whether an equation calls a Jaxpr that has a long scan."""
    return eqn.primitive.name == "jit" and any(
        is_long(inner) or has_long_scan(inner) for inner in eqn.params["jaxpr"].jaxpr.eqns
    )


def inlined(jaxpr: Any, renamed: ByVariable, consts: ByVariable) -> Iterator[jex.JaxprEqn]:
    """Return the equations of a Jaxpr, with those of the calls that have long scans in their place.

    Each variable gets a new one in `renamed`, for a Jaxpr may be called twice. Constants of the calls are added to `consts`.
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


def divided_at_scans(eqns: Iterable[jex.JaxprEqn]) -> tuple[list[jex.JaxprEqn], list[Stage]]:
    """Return the equations before the first long scan, and each long scan with those that follow it."""
    first: list[jex.JaxprEqn] = []
    found: list[Stage] = []
    for eqn in eqns:
        if is_long(eqn):
            found.append(Stage(eqn, []))
        else:
            (found[-1].then if found else first).append(eqn)
    return first, found


def outer_operands(eqns: Iterable[jex.JaxprEqn]) -> list[jex.Var]:
    """Return the variables that equations read and do not compute."""
    found: ByVariable = {}
    computed: set[jex.Var] = set()
    for eqn in eqns:
        found |= dict.fromkeys(x for x in eqn.invars if is_variable(x) and x not in computed)
        computed.update(eqn.outvars)
    return list(found)


def kept_variables(found: Sequence[Stage], outputs: Iterable[Any], given: Mapping) -> list[jex.Var]:
    """Return the variables that a state has to hold: what scans carry, and what one part reads of another."""
    read: ByVariable = {}
    for stage in found:
        read |= dict.fromkeys([*outer_operands([stage.scan]), *outer_operands(stage.then), *stage.carried])
    of_scans = {x for stage in found for x in stage.scan.outvars}
    read |= dict.fromkeys(x for x in outputs if is_variable(x) and x in of_scans)
    return [x for x in read if x not in given]
