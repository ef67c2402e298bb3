"""``python -m jaxpr_artifact inspect | run | bench ARTIFACT``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import jax
import numpy as np

from jaxpr_artifact.loaded import LoadedFunction
from jaxpr_artifact.loading import load

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
    parser = argparse.ArgumentParser(program, description="Looks into, runs and times an exported function.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_inspect_and_run(commands)
    bench_options = add(commands, bench, "time the first result and the calls after it")
    bench_options.add_argument("--calls", type=int, default=200, metavar="N", help="how many calls are timed (200)")
    bench_options.add_argument("inputs", nargs="*", metavar="INPUT", help=INPUTS_HELP)
    return parser


def add_inspect_and_run(commands: Any) -> None:
    """Add the parsers of the two commands that other command lines have, too."""
    add(commands, inspect, "say what the artifact was made of")
    run_options = add(commands, run, "call the function and print or save its outputs")
    run_options.add_argument("--out", metavar="FILE.npz", help="where to save the outputs, by name")
    run_options.add_argument(
        "--batched", action="store_true", help="whether all arguments have one more axis, the first"
    )
    run_options.add_argument("inputs", nargs="*", metavar="INPUT", help=INPUTS_HELP)


def add(commands: Any, command: Any, text: str) -> argparse.ArgumentParser:
    """Add the parser of a command."""
    parser = commands.add_parser(command.__name__, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("artifact", metavar="ARTIFACT", type=Path)
    parser.set_defaults(command=command)
    return parser


def inspect(options: argparse.Namespace) -> None:
    """Print what the artifact was made of."""
    print(load(options.artifact))


def run(options: argparse.Namespace) -> None:
    """Call the function; print its outputs, or save them."""
    loaded = load(options.artifact)
    args, kwargs = read_inputs(loaded, options.inputs)
    results = (loaded.batched if options.batched else loaded)(*args, **kwargs)
    outputs = dict(zip(output_names(loaded), [results] if loaded.header.is_bare else results, strict=True))
    if options.out is None:
        for name, value in outputs.items():
            print(f"{name}: {value.dtype}{list(value.shape)}\n{value}")
    else:
        np.savez(options.out, **outputs)
        print(f"saved {', '.join(outputs)} in {options.out}")


def bench(options: argparse.Namespace) -> None:
    """Time loading, the first result, and the calls after it."""
    if options.calls < 1:
        raise ValueError("--calls is 1 or more.")
    started = perf_counter()
    loaded = load(options.artifact)
    loading = perf_counter() - started
    args, kwargs = read_inputs(loaded, options.inputs)
    times = []
    for _ in range(options.calls + 1):
        started = perf_counter()
        loaded(*args, **kwargs)
        times.append(perf_counter() - started)
    first, *later = times
    print(f"load          {loading * 1e3:10.3f} ms")
    print(f"first result  {first * 1e3:10.3f} ms, with the compilation")
    print(f"median call   {median(later) * 1e3:10.3f} ms of {len(later)}, the fastest {min(later) * 1e3:.3f} ms")
    print(f"on            {jax.devices()[0]}")


def output_names(loaded: LoadedFunction) -> list[str]:
    """Return a name for each output, none twice."""
    names: list[str] = []
    for output in loaded.header.outputs:
        names.append(output.name if output.name not in names else f"{output.name}_{len(names)}")
    return names


def read_inputs(loaded: LoadedFunction, texts: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments that the command line names, by position and by name."""
    known = [a.name for a in loaded.header.arguments]
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if equals and name in known:
            found = {name: read_value(value)}
        elif text.endswith(".npz"):
            with np.load(text, allow_pickle=False) as arrays:
                found = {key: arrays[key] for key in arrays.files}
        else:
            args.append(read_value(text))
            continue
        if again := kwargs.keys() & found.keys():
            raise TypeError(f"{sorted(again)[0]} is given twice.")
        kwargs |= found
    return args, kwargs


def read_value(text: str) -> Any:
    """Return the array in a file, or the number that a text spells."""
    if text.endswith(".npy"):
        return np.load(text, allow_pickle=False)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise TypeError(f"{text!r} is no .npy or .npz file and no number.")
