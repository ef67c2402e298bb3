"""Python functions made from their text: for programs of a few µs, the overhead of a Python loop matters.

No other module makes code. The docstring of each maker says how much a call saves, compared with a loop (medians,
alternating in one process, on a busy machine of two cores).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
from pytensor.graph.basic import Constant, Variable

from pytensor_jaxpr_linker.base import jax_compat
from pytensor_jaxpr_linker.base.errors import note_node
from pytensor_jaxpr_linker.base.options import current_stance
from pytensor_jaxpr_linker.plan.model import HostStep
from pytensor_jaxpr_linker.run import placement
from pytensor_jaxpr_linker.run.packing import CallBuffer, PackedProgram, Packing, flat_copy
from pytensor_jaxpr_linker.run.placement import process
from pytensor_jaxpr_linker.run.transfer_count import open_counts


def make_function(lines: Sequence[str], title: str, names: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function ``call`` that lines of Python code define, with the global variables `names`.

    Tracebacks show this file and the title. Warnings skip it, as they do all files of the package.
    """
    found = dict(names)
    exec(compile("\n".join(lines), f"{__file__} ({title})", "exec"), found)
    return found["call"]


class Declared(NamedTuple):
    """The values of an input: NumPy arrays of this dtype and shape as they are, and any other value after `convert`.

    The dtype is None if every value is converted. A length that is None may be any.
    """

    dtype: Any
    shape: tuple[int | None, ...]
    convert: Callable[[Any], Any]


def as_declared(inputs: Sequence[Declared]) -> Callable[[Sequence[Any]], list]:
    """Return the function that converts the arguments of a call as the inputs declare.

    It saves 1.3 µs, and 0.1 µs for each argument.

    Raises
    ------
    ValueError
        By that function, if there are more or fewer arguments.

    Examples
    --------
    >>> import numpy as np
    >>> from pytensor_jaxpr_linker.run.codegen import Declared, as_declared
    >>> as_declared([Declared(np.dtype("int64"), (None,), list), Declared(None, (), str)])([np.arange(2), 3])
    [array([0, 1]), '3']
    """
    names: dict[str, Any] = {"ndarray": np.ndarray}
    results = []
    for i, (dtype, shape, convert) in enumerate(inputs):
        names |= {f"dtype{i}": dtype, f"shape{i}": shape, f"convert{i}": convert}
        test = is_declared(i, shape)
        results.append(f"convert{i}(x{i})" if dtype is None else f"x{i} if {test} else convert{i}(x{i})")
    lines = ["def call(xs):", f" [{local_names('x', range(len(inputs)))}] = xs", f" return [{', '.join(results)}]"]
    return make_function(lines, "the arguments of a function", names)


def is_declared(i: int, shape: Sequence[int | None]) -> str:
    """Return the test whether an argument is a NumPy array of its declared dtype and shape."""
    fixed = "".join(f" and x{i}.shape[{k}] == {n}" for k, n in enumerate(shape) if n is not None)
    fits = f"x{i}.shape == shape{i}" if None not in shape else f"x{i}.ndim == {len(shape)}{fixed}"
    return f"type(x{i}) is ndarray and x{i}.dtype is dtype{i} and {fits}"


def local_names(prefix: str, numbers: Iterable[int]) -> str:
    """Return the names of local variables with these numbers, as elements of a list."""
    return ", ".join(f"{prefix}{i}" for i in numbers)


def short_call(
    inputs: Sequence[Declared],
    shared: Mapping[int, list],
    count: int,
    calls: Mapping[tuple, Callable[..., list]],
    arrays: Any,
) -> Callable[[Sequence[Any]], list | None]:
    """Return the function that hands the arguments of a user's call to the packed call for their shapes.

    It returns None if an argument is not as declared, or something else needs the general way. It does the work of
    `as_declared`, the linker's thunk and `ProgramCall`. It saves 1 µs of 3, and 3 µs more for two shared
    arrays.

    Parameters
    ----------
    inputs
        The first inputs of the program, which are the arguments.
    shared
        The cells of the shared arrays among the other inputs that something reads, by their positions.
    count
        How many inputs the program has.
    calls
        The packed calls, by the shapes of arguments and shared arrays.
    arrays
        The `SharedArrays` of these cells.
    """
    names: dict[str, Any] = {"ndarray": np.ndarray, "find": calls.get, "process": process, "open_counts": open_counts}
    names |= {"stance": current_stance.get, "arrays": arrays}
    names |= {"nans": jax_compat.debug_nans, "infs": jax_compat.debug_infs}  # `looks_for_nan` takes 0.06 µs more
    for i, (dtype, shape, _) in enumerate(inputs):
        names |= {f"dtype{i}": dtype, f"shape{i}": shape}
    names |= {f"cell{i}": cell for i, cell in shared.items()}
    tests = "".join(f" and {is_declared(i, shape)}" for i, (_, shape, _) in enumerate(inputs))
    is_plain = "not open_counts and not process.has_no_threads and not nans.value and not infs.value"
    lines = [
        "def call(args):",
        f" if len(args) != {len(inputs)}: return None",
        f" [{local_names('x', range(len(inputs)))}] = args",
        f" if stance() is None and {is_plain}{tests}:",
    ]
    if shared:
        unpack = f"[{', '.join(local_names(prefix, shared) for prefix in ('v', 'x', 's'))}] = arrays.kept"
        changed = " or ".join(f"cell{i}[0] is not v{i}" for i in shared)
        lines += [f"  {unpack}", f"  if {changed}:", "   if not arrays.read(): return None", f"   {unpack}"]
    own = [f"x{i}.shape" if None in shape else f"shape{i}" for i, (_, shape, _) in enumerate(inputs)]
    shapes = "".join(f"{shape}, " for shape in (*own, *(f"s{i}" for i in shared)))
    values = ", ".join(f"x{i}" if i < len(inputs) or i in shared else "None" for i in range(count))
    lines += [f"  found = find(({shapes}))", f"  if found is not None: return found({values})"]
    return make_function(lines, "the short call of a function", names)


def packed_call(
    program: PackedProgram,
    constants: Sequence[Any],
    inputs: int,
    converters: Sequence[Callable[[Any], Any]],
    check: Callable[[Any], None] | None,
    on_device: bool,
) -> Callable[..., list]:
    """Return the function that calls a program on its inputs, packed, and takes its results apart.

    It saves 0.7 µs for three results.

    Parameters
    ----------
    program
        The program of the arguments and `constants`.
    inputs
        How many arguments there are.
    converters
        Convert each result that is not packed to a value of the user's.
    check
        Tests the check code, unless that is packed and zero. None if the program returns no code after the results.
    on_device
        Whether the arguments that are not packed are JAX arrays on its device.
    """
    layout = program.layout
    arguments, results = layout.arguments, layout.results
    names: dict[str, Any] = {"array": np.array, "frombuffer": np.frombuffer, "join_bytes": b"".join}
    names |= {"flat_copy": flat_copy, "dtype": arguments.dtype, "program": program.call}
    names |= {f"x{inputs + i}": x for i, x in enumerate(constants)}
    names |= {f"convert{i}": c for i, c in enumerate(converters)}
    buffers: list[CallBuffer] = []
    names |= {"pop": buffers.pop, "push": buffers.append, "make_buffer": program.make_buffer}
    lines, operands = packed_arguments(program)
    count = len(converters) + (check is not None)
    whole = ["buffer.array" if layout.donates else "p"] * bool(results.pieces)
    targets = [*whole, *(f"r{i}" for i in results.others(count)), *["_"] * layout.has_witness]
    if on_device and program.executable is not None and (program.make_buffer or not arguments.pieces):
        names |= program.executable._asdict()
        lines.append(f" [{', '.join(targets)}] = execute([{', '.join(operands)}]).consume_with_handlers(handlers)")
    else:
        names |= {"thread_x64": jax_compat.thread_x64, "set_thread_x64": jax_compat.set_thread_x64}
        lines += [" outside = thread_x64()", " try:", "  set_thread_x64(True)"]
        lines += [
            f"  [{', '.join(targets)}] = program({', '.join(operands)})",
            " finally:",
            "  set_thread_x64(outside)",
        ]
    scalars = {i for i, convert in enumerate(converters) if convert is placement.numpy_scalar} | {len(converters)}
    unpacking, unpacked = unpacked_results(results, scalars, layout.donates)
    lines += unpacking
    if program.make_buffer is not None:
        lines.append(" push(buffer)")
    values = [unpacked.get(i, f"convert{i}(r{i})") for i in range(len(converters))]
    if check is not None:
        names["check"] = check
        code = unpacked.get(count - 1)
        lines.append(f" check(r{count - 1})" if code is None else f" if {code}: check({code})")
    lines.append(f" return [{', '.join(values)}]")
    head = f"def call({local_names('x', range(inputs))}):"
    call: Any = make_function([head, *lines], "the call of a program", names)
    call.arguments, call.buffers, call.results = arguments, buffers, results
    return call


def packed_arguments(program: PackedProgram) -> tuple[list[str], list[str]]:
    """Return the lines that pack arguments, into the memory of a buffer if there is one, and the program's operands."""
    operands = [f"x{i}" for i in program.layout.others]
    if not program.layout.arguments.pieces:
        return [], operands
    packed = local_names("x", program.layout.arguments.positions)
    lines = [" try:", f"  packed = join_bytes(({packed},))"]
    # An array that is not contiguous.
    lines += [" except (TypeError, ValueError):", f"  packed = flat_copy(({packed},), dtype)"]
    if program.make_buffer is None:
        return lines, ["frombuffer(packed, dtype)", *operands]
    lines += [" try:", "  buffer = pop()", " except IndexError:", "  buffer = make_buffer()"]
    return [*lines, " buffer.memory[:] = packed"], ["buffer.array", *operands]


#: Up to this number, results are copied one by one: a copy takes 0.12 µs, a part of a copy of all 0.07 to 0.1 µs.
MOST_COPIES = 3


def unpacked_results(
    results: Packing, scalars: Collection[int], in_buffer: bool
) -> tuple[list[str], Mapping[int, str]]:
    """Return the lines that copy packed results from XLA's memory, and the expression of each, by its position.

    Parameters
    ----------
    scalars
        The positions of NumPy scalars.
    in_buffer
        Whether the results are in the memory of the call's buffer. If not, they are the JAX array ``p``.
    """
    pieces = results.pieces
    if in_buffer and len(pieces) <= MOST_COPIES:
        lines = [
            f" p{i} = buffer.results[{start}]" if i in scalars else f" p{i} = buffer.copies[{k}]()"
            for k, (i, start, _, _) in enumerate(pieces)
        ]
        return lines, {i: f"p{i}" for i in results.positions}

    def part(i: int, start: int, stop: int, shape: Sequence[int]) -> str:
        if not shape:
            return f"p[{start}]" if i in scalars else f"p[{start}, ...]"
        return f"p[{start}:{stop}]{'' if len(shape) == 1 else f'.reshape({shape})'}"

    lines = [" p = buffer.results.copy()" if in_buffer else " p = array(p)"] * bool(pieces)
    return lines, {piece.position: part(*piece) for piece in pieces}


class StageCall(NamedTuple):
    """A stage of a plan: the slots that it reads and writes, its function, and the function for a result of None."""

    inputs: Sequence[int]
    outputs: Sequence[int]
    call: Callable[[list], list | None]
    call_on_host: Callable[[list], list] | None


def call_stages(
    stages: Sequence[StageCall],
    inputs: int,
    outputs: Sequence[int],
    dead_after: Sequence[Sequence[int]],
    constants: Mapping[int, Any],
    own: Callable[[Any], Any],
) -> Callable[[list], list]:
    """Return the function that runs stages, in which slots are local variables.

    It saves 0.6 µs for each stage: 1.4 µs for two. It takes a list of values for the first slots, as many as `inputs`,
    and returns the values of the slots `outputs`, each in memory of its own, as XLA returns them: `own` copies an
    input, and a value that is returned twice. `dead_after` lists, for each stage, the slots that nothing reads after
    it. `constants` are the values of slots that no stage writes. If a stage fails, nothing outside is changed.
    """
    local = partial(local_names, "v")
    names: dict[str, Any] = {f"v{slot}": value for slot, value in constants.items()}
    names["own"] = own
    lines = ["def call(inputs):", f" [{local(range(inputs))}] = inputs", " del inputs"]
    for i, (stage, dead) in enumerate(zip(stages, dead_after, strict=True)):
        names |= {f"call{i}": stage.call, f"call_on_host{i}": stage.call_on_host}
        run = f"[{local(stage.outputs)}] = call{i}([{local(stage.inputs)}])"
        if stage.call_on_host is not None:
            run += f" or call_on_host{i}([{local(stage.inputs)}])"
        lines.append(f" {run}")
        if dead:
            lines.append(f" del {local(dead)}")
    counts = Counter(outputs)
    results = [f"own(v{slot})" if slot < inputs or counts[slot] > 1 else f"v{slot}" for slot in outputs]
    lines.append(f" return [{', '.join(results)}]")
    return make_function(lines, "the stages of a function", names)


def perform_nodes(
    step: HostStep,
    host_form: Callable[[Variable], Callable[[Any], Any]],
    declared_form: Callable[[Variable], Callable[[Any], Any]],
) -> Callable[[list], list]:
    """Return the function that calls the `perform` of each node of a step; one thread at a time is in it.

    It saves 0.8 µs for one node and 3 µs for eight, compared with the thunks of Ops and their shared cells. `host_form`
    converts a given value of a variable to the variable's type, `declared_form` a value that a node computed.
    """
    places: dict[Variable, str] = {}
    names: dict[str, Any] = {"deepcopy": deepcopy, "note_node": note_node, "lock": RLock()}

    def local(v: Variable) -> str:
        if v not in places:
            places[v] = f"v{len(places)}"
            if isinstance(v, Constant):
                names[places[v]] = v.data
        return places[v]

    def formed(v: Variable, form: Callable[[Any], Any]) -> str:
        names[form.__name__] = form
        return f"{form.__name__}({local(v)})"

    lines = ["def call(args):", f" [{', '.join(map(local, step.inputs))}] = args"]
    lines += [f" {local(v)} = {formed(v, host_form(v))}" for v in step.inputs]
    lines.append(" with lock:")
    for i, node in enumerate(step.nodes):
        cells: dict[Variable, list[Any]] = {v: [None] for v in (*node.inputs, *node.outputs)}
        node.op.prepare_node(node, storage_map=cells, compute_map={v: [False] for v in cells}, impl="py")
        names |= {f"node{i}": node, f"perform{i}": node.op.perform}
        destroyed = destroyed_inputs(node)
        operands = [f"deepcopy({local(v)})" if k in destroyed else local(v) for k, v in enumerate(node.inputs)]
        results = [f"r{k}" for k in range(len(node.outputs))]
        lines += [f"  {result} = [None]" for result in results]
        lines += ["  try:", f"   perform{i}(node{i}, [{', '.join(operands)}], [{', '.join(results)}])"]
        lines += ["  except Exception as error:", f"   note_node(error, node{i})", "   raise"]
        lines += [f"  {local(v)} = {result}[0]" for v, result in zip(node.outputs, results, strict=True)]
    lines.append(f" return [{', '.join(formed(v, declared_form(v)) for v in step.outputs)}]")
    return make_function(lines, "the nodes of a host step", names)


def destroyed_inputs(node: Any) -> set[int]:
    """Return the positions of the inputs whose memory the Op of a node writes to."""
    return {i for positions in node.op.destroy_map.values() for i in positions}
