"""``python -m jaxpr_artifact inspect | run | bench FILE``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from jaxpr_artifact.array_files import check_output_file, read_arrays, read_inputs, save_arrays
from jaxpr_artifact.callee import Callee, callee_in
from jaxpr_artifact.loading import description_of

INPUTS_HELP = (
    "arguments: FILE.npy in their order, NAME=FILE.npy, NAME=NUMBER, or FILE.npz, whose arrays have the names of arguments;"
    " what the arrays are called is printed by `inspect`"
)


def main(given: Sequence[str] | None = None, program: str = "python -m jaxpr_artifact") -> int:
    """Run one command, print what it found, and return the exit status."""
    options = parser_of(program).parse_args(given)
    try:
        options.command(options)
    except Exception as error:  # whatever the file, the arguments, a check or JAX say: one line, no traceback
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def parser_of(program: str) -> argparse.ArgumentParser:
    """Return the parser of the commands."""
    parser = argparse.ArgumentParser(program, description="Looks into, runs and times functions out of files.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_inspect_and_run(commands)
    bench_options = add(commands, bench, "time the first result and the calls after it")
    bench_options.add_argument("--calls", type=int, default=200, metavar="N", help="how many calls are timed (200)")
    add_choice(bench_options)
    bench_options.add_argument("inputs", nargs="*", metavar="INPUT", help=INPUTS_HELP)
    return parser


def add_inspect_and_run(commands: Any) -> None:
    """Add the parsers of the two commands that other command lines have, too."""
    add(commands, inspect, "say what the file was made of")
    run_options = add(commands, run, "call the function and print or save its outputs")
    run_options.add_argument(
        "--out", metavar="FILE.npz", type=Path, help="where to save the outputs, by name; FILE.npy for one output"
    )
    run_options.add_argument(
        "--state",
        metavar="FILE.npz",
        type=Path,
        help="the state that the function updates: read from this file if it is there, and written into it after the call",
    )
    run_options.add_argument(
        "--batched",
        action="store_true",
        help="whether arguments have one more axis, the first; those without it are shared by all rows",
    )
    add_choice(run_options)
    run_options.add_argument("inputs", nargs="*", metavar="INPUT", help=INPUTS_HELP)


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a function and a device."""
    parser.add_argument("--function", metavar="NAME", help="which function of a module")
    parser.add_argument("--device", help="where a .vmfb file runs, as iree-run-module takes it (local-task)")


def add(commands: Any, command: Callable[..., None], text: str) -> argparse.ArgumentParser:
    """Add the parser of a command."""
    parser = commands.add_parser(command.__name__, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("artifact", metavar="FILE", type=Path)
    parser.set_defaults(command=command)
    return parser


def inspect(options: argparse.Namespace) -> None:
    """Print what the file was made of."""
    print(description_of(options.artifact))


def run(options: argparse.Namespace) -> None:
    """Call the function; print its outputs, or save them."""
    callee = callee_in(options.artifact, options.function, options.device, options.batched)
    if options.out is not None:
        check_output_file(options.out, callee.outputs)
    args = read_inputs([a.name for a in callee.description.arguments], options.inputs)
    if options.state is not None:
        read_state(callee, options.state)
    outputs = dict(zip(callee.outputs, callee.call(args), strict=True))
    if options.state is not None:
        save_arrays(options.state, callee.read_state())
    if options.out is None:
        for name, value in outputs.items():
            print(f"{name}: {value.dtype}{list(value.shape)}\n{value}")
    else:
        save_arrays(options.out, outputs)
        print(f"saved {', '.join(outputs)} in {options.out}")


def read_state(callee: Callee, path: Path) -> None:
    """Give a function the state in a file, if there is one."""
    known = callee.read_state()
    if not known:
        raise TypeError(f"--state is for functions that update state, and {callee.description.name} has none.")
    if path.suffix != ".npz":
        raise ValueError(f"State is in a .npz file, not {str(path)!r}.")
    given = read_arrays(path) if path.exists() else {}
    if unknown := sorted(given.keys() - known.keys()):
        raise TypeError(
            f"{path} has {unknown[0]!r}, and the state that {callee.description.name} updates is {', '.join(known)}."
        )
    callee.write_state(given)


def bench(options: argparse.Namespace) -> None:
    """Time loading, the first result, and the calls after it."""
    if options.calls < 1:
        raise ValueError("--calls is 1 or more.")
    started = perf_counter()
    callee = callee_in(options.artifact, options.function, options.device)
    loading = perf_counter() - started
    args = read_inputs([a.name for a in callee.description.arguments], options.inputs)
    times = []
    for _ in range(options.calls + 1):
        started = perf_counter()
        callee.call(args)
        times.append(perf_counter() - started)
    first, *later = times
    print(f"load          {loading * 1e3:10.3f} ms")
    print(f"first result  {first * 1e3:10.3f} ms, with what is compiled or read then")
    print(f"median call   {median(later) * 1e3:10.3f} ms of {len(later)}, the fastest {min(later) * 1e3:.3f} ms")
    print(f"on            {callee.device}")
