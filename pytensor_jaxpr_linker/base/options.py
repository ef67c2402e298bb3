"""Settings of a thread: options, and where they come from, the stance, and the platforms of programs.

An option comes from the linker, a context, the environment, or has its default.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import InitVar, dataclass, field, fields
from typing import Any, ClassVar, Literal

from pytensor_jaxpr_linker.base.contexts import bound, named_context
from pytensor_jaxpr_linker.base.logs import LOGS_VARIABLE
from pytensor_jaxpr_linker.base.private_files import CACHE_VARIABLE

#: What each option that is one of several words may be.
CHOICES = {
    "results": ("numpy", "jax"),
    "checks": ("raise", "defer", "skip"),
    "on_break": ("warn", "log", "ignore", "raise"),
    "on_recompile_limit": ("compile", "host", "pad", "raise"),
    "dynamic_shapes": ("compile", "pad"),
}
#: Environment variables are called this and the option's name in capitals.
PREFIX = "PYTENSOR_JAXPR_"


@dataclass(frozen=True)
class Options:
    """How mode JAXPR compiles and calls.

    An option that an `Options` object does not name is looked up when a function is compiled: in the enclosing
    `options` contexts, then in environment variables such as ``PYTENSOR_JAXPR_ON_BREAK``, then it has the default.

    Parameters
    ----------
    results : {"numpy", "jax"}
        Whether functions return NumPy arrays, as PyTensor promises, or JAX arrays that stay on the device. With "jax" a
        call may return before the program has run, and NumPy arguments must not be written to until then, as for
        `jax.jit`.
    checks : {"raise", "defer", "skip"}
        What happens if an index is out of bounds, or an `Assert`, a `CheckAndRaise` or a factorization fails. With
        "raise", a call waits for the device, and raises before anything is stored. With "defer", it returns results and
        stores updates at once; a later call, or `raise_deferred`, raises. With "skip", a read out of bounds gives NaN,
        and nothing else is checked.
    specializations : int
        How many compiled programs a region keeps before it drops the one that was used longest ago. It counts values of
        static inputs (such as `n` in ``pt.arange(n)``) and, for each of these, shapes.
    on_break : {"warn", "log", "ignore", "raise"}
        What to do when a graph can't be one program: warn once for a function, write to the logger
        ``pytensor_jaxpr_linker.breaks``, nothing, or raise one `GraphBreakError` that lists every break.
    fullgraph : bool
        The same as ``on_break="raise"`` if true.
    allow_traced_leaves : bool
        Whether an Op that has no emission rule, but a JAX function of a third party, is traced. If not, it runs on the
        host.
    donate : bool
        Whether a region may write its results over arrays of earlier regions that nothing else can see.
    synchronous : bool
        Whether a function with NumPy results runs on a CPU client of this package's own, in the calling thread, where
        JAX's default device is a CPU. It does so in calls without JAX arrays among the arguments. If not, it runs on
        JAX's default device.
    recompile_limit : int
        How many programs a region may compile before the function warns, once, of what keeps changing.
    on_recompile_limit : {"compile", "host", "pad", "raise"}
        What happens at the limit. "compile" goes on compiling. "host" runs the region on the host. "pad" pads arrays to
        a power of two, where that is exact, and else compiles. "raise" raises a `RecompileError`.
    dynamic_shapes : {"compile", "pad"}
        What happens at the second length of an axis. "compile" compiles a program for each length, up to the limit.
        "pad" pads arrays to a power of two, where that is exact, so that one program serves many lengths; else it warns
        once and compiles.

    Examples
    --------
    >>> import pytensor, pytensor.tensor as pt
    >>> from pytensor.compile.mode import Mode
    >>> from pytensor_jaxpr_linker import JaxprLinker, Options
    >>> mode = Mode(linker=JaxprLinker(Options(results="jax")), optimizer="fast_run")
    >>> x = pt.vector("x", dtype="float64")
    >>> type(pytensor.function([x], x * 2, mode=mode)([1.0])).__name__
    'ArrayImpl'
    """

    #: The named options. `dataclasses.replace` hands an InitVar on as it does fields, but comparisons leave it out. It
    #: comes first, see `__new__`.
    _named: InitVar[frozenset[str] | None] = field(default=None, kw_only=True)
    results: Literal["numpy", "jax"] = "numpy"
    checks: Literal["raise", "defer", "skip"] = "raise"
    specializations: int = 64
    on_break: Literal["warn", "log", "ignore", "raise"] = "warn"
    fullgraph: bool = False
    allow_traced_leaves: bool = True
    donate: bool = True
    synchronous: bool = True
    recompile_limit: int = 16
    on_recompile_limit: Literal["compile", "host", "pad", "raise"] = "compile"
    dynamic_shapes: Literal["compile", "pad"] = "compile"
    _told: ClassVar[frozenset[str]] = frozenset()

    def __new__(cls, *args: Any, **given: Any) -> Options:
        """Remember which options are named: the others are looked up elsewhere.

        `dataclasses.replace` passes its arguments first, then `_named`, then the remaining fields.
        """
        self = super().__new__(cls)
        names = [*(f.name for f in fields(cls)[: len(args)]), *given]
        told = frozenset(names[: names.index("_named")] if "_named" in names else names)
        object.__setattr__(self, "_told", told)
        object.__setattr__(self, "_named", told | (given.get("_named") or frozenset()))
        return self

    def __post_init__(self, _named: frozenset[str] | None) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be {spell_choices(choices)}, not {getattr(self, name)!r}")
        for name in ("specializations", "recompile_limit"):
            if type(value := getattr(self, name)) is not int or value < 1:
                raise ValueError(f"{name} must be an int of at least 1, not {value!r}")
        for name in ("fullgraph", "allow_traced_leaves", "donate", "synchronous"):
            if type(value := getattr(self, name)) is not bool:
                raise ValueError(f"{name} must be True or False, not {value!r}")
        on_break, fullgraph, told = self.on_break, self.fullgraph, self._told
        if told >= {"fullgraph", "on_break"} and fullgraph and on_break != "raise":
            raise ValueError(f'fullgraph=True is on_break="raise" and contradicts on_break={on_break!r}')
        if "fullgraph" in told and "on_break" not in told:
            on_break = "raise" if fullgraph else "warn" if on_break == "raise" else on_break
        object.__setattr__(self, "on_break", on_break)
        object.__setattr__(self, "fullgraph", on_break == "raise")

    def named(self) -> dict[str, Any]:
        """Return the options named when this object, or the one that it is a copy of, was made."""
        found = {name: getattr(self, name) for name in vars(self)["_named"]}
        if found.pop("fullgraph", None) is not None:
            found["on_break"] = self.on_break
        return found


#: The objects of the enclosing contexts, outermost first.
_contexts: ContextVar[tuple[Options, ...]] = ContextVar("pytensor_jaxpr_linker_options", default=())


@named_context
def options(**named: Any) -> Iterator[None]:
    """Set options of the functions that are compiled inside a ``with`` block, in this thread.

    They count more than environment variables and less than the `Options` of a linker.

    Parameters
    ----------
    **named
        Parameters of `Options`.

    Examples
    --------
    >>> import pytensor, pytensor.tensor as pt
    >>> import pytensor_jaxpr_linker as pjl
    >>> x = pt.vector("x", dtype="float64")
    >>> with pjl.options(results="jax"):
    ...     f = pytensor.function([x], x * 2, mode="JAXPR")
    >>> f([1.0])
    Array([2.], dtype=float64)
    """
    with bound(_contexts, (*_contexts.get(), Options(**named))):
        yield


def resolve(*chosen: Options | None) -> Options:
    """Return the options of a function that is compiled now. `chosen` outranks contexts, and these the environment."""
    found = from_environment(os.environ)
    for layer in (*_contexts.get(), *chosen):
        if layer is not None:
            found |= layer.named()
    return Options(**found)


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that environment variables set; a name or a value that no option has is a ValueError."""
    kinds = {f.name: str(f.type) for f in fields(Options)}
    found: dict[str, Any] = {}
    for variable in sorted(v for v in environment if v.startswith(PREFIX) and v not in (LOGS_VARIABLE, CACHE_VARIABLE)):
        name = variable.removeprefix(PREFIX).lower()
        if name not in kinds:
            known = ", ".join(PREFIX + n.upper() for n in kinds)
            raise ValueError(f"the environment variable {variable} sets no option; there are {known}")
        found[name] = parse(variable, environment[variable].strip().lower(), name, kinds[name])
    return Options(**found).named()


def parse(variable: str, text: str, name: str, kind: str) -> bool | int | str:
    """Return the value of option `name`, of type `kind`, that the text of a variable spells."""
    found: bool | int | str | None
    if kind == "bool":
        allowed, found = "1 or 0 (or true, false)", TRUTH.get(text)
    elif kind == "int":
        allowed, found = "a whole number of at least 1", (int(text) or None) if text.isdecimal() else None
    else:
        allowed, found = spell_choices(CHOICES[name]), text if text in CHOICES[name] else None
    if found is None:
        raise ValueError(f"the environment variable {variable} must be {allowed}, not {text!r}")
    return found


#: How environment variables spell truth values.
TRUTH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def spell_choices(choices: tuple[str, ...]) -> str:
    """Return ``'a', 'b' or 'c'``."""
    return ", ".join(map(repr, choices[:-1])) + f" or {choices[-1]!r}"


type Stance = Literal["default", "fail_on_recompile", "force_host"]

STANCES = ("default", "fail_on_recompile", "force_host")

#: The stance of this thread, None for the default: one comparison for each call.
current_stance: ContextVar[str | None] = ContextVar("pytensor_jaxpr_linker_stance", default=None)


@named_context
def stance(kind: Stance) -> Iterator[None]:
    """Choose what functions of mode JAXPR do that are called inside a ``with`` block, in this thread.

    Parameters
    ----------
    kind : {"default", "fail_on_recompile", "force_host"}
        ``"fail_on_recompile"`` raises a `RecompileError`, which says what is new, where a program would be compiled,
        also the first one of a function. ``"force_host"`` runs every node by PyTensor's own Python implementation,
        without XLA, to find out whether an error or a number comes from the compiled program; random draws come from
        NumPy then.

    Examples
    --------
    >>> import pytensor, pytensor.tensor as pt
    >>> import pytensor_jaxpr_linker as pjl
    >>> x = pt.vector("x", dtype="float64")
    >>> f = pytensor.function([x], x.sum(), mode="JAXPR")
    >>> f([1.0, 2.0])
    array(3.)
    >>> with pjl.stance("fail_on_recompile"):
    ...     f([1.0, 4.0])
    array(5.)
    """
    if kind not in STANCES:
        raise ValueError(f"the stance must be 'default', 'fail_on_recompile' or 'force_host', not {kind!r}")
    with bound(current_stance, None if kind == "default" else kind):
        yield


_given: ContextVar[tuple[str, ...]] = ContextVar("platforms", default=())

#: The names of platforms that are GPUs; JAX's rules for "gpu" are for both.
GPUS = ("cuda", "rocm")


@contextmanager
def for_platforms(platforms: Sequence[str]) -> Iterator[None]:
    """Plan and lower for these platforms, whatever devices this machine has."""
    with bound(_given, tuple(platforms)):
        yield


def given_platforms() -> tuple[str, ...]:
    """Return the platforms of `for_platforms`, or none."""
    return _given.get()


def kind_of(platform: str) -> str:
    """Return "gpu" for each GPU, and other platforms as they are."""
    return "gpu" if platform in GPUS else platform
