"""``python -m jaxpr_artifact inspect | run | bench FILE``."""

from __future__ import annotations

import argparse
import os
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxpr_artifact.descriptions import FunctionDescription
from jaxpr_artifact.files import replacing
from jaxpr_artifact.iree import DEVICE, IreeModule, IreeModuleFunction
from jaxpr_artifact.loaded import LoadedFunction
from jaxpr_artifact.loading import description_of, load
from jaxpr_artifact.state import ModuleState, State

INPUTS_HELP = (
    "arguments: FILE.npy in their order, NAME=FILE.npy, NAME=NUMBER, or FILE.npz, whose arrays have the names of"
    " arguments; `inspect` prints the names"
)


def main(given: Sequence[str] | None = None, program: str = "python -m jaxpr_artifact") -> int:
    """Run one command, print its findings, and return the exit status."""
    parser = argparse.ArgumentParser(program, description="Looks into, runs and times functions out of files.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_inspect_and_run(commands)
    bench_options = add(commands, bench, "time the first result and the calls after it")
    bench_options.add_argument("--calls", type=int, default=200, metavar="N", help="how many calls are timed (200)")
    add_choice(bench_options)
    bench_options.add_argument("inputs", nargs="*", metavar="INPUT", help=INPUTS_HELP)
    options = parser.parse_args(given)
    try:
        options.command(options)
    except Exception as error:  # of the file, the arguments, a check or JAX: one line, no traceback
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def add_inspect_and_run(commands: Any) -> None:
    """Add the parsers of the two commands that other command lines have, too."""
    add(commands, inspect, "say what the file was made of")
    run_options = add(commands, run, "call the function and print or save its outputs")
    out = "where to save the outputs, by name; FILE.npy for one output"
    run_options.add_argument("--out", metavar="FILE.npz", type=Path, help=out)
    state = "the state that the function updates: read from this file if it exists, and written into it after the call"
    run_options.add_argument("--state", metavar="FILE.npz", type=Path, help=state)
    batched = "whether arguments have one more axis, the first; all rows share arguments without it"
    run_options.add_argument("--batched", action="store_true", help=batched)
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
    """Print the contents of the file."""
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
    for place, value in given.items():
        callee.state.set({callee.places[place]: value})


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
    print(f"first result  {first * 1e3:10.3f} ms, with everything that is compiled or read then")
    print(f"median call   {median(later) * 1e3:10.3f} ms of {len(later)}, the fastest {min(later) * 1e3:.3f} ms")
    print(f"on            {callee.device}")


class Callee(NamedTuple):
    """A function that takes and returns arrays, and its state."""

    description: FunctionDescription
    call: Callable[[Sequence[Any]], Sequence[Any]]
    state: State
    places: Mapping[str, str]
    """The names in the state of the arrays that may change, by their places in trees."""
    device: str

    @property
    def outputs(self) -> list[str]:
        """A name for each output. A name that is there already gets its position."""
        found: list[str] = []
        for output in self.description.outputs:
            found.append(output.name if output.name not in found else f"{output.name}_{len(found)}")
        return found

    def read_state(self) -> dict[str, np.ndarray]:
        """Return the arrays of the state that may change, by their places."""
        return dict(zip(self.places, map(np.asarray, self.state.read([*self.places.values()])), strict=True))


def callee_in(
    path: str | os.PathLike, function: str | None = None, device: str | None = None, batched: bool = False
) -> Callee:
    """Return the function in a file, or the one of this name in a module.

    Raise a TypeError if the file has no such function, or can't run it like this.
    """
    loaded = load(path, device=device)
    is_by_jax = isinstance(loaded, LoadedFunction)
    if batched and not is_by_jax:
        raise TypeError("--batched is for files of JAX: a .vmfb file holds programs of fixed shapes.")
    where = str(jax.devices()[0]) if is_by_jax else device or DEVICE
    if isinstance(loaded, IreeModule):
        found = function_of_module(loaded, function)
        parts = [part for part in vars(loaded).values() if isinstance(part, ModuleState)]
        places = {place: name for part in parts for place, name in part._mutable_leaves()}
        return Callee(found.description, found.flat, found.state, places, where)
    if function is not None:
        raise TypeError(f"--function is for modules, and {os.fspath(path)} has one function, {loaded.__name__}.")

    def by_rows(args: Sequence[Any]) -> Sequence[Any]:
        outputs = loaded.batched(*args)
        return [outputs] if loaded.header.is_bare else outputs

    places = {name: name for name in loaded.state if name in loaded.description.writes}
    return Callee(loaded.description, by_rows if batched else loaded.flat, loaded.state, places, where)


def function_of_module(module: IreeModule, name: str | None) -> IreeModuleFunction:
    """Return the function of a module that has this name, or its only one."""
    functions = {f.__name__: f for f in vars(module).values() if isinstance(f, IreeModuleFunction)}
    own = [name for name, f in functions.items() if f.description.kind == "function"]
    if name not in functions and not (name is None and len(own) == 1):
        asked = "Say which function of the module" if name is None else f"The module has no function {name!r}"
        raise TypeError(f"{asked}, by --function: {', '.join(functions)}.")
    return functions[own[0] if name is None else name]


def read_inputs(names: Sequence[str], texts: Sequence[str]) -> list[Any]:
    """Return the values of arguments with these names, in order, or raise a TypeError.

    Texts are the inputs of `INPUTS_HELP`. They must give each argument once.
    """
    takes = f"it takes {', '.join(names) or 'no arguments'}"
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if text.endswith(".npz") and not (equals and name in names):
            found: dict[str, Any] = {**read_arrays(text)}
        elif equals and not Path(text).exists():
            found = {name: read_value(value) if name in names else None}
        else:
            positional.append(read_value(text))
            continue
        if unknown := [key for key in found if key not in names]:
            raise TypeError(f"{text} gives {unknown[0]!r}, and the function has no such argument: {takes}.")
        add_new(found, named)
    if len(positional) > len(names):
        raise TypeError(f"The function gets {len(positional)} arguments by position, and {takes}.")
    add_new(dict(zip(names, positional, strict=False)), named)
    if missing := [name for name in names if name not in named]:
        raise TypeError(f"The function does not get {', '.join(missing)}: {takes}.")
    return [named[name] for name in names]


def add_new(found: Mapping[str, Any], known: dict[str, Any]) -> None:
    """Add arguments to the known ones, or raise a TypeError if one is known already."""
    if again := sorted(found.keys() & known.keys()):
        raise TypeError(f"{again[0]} is given twice.")
    known |= found


def read_value(text: str) -> Any:
    """Return the array in a file, or the number that a text spells."""
    if text.endswith(".npy"):
        return np.load(text, allow_pickle=False)
    for kind in (int, float, complex):
        try:
            return kind(text)
        except ValueError:
            continue
    raise TypeError(f"{text!r} is no .npy or .npz file and no number.")


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Return the arrays of an ``.npz`` file by name."""
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def check_output_file(path: Path, outputs: Sequence[str]) -> None:
    """Raise a ValueError if outputs of these names can't be saved in a file of that name."""
    if path.suffix not in (".npz", ".npy"):
        raise ValueError(f"Outputs are saved in a .npz file, or one output in a .npy file, not {str(path)!r}.")
    if path.suffix == ".npy" and len(outputs) != 1:
        raise ValueError(
            f"A .npy file holds one array, and there are {len(outputs)}, {', '.join(outputs)}: name a .npz file."
        )


def save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays into an ``.npz`` file, by any names, or one into a ``.npy`` file, in place of an older file."""
    with replacing(path) as new:
        if path.suffix == ".npy":
            (array,) = arrays.values()
            np.save(new, array, allow_pickle=False)
            return
        with zipfile.ZipFile(new, "w") as archive:  # `numpy.savez` has parameters of its own, which names could be
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
