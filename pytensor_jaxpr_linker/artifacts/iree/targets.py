"""What IREE compiles for: names of targets, and the flags that they stand for."""

from __future__ import annotations

from collections.abc import Sequence

#: A name of `TARGETS`, or flags of ``iree-compile``.
type CompileTarget = str | Sequence[str]

#: Without the first, IREE computes float64 in float32. Without the second, constant subgraphs are compiled and run while compiling, and that
#: fails for some programs ("jit global source initialization order invalid").
FOR_ALL = ("--iree-input-demote-f64-to-f32=false", "--iree-opt-const-eval=false")

CPU = "--iree-hal-target-backends=llvm-cpu"

#: IREE's own linker knows no library, and float64 needs the sine of the C library: see `linked`.
SYSTEM_LIBRARY = "--iree-llvmcpu-link-embedded=false"

TARGETS: dict[str, tuple[str, ...]] = {
    "host": (CPU, "--iree-llvmcpu-target-cpu=host", SYSTEM_LIBRARY),
    "x86-64": (
        CPU,
        "--iree-llvmcpu-target-triple=x86_64-unknown-linux-gnu",
        "--iree-llvmcpu-target-cpu=generic",
        SYSTEM_LIBRARY,
    ),
    "aarch64": (
        CPU,
        "--iree-llvmcpu-target-triple=aarch64-unknown-linux-gnu",
        "--iree-llvmcpu-target-cpu=generic",
        SYSTEM_LIBRARY,
    ),
    "cuda": ("--iree-hal-target-backends=cuda", "--iree-cuda-target=sm_80"),
}


def flags_of(target: CompileTarget) -> tuple[str, ...]:
    """Return the flags of a target.

    Raises
    ------
    ValueError
        If there is no target of that name, and these are no flags.

    Examples
    --------
    >>> flags_of("cuda")
    ('--iree-hal-target-backends=cuda', '--iree-cuda-target=sm_80')
    """
    if isinstance(target, str) and target in TARGETS:
        return TARGETS[target]
    if isinstance(target, list | tuple) and target and all(isinstance(f, str) and f.startswith("-") for f in target):
        return tuple(target)
    raise ValueError(
        f"target is one of {', '.join(map(repr, TARGETS))}, or a list of flags of iree-compile, not {target!r}."
        " 'host', 'x86-64' and 'aarch64' are IREE's llvm-cpu; another backend is chosen by a flag, such as"
        " ['--iree-hal-target-backends=vulkan-spirv']."
    )


def target_name(target: CompileTarget) -> str:
    """Return what a file calls its target."""
    return target if isinstance(target, str) else " ".join(target)
