"""The commands and their options, and the files that they read."""

from __future__ import annotations

import argparse
import os
import re
import runpy
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple
from urllib.parse import quote_plus

import numpy as np
from pytensor.compile.executor import Function
from pytensor.compile.mode import predefined_modes

from jaxpr_artifact import ArtifactError, load
from jaxpr_artifact import command_line as artifacts
from jaxpr_artifact.descriptions import columns
from pytensor_jaxpr_linker.artifacts.writing import PLATFORMS
from pytensor_jaxpr_linker.base.version import __version__
from pytensor_jaxpr_linker.base.words import counted, page_url
from pytensor_jaxpr_linker.command_line.doctor import examine
from pytensor_jaxpr_linker.frontend.targets import Target
from pytensor_jaxpr_linker.graph.rewritten.store import STORE, prune
from pytensor_jaxpr_linker.report.explain import explain
from pytensor_jaxpr_linker.report.measure import seconds_of
from pytensor_jaxpr_linker.report.stages import stages
from pytensor_jaxpr_linker.report.text import duration
from pytensor_jaxpr_linker.run.bundle import export_bundle, import_bundle


class ModelInFile(NamedTuple):
    """The subject of a report, and its name."""

    name: str
    value: Any


def is_model_file(text: str) -> bool:
    """Return whether an argument names a Python file: ``model.py``, or ``model.py:name``."""
    return split_target(text)[0].suffix == ".py"


def split_target(text: str) -> tuple[Path, str]:
    """Return the file that an argument names, and the name within it, or nothing."""
    head, colon, name = text.rpartition(":")
    return (Path(head), name) if colon and head.endswith(".py") else (Path(text), "")


def read_reportable(text: str) -> ModelInFile:
    """Return the subject for `explain` and `stages`: defined by a Python file, or the function of an exported file."""
    if is_model_file(text):
        return read_model(text)
    if not (path := Path(text)).is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        return ModelInFile(path.stem, load(path))
    except ArtifactError as error:
        raise ValueError(f"{path} is no model file, which is called model.py or model.py:NAME. {error}") from None


def read_model(text: str) -> ModelInFile:
    """Run a file, as an import would, and return the value of a name, or its only value that `explain` takes.

    The name may be of a function without arguments that makes the value.
    """
    path, name = split_target(text)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    folder = str(path.resolve().parent)
    try:
        sys.path.insert(0, folder)
        namespace = runpy.run_path(str(path), run_name=path.stem)
    finally:
        sys.path.pop(0)
    if name:
        return ModelInFile(name, value_named(namespace, name, path))
    found = {key: value for key, value in namespace.items() if is_reportable(value)}
    names = list({id(value): key for key, value in reversed(found.items())}.values())[::-1]
    if len(names) == 1:
        return ModelInFile(names[0], found[names[0]])
    if names:
        raise LookupError(f"{path} defines {', '.join(names)}: name one of them, as in {path}:{names[0]}")
    raise LookupError(
        f"{path} defines no PyMC model and no function of mode JAXPR at its top level. If a function makes one, name"
        f" it: {path}:build_model"
    )


def value_named(namespace: dict[str, Any], name: str, path: Path) -> Any:
    """Return the value of a name in a file; if it is a function that makes such a value, call it."""
    if name not in namespace:
        near = get_close_matches(name, namespace)
        raise LookupError(f"{path} defines no {name!r}" + (f"; did you mean {near[0]!r}?" if near else "."))
    value = namespace[name]
    if not is_reportable(value) and callable(value):
        value = value()
    if not is_reportable(value):
        raise TypeError(f"{name} of {path} is no PyMC model and no function of mode JAXPR, but {type(value).__name__}.")
    return value


def is_reportable(value: Any) -> bool:
    """Return whether `explain` takes a value."""
    if pymc := sys.modules.get("pymc"):
        classes = pymc.Model, pymc.pytensorf.PointFunc, pymc.model.core.ValueGradFunction
        if isinstance(value, classes):
            return True
    if isinstance(value, Function):
        return hasattr(getattr(value, "vm", None), "runner")
    return isinstance(getattr(value, "source", None), Target)


def time_model(found: ModelInFile, modes: Sequence[str], calls: int) -> str:
    """Return a table of the times of the log density and gradient of a model in each mode, and which mode is faster."""
    import pymc

    model = found.value
    if not isinstance(model, pymc.Model):
        raise TypeError(f"bench takes a PyMC model, and {found.name} is {type(model).__name__}.")
    known = ["default", *predefined_modes]
    for mode in (mode for mode in modes if mode not in known):
        near = get_close_matches(mode.upper(), known)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}."
        raise LookupError(f"There is no mode {mode!r}: {hint}")
    outputs = [model.logp()]
    if model.continuous_value_vars:
        outputs.append(model.dlogp())
    point = [model.initial_point()[v.name] for v in model.value_vars]
    firsts, runs = [], []
    for mode in modes:
        started = perf_counter()
        function = pymc.compile(model.value_vars, outputs, mode=None if mode == "default" else mode)
        function(*point)
        firsts.append(perf_counter() - started)
        runs.append(partial(function, *point))
    times = in_turns(runs, calls)
    rows: list[tuple[str, ...]] = [("mode", "first result", "median call", "lower quartile", "upper quartile")]
    for mode, first, of_mode in zip(modes, firsts, times, strict=True):
        rows.append((mode, *(duration(t) for t in (first, *np.percentile(of_mode, (50, 25, 75))))))
    verdicts = [verdict(modes[0], mode, times[0], of_mode) for mode, of_mode in zip(modes[1:], times[1:], strict=True)]
    return "\n".join([f"Log density and gradient of {found.name}, at its initial point:", *columns(rows), *verdicts])


#: How many turns of each function `in_turns` takes, and the smallest number for a verdict.
MOST_TURNS, FEWEST_TURNS = 20, 5


def in_turns(runs: Sequence[Callable[[], Any]], calls: int) -> list[list[float]]:
    """Return the median seconds of a call in each turn, by function: they alternate, and each begins as often."""
    turns = min(MOST_TURNS, calls)
    times: list[list[float]] = [[] for _ in runs]
    for turn in range(turns):
        for i in range(turn, turn + len(runs)):
            times[i % len(runs)].append(median(seconds_of(runs[i % len(runs)], -(-calls // turns))))
    return times


def verdict(mode: str, other: str, times: Sequence[float], others: Sequence[float]) -> str:
    """Return which of two modes is faster, by the ratios of their turns without the lowest and the highest tenth."""
    low, high = np.percentile(np.divide(others, times), (10, 90))
    if len(times) < FEWEST_TURNS or low <= 1 <= high:
        said = "no difference measurable"
    else:
        said = f"{mode if low > 1 else other} is faster"
    return f"{other} takes {low:.2f} to {high:.2f} times as long as {mode} in {counted(len(times), 'turn')}: {said}."


PACKAGE = Path(__file__).parents[1]
#: The page of the break codes in a wheel, where setup.py copies it, and in a clone.
COPIES = (PACKAGE / "breaks.md", PACKAGE.parent / "docs" / "breaks.md")
BREAK_CODE = re.compile(r"JX\d{3}", re.IGNORECASE)


def page_text(name: str | None) -> str:
    """Return the section of a break code, else the address of the site, or of its search for a word."""
    if name is None:
        return page_url("index")
    if not BREAK_CODE.fullmatch(name):
        return f"{page_url('search')}?q={quote_plus(name)}"
    page = next((path for path in COPIES if path.is_file()), None)
    if page is None:
        raise FileNotFoundError(f"This installation has no copy of the documentation. It is at {page_url('index')}.")
    _, *parts = re.split(r"^(?=## )", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = {part.partition("\n")[0].removeprefix("## ").strip(): part.rstrip() for part in parts}
    if (wanted := name.upper()) not in sections:
        codes = [title for title in sections if BREAK_CODE.fullmatch(title)]
        raise LookupError(f"There is no break code {wanted}; there are {', '.join(codes)}.")
    return f"{sections[wanted]}\n\n{page_url('breaks', wanted.lower())}"


PROGRAM = "python -m pytensor_jaxpr_linker"
MODEL_HELP = (
    "a Python file with a PyMC model or a function of mode JAXPR, as model.py, or model.py:NAME; NAME may be a function"
    " that makes it"
)
#: The forms of each region that `stages --show` can print.
SHOWN = ("jaxpr", "stablehlo", "hlo")


def run_command(given: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit status."""
    options = make_parser().parse_args(given)
    try:
        status = options.command(options) or 0
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # of any kind, from a model file: one line, and a traceback only on request
        if options.traceback:
            raise
        print(f"{type(error).__name__}: {error}\n({PROGRAM} --traceback ... shows where)", file=sys.stderr)
        return 1


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the commands."""
    about = "Reports on PyMC models, functions of mode JAXPR and exported functions."
    parser = argparse.ArgumentParser(PROGRAM, description=about)
    parser.add_argument("--traceback", action="store_true", help="show the traceback of an error")
    parser.add_argument("--version", action="version", version=f"pytensor_jaxpr_linker {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    doctor = commands.add_parser("doctor", help="say whether versions, devices and compilers fit, and run a program")
    doctor.set_defaults(command=run_doctor)

    kept = commands.add_parser("cache", help="show the folder of programs for later processes, or delete some")
    limit_help = "delete the programs that were used least recently if there are more bytes; 0 deletes all"
    kept.add_argument("--limit", metavar="MIB", type=float, help=limit_help)
    kept.set_defaults(command=run_cache)
    actions = kept.add_subparsers(metavar="ACTION")
    for name, run, help_ in (
        ("export", run_export, "write the programs of the folder to one file, for CI or a colleague"),
        ("import", run_import, "add the programs of such a file to the folder: only if you trust who has written it"),
    ):
        action = actions.add_parser(name, help=help_)
        action.add_argument("file", metavar="FILE", type=Path)
        action.set_defaults(command=run)

    docs = commands.add_parser("docs", help="print the meaning of a break code, or the address of the documentation")
    docs.add_argument("page", nargs="?", metavar="CODE", help="such as JX002; of another word, where to search for it")
    docs.set_defaults(command=lambda options: print(page_text(options.page)))

    explained = commands.add_parser("explain", help="say which nodes run where, why, and what to change")
    explained.add_argument("--save", metavar="FILE", type=Path, help="write a page (.html), or its graph alone (.mmd)")
    explained.add_argument("--most", type=int, default=12, metavar="N", help="the number of entries of each list (12)")
    explained.add_argument("--passes", action="store_true", help="show the effect of each pass")
    platform_help = "list the operations without a lowering there; no such device is needed"
    explained.add_argument("--platform", choices=PLATFORMS, help=platform_help)
    explained.set_defaults(command=run_explain)

    staged = commands.add_parser("stages", help="show the forms that a function takes on its way to the processor")
    staged.add_argument("--show", choices=SHOWN, help="print this form of each region")
    staged.add_argument("--profile", action="store_true", help="run it, and measure the time of each part")
    staged.set_defaults(command=run_stages)
    for command in (explained, staged):
        command.add_argument("target", metavar="MODEL", help=f"{MODEL_HELP}; or an exported function")

    bench = commands.add_parser("bench", help="time a model or an exported function")
    bench.add_argument("target", metavar="MODEL", help=f"{MODEL_HELP}; or an exported function")
    bench.add_argument("inputs", nargs="*", metavar="INPUT", help=f"for an exported function. {artifacts.INPUTS_HELP}")
    bench.add_argument("--calls", type=int, default=200, metavar="N", help="the number of timed calls (200)")
    modes_help = "for a model, with commas between (JAXPR,default)"
    bench.add_argument("--modes", default="JAXPR,default", metavar="MODES", help=modes_help)
    artifacts.add_choice(bench)
    bench.set_defaults(command=run_bench)
    artifacts.add_inspect_and_run(commands)
    return parser


def run_doctor(options: argparse.Namespace) -> int:
    """Print the report on the environment; the exit status is 1 if something is wrong."""
    examination = examine()
    print(examination)
    return bool(examination.problems)


def run_cache(options: argparse.Namespace) -> None:
    """Show the folder of kept programs, or delete entries."""
    if (folder := STORE.folder) is None:
        print(f"No program is kept for later processes. {page_url('guides/cache')}")
        return
    if options.limit is not None:
        if not options.limit >= 0:
            raise ValueError("--limit is 0 or more.")
        print(f"{counted(len(prune(folder, int(options.limit * 2**20))), 'program')} deleted.")
    sizes = [path.stat().st_size for path in folder.iterdir()]
    print(f"{folder}: {counted(len(sizes), 'program')}, {sum(sizes) / 2**20:.1f} MiB")


def run_export(options: argparse.Namespace) -> None:
    """Write the programs of the folder to a file."""
    written = export_bundle(folder_of_programs(), options.file)
    print(f"{options.file}: {counted(written, 'program')}, {options.file.stat().st_size / 2**20:.1f} MiB")


#: What a program of XLA can do.
TRUST = (
    "They are machine code of XLA, which runs with your rights when a function with that key is compiled: import only"
    " from those you trust."
)


def run_import(options: argparse.Namespace) -> None:
    """Add the programs of a file to the folder."""
    added, known, differences = import_bundle(options.file, folder_of_programs())
    print(f"{counted(added, 'program')} added, {known} already there.")
    if differences:
        print(f"No function finds them in this installation, as the writer had {'; '.join(differences)}.")
    print(TRUST)


def folder_of_programs() -> Path:
    """Return the folder of kept programs, or raise if there is none."""
    if (folder := STORE.folder) is None:
        raise FileNotFoundError(f"No program is kept for later processes. {page_url('guides/cache')}")
    return folder


def run_explain(options: argparse.Namespace) -> None:
    """Print the explanation of a model, or save it."""
    explanation = explain(read_reportable(options.target).value, passes=options.passes, platform=options.platform)
    if options.save is None:
        print(explanation.text(options.most))
    else:
        print(f"{explanation.summary} Saved in {explanation.save(options.save)}")


def run_stages(options: argparse.Namespace) -> None:
    """Print the stages of a model."""
    found: Any = stages(read_reportable(options.target).value)
    if options.profile:
        print(found.profile())
    elif options.show:
        for text in getattr(found, options.show):
            print(text)
    else:
        print(found)


def run_bench(options: argparse.Namespace) -> None:
    """Time a model in several modes, or an exported function."""
    if options.calls < 1:
        raise ValueError("--calls is 1 or more.")
    if is_model_file(options.target):
        if options.function or options.device:
            raise ValueError(
                f"--function and --device are for exported functions, and {options.target} is a model file."
            )
        print(time_model(read_model(options.target), options.modes.split(","), options.calls))
    else:
        options.artifact = Path(options.target)
        artifacts.bench(options)
