"""Comparison helpers: mode JAXPR against PyTensor's own FAST_COMPILE mode."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
from jax.extend.core import check_jaxpr
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op

import pytensor_jaxpr_linker as pjl

#: Mode JAXPR for graphs that must be one program.
FULLGRAPH = Mode(pjl.JaxprLinker(pjl.Options(on_break="raise")), "fast_run")


def compare(
    inputs: Sequence[Variable],
    outputs: Any,
    values: Sequence[Any],
    rtol: float = 1e-7,
    atol: float = 1e-9,
    **kwargs: Any,
) -> list[np.ndarray]:
    """Check value, dtype and shape of mode JAXPR's outputs against FAST_COMPILE's; return JAXPR's."""
    outputs = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
    reference = pytensor.function(inputs, outputs, mode="FAST_COMPILE", on_unused_input="ignore", **kwargs)(*values)
    f = pytensor.function(inputs, outputs, mode="JAXPR", on_unused_input="ignore", **kwargs)
    results = f(*values)
    for variable, want, got in zip(outputs, reference, results, strict=True):
        assert isinstance(got, np.ndarray | np.generic), type(got)
        assert got.dtype == np.dtype(variable.type.dtype) == want.dtype, (variable, got.dtype, want.dtype)
        assert got.shape == want.shape, (variable, got.shape, want.shape)
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
    if f.vm.runner.program is not None:
        with jax.enable_x64(True):
            check_jaxpr(pjl.make_jaxpr(f, *values))
    return results


def compare_error(
    inputs: Sequence[Variable], output: Variable, values: Sequence[Any], match: str | None = None
) -> None:
    """Check that mode JAXPR raises the exception type that FAST_COMPILE raises, with `match` in its message."""
    import pytest

    reference = pytensor.function(inputs, output, mode="FAST_COMPILE", on_unused_input="ignore")
    with pytest.raises(Exception) as expected:
        reference(*values)
    f = pytensor.function(inputs, output, mode="JAXPR", on_unused_input="ignore")
    with pytest.raises(expected.type, match=match):
        f(*values)


def compare_grad(
    inputs: Sequence[Variable], output: Variable, values: Sequence[Any], rtol: float = 1e-6, atol: float = 1e-8
) -> None:
    """Check `jax.grad` of what mode JAXPR emits against `pt.grad`, for the floating inputs, and under `vmap`."""
    floats = [i for i, v in enumerate(inputs) if v.type.dtype.startswith("float")]
    weights = np.cos(np.arange(1.0, 1.0 + np.size(pytensor.function(inputs, output, mode="FAST_COMPILE")(*values))))
    cost = (output.ravel() * weights.astype(output.type.dtype)).sum()
    grads = pytensor.grad(cost, [inputs[i] for i in floats])
    expected = pytensor.function(inputs, grads, mode="FAST_COMPILE", on_unused_input="ignore")(*values)
    with jax.enable_x64(True):
        fn = pjl.as_jax_function(inputs, [cost], gradient="jax")
        arrays = [jax.numpy.asarray(v) for v in values]
        gradient = jax.grad(lambda *args: fn(*args)[0], argnums=tuple(floats))
        for want, got in zip(expected, gradient(*arrays), strict=True):
            np.testing.assert_allclose(np.asarray(got), want, rtol=rtol, atol=atol)
        axes = tuple(0 if i in floats else None for i in range(len(arrays)))
        batched = [a[None].repeat(2, 0) if i in floats else a for i, a in enumerate(arrays)]
        for want, got in zip(expected, jax.vmap(gradient, in_axes=axes)(*batched), strict=True):
            np.testing.assert_allclose(np.asarray(got), np.stack([want, want]), rtol=rtol, atol=atol)


class Doubled(Op):
    """Doubles on the host: nobody has a rule for it."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] * 2


def tensor_like(value: Any, name: str, static: bool = False) -> Variable:
    """Return an input of the dtype and rank (and shape, if `static`) of an example value."""
    value = np.asarray(value)
    return pt.tensor(name, dtype=value.dtype.name, shape=value.shape if static else (None,) * value.ndim)


def run_python(code: str, **env: str) -> str:
    """Run a program in a fresh interpreter, with `env` added to the environment, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **env},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
