"""The policy of a function whose graph breaks, or that would have to be compiled again."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors, toposort

from pytensor_jaxpr_linker.base import errors, logs, marks
from pytensor_jaxpr_linker.base.options import Options, current_stance
from pytensor_jaxpr_linker.plan.model import Region
from pytensor_jaxpr_linker.plan.padding import NotExact, Padding

#: How a message goes on if there are other programs.
AGAIN = "is not compiled for this: "
#: What follows the shapes because of which a sampler is compiled again.
STATIC = "XLA's shapes are static, so no program of a sampler serves every length."
#: How many values a message lists.
SHOWN_VALUES = 5


class RecompileWarning(UserWarning):
    """A function is compiled again and again."""


class RecompileError(RuntimeError):
    """A function would be compiled, and its options or the stance forbid it."""


class NotAdmitted(Exception):
    """Ends a trace of `jax.jit`: in place of a compilation the call is padded or, without `padding`, runs on the host.

    Only the traced function learns that `jax.jit` has no program, so a call that compiles nothing pays nothing for the
    decision. A test of the shapes and dtypes before each call took 5 to 10 % of a short call.
    """

    def __init__(self, padding: Padding | None):
        super().__init__(padding)
        self.padding = padding


class Policy:
    """The options and the name of one function, its reports so far, and the progress of its build."""

    def __init__(self, options: Options, inputs: Iterable[Variable] = (), name: str | None = None):
        self.options, self.name = options, name
        self.progress = logs.Progress()
        self.has_dynamic = any(marks.is_dynamic(v) or marks.dynamic_axes(v) for v in inputs)
        self._reported: set[errors.Break] = set()
        self._reported_dynamic: set[tuple] = set()
        self._warned = False

    def report_breaks(self, breaks: Sequence[errors.Break]) -> None:
        """Report the breaks of a plan; of a later plan only the new ones.

        Raises
        ------
        GraphBreakError
            If breaks are forbidden: it lists all.
        """
        how = self.options.on_break
        errors.report_breaks(breaks if how == "raise" else [b for b in breaks if b not in self._reported], how)
        self._reported.update(breaks)

    def report_dynamic(self, found: errors.Break, name: str) -> None:
        """Report once that a region runs on the host for a dynamic length, or raise if breaks are forbidden."""
        how, key = self.options.on_break, (found.variable, found.node)
        if how == "raise":
            raise errors.GraphBreakError([found])
        if key not in self._reported_dynamic:
            self._reported_dynamic.add(key)
            summary = f"{name} runs on the host for this call, and for others of another length."
            errors.report_breaks([found], how, summary)

    def warn_once(self, message: str) -> None:
        """Warn of too many specializations: once for a function."""
        if not self._warned:
            self._warned = True
            errors.warn_user(message, RecompileWarning)


class Specialized(NamedTuple):
    """The static values and the shapes of inputs that a region was specialized on, spelled for messages."""

    static: dict[Variable, str]
    shapes: dict[Variable, tuple[int, ...]]


class Recompiles:
    """Counts the specializations of one region, and decides on each further one.

    `pad` finds how the region is padded, for the shapes of its inputs so far. Without it, the region is compiled where
    the options say that it is padded.
    """

    def __init__(
        self,
        region: Region,
        name: str,
        policy: Policy,
        pad: Callable[[Sequence[Mapping[Variable, tuple[int, ...]]]], Padding] | None = None,
    ):
        self._region, self._policy, self.progress = region, policy, policy.progress
        self._pad = pad
        #: How the region is padded once it has passed the limit, or why it is not.
        self.padding: Padding | NotExact | None = None
        self._name = f"{name} of '{policy.name}'" if policy.name else name
        self._lock = threading.Lock()
        self._seen: list[Specialized] = []
        self.count = 0
        self._dynamic = {v: unbounded_axes(v) for v in region.inputs} if policy.has_dynamic and pad else {}
        self._has_longest = any(n is not None for v in self._dynamic for n in marks.dynamic_axes(v).values())

    @property
    def closed(self) -> bool:
        """Whether no more may be compiled."""
        options = self._policy.options
        is_full = self.count >= options.recompile_limit and options.on_recompile_limit in ("host", "raise")
        return is_full or current_stance.get() == "fail_on_recompile"

    def check(self, static: Mapping[Variable, Any], avals: Sequence[Any]) -> str:
        """Return why a specialization is compiled, if it may be; warn the user if it is one of many.

        Raises
        ------
        NotAdmitted
            If the call is padded, or runs on the host.
        RecompileError, GraphBreakError
            If the options or the stance forbid it.
        """
        new = describe(self._region, static, avals)
        if current_stance.get() == "fail_on_recompile":
            raise RecompileError(f"The stance is 'fail_on_recompile', but {self._name} {self._news(new)}.")
        if self._pads_early(new):
            padding = self._find_padding(new)
            if isinstance(padding, Padding) and padding.fits(avals):
                raise NotAdmitted(padding)
            if isinstance(padding, NotExact) and not self._has_longest:
                line = "" if padding.node is None else errors.user_line(padding.node)
                self._policy.warn_once(f"{self._name} can't be padded, since {padding}. {AFTER_LIMIT['compile']}{line}")
        if self._dynamic and (found := self._dynamic_length(new)) is not None:
            self._policy.report_dynamic(found, self._name)
            raise NotAdmitted(None)
        if self.count >= self._policy.options.recompile_limit:
            self._check_past_limit(new, avals)
        return self._news(new)

    def record(self, static: Mapping[Variable, Any], avals: Sequence[Any]) -> None:
        """Count a specialization that has been lowered."""
        new = describe(self._region, static, avals)
        with self._lock:
            if logs.recompiles.isEnabledFor(logging.INFO):
                logs.recompiles.info("%s %s", self._name, self._news(new))
            self.count += 1
            if len(self._seen) <= self._policy.options.recompile_limit:
                self._seen.append(new)

    def _news(self, new: Specialized) -> str:
        """Return, for a message, the difference to the specialization that was compiled last."""
        if not self._seen:
            return f"has not been compiled before; it would be for {spell(new)}"
        both: Any = zip(("value", "shape"), self._seen[-1], new, strict=True)
        changes = [
            f"the {kind} of {errors.variable_name(v)} is {value}, not {last[v]}"
            for kind, last, now in both
            for v, value in now.items()
            if last[v] != value
        ]
        return AGAIN + ("; ".join(changes) or "one of its programs was dropped")

    def _pads_early(self, new: Specialized) -> bool:
        """Return whether a region is padded below the limit: a longest length is marked, or the options say so."""
        if self._has_longest or self._pad is None:
            return self._has_longest
        return self._policy.options.dynamic_shapes == "pad" and any(new.shapes != seen.shapes for seen in self._seen)

    def _dynamic_length(self, new: Specialized) -> errors.Break | None:
        """Return the break of an axis that is marked dynamic and has a length that the region is not compiled for."""
        for variable, axes in self._dynamic.items():
            for axis in axes:
                limit = self._limit(variable, axis, new.shapes[variable][axis])
                node = self._reader(variable) if limit else None
                if node is not None:
                    length = f"the length of axis {axis} of {errors.variable_name(variable)}"
                    reason = f"{length} follows from an input that is marked dynamic, and {limit}"
                    return errors.Break(errors.DYNAMIC_AXIS, node, variable, reason)
        return None

    def _limit(self, variable: Variable, axis: int, length: int) -> str:
        """Return why nothing is compiled for a length of an axis that is marked dynamic, or nothing."""
        longest = marks.dynamic_axes(variable).get(axis)
        if longest is not None and length > longest:
            return f"the longest that is marked is {longest}, not {length}"
        if isinstance(self.padding, Padding) or not self._seen:
            return ""
        compiled = self._seen[0].shapes[variable][axis]
        if length == compiled:
            return ""
        why = "" if longest is None else f" (it can't be padded, since {self.padding})"
        return f"its region is compiled for {compiled}, not for {length}{why}"

    def refuse_padding(self, reason: str) -> None:
        """Pad no more, and warn the user: a rule can't emit a node of the padded region."""
        self.padding = NotExact(reason)
        errors.warn_user(f"{self._name} can't be padded, since {reason}. {AFTER_LIMIT['compile']}", RecompileWarning)

    def _find_padding(self, new: Specialized) -> Padding | NotExact | None:
        """Find out, the first time, whether the region can be padded."""
        with self._lock:
            if self._pad is not None and self.padding is None:
                try:
                    self.padding = self._pad([found.shapes for found in (*self._seen, new)])
                except NotExact as reason:
                    self.padding = reason
        return self.padding

    def _check_past_limit(self, new: Specialized, avals: Sequence[Any]) -> None:
        """Do for a specialization beyond the limit as the options say, see `check`."""
        limit, action = self._policy.options.recompile_limit, self._policy.options.on_recompile_limit
        culprit, line = self._culprit(new)
        message = f"{self._name} needs more than {limit} specializations (`recompile_limit`): {culprit}."
        if action == "raise":
            raise RecompileError(message + line)
        padding = self._find_padding(new) if action == "pad" else None
        after = AFTER_LIMIT["host" if action == "host" else "compile"]
        if isinstance(padding, Padding):
            after = f"For further ones, it is called with padded arrays ({padding.text})."
        elif padding is not None:
            after = f"They can't be padded, since {padding}. {after}"
            line = ("" if padding.node is None else errors.user_line(padding.node)) or line
        self._policy.warn_once(f"{message} {after}{line}")
        if action == "host":
            raise NotAdmitted(None)
        if isinstance(padding, Padding) and padding.fits(avals):
            raise NotAdmitted(padding)

    def _culprit(self, new: Specialized) -> tuple[str, str]:
        """Return a sentence on the value or length that changed most often, and the user's line behind it."""
        values: dict[tuple[Variable, int | None], dict[Any, None]] = defaultdict(dict)
        for seen in (*self._seen, new):
            for v, value in seen.static.items():
                values[v, None][value] = None
            for v, shape in seen.shapes.items():
                for i, length in enumerate(shape):
                    values[v, i][length] = None
        if all(len(found) < 2 for found in values.values()):
            return "its programs were dropped and compiled again, since `specializations` is smaller", ""
        (variable, axis), found = max(values.items(), key=lambda item: len(item[1]))
        node = self._demander(variable) if axis is None else self._reader(variable)
        quantity = "the value" if axis is None else f"the length of axis {axis}"
        subject = f"{quantity} of {errors.variable_name(variable)}{self._origin(variable)}"
        shown = ", ".join(map(str, list(found)[:SHOWN_VALUES])) + (", ..." if len(found) > SHOWN_VALUES else "")
        sentence = f"{subject} keeps changing ({len(found)} values: {shown})"
        if node is None:
            return sentence, ""
        return f"{sentence}, and {errors.describe_node(node)} needs it", errors.user_line(node)

    def _origin(self, variable: Variable) -> str:
        """Return, for a message, the inputs of the region that a value without a name follows from."""
        if variable.name or variable in self._region.inputs:
            return ""
        found = set(ancestors([variable], self._region.inputs))
        names = [errors.variable_name(v) for v in self._region.static_inputs if v in found]
        return f", which follows from {' and '.join(names)}," if names else ""

    def _reader(self, variable: Variable) -> Apply | None:
        """Return the first node that reads a variable."""
        nodes = toposort(self._region.outputs, blockers=self._region.inputs)
        return next((node for node in nodes if variable in node.inputs), None)

    def _demander(self, variable: Variable) -> Apply | None:
        """Return the first node that must know the value of a variable."""
        for step in self._region.steps:
            if variable in ancestors([step.node.inputs[i] for i in step.static], self._region.inputs):
                return step.node
        return self._reader(variable)


#: The fate of a function that has passed the limit, for messages.
AFTER_LIMIT = {
    "compile": "Each further one is compiled as well, which takes time and memory.",
    "host": "For further ones it runs on the host.",
}


def describe(region: Region, static: Mapping[Variable, Any], avals: Sequence[Any]) -> Specialized:
    """Return the static values and shapes that a specialization is for."""
    shapes = {v: tuple(a.shape) for v, a in zip(region.inputs, avals, strict=False)}
    return Specialized({v: str(value) for v, value in static.items()}, shapes)


def spell(found: Specialized) -> str:
    """Return static values and shapes as text."""
    parts = [f"{errors.variable_name(v)} = {value}" for v, value in found.static.items()]
    parts += [f"{errors.variable_name(v)} of shape {shape}" for v, shape in found.shapes.items()]
    return ", ".join(parts) or "no inputs"


def unbounded_axes(variable: Variable) -> list[int]:
    """Return the axes of a region's input whose other lengths must not compile the region again."""
    if variable.owner is None:
        return sorted(marks.dynamic_axes(variable))
    if not any(marks.is_dynamic(v) or marks.dynamic_axes(v) for v in ancestors([variable])):
        return []
    return [axis for axis, length in enumerate(getattr(variable.type, "shape", ())) if length is None]
