"""`JaxprBuilder`: collects equations at one insertion point, as the builders in JAX's ``autodidax`` and MLIR do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import numpy as np
from jax.extend.core import JaxprEqn, Literal, Var, no_effects
from jax.extend.core import primitives as p

from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.interpreter import identity
from pytensor_jaxpr_linker.base.passes import Pass, run_passes
from pytensor_jaxpr_linker.jaxpr.traits import Trait, having

#: A value inside a Jaxpr.
type Atom = Any  # a `jax.extend.core.Var` or `Literal`; JAX declares their avals without shape and dtype
type Shape = tuple[int, ...]

#: Takes the builder, an equation's operands, the abstract value of its result, and its params; returns an atom with the
#: result's value, or None.
type Peephole = Callable[[JaxprBuilder, Sequence[Atom], Any, dict], Atom | None]

BOOL, INT32 = np.dtype(bool), np.dtype("int32")

#: Both orders of their operands are one equation.
COMMUTATIVE = having(Trait.COMMUTATIVE)


def conversion_to(dtype: np.dtype) -> dict[str, Any]:
    """Return the params of a conversion, which symbolic dimensions need, too."""
    return {"new_dtype": dtype, "weak_type": False, "sharding": None}


class Check(NamedTuple):
    """A run-time check: the error if its condition is false."""

    make_error: Callable[[], Exception]
    node: Any


class ElementwiseFunction(NamedTuple):
    """A function of the elements of arrays, as one call."""

    jaxpr: Any  #: the closed Jaxpr of the call
    key: tuple  #: equal for the same function
    emit: Callable[..., Atom]  #: emits the function of other operands: ``emit(b, *operands)``


class JaxprBuilder:
    """Collects the equations of one Jaxpr.

    Equal equations are shared: binding the same primitive to the same operands with the same params returns the
    variables that the first one defined.

    Parameters
    ----------
    name : str
        What the Jaxpr is called in JAX's messages.
    checked : bool
        Whether run-time checks are recorded. If not, out-of-bounds reads give NaN (the largest negative integer) as
        `jax.numpy`'s ``mode="fill"`` does.
    parent : JaxprBuilder, optional
        The builder of the Jaxpr around this one.
    differentiable : bool
        Whether JAX differentiates the Jaxpr: then branches that are not taken get the derivative 0, see
        `branch_guards`.
    for_jax : bool
        Whether JAX transforms the Jaxpr, and may divide arrays over devices: then arrays of several values are not put
        together.
    passes : sequence of Pass
        What `build` does with the equations. A builder inside this one has the same.
    peepholes : dict
        How equations simplify when they are added, by primitive. A builder inside this one has the same.

    Examples
    --------
    >>> import numpy as np
    >>> from pytensor_jaxpr_linker import JaxprBuilder, prims
    >>> b = JaxprBuilder()
    >>> x = b.input((3,), np.dtype("float32"), "x")
    >>> two = b.constant(np.float32(2))
    >>> print(b.build([prims.mul(b, prims.exp(b, x), two)]))
    { lambda ; a:f32[3]. let b:f32[3] = exp a; c:f32[3] = mul b 2.0:f32[] in (c,) }
    """

    def __init__(
        self,
        name: str = "pytensor_function",
        checked: bool = False,
        parent: JaxprBuilder | None = None,
        differentiable: bool = False,
        for_jax: bool = False,
        passes: Sequence[Pass] | None = None,
        peepholes: Mapping[jex.Primitive, Peephole] = MappingProxyType({}),
    ):
        self.name = name
        self.checked, self.differentiable, self.for_jax = checked, differentiable, for_jax
        self.is_inner = parent is not None
        self.passes: Sequence[Pass] = parent.passes if parent else (DEAD_CODE,) if passes is None else passes
        self.peepholes: Mapping[jex.Primitive, Peephole] = parent.peepholes if parent else peepholes
        self.invars: list[Var] = []
        self.arg_names: list[str] = []
        self.constvars: list[Var] = []
        self.consts: list[np.ndarray] = []
        self.eqns: list[JaxprEqn] = []
        #: What the Jaxpr returns. Passes may rely on it.
        self.outputs: Sequence[Atom] = ()
        self.checks: list[Check] = parent.checks if parent else []
        self._check_codes: list[tuple[Atom, int | None]] = []
        self._shared: dict[tuple, list[Var]] = {}
        self._definitions: dict[Var, JaxprEqn] = {}
        self._known: dict[Var, np.ndarray] = {}
        #: The number that each broadcast number repeats.
        self.repeated: dict[Var, Atom] = {}
        #: Variables that are proved to be never negative, see `signs`.
        self.never_negative: set[Var] = set()
        #: What calls of elementwise functions compute, by the id of their Jaxpr.
        self.functions: dict[int, ElementwiseFunction] = {}
        self._constants: dict[int, tuple[np.ndarray, Any]] = {}
        self._literals: dict[tuple, Literal] = {}
        self._derived: dict[tuple, Atom] = {}
        self._avals: dict[tuple, jax.core.ShapedArray] = {}
        # Asking JAX's settings for it takes as long as the rest of an equation.
        self._ctx: Any = parent._ctx if parent else jax_compat.equation_context()
        self._source_info: Any = parent._source_info if parent else jax_compat.source_info()

    # -- inputs and constants ------------------------------------------------------------------------------------------

    def aval(self, shape: Shape, dtype: np.dtype) -> jax.core.ShapedArray:
        """Return the abstract value of an array of that shape and dtype."""
        key = (shape, dtype)
        try:
            return self._avals[key]
        except KeyError:
            aval = self._avals[key] = jax.core.ShapedArray(shape, dtype)
            return aval

    def input(self, shape: Shape, dtype: np.dtype, name: str = "") -> Var:
        """Add an input."""
        var = Var(self.aval(tuple(shape), dtype))
        self.invars.append(var)
        self.arg_names.append(name or f"arg{len(self.invars) - 1}")
        return var

    def constant(self, value: Any, dtype: Any = None) -> Atom:
        """Return an atom that holds `value`.

        A scalar becomes a literal, an array a constant of the Jaxpr, and so part of the program. A symbolic dimension
        of `jax.export` becomes its value at run time.
        """
        if type(value) is jax_compat.SymbolicDim:
            return self._dimension(value, np.dtype(dtype or "int64"))
        array = np.asarray(value, dtype)
        if array.ndim == 0:
            key = (array.dtype, array.tobytes())
            literal = self._literals.get(key)
            if literal is None:
                # `array[()]` is a NumPy scalar: unlike a Python number it keeps its dtype when a Jaxpr is evaluated.
                literal = self._literals[key] = Literal(array[()], self.aval((), array.dtype))
            return literal
        # The array is kept with its variable: as long as it lives, its id is its own.
        cached = self._constants.get(identity(value))
        if cached is not None and cached[1].aval.dtype == array.dtype:
            return cached[1]
        var = Var(self.aval(array.shape, array.dtype))
        self.constvars.append(var)
        self.consts.append(array)
        self._constants[identity(value)] = (value, var)
        self._known[var] = array
        return var

    def _dimension(self, dim: Any, dtype: np.dtype) -> Atom:
        (value,) = self.bind_many(jax_compat.dim_as_value_p, (), (jax_compat.dim_value_aval(),), {"dim": dim})
        return self.bind(p.convert_element_type_p, (value,), (), dtype, conversion_to(dtype))

    def constant_of(self, make: Callable[[], np.ndarray], atoms: Iterable[Atom], how: tuple) -> Atom:
        """Return the constant that `make` computes from the known values of `atoms`, once for each `how`."""
        key = (*[atom if type(atom) is Var else identity(atom) for atom in atoms], *how)
        if key not in self._derived:
            self._derived[key] = self.constant(make())
        return self._derived[key]

    def known(self, atom: Atom) -> Any:
        """Return the value of a constant, or None for a computed atom."""
        if isinstance(atom, Literal):
            return np.asarray(atom.val)
        return self._known.get(atom)

    def remember(self, atom: Atom, value: np.ndarray) -> Atom:
        """Note the known value of an emitted atom, so that rules can rely on it; returns the atom."""
        if isinstance(atom, Var):
            self._known[atom] = value
        return atom

    def definition(self, atom: Atom, primitive: jex.Primitive | None = None) -> Any:
        """Return the equation that defines `atom`, if its primitive is `primitive` where one is given."""
        eqn = self._definitions.get(atom) if type(atom) is Var else None
        return eqn if eqn is not None and primitive in (None, eqn.primitive) else None

    # -- equations -----------------------------------------------------------------------------------------------------

    def at(self, *names: str) -> None:
        """Put the following equations under these names (PyTensor node, user's variable), the outermost first."""
        self._source_info = jax_compat.source_info(names)

    def at_names_of(self, eqn: JaxprEqn) -> None:
        """Put the following equations under the names of an equation."""
        self._source_info = eqn.source_info

    def restart(self, eqn: JaxprEqn | None = None) -> None:
        """Forget the equations, so that a pass can add others, under the names of `eqn`; inputs and constants stay."""
        self.eqns = []
        self._shared.clear()
        if eqn is not None:
            self.at_names_of(eqn)

    def ending_in(self, outvars: Sequence[Var]) -> list[JaxprEqn]:
        """Return the equations since `restart`, of which the last now defines `outvars` in place of another one."""
        *before, last = self.eqns
        last = last.replace(outvars=list(outvars))
        self._definitions.update(dict.fromkeys(last.outvars, last))
        return [*before, last]

    def bind(
        self, primitive: jex.Primitive, operands: Sequence[Atom], shape: Shape, dtype: np.dtype, params: dict
    ) -> Atom:
        """Add an equation with one result of the stated shape and dtype, or the result of a peephole."""
        aval = self.aval(shape, dtype)
        peephole = self.peepholes.get(primitive)
        if peephole is not None and (found := peephole(self, operands, aval, params)) is not None:
            return found
        return self.bind_many(primitive, operands, (aval,), params)[0]

    def bind_many(
        self, primitive: jex.Primitive, operands: Sequence[Atom], avals: Sequence[Any], params: dict
    ) -> list[Var]:
        """Add an equation, or return the results of an equal one that is there already.

        The caller states `avals`, the abstract values of the results: asking each primitive for them costs ten times
        the rest. `params` are complete; `prims` is the only module that spells them.
        """
        # Literals have no hash. The builder keeps one of each value, so its id stands for it.
        atoms = [atom if type(atom) is Var else identity(atom) for atom in operands]
        if primitive in COMMUTATIVE and hash(atoms[0]) > hash(atoms[1]):
            atoms.reverse()
        key: tuple = (primitive, *atoms, *params.values()) if params else (primitive, *atoms)
        try:
            results = self._shared.get(key)
        except TypeError:  # unhashable params
            results, key = None, ()
        if results is not None:
            return results
        results = [Var(aval) for aval in avals]
        eqn = JaxprEqn(list(operands), results, primitive, params, no_effects, self._source_info, self._ctx)
        self.eqns.append(eqn)
        for var in results:
            self._definitions[var] = eqn
        if key:
            self._shared[key] = results
        return results

    def copy(self, eqn: JaxprEqn, env: dict[Any, Atom]) -> None:
        """Add an equation without effects of another Jaxpr; `env` maps its variables to atoms, and gets the results."""
        atoms: list[Atom] = eqn.invars
        operands = [env[x] if type(x) is Var else self.constant(x.val, x.aval.dtype) for x in atoms]
        self._source_info = eqn.source_info
        avals = [var.aval for var in eqn.outvars]
        env.update(zip(eqn.outvars, self.bind_many(eqn.primitive, operands, avals, eqn.params), strict=True))

    def inline(self, closed: Any, operands: Sequence[Atom]) -> list[Atom]:
        """Add the equations of a closed Jaxpr, see `copy`, and return the atoms of its results."""
        env: dict[Any, Atom] = dict(zip(closed.jaxpr.invars, operands, strict=True))
        for var, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            env[var] = self.constant(value, var.aval.dtype)
        for eqn in closed.jaxpr.eqns:
            self.copy(eqn, env)
        return [env[x] if type(x) is Var else self.constant(x.val, x.aval.dtype) for x in closed.jaxpr.outvars]

    def extend(self, eqn: JaxprEqn, operands: Sequence[Atom], avals: Sequence[Any], params: dict) -> list[Var]:
        """Append results to an equation, and return them. The new operands must be defined before the equation."""
        results = [Var(aval) for aval in avals]
        new = eqn.replace(invars=list(operands), outvars=[*eqn.outvars, *results], params=params)
        self.eqns[next(i for i, e in enumerate(self.eqns) if e is eqn)] = new
        self._definitions.update(dict.fromkeys(new.outvars, new))
        return results

    def sub_jaxpr(self, avals: Sequence[Any], has_derivative: bool = False) -> tuple[JaxprBuilder, list[Atom]]:
        """Return a builder for a Jaxpr inside this one (a branch, a loop body), and its inputs.

        Both share the list of run-time checks, so a check code means the same in both. With `has_derivative`, the call
        of the inner Jaxpr has a derivative of its own, and JAX never differentiates its equations.
        """
        child = JaxprBuilder(self.name, self.checked, self, self.differentiable and not has_derivative, self.for_jax)
        return child, [child.input(aval.shape, aval.dtype) for aval in avals]

    # -- run-time checks -----------------------------------------------------------------------------------------------

    def check(self, ok: Atom, make_error: Callable[[], Exception], node: Any = None) -> None:
        """Make the caller of the Jaxpr raise `make_error()` if `ok`, a boolean scalar, turns out false."""
        if not self.checked:
            return
        if (value := self.known(ok)) is not None and value:
            return
        self.checks.append(Check(make_error, node))
        self._check_codes.append((ok, len(self.checks)))

    def check_code_of(self, code: Atom) -> None:
        """Pass on the check code, an int32 scalar, that a Jaxpr inside this one returned."""
        self._check_codes.append((code, None))

    def check_code(self) -> Atom:
        """Return an int32 scalar: 0 if every check holds, else the 1-based number of the first that failed."""
        total = zero = self.constant(np.int32(0))
        for atom, number in reversed(self._check_codes):
            if number is None:
                ok, code = self.bind(p.eq_p, (atom, zero), (), BOOL, {}), atom
            else:
                ok, code = atom, self.constant(np.int32(number))
            total = self.bind(p.select_n_p, (ok, code, total), (), INT32, {})
        return total

    # -- the result ----------------------------------------------------------------------------------------------------

    def build(self, outputs: Sequence[Atom]) -> Any:
        """Run the passes on the equations and return the closed Jaxpr. Its inputs are in the order of `input` calls."""
        self.outputs = outputs
        eqns = run_passes(
            self.passes, self.eqns, self, parts=lambda eqns: eqns, show=lambda eqns: str(self._jaxpr(eqns))
        )
        return self._jaxpr(eqns)

    def _jaxpr(self, eqns: list[JaxprEqn]) -> Any:
        """Return the closed Jaxpr of equations, with the constants that they read."""
        outputs, read = self.outputs, set[Atom]()
        if self.constvars:
            read.update(x for atoms in (outputs, *(eqn.invars for eqn in eqns)) for x in atoms if type(x) is Var)
        constants = [pair for pair in zip(self.constvars, self.consts, strict=True) if pair[0] in read]
        jaxpr = jax_compat.make_jaxpr_object(
            [var for var, _ in constants],
            self.invars,
            list(outputs),
            eqns,
            [value for _, value in constants],
            self.name,
            self.arg_names,
        )
        # The rules of JAX's control-flow primitives take no subclass.
        return jaxpr if self.is_inner else jax_compat.NamedJaxpr(jaxpr, jaxpr.consts)


def is_variable(atom: Atom) -> bool:
    """Return whether an atom is a variable, not a literal."""
    return type(atom) is Var


def with_operands(eqn: Any, replaced: Mapping[Any, Atom]) -> Any:
    """Return an equation with other operands."""
    if replaced.keys().isdisjoint(filter(is_variable, eqn.invars)):
        return eqn
    return eqn.replace(invars=[replaced.get(x, x) if is_variable(x) else x for x in eqn.invars])


def live_equations(eqns: Sequence[JaxprEqn], outputs: Sequence[Atom]) -> tuple[list[JaxprEqn], set[Atom]]:
    """Return the equations that `outputs` need, in order, and the variables that they and the outputs read."""
    read: set[Atom] = {atom for atom in outputs if type(atom) is Var}
    live = []
    for eqn in reversed(eqns):
        if not read.isdisjoint(eqn.outvars):
            live.append(eqn)
            read.update([atom for atom in eqn.invars if type(atom) is Var])
    live.reverse()
    return live, read


def drop_dead_code(eqns: list[JaxprEqn], b: JaxprBuilder) -> list[JaxprEqn]:
    """Return the equations that the outputs need."""
    live, _ = live_equations(eqns, b.outputs)
    return eqns if len(live) == len(eqns) else live


DEAD_CODE = Pass("dead code", drop_dead_code)
