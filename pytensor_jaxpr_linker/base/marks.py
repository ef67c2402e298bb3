"""Marks on inputs: a value to compile in, a value or a length never to compile for.

Marks are attributes of a variable's tag, which PyTensor copies with the variable, so they survive compilation, `clone`
and pickling.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from types import MappingProxyType

from pytensor.graph.basic import Constant, Variable

from pytensor_jaxpr_linker.base.array_types import is_tensor
from pytensor_jaxpr_linker.base.words import counted

STATIC, DYNAMIC_VALUE, DYNAMIC_AXES = "jaxpr_static", "jaxpr_dynamic_value", "jaxpr_dynamic_axes"
VARYING = "jaxpr_varying"


def mark_static[V: Variable](variable: V) -> V:
    """Mark an input or shared variable whose value functions compile in as a constant: one program for each value.

    Parameters
    ----------
    variable : Variable
        An input or a shared variable, of tensor type. Its bytes are compared in each call, so it should be small.

    Returns
    -------
    Variable
        The argument.

    Notes
    -----
    `as_jax_function` needs its value before an outer transformation, as for an input that determines a shape.

    Examples
    --------
    >>> import pytensor, pytensor.tensor as pt
    >>> import pytensor_jaxpr_linker as pjl
    >>> power = pjl.mark_static(pt.dscalar("power"))
    >>> x = pt.vector("x", dtype="float64")
    >>> pytensor.function([x, power], x**power, mode="JAXPR")([2.0, 3.0], 2.0)
    array([4., 9.])
    """
    check_markable(variable)
    if is_dynamic(variable):
        raise ValueError(f"{variable} is marked dynamic already")
    setattr(variable.tag, STATIC, True)
    return variable


def mark_dynamic[V: Variable](variable: V, axis: int | None = None, longest: int | None = None) -> V:
    """Mark an input whose value, or the length of an axis, never causes a recompilation.

    Parameters
    ----------
    variable : Variable
        An input or a shared variable, of tensor type.
    axis : int, optional
        Which axis has a length that varies. Left out, it is the value that must not be compiled for.
    longest : int, optional
        The largest length of the axis. With it, one program serves all lengths up to this one.

    Returns
    -------
    Variable
        The argument.

    Notes
    -----
    With a dynamic *value*, a node that must know it while a program is built is a break, which names the variable and
    runs on     the host (or raises, see `Options`).

    XLA's programs have fixed shapes. With a dynamic *axis* and its `longest` length, arguments are padded to that
    length, and the program takes their length as a number: the first call compiles it, and no other length compiles
    anything. (An empty array has a program of its own, since there is no element to repeat.)

    Without `longest`, and where padding would not be exact (page "Options"), a region that takes the variable is
    compiled for the first length that it meets. For another length it runs on the host, by PyTensor's own
    implementations, and a `GraphBreakWarning` says so once; with ``on_break="raise"`` it is a `GraphBreakError`.

    Examples
    --------
    >>> import pytensor, pytensor.tensor as pt
    >>> import pytensor_jaxpr_linker as pjl
    >>> n = pjl.mark_dynamic(pt.lscalar("n"))
    >>> with pjl.options(on_break="ignore"):
    ...     f = pytensor.function([n], pt.arange(n) * 2, mode="JAXPR")
    >>> f(3)
    array([0, 2, 4])
    >>> x = pjl.mark_dynamic(pt.vector("x", dtype="float64"), 0, longest=1000)
    >>> f = pytensor.function([x], x.mean(), mode="JAXPR")
    >>> f([1.0, 2.0]), f([1.0, 2.0, 6.0])
    (array(1.5), array(3.))
    """
    check_markable(variable)
    if is_static(variable):
        raise ValueError(f"{variable} is marked static already")
    is_length = isinstance(longest, Integral) and not isinstance(longest, bool) and longest >= 1
    if longest is not None and (axis is None or not is_length):
        raise ValueError(
            f"longest is the largest length of an axis, an int of at least 1 beside `axis`, not {longest!r}"
        )
    if axis is None:
        setattr(variable.tag, DYNAMIC_VALUE, True)
        return variable
    ndim = variable.type.ndim
    if not -ndim <= axis < ndim:
        raise ValueError(f"{variable} has {counted(ndim, 'axis')}, so axis {axis} can't be marked")
    if variable.type.shape[axis] is not None:
        raise ValueError(f"axis {axis} of {variable} has a declared length: {variable.type}")
    length = None if longest is None else int(longest)
    setattr(variable.tag, DYNAMIC_AXES, {**dynamic_axes(variable), axis % ndim: length})
    return variable


def check_markable(variable: Variable) -> None:
    """Raise a TypeError unless a variable is an input of tensor type."""
    if not isinstance(variable, Variable) or not is_tensor(variable.type):
        raise TypeError(f"only inputs and shared variables of tensor type can be marked, not {variable!r}")
    if variable.owner is not None or isinstance(variable, Constant):
        raise TypeError(f"only inputs and shared variables can be marked; {variable} is computed or constant")


def is_static(variable: Variable) -> bool:
    """Return whether the value of an input is to be compiled in."""
    return getattr(variable.tag, STATIC, False)


def is_dynamic(variable: Variable) -> bool:
    """Return whether the value of an input must not be compiled for."""
    return getattr(variable.tag, DYNAMIC_VALUE, False) or is_varying(variable)


def mark_varying(variable: Variable) -> None:
    """Mark an inner input whose value differs from step to step, so that no program is compiled for one."""
    setattr(variable.tag, VARYING, True)


def is_varying(variable: Variable) -> bool:
    """Return whether `mark_varying` marked an inner input."""
    return getattr(variable.tag, VARYING, False)


def dynamic_axes(variable: Variable) -> Mapping[int, int | None]:
    """Return the axes of an input whose lengths must not be compiled for, with the largest length if it is known."""
    return getattr(variable.tag, DYNAMIC_AXES, MappingProxyType({}))
