"""`JaxprFunction`, a PyTensor function that threads may call at the same time, and the mode that makes such functions."""

from __future__ import annotations

import copyreg
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from pytensor.compile.executor import Function
from pytensor.compile.maker import FunctionMaker
from pytensor.compile.mode import Mode

from pytensor_jaxpr_linker.storage import containers


class JaxprFunction(Function):
    """A compiled function that any number of threads may call at the same time.

    A `Function` passes arguments to its thunk in cells, of which it has one set. Here a call that comes while the cells are in
    use gets another set: a `Function` around the same programs, which is kept for later calls. Calls that update the same
    shared variable run one after the other, whatever functions they are calls of; all others run at the same time.
    """

    __slots__ = ("_spare", "_unused")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unused = threading.Lock()  # held while the cells of this object are in use
        self._spare: list[Function] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the results for the arguments, as `Function` does."""
        if not self._unused.acquire(False):
            return self._call_beside(*args, **kwargs)
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self._unused.release()

    def _call_beside(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with cells that nobody uses."""
        try:
            function = self._spare.pop()
        except IndexError:
            function = self._with_own_cells()
        function.trust_input, function.profile = self.trust_input, self.profile
        try:
            return function(*args, **kwargs)
        finally:
            self._spare.append(function)

    def _with_own_cells(self) -> Function:
        """Return a function around the same programs whose cells are its own, those of shared variables apart."""
        vm: Any = self.vm
        given = [[None] if own else c.storage for c, own in zip(self.input_storage, self.maker.required, strict=True)]
        storage = vm.storage.with_inputs(given)
        thunk = vm.runner.thunk(storage)
        thunk.allow_gc, thunk.storage_map = vm.allow_gc, vm.storage_map
        inputs, outputs = containers(self.maker.fgraph, storage.inputs, storage.outputs)
        return Function(
            thunk, inputs, outputs, self.outputs, self.unpack_single, self.return_none, self.maker, name=self.name
        )


copyreg.pickle(JaxprFunction, copyreg.dispatch_table[Function])


class JaxprMode(Mode):
    """A mode whose functions are `JaxprFunction`: for `JaxprLinker`, with the parameters of `pytensor.compile.mode.Mode`.

    Examples
    --------
    >>> import pytensor, pytensor.tensor as pt
    >>> import pytensor_jaxpr_linker as pjl
    >>> x = pt.vector("x", dtype="float64")
    >>> mode = pjl.JaxprMode(pjl.JaxprLinker(pjl.Options(on_break="raise")), "fast_run")
    >>> pytensor.function([x], x.sum(), mode=mode)([1.0, 2.0])
    array(3.)
    """

    @property
    def function_maker(self) -> Callable[..., FunctionMaker]:
        """What makes a function of this mode."""
        return partial(FunctionMaker, function_class=JaxprFunction)
