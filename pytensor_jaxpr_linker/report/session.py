"""`session_report`: what a process has built, by the user's line, how long that took, and what to change first."""

from __future__ import annotations

import linecache
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from os import sep
from pathlib import Path
from typing import NamedTuple

from pytensor_jaxpr_linker.base.session import BUILDS, MOST_BUILDS, BuildRecord
from pytensor_jaxpr_linker.base.words import counted, page_url
from pytensor_jaxpr_linker.graph.rewritten.store import STORE
from pytensor_jaxpr_linker.report.explanation import ADDRESS, page
from pytensor_jaxpr_linker.report.text import duration, list_seconds
from pytensor_jaxpr_linker.run.recompiles import AGAIN, STATIC

#: So many programs, or functions, of one line are many.
MANY_BUILDS = 3
#: How many reasons of a line are shown, and how many of its builds that took longest.
SHOWN_CAUSES = SHOWN_BUILDS = 5
#: Advice about less of the time than this is left out.
LEAST_SHARE = 0.02


class Advice(NamedTuple):
    """Something to change, and the seconds that it could save."""

    seconds: float
    text: str


class LineReport(NamedTuple):
    """What was built at one line of the user's.

    Attributes
    ----------
    line, code
        The file and number, and the text of the line; nothing for builds of this package's threads.
    builds
        What was built there, in order.
    """

    line: str
    code: str
    builds: Sequence[BuildRecord]

    @property
    def place(self) -> str:
        """The line without the folder that the process runs in."""
        return self.line.removeprefix(f"{Path.cwd()}{sep}") or "in threads of this package"

    @property
    def whole(self) -> list[BuildRecord]:
        """The builds that are no parts of others."""
        return [build for build in self.builds if not build.is_part]

    @property
    def stages(self) -> dict[str, float]:
        """The seconds of each stage, summed over whole builds, the longest first."""
        found: dict[str, float] = defaultdict(float)
        for stage, seconds in [item for build in self.whole for item in list(build.seconds.items())]:
            found[stage] += seconds
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def seconds(self) -> float:
        """The seconds of all stages. Stages of several threads at the same time count each."""
        return sum(self.stages.values())

    @property
    def summary(self) -> str:
        """How many of each kind were built, and how many of these were kept from before."""
        kinds = Counter(build.kind for build in self.whole)
        kept = sum(build.kept for build in self.whole)
        return ", ".join([counted(n, kind) for kind, n in kinds.items()] + [f"{kept} kept"] * bool(kept))

    @property
    def again(self) -> list[BuildRecord]:
        """The programs and samplers that were compiled again."""
        return [build for build in self.whole if AGAIN in build.cause and not build.kept]

    @property
    def causes(self) -> list[str]:
        """Why programs were compiled again, the most frequent first."""
        again = Counter(cause_of(build) for build in self.again)
        static = any(STATIC in build.cause for build in self.again)
        return [f"compiled again: {cause}" for cause, _ in again.most_common(SHOWN_CAUSES)] + [STATIC] * static

    @property
    def lines(self) -> list[str]:
        """What was built, the stages, the longest builds, and why programs were compiled again."""
        found = sorted([b for b in self.whole if b.kind != "program"], key=time_of, reverse=True)
        many = len(found) > MANY_BUILDS
        named = [f"{b.kind} of {b.name} {duration(time_of(b))}" for b in found[:SHOWN_BUILDS]]
        longest = f"longest: {'; '.join(named)}"
        return [f"{self.summary} ({list_seconds(self.stages)})", *[longest] * many, *self.causes]

    def advice(self) -> Iterator[Advice]:
        """Yield what to change at this line."""
        for of_sampler, (least, change) in AGAINST_RECOMPILES.items():
            again = [build for build in self.again if (STATIC in build.cause) == of_sampler]
            if len(again) >= least:
                what = max(map(cause_of, reversed(again)), key=len)
                many = f"{self.place} compiles {counted(len(again), 'program')} for other values or shapes"
                yield Advice(sum(map(time_of, again)), f"{many}, such as: {what}. {change}")
        functions = [build for build in self.whole if build.kind == "function"]
        for name, n in Counter(build.name for build in functions).most_common(1):
            if n >= MANY_BUILDS:
                many = f"{self.place} makes {counted(n, 'function')} of {name}: if equal, make one, before the loop"
                yield Advice(self.seconds * (n - 1) / len(functions), many)


def time_of(build: BuildRecord) -> float:
    """Return the seconds of all stages of a build."""
    return sum(list(build.seconds.values()))


def cause_of(build: BuildRecord) -> str:
    """Return what differs from the program before."""
    return build.cause.partition(AGAIN)[2].removesuffix(f". {STATIC}")


#: The heading of the page about options that says what to do against that.
OF_RECOMPILES = "when-a-function-is-compiled-again-and-again"
#: Whether programs are of samplers: how many make the advice, and the advice.
AGAINST_RECOMPILES = {
    False: (MANY_BUILDS, f"Mark such an axis with pjl.mark_dynamic, or pad: {page_url('options', OF_RECOMPILES)}"),
    True: (1, f"{STATIC} Sample with data of one length: pad it, and mask its likelihood"),
}


@dataclass(frozen=True)
class SessionReport:
    """What a process has built. Prints as text; a notebook shows it as HTML.

    Attributes
    ----------
    lines : list of LineReport
        The user's lines, the one that took longest first.
    complete : bool
        Whether no build was forgotten: the last 10,000 are remembered.
    """

    lines: list[LineReport]
    complete: bool

    @property
    def seconds(self) -> float:
        """The seconds of all lines."""
        return sum(line.seconds for line in self.lines)

    @property
    def advice(self) -> list[str]:
        """What to change, the change that could save most first."""
        found = [advice for line in self.lines for advice in line.advice()]
        if not STORE.has_folder:
            text = f"Nothing is kept for later processes, which build it all again: {page_url('guides/cache')}"
            found.append(Advice(self.seconds, text))
        found = [advice for advice in found if advice.seconds >= LEAST_SHARE * self.seconds]
        return [f"{text} (about {duration(s)})" for s, text in sorted(found, key=lambda advice: -advice.seconds)]

    @property
    def summary(self) -> str:
        """The first line."""
        kinds = Counter(build.kind for line in self.lines for build in line.whole)
        kept = sum(build.kept for line in self.lines for build in line.whole)
        what = ", ".join(counted(n, kind) for kind, n in kinds.items()) or "nothing"
        of_kept = f"; {kept} kept from before" if kept else ""
        forgotten = "" if self.complete else f"; only the last {MOST_BUILDS:,}"
        return f"This process has built {what} in {duration(self.seconds)}{of_kept}{forgotten}."

    def __str__(self) -> str:
        parts = [self.summary]
        parts += [f"To change first: {text}" for text in self.advice]
        for line in self.lines:
            first, *others = line.lines
            parts += [f"{line.place}  {line.code}", f"  {duration(line.seconds)}: {first}"]
            parts += [f"  {text}" for text in others]
        return "\n".join(parts)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        advice = "".join(f"<li>{ADDRESS.sub(r'<a href="\g<0>">\g<0></a>', escape(text))}</li>" for text in self.advice)
        rows = [
            f"<tr><td style='white-space:nowrap'>{duration(line.seconds)}</td><td style='text-align:left'><code>"
            + "<br>".join([f"{escape(line.place)}<br>{escape(line.code)}</code>", *map(escape, line.lines)])
            + "</td></tr>"
            for line in self.lines
        ]
        head = "<tr><th>time</th><th style='text-align:left'>line, what it built, and why again</th></tr>"
        first = f"<h2>To change first</h2><ul>{advice}</ul>" if advice else ""
        return f"<h1>{escape(self.summary)}</h1>{first}<table>{head}{''.join(rows)}</table>"

    def save(self, path: str | Path) -> Path:
        """Write the report as one HTML page; return its path."""
        path = Path(path)
        path.write_text(page("What this process has built in mode JAXPR", [self._repr_html_()]), encoding="utf-8")
        return path


def session_report() -> SessionReport:
    """Return what this process has built so far in mode JAXPR, by the user's line.

    That is: each function, its programs, and the programs of models and samplers; how long their stages took, what was
    found in a cache, and which value or shape caused another program. The first lines say what to change to save most.
    ``PYTENSOR_JAXPR_LOGS=report=FILE.html`` in the environment writes it at the end of the process.

    Returns
    -------
    SessionReport
        Print it, show it in a notebook, or ``save("page.html")`` it.

    See Also
    --------
    explain : One function, its nodes and breaks.

    Examples
    --------
    >>> import pytensor, pytensor.tensor as pt
    >>> import pytensor_jaxpr_linker as pjl
    >>> x = pt.vector("x", dtype="float64")
    >>> f = pytensor.function([x], pt.exp(x).sum(), mode="JAXPR")
    >>> f([1.0, 2.0]).shape
    ()
    >>> pjl.session_report().summary
    'This process has built ...
    """
    by_line: dict[str, list[BuildRecord]] = defaultdict(list)
    builds = list(BUILDS)
    for build in builds:
        by_line[build.line].append(build)
    lines = [LineReport(line, code_of(line), found) for line, found in by_line.items()]
    return SessionReport(sorted(lines, key=lambda line: -line.seconds), len(builds) < MOST_BUILDS)


def code_of(line: str) -> str:
    """Return the text of a line, by its file and number."""
    file, _, number = line.rpartition(":")
    return linecache.getline(file, int(number)).strip() if file else ""
