"""The header of a file: classes for its parts, and the strict reader that makes them of JSON."""

from __future__ import annotations

import json
import os
import re
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, get_args, get_origin, get_type_hints

from jaxpr_artifact.dimensions import is_expression
from jaxpr_artifact.files import ArtifactError

#: A length, or the text of a symbolic one: ``"n"``, ``"2*n + 1"``.
type Dimension = int | str

DTYPES = frozenset(
    ["bool", "float16", "float32", "float64", "complex64", "complex128"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
#: Digits are few: a long power would keep the reader busy.
_DIMENSION = re.compile(r"(?!.*[\^]\s*\d\d)[A-Za-z_][\w +*^,()-]{0,2000}|[\d(-][\w +*^,()-]{0,2000}", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w{0,200}", re.ASCII)


@dataclass(frozen=True)
class Aval:
    """Shape and dtype of one array of a program."""

    dtype: str
    shape: tuple[Dimension, ...]


@dataclass(frozen=True)
class Argument:
    """An array that a caller gives: name, dtype, shape."""

    name: str
    dtype: str
    shape: tuple[Dimension, ...]
    is_key: bool = False
    """Whether it is a key of `jax.random`, as ``uint32[2]``."""
    by_value: bool = False
    """Whether integers of other dtypes are accepted, if the dtype has their values."""


@dataclass(frozen=True)
class Stored:
    """An array that the file holds: the value of a shared variable, or a constant."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    member: str
    is_key: bool = False
    symbolic: tuple[Dimension, ...] | None = None
    """The shape that another value may have."""
    output: int | None = None
    """The position of the result that is its next value."""

    @property
    def open_shape(self) -> tuple[Dimension, ...]:
        """The shape of this value and of others in its place."""
        return self.shape if self.symbolic is None else self.symbolic


@dataclass(frozen=True)
class Check:
    """A run-time check: the exception that it raises."""

    type: str
    message: str
    node: str


@dataclass(frozen=True)
class Program:
    """A serialized program: the member with its StableHLO artifact, and fields of `jax.export.Exported`."""

    member: str
    name: str
    inputs: tuple[Aval, ...]
    outputs: tuple[Aval, ...]
    kept: tuple[int, ...]
    uses_global_constants: bool
    calling_convention: int
    vjp: Program | None = None
    """The derivative. It takes the inputs and cotangents of the inexact outputs.

    It returns cotangents of the inexact inputs without the constants.
    """

    @property
    def with_derivatives(self) -> list[Program]:
        """The program, its derivative, the derivative of that, and so on."""
        return [self, *([] if self.vjp is None else self.vjp.with_derivatives)]


@dataclass(frozen=True)
class Fixed:
    """An input whose value is part of the program."""

    name: str
    value: str


@dataclass(frozen=True)
class Header:
    """The header of a file with one function: a file for JAX, or a ``.vmfb`` file of IREE.

    Programs take the arguments, the state and the constants. They return the outputs, the updates and, if there are
    checks, the number of the first one that failed, or 0. IREE's one program has no name here, and contains the
    constants.
    """

    name: str
    arguments: tuple[Argument, ...]
    state: tuple[Stored, ...]
    constants: tuple[Stored, ...]
    outputs: tuple[Argument, ...]
    is_bare: bool
    """Whether a call returns its one output, not a list."""
    fixed: tuple[Fixed, ...]
    checks: tuple[Check, ...]
    constraints: tuple[str, ...]
    platforms: tuple[str, ...]
    programs: dict[str, Program]
    versions: dict[str, str]
    note: str = ""
    key_of: tuple[int | None, ...] = ()
    """For each output, the position of the key that it follows, among the arguments and the state, or None.

    Empty if no output follows a key.
    """
    target: str = ""
    """The target that IREE compiled the program for; empty in a file for JAX."""

    def as_json(self) -> dict[str, Any]:
        """Return an object for `json`: the parts that files of this kind have."""
        absent = OF_JAX if self.target else ("target",)
        return {name: value for name, value in asdict(self).items() if name not in absent}

    @property
    def updated(self) -> list[Stored]:
        """The state that the function updates, in the order of the results that are its next values."""
        return sorted((s for s in self.state if s.output is not None), key=lambda s: s.output or 0)

    @property
    def result_dtypes(self) -> list[str]:
        """The dtypes of the results of a program: the outputs, the updates, and the code of the checks."""
        updated, codes = [s.dtype for s in self.updated], ["int32"] if self.checks else []
        return [a.dtype for a in self.outputs] + updated + codes


#: The parts of a header that a file of IREE lacks, each empty.
OF_JAX: Mapping[str, Any] = {"constants": [], "constraints": [], "platforms": [], "programs": {}, "key_of": []}


class Misfit(Exception):
    """A part of a header is wrong."""


def header_of(path: str | os.PathLike, value: Any) -> Header:
    """Return the header that JSON spells.

    Raise an ArtifactError if a part is missing, unknown, of another type, or does not fit the others.
    """
    try:
        check_header(header := decoded(Header, value, "header"))
    except Misfit as error:
        raise ArtifactError(path, f"The header is wrong: {error}.", "Export it again.") from None
    return header


def read_description[T](
    cls: type[T],
    path: str | os.PathLike,
    text: Any,
    says: str,
    remedy: str,
    check: Callable[[T], None],
    absent: Mapping[str, Any] = MappingProxyType({}),
) -> T:
    """Return the description of a program, a dataclass, from its JSON text, or raise an ArtifactError.

    `says` and `remedy` are for the error: the topic of the text, and the advice. `check` raises a `Misfit`. Such texts
    lack the parts `absent`.
    """
    if not isinstance(text, str):
        raise ArtifactError(path, f"The program does not say {says}.", remedy)
    try:
        value = json.loads(text)
        check(found := decoded(cls, {**absent, **value} if isinstance(value, dict) else value, "description"))
    except (ValueError, RecursionError, Misfit) as error:
        raise ArtifactError(path, f"Its description is wrong: {error}.", remedy) from None
    return found


def check_fixed(arrays: Iterable[Argument | Stored]) -> None:
    """Raise a `Misfit` unless arrays have dtypes, and numbers as lengths."""
    for a in arrays:
        check_aval(a.name, a.dtype, a.shape)
        if not all(isinstance(n, int) for n in a.shape):
            raise Misfit(f"{a.name} has lengths without a number")


#: Returns the types of the fields of a class.
hints_of = cache(get_type_hints)


def decoded(type_: Any, value: Any, where: str) -> Any:
    """Return JSON as a value of a type: a dataclass, or a type of its fields."""
    if type_ is Dimension:
        type_ = int | str
    if is_dataclass(type_):
        return decoded_object(type_, value, where)
    if isinstance(type_, types.UnionType):
        for option in get_args(type_):
            if matches(option, value):
                return decoded(option, value, where)
    if get_origin(type_) is tuple and isinstance(value, list):
        return tuple(decoded(get_args(type_)[0], x, f"{where}[{i}]") for i, x in enumerate(value))
    if get_origin(type_) is dict and isinstance(value, dict):
        return {k: decoded(get_args(type_)[1], x, f"{where}.{k:.80}") for k, x in value.items()}
    if not matches(type_, value):
        raise Misfit(f"{where} is {value!r:.80}")
    return value


def matches(type_: Any, value: Any) -> bool:
    """Return whether JSON looks like a type."""
    if is_dataclass(type_):
        return isinstance(value, dict)
    return isinstance(value, list) if get_origin(type_) is tuple else type(value) is type_


def decoded_object(cls: Any, value: Any, where: str) -> Any:
    """Return a JSON object as an object of a dataclass.

    Fields with defaults may be missing, because files of older versions lack the newer fields.
    """
    names = {f.name for f in fields(cls)}
    needed = {f.name for f in fields(cls) if f.default is MISSING}
    if not isinstance(value, dict) or not needed <= value.keys() <= names:
        found = sorted(map(str, value)) if isinstance(value, dict) else value
        raise Misfit(f"{where} has not the parts {', '.join(sorted(names))}, but {found!r:.200}")
    return cls(**{name: decoded(hints_of(cls)[name], x, f"{where}.{name}") for name, x in value.items()})


def check_header(header: Header) -> None:
    """Raise a `Misfit` if the parts do not fit together."""
    for given in (*header.arguments, *header.outputs):
        check_aval(given.name, given.dtype, given.shape)
    for part in (*header.state, *header.constants):
        check_aval(part.name, part.dtype, part.shape)
        check_aval(part.name, part.dtype, part.open_shape)
        if len(part.open_shape) != len(part.shape):
            raise Misfit(f"the state {part.name!r} has two ranks")
    for names in ([a.name for a in header.arguments], [s.name for s in header.state]):
        if len(set(names)) != len(names):
            raise Misfit("two arguments, or two parts of the state, have one name")
    if wrong := [a.name for a in header.arguments if not _NAME.fullmatch(a.name)]:
        raise Misfit(f"{wrong[0]!r:.80} is no name of an argument")
    updates = [s.output for s in header.updated]
    if updates != list(range(len(header.outputs), len(header.outputs) + len(updates))):
        raise Misfit("the updates of the state are not the results after the outputs")
    if header.is_bare and len(header.outputs) != 1:
        raise Misfit("there is not one output")
    if "call" not in header.programs or not header.programs.keys() <= {"call", "batched"}:
        raise Misfit(f"the programs are {sorted(header.programs)!r:.80}")
    if header.constraints and any(len(c) > 200 for c in header.constraints):
        raise Misfit("a constraint is too long")
    if odd := [c for c in header.constraints if not all(map(is_expression, re.split("==|>=|<=", c)))]:
        raise Misfit(f"{odd[0]!r:.80} is no constraint")
    check_keys(header)
    check_programs(header)


def check_keys(header: Header) -> None:
    """Raise a `Misfit` unless each output that follows a key is one."""
    are_keys = [a.is_key for a in header.arguments] + [s.is_key for s in header.state]
    if header.key_of and len(header.key_of) != len(header.outputs):
        raise Misfit("it does not say of each output which key it follows")
    for output, i in zip(header.outputs, header.key_of, strict=False):
        if i is not None and not (output.is_key and 0 <= i < len(are_keys) and are_keys[i]):
            raise Misfit(f"{output.name!r:.80} does not follow the key that it says")


def check_programs(header: Header) -> None:
    """Raise a `Misfit` unless each program takes and returns the arrays of the header."""
    taken = [a.dtype for a in header.arguments] + [s.dtype for s in (*header.state, *header.constants)]
    constants = range(len(taken) - len(header.constants), len(taken))
    orders = {check_program(name, p, taken, header.result_dtypes, constants) for name, p in header.programs.items()}
    if len(orders) != 1:
        raise Misfit("the programs have derivatives of different orders")
    for s in header.state:
        if s.output is not None and header.programs["call"].outputs[s.output].shape != s.open_shape:
            raise Misfit(f"the update of {s.name!r:.80} has another shape than the state")


def check_program(name: str, program: Program, taken: list[str], given: list[str], constants: range) -> int:
    """Raise a `Misfit` unless a program and its derivatives take and return these dtypes. Return how many it has."""
    if [a.dtype for a in program.inputs] != taken or [a.dtype for a in program.outputs] != given:
        raise Misfit(f"the program {name!r} takes or returns something else")
    for aval in (*program.inputs, *program.outputs):
        check_aval(f"an array of {name!r}", aval.dtype, aval.shape)
    if any(not 0 <= i < len(taken) for i in program.kept):
        raise Misfit(f"the program {name!r} keeps inputs that it has not")
    if name == "batched" and not all(a.shape for a in program.inputs[:1]):
        raise Misfit("the batched program has no batch")
    if program.vjp is None:
        return 0
    cotangents = [dtype for dtype in given if is_inexact_dtype(dtype)]
    returned = [dtype for i, dtype in enumerate(taken) if is_inexact_dtype(dtype) and i not in constants]
    return 1 + check_program(name, program.vjp, taken + cotangents, returned, constants)


def is_inexact_dtype(dtype: str) -> bool:
    """Return whether numbers are real or complex."""
    return dtype.startswith(("float", "complex"))


def check_aval(name: str, dtype: str, shape: tuple[Dimension, ...]) -> None:
    """Raise a `Misfit` unless a dtype and a shape are possible."""
    if dtype not in DTYPES:
        raise Misfit(f"{name} has the dtype {dtype!r:.80}")
    for n in shape:
        if not (_DIMENSION.fullmatch(n) and is_expression(n) if isinstance(n, str) else 0 <= n < 2**62):
            raise Misfit(f"{name} has a dimension {n!r:.80}")
