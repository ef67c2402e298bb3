"""PyTensor's gradient as the derivative of a JAX function.

PyTensor's pullback is JAX's vector-Jacobian product, so the derivative of a function is a second graph, of the inputs
and a cotangent for each output. It is built when JAX first asks for it, from the canonical and stable form of the
user's graph (see `pregrad`).

Most functions that are differentiated return one number, such as a log density. One graph computes the number and its
gradient, so that loops and factorizations that both need are there once, as in PyTensor's own functions; the pullback
is a product with the cotangent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero
from pytensor import config
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import view_op
from pytensor.gradient import DisconnectedType, GradClip, NullTypeGradError, UndefinedGrad, grad
from pytensor.graph.basic import Variable
from pytensor.graph.null_type import NullType
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import ancestors

from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.base.errors import GraphBreakError
from pytensor_jaxpr_linker.frontend.kept_graphs import Original
from pytensor_jaxpr_linker.frontend.pregrad import pregrad

FORWARD_MODE = (
    "JAX runs PyTensor's gradient in reverse mode only: forward mode (jvp, jacfwd, hessian, linearize) is supported by"
    ' `as_jax_function(..., gradient="jax")`, of a model by `logdensity(model, gradient="jax")`: they differentiate by'
    " the rules of JAX."
)

BREAK_IN_GRADIENT = 'The node is part of the gradient. With `gradient="jax"` JAX differentiates the function.'


#: A JAX function, and the function that makes it of a graph's inputs and outputs.
type JaxCall = Callable[..., list]
type Build = Callable[[list[Variable], list[Variable]], JaxCall]


class Pullback(NamedTuple):
    """A graph's pullback from some of its outputs to some of its inputs."""

    call: JaxCall
    """A JAX function of all inputs and the outputs' cotangents, which returns the inputs' cotangents at `defined`."""
    defined: list[int]
    """The positions of the inputs that have a cotangent. Others have zero, unless they are among `undefined`."""
    undefined: dict[int, str]
    """The positions of inputs for which PyTensor defines no gradient, with the reason."""


def with_pytensor_gradient(
    fn: JaxCall, original: Original, static: Sequence[int], build: Build, has_checks: bool
) -> tuple[JaxCall, Callable[[], None]]:
    """Return `fn` with PyTensor's gradient as its derivative in reverse mode, and a function that builds it ahead.

    Parameters
    ----------
    fn
        A pure JAX function of the inputs and then of constants. If `has_checks`, it returns the check code after the
        outputs.
    original
        The graph that it computes, before rewrites.
    static
        The positions of the inputs whose values `fn` may need. In the pullback, too, they are values unless they are
        tracers.
    build
        Makes a pure JAX function, of the inputs and then of the same constants, from a graph. It has a gradient of its
        own.
    """
    pullbacks = Pullbacks(fn, original, build, has_checks)
    rules: dict[tuple, Any] = {}

    def call(*args: Any) -> list:
        if not any(isinstance(a, jax.core.Tracer) for a in args):
            return fn(*args)
        known = tuple(i for i in static if not isinstance(args[i], jax.core.Tracer))
        # Inside `jax.shard_map` JAX can't tell which arguments are differentiated.
        symbolic = not jax.sharding.get_abstract_mesh().manual_axes
        rule = rules.get((known, symbolic))
        if rule is None:
            rule = rules[known, symbolic] = custom_vjp(fn, pullbacks, len(original.inputs), known, symbolic)
        try:
            return rule(*args)
        except TypeError as error:  # of JAX, when it differentiates during the call; later it is out of reach
            if "forward-mode" in str(error) and "custom_vjp" in str(error):
                raise TypeError(FORWARD_MODE) from error
            raise

    return call, pullbacks.build_all


def custom_vjp(fn: JaxCall, pullbacks: Pullbacks, count: int, known: tuple[int, ...], symbolic: bool) -> Any:
    """Return `fn` with a derivative, closed over the values of the arguments at the positions `known`.

    If `symbolic`, only the derivative by the arguments that JAX asks for is computed, from the outputs that it reads.
    The arguments from position `count` on are constants.
    """

    def forward(*args: Any) -> tuple[list, Any]:
        values = [a.value if isinstance(a, CustomVJPPrimal) else a for a in args]
        # JAX takes the keys of a dict for structure, not data: so the pullback knows the positions.
        active: dict[int, Any] = {}
        passive: dict[int, Any] = {}
        for i, a in enumerate(args):
            if i >= count and getattr(a, "perturbed", False):
                raise TypeError("JAX asks for the derivative by a constant of the graph: make it one of the inputs.")
            if i not in known:
                (active if i < count and getattr(a, "perturbed", True) else passive)[i] = values[i]
        results, gradient = pullbacks.results_and_gradient(values, tuple(active))
        return results, (active, passive, gradient)

    def backward(*args: Any) -> tuple:
        *fixed, (active, passive, gradient), cotangents = args
        values = active | passive | dict(zip(known, fixed, strict=True))
        found = pullbacks([values[i] for i in range(len(values))], tuple(active), cotangents, gradient)
        return tuple(found.get(i) for i in range(len(values)) if i not in known)

    rule = jax.custom_vjp(lambda *args: fn(*args), nondiff_argnums=known)
    rule.defvjp(forward, backward, symbolic_zeros=symbolic)
    return rule


class Pullbacks:
    """The pullbacks of a graph, each built when it is first asked for. See `with_pytensor_gradient`."""

    def __init__(self, fn: JaxCall, original: Original, build: Build, has_checks: bool):
        self._fn, self._original, self._build = fn, original, build
        self._number = None if has_checks else the_number(original.outputs)
        self._pullback, self._joint = cache(self._make_pullback), cache(self._make_joint)

    @cached_property
    def _outputs(self) -> list[Variable]:
        """The outputs in the form that is differentiated."""
        return pregrad(self._original.outputs)

    def results_and_gradient(self, values: Sequence[Any], wrt: Sequence[int]) -> tuple[list, dict[int, Any] | None]:
        """Return the results and, if they are one number, its gradient by the inputs at the positions `wrt`."""
        wrt = inexact_positions(values, wrt)
        if self._number is None or not wrt:
            return self._fn(*values), None
        found = self._joint(wrt, self._number)
        if found is None:
            return self._fn(*values), None
        defined, call = found
        count, results = len(self._original.outputs), call(*values)
        return results[:count], dict(zip(defined, results[count:], strict=True))

    def _make_joint(self, wrt: Sequence[int], number: int) -> tuple[list[int], JaxCall] | None:
        """Build the function and its gradient as one graph, if PyTensor defines all of the gradient."""
        inputs, outputs = self._original.inputs, self._outputs
        type_: Any = outputs[number].type
        one = type_.constant_type(type_, np.ones((), type_.dtype))
        defined, undefined = pull_back([outputs[number]], [one], {i: inputs[i] for i in wrt})
        if undefined:
            return None
        return list(defined), self._program(list(inputs), [*outputs, *defined.values()])

    def _program(self, inputs: list[Variable], outputs: list[Variable]) -> JaxCall:
        """Build the JAX function of a graph that contains gradients."""
        try:
            return self._build(inputs, outputs)
        except GraphBreakError as error:
            error.add_note(BREAK_IN_GRADIENT)
            raise

    def __call__(
        self, values: Sequence[Any], wrt: Sequence[int], cotangents: Sequence[Any], gradient: dict[int, Any] | None
    ) -> dict[int, Any]:
        """Return the cotangents of the inputs at `wrt` that are not zero; `gradient` is of `results_and_gradient`."""
        # The check code, which may follow the outputs, has no derivative.
        outputs = zip(self._original.outputs, cotangents, strict=False)
        of = tuple(i for i, (v, ct) in enumerate(outputs) if is_inexact(v) and type(ct) is not SymbolicZero)
        wrt = inexact_positions(values, wrt)
        if not of or not wrt:
            return {}
        if gradient is not None:
            (number,) = of
            return {i: jax_compat.cotangent_of(values[i], cotangents[number] * g) for i, g in gradient.items()}
        found = self._pullback(wrt, of)
        given = [cotangents[i] for i in of]
        n = len(self._original.inputs)
        computed = found.call(*values[:n], *given, *values[n:]) if found.defined else []
        results = dict(zip(found.defined, computed, strict=True))
        if found.undefined:
            results |= self._by_jax(values, found.undefined, of, given)
        return {i: jax_compat.cotangent_of(values[i], ct) for i, ct in results.items()}

    def build_all(self) -> None:
        """Build the derivative by all inputs, if there is one."""
        inputs, outputs = ([i for i, v in enumerate(vs) if is_inexact(v)] for vs in self._original)
        wrt, of = tuple(inputs), tuple(outputs)
        try:
            if self._number is not None:
                self._joint(wrt, self._number)
            elif wrt and of:
                self._pullback(wrt, of)
        except (GraphBreakError, NullTypeGradError):  # the derivative will raise it again
            pass

    def _make_pullback(self, wrt: Sequence[int], of: Sequence[int]) -> Pullback:
        """Build the pullback from the outputs at `of` to the inputs at `wrt`."""
        inputs, outputs = self._original.inputs, self._outputs
        cotangents = [outputs[i].type(f"cotangent {i}") for i in of]
        defined, undefined = pull_back([outputs[i] for i in of], cotangents, {i: inputs[i] for i in wrt})
        return Pullback(self._program([*inputs, *cotangents], list(defined.values())), list(defined), undefined)

    def _by_jax(
        self, values: Sequence[Any], undefined: dict[int, str], of: Sequence[int], cotangents: Sequence[Any]
    ) -> dict[int, Any]:
        """Return, by JAX's own rules, the cotangents of inputs for which PyTensor defines no gradient."""

        def call(active: dict[int, Any]) -> list:
            results = self._fn(*[active.get(i, value) for i, value in enumerate(values)])
            return [results[i] for i in of]

        try:
            _, pullback = jax.vjp(call, {i: values[i] for i in undefined})
            return pullback(list(cotangents))[0]
        except Exception as error:
            error.add_note("PyTensor has no gradient here, so JAX's own was tried. " + next(iter(undefined.values())))
            raise


def pull_back(
    outputs: Sequence[Variable], cotangents: Sequence[Variable], wrt: dict[int, Variable]
) -> tuple[dict[int, Variable], dict[int, str]]:
    """Return the gradients that PyTensor defines and that are not zero, and why it defines none for other inputs.

    Raises
    ------
    NullTypeGradError
        If the user declared one of these gradients undefined.
    """
    if any(v.type.dtype.startswith("complex") for v in (*outputs, *wrt.values())):
        return {}, dict.fromkeys(wrt, "PyTensor differentiates real numbers only.")
    # Views, since an output may be computed from another one, or be there twice.
    ends: Any = list(map(view_op, outputs))
    try:
        # The stack has JAX's lines and this package's, none of the user's.
        with config.change_flags(traceback__limit=config.traceback__compile_limit):
            gradients: Any = grad(
                None,
                list(wrt.values()),
                known_grads=dict(zip(ends, cotangents, strict=True)),
                disconnected_inputs="ignore",
                return_disconnected="disconnected",
                null_gradients="return",
            )
    except NotImplementedError as error:  # an Op without a pullback
        return {}, dict.fromkeys(wrt, str(error))
    found = dict(zip(wrt, gradients, strict=True))
    undefined = {i: v.type.why_null for i, v in found.items() if isinstance(v.type, NullType)}
    if undefined and any(v.owner is not None and isinstance(v.owner.op, UndefinedGrad) for v in ancestors(outputs)):
        raise NullTypeGradError(next(iter(undefined.values())))
    return {i: v for i, v in found.items() if not isinstance(v.type, NullType | DisconnectedType)}, undefined


def inexact_positions(values: Sequence[Any], positions: Sequence[int]) -> tuple[int, ...]:
    """Return the positions of values that have a derivative."""
    return tuple(i for i in positions if jax.numpy.issubdtype(values[i].dtype, jax.numpy.inexact))


def is_inexact(variable: Variable) -> bool:
    """Return whether a variable has real or complex numbers."""
    return getattr(variable.type, "dtype", "").startswith(("float", "complex"))


def the_number(outputs: Sequence[Variable]) -> int | None:
    """Return the place of the only inexact output if it is a number with the pullback cotangent times gradient."""
    inexact = [i for i, v in enumerate(outputs) if is_inexact(v)]
    if len(inexact) != 1:
        return None
    (place,) = inexact
    number: Any = outputs[place]
    is_real = is_tensor(number.type) and number.type.ndim == 0 and number.type.dtype.startswith("float")
    return place if is_real and has_linear_pullback([number]) else None


def has_linear_pullback(outputs: Sequence[Variable]) -> bool:
    """Return whether gradients are proportional to cotangents: `grad_clip` or a user's own pullback may do anything."""
    ops = {v.owner.op for v in ancestors(outputs) if v.owner is not None}
    for op in ops:
        kinds = {op, getattr(op, "scalar_op", op), getattr(op, "core_op", op)}
        if isinstance(op, GradClip) or not all(type(kind).__module__.startswith(TRUSTED) for kind in kinds):
            return False
        if type(op) is OpFromGraph and op.pullback_overrides is not None:
            return False
        if any(isinstance(kind, HasInnerGraph) and not has_linear_pullback(kind.inner_outputs) for kind in kinds):
            return False
    return True


#: The packages whose Ops have linear pullbacks.
TRUSTED = ("pytensor.", "pymc.", "pymc_extras.")
