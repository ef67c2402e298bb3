"""Changes the bytes of an artifact at random, and says what `load` makes of it.

``python tests/support/fuzz_artifacts.py 100000`` makes that many changes. Half of them change any bytes: all must be refused, since a checksum
covers each byte. The others change the header and then write the checksums that fit: what is not refused must describe itself, and may
fail when it is called, by an exception.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import struct
import tempfile
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

import pytensor_jaxpr_linker as pjl
from jaxpr_artifact import ArtifactError, load
from jaxpr_artifact.files import aligned, canonical, parsed

#: Magic, version and size of the header, checksum.
PREFIX = 56
OTHERS = [None, True, -1, 0, 1, 2**70, 0.5, "", "n", "n^99", "(" * 500, "float99", "a" * 3000, [], [[]], {}, {"a": 1}]


def make_artifact(path: Path) -> None:
    """Export a small function that has everything: symbols, state, constants, checks, derivatives, a batched program."""
    x, i = pt.dvector("x"), pt.lscalar("i")
    weights = pytensor.shared(np.arange(3.0), name="weights")
    data = pt.constant(np.random.default_rng(0).normal(size=(3_000, 3)))
    outputs = [pt.exp(x).sum() * weights[i], data @ weights]
    pjl.export([x, i], outputs, path=path, dims={"x": "n"}, vjp_order=1, batched=True, constraints=["n >= 2"])


def split(content: bytes) -> tuple[dict, bytes]:
    """Return the header and what follows it."""
    (size,) = struct.unpack("<Q", content[16:24])
    return parsed("", content[PREFIX : PREFIX + size]), content[PREFIX + size :]


def sealed(text: bytes, rest: bytes) -> bytes:
    """Return a file with this text as its header, and the checksum that fits."""
    text = text.ljust(aligned(PREFIX + len(text)) - PREFIX)
    numbers = struct.pack("<QQ", 1, len(text))
    return b"\x89JAXPR\r\n" + numbers + hashlib.sha256(numbers + text).digest() + text + rest


def with_header(header: dict, rest: bytes) -> bytes:
    """Return a file with this header, whose members are moved to where they are now, and the checksum that fits."""
    places = header.get("members")
    is_whole = isinstance(places, list) and all(
        isinstance(p, list) and len(p) == 4 and type(p[1]) is int for p in places
    )
    for _ in range(3 if is_whole and places else 0):
        shift = aligned(PREFIX + len(canonical(header))) - places[0][1]
        for place in places:
            place[1] += shift
    return sealed(canonical(header), rest)


def any_bytes(content: bytes, rng: random.Random) -> bytes:
    """Return the file with one change to its bytes."""
    at, length = rng.randrange(len(content)), rng.choice([1, 1, 2, 8, 100])
    junk = rng.randbytes(length)
    match rng.randrange(6):
        case 0:
            changed = content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
        case 1:
            changed = content[:at] + junk + content[at + length :]
        case 2:
            changed = content[:at] + junk + content[at:]
        case 3:
            changed = content[:at] + content[at + length :]
        case 4:
            changed = content[:at]
        case _:
            changed = content[:at] + bytes(length) + content[at + length :]
    return changed


def places_in(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return each place inside JSON: what holds it, and its key there."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        found.append((value, key))
        if isinstance(inner, dict | list):
            places_in(inner, found)
    return found


def header_with_fitting_checksum(content: bytes, rng: random.Random) -> bytes:
    """Return the file with another header, or another text of it, and fitting checksums."""
    header, rest = split(content)
    if rng.random() < 0.3:
        text = any_bytes(canonical(header), rng)
        return sealed(text.ljust(len(content) - len(rest) - PREFIX), rest)
    for _ in range(rng.choice([1, 1, 2])):
        holder, key = rng.choice(places_in(header, []))
        match rng.randrange(4):
            case 0 if isinstance(holder, dict):
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.insert(key, rng.choice(OTHERS))
            case 2 if isinstance(holder[key], int | float):
                holder[key] += rng.choice([-1, 1, 64, 2**40])
            case _:
                other, place = rng.choice(places_in(header, []))
                holder[key] = deepcopy(rng.choice([*OTHERS, other[place]]))
    return with_header(header, rest)


def outcome_of(path: Path, calls: bool) -> str:
    """Return what becomes of a file; any exception but those of the loader, and of a call, is an error of this package."""
    try:
        loaded = load(path)
    except ArtifactError as error:
        return f"refused: {error.what.split(':')[0].split(chr(39))[0]:.60}"
    assert str(loaded) and repr(loaded)
    if not calls:
        return "loaded"
    try:
        loaded(np.ones(3), 1)
    except Exception as error:
        return f"loaded, the call raises {type(error).__name__}"
    return "loaded and called"


def fuzz(count: int, change: Callable[[bytes, random.Random], bytes], seed: int, calls: bool = False) -> Counter[str]:
    """Return how often each outcome came."""
    rng, outcomes = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "artifact"
        make_artifact(path)
        content = path.read_bytes()
        for _ in range(count):
            changed = change(content, rng)
            path.unlink()
            path.write_bytes(changed)
            outcomes["unchanged" if changed == content else outcome_of(path, calls)] += 1
    return outcomes


def main() -> None:
    """Run both kinds of changes and print the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calls", action="store_true", help="call what loads")
    options = parser.parse_args()
    for change in (any_bytes, header_with_fitting_checksum):
        print(f"{change.__name__}:")
        for outcome, times in fuzz(options.count // 2, change, options.seed, options.calls).most_common():
            print(f"  {times:>8}  {outcome}")


if __name__ == "__main__":
    main()
