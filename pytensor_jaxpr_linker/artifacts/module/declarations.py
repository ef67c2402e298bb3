"""Declarations of the functions and the state of a module. Nothing is compiled here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.random.type import RandomType, random_generator_type

from jaxpr_artifact.trees import leaves_like, leaves_of, level, with_leaves
from pytensor_jaxpr_linker.artifacts.shapes import unique_names

#: The reaction of `pytensor.function` to an input that nothing needs.
type OnUnusedInput = Literal["raise", "warn", "ignore"]


class FunctionDeclaration:
    """A function of a module, declared by `public` or `private`.

    Called with variables, or trees of them, in place of its inputs, it returns its outputs as expressions of these. So
    the graphs of other functions may apply it.
    """

    def __init__(
        self,
        inputs: Any,
        outputs: Any,
        updates: Any,
        like: Any,
        mode: Any,
        is_public: bool,
        on_unused_input: Any = None,
    ):
        self.arguments = arguments_of(inputs)
        self.outputs, self.like, self.mode, self.is_public = outputs, like, mode, is_public
        self.on_unused_input = on_unused_input
        for name, leaf in leaves_of(outputs, "outputs"):
            check_variable(name, leaf)
        self.updates = list(updates_of(updates))

    def variables(self) -> list[Variable]:
        """Return the variables of the inputs in order."""
        return [leaf for name, tree in self.arguments.items() for _, leaf in leaves_of(tree, name)]

    def __call__(self, *args: Any) -> Any:
        """Return the outputs as expressions of other variables."""
        if self.updates:
            raise TypeError("A function with updates can't be part of another graph: it is called on values.")
        if len(args) != len(self.arguments):
            raise TypeError(f"The function takes {', '.join(self.arguments) or 'nothing'}, not {len(args)} arguments.")
        replaced = {}
        for (name, tree), given in zip(self.arguments.items(), args, strict=True):
            for _, variable, value in leaves_like(tree, given, name):
                replaced[variable] = variable.type.filter_variable(value)
        found = [leaf for _, leaf in leaves_of(self.outputs)]
        return with_leaves(self.outputs, iter(graph_replace(found, replaced, strict=False) if replaced else found))

    def __repr__(self) -> str:
        return f"<{'public' if self.is_public else 'private'} function of ({', '.join(self.arguments)})>"


class StateDeclaration(NamedTuple):
    """State of a module, and whether it may change."""

    tree: Any
    is_mutable: bool | None = None


def public(
    inputs: Any,
    outputs: Any = None,
    updates: Any = (),
    *,
    like: Any = None,
    mode: Any = "JAXPR",
    on_unused_input: OnUnusedInput | None = None,
) -> Any:
    """Declare a function that a `Module` shows to callers.

    Parameters
    ----------
    inputs : sequence or dict
        The inputs: variables, or trees of variables (dicts, sequences, named tuples, dataclasses). A dict names them.
    outputs : Variable or tree of Variable
        The function returns their values in the same tree. A shared variable may be an output: that makes a getter.
    updates : dict, or sequence of pairs
        The next values of shared variables. Both sides of a pair may be trees with the same names: that makes a setter
        of a tree.
    like : sequence, or dict from str
        Arguments, or other objects with their shapes, where types leave lengths open. A program that leaves Python has
        fixed shapes, which then hold for calls on the host, too.
    mode : Mode or str
        A mode of this package, whose rewrites the graph gets.
    on_unused_input : {"raise", "warn", "ignore"}
        The reaction to an input that neither outputs nor updates need, as `pytensor.function` takes it. By default the
        setting ``pytensor.config.on_unused_input`` decides.

    Returns
    -------
    FunctionDeclaration
        An attribute for the class of a module.

    Examples
    --------
    >>> import pytensor, pytensor.tensor as pt
    >>> import pytensor_jaxpr_linker as pjl
    >>> count, by = pytensor.shared(0, name="count"), pt.lscalar("by")
    >>> class Counter(pjl.Module):
    ...     advance = pjl.public([by], count, updates={count: count + by})
    >>> counter = Counter()
    >>> counter.advance(3), counter.advance(by=3), counter.count.get_value()
    (array(0), array(3), array(6))
    """
    return FunctionDeclaration(inputs, outputs, updates, like, mode, True, on_unused_input)


def private(
    inputs: Any, outputs: Any, *, like: Any = None, mode: Any = "JAXPR", on_unused_input: OnUnusedInput | None = None
) -> Any:
    """Declare a function that other functions of a `Module` apply, and that a compiled module does not show.

    It becomes a part of each function that applies it. On the host it may be called like others, to look into a module.
    For the parameters see `public`.

    Returns
    -------
    FunctionDeclaration
        Call it with variables to get its outputs as expressions of these.

    Examples
    --------
    >>> import pytensor, pytensor.tensor as pt
    >>> import pytensor_jaxpr_linker as pjl
    >>> x, scale = pt.dvector("x"), pytensor.shared(2.0, name="scale")
    >>> class Scaled(pjl.Module):
    ...     _scaled = pjl.private([x], scale * x)
    ...     total = pjl.public([x], _scaled(x + 1.0).sum())
    >>> Scaled().total([1.0, 2.0])
    array(10.)
    """
    return FunctionDeclaration(inputs, outputs, (), like, mode, False, on_unused_input)


def like(value: Any, name: str = "") -> Any:
    """Return variables for arguments like a value: of the dtypes and shapes of an array, or of each array in a tree.

    Parameters
    ----------
    value : array, shared variable, or tree of them
        The example.
    name : str
        The name of the argument. A variable in a tree is named after the argument and its place.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor_jaxpr_linker as pjl
    >>> params = pjl.Module.like({"w": np.ones((2, 3)), "b": np.float32(0.0)}, "params")
    >>> params["w"].name, params["w"].type.shape, params["b"].dtype
    ('params.w', (2, 3), 'float32')
    """
    return with_leaves(value, iter([variable_like(x, place) for place, x in leaves_of(value, name)]))


def variable_like(value: Any, name: str) -> Variable:
    """Return a variable for arguments like an array, a shared variable's value, or a generator."""
    value = value.get_value(borrow=True) if isinstance(value, SharedVariable) else value
    if isinstance(value, np.random.Generator):
        return random_generator_type(name or None)
    if isinstance(value, Variable):
        return value.type(name or None)
    value = value if hasattr(value, "dtype") else np.asarray(value)
    if np.dtype(value.dtype) == object:
        raise TypeError(f"{name or 'The argument'} can't be like {value!r:.80}: give an array, or a tree of arrays.")
    return pt.tensor(name or None, dtype=np.dtype(value.dtype).name, shape=value.shape)


def arguments_of(inputs: Any) -> dict[str, Any]:
    """Return the inputs by name: a variable, or a tree of variables, for each argument."""
    if not isinstance(inputs, Mapping | list | tuple):
        raise TypeError(f"The inputs of a function are a sequence or a dict of variables, not {inputs!r:.80}.")
    if isinstance(inputs, Mapping):
        names, trees = list(map(str, inputs)), list(inputs.values())
        if wrong := [n for n, unique in zip(names, unique_names(names, "arg"), strict=True) if n != unique]:
            raise ValueError(f"{wrong[0]!r} can't be the name of an argument: give an identifier.")
    else:
        trees = list(inputs)
        names = unique_names([argument_name(tree) for tree in trees], "arg")
    found = dict(zip(names, trees, strict=True))
    for place, leaf in (pair for name, tree in found.items() for pair in leaves_of(tree, name)):
        check_variable(place, leaf)
        if isinstance(leaf, SharedVariable):
            raise TypeError(f"The input {place} is a shared variable: it is state of the module, leave it out.")
    return found


def argument_name(tree: Any) -> str | None:
    """Return the name of an argument: a variable's name, or the common beginning of the names in a tree."""
    found = set()
    for place, leaf in leaves_of(tree):
        name = getattr(leaf, "name", None) or ""
        found.add(name.removesuffix(f".{place}") if name.endswith(f".{place}") else "" if place else name)
    return found.pop() if len(found) == 1 else None


def updates_of(updates: Any) -> Iterator[tuple[SharedVariable, Any]]:
    """Yield the shared variables and their next values."""
    for state, value in updates.items() if isinstance(updates, Mapping) else updates:
        if level(state) is None and not isinstance(state, SharedVariable):
            raise TypeError(f"Only shared variables, and trees of them, have updates, not {state!r:.80}.")
        for place, shared, following in leaves_like(state, value, "The update"):
            if not isinstance(shared, SharedVariable):
                raise TypeError(f"{place} is no shared variable, but {shared!r:.80}.")
            yield shared, following


def check_variable(name: str, leaf: Any) -> None:
    """Raise a TypeError unless a leaf is a variable."""
    if not isinstance(leaf, Variable):
        raise TypeError(f"{name} is no PyTensor variable, but {leaf!r:.80}.")


def state_leaves(name: str, tree: Any) -> list[tuple[str, SharedVariable]] | None:
    """Return the shared variables of a tree by name, or None if it is not state.

    Raise a TypeError if it has arrays, or both shared variables and other leaves.
    """
    found = list(leaves_of(tree, name))
    odd = [(place, leaf) for place, leaf in found if not isinstance(leaf, SharedVariable)]
    if odd and (len(odd) < len(found) or isinstance(odd[0][1], np.ndarray | jax.Array)):
        place, leaf = odd[0]
        remedy = "Graphs read state from shared variables: make it one, pytensor.shared(value)."
        raise TypeError(f"{place} is no shared variable, but {leaf!r:.80}. {remedy}")
    return found if found and not odd else None


def is_key_type(variable: Variable) -> bool:
    """Return whether the value of a variable is a random generator, hence a key in a program."""
    return isinstance(variable.type, RandomType)
