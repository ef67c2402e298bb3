"""The functions of a kernel as programs have them: states are flat lists of arrays, and a call makes several transitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from pytensor_jaxpr_linker.pymc.chains.kernel import AboutChain, Kernel
from pytensor_jaxpr_linker.pymc.chains.long_scans import CutFunction
from pytensor_jaxpr_linker.pymc.chains.random_keys import KEYS, with_keys, without_keys


class ChainFunctions:
    """The functions that start a chain by the data of its key, tune it, and make transitions.

    Each is given the shared data and the inputs of which a kernel is made. Between them a state is a flat list of arrays: a kernel has classes and keys of
    its own in it.

    Parameters
    ----------
    make_kernel
        Returns the kernel, from the inputs.
    most
        How many transitions the outputs of `advance` have room for.
    is_ensemble
        Whether the functions take all chains at once: `Kernel.is_ensemble`.
    in_steps
        Whether a call makes as many steps of the tuning, or transitions, as are given. Else `start` makes the whole
        tuning, and `advance` makes `most` transitions.
    """

    def __init__(self, make_kernel: Callable[..., Kernel], most: int, is_ensemble: bool, in_steps: bool = True):
        self._make, self._most, self.is_ensemble, self._in_steps = make_kernel, most, is_ensemble, in_steps
        self._start_args: Any = None
        self._begun: Any = None
        self._ready: Any = None
        self._about: AboutChain | None = None

    def about(self) -> AboutChain:
        """Return what is known of the chain after `start` has been traced."""
        assert self._about is not None
        return self._about

    def start(self, given: tuple[dict, dict], key: Any, position: dict) -> list:
        """Return the state of a chain, before the first step of its tuning if it has one."""
        data, inputs = given
        kernel = self._make(**inputs)
        args = jax.random.wrap_key_data(key, impl=KEYS), position
        if kernel.has_warmup or not self._in_steps:
            steps, begun = 0, kernel.start(data, *args)
            ready = begun
        else:
            cut = self._cut(given, args)
            steps, begun = cut.steps, cut.begin()
            ready = jax.tree.unflatten(cut.tree, begun[: cut.results])
        self._start_args = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args)
        leaves, self._begun = jax.tree.flatten(without_keys(begun))
        self._ready = jax.tree.structure(without_keys(ready))
        self._about = AboutChain(kernel.has_warmup, kernel.first_evaluates, steps, self._ready.num_leaves)
        return leaves

    def _cut(self, given: tuple[dict, dict], args: Any) -> CutFunction:
        """Return the start of a kernel that adapts itself there, cut at its long scans."""

        def start(given: tuple[dict, dict], key: Any, position: dict) -> Any:
            data, inputs = given
            return self._make(**inputs).start(data, key, position)

        return CutFunction(start, given, *args)

    def tune(self, given: tuple[dict, dict, Any, Any], leaves: list) -> list:
        """Return the state before a step of the tuning, from that before another one."""
        data, inputs, begin, end = given
        cut = self._cut((data, inputs), self._start_args)
        state = with_keys(jax.tree.unflatten(self._begun, leaves))
        return jax.tree.leaves(without_keys(cut.go_on(begin, end, state)))

    def advance(self, given: tuple[dict, dict, Any], leaves: list) -> tuple[list, tuple[dict, dict]]:
        """Return the state after as many transitions as are given, and their positions and statistics, in arrays with room for `most`."""
        data, inputs, count = given
        kernel = self._make(**inputs)
        state = with_keys(jax.tree.unflatten(self._ready, leaves))
        if not self._in_steps:
            state, outputs = jax.lax.scan(lambda s, _: kernel.transition(data, s), state, length=self._most)
            return jax.tree.leaves(without_keys(state)), outputs
        transition = jax.jit(kernel.transition)  # is traced once, for the shapes of its outputs and in the loop
        _, one = jax.eval_shape(transition, data, state)
        room = jax.tree.map(lambda x: jax.numpy.zeros((self._most, *x.shape), x.dtype), one)

        def step(i: Any, loop: tuple) -> tuple:
            state, outputs = loop
            state, one = transition(data, state)
            store = jax.lax.dynamic_update_index_in_dim
            return state, jax.tree.map(lambda xs, x: store(xs, x, i, 0), outputs, one)

        state, outputs = jax.lax.fori_loop(0, count, step, (state, room))
        flat = jax.tree.leaves(without_keys(state))
        return flat, jax.tree.map(lambda x: jax.numpy.swapaxes(x, 0, 1), outputs) if kernel.is_ensemble else outputs


def for_one(function: Callable) -> Callable:
    """Map a function over an axis of length 1: under `vmap` each choice of the sampler would compute both of its branches."""

    def call(given: Any, *args: Any) -> Any:
        found = function(given, *jax.tree.map(lambda x: x[0], args))
        return jax.tree.map(lambda x: jax.numpy.expand_dims(x, 0), found)

    return call
