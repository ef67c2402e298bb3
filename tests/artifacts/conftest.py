"""What tests of artifacts share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import pytensor_jaxpr_linker as pjl
from jaxpr_artifact import IreeFunction


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> tuple[Callable[..., Any], IreeFunction]:
    """A step of gradient descent with a check, compiled by PyTensor and by IREE."""
    x, y, i = pt.dmatrix("x"), pt.dvector("y"), pt.lscalar("i")
    w = pytensor.shared(np.array([0.5, -1.0, 2.0]), name="w")
    n = pytensor.shared(np.array(0), name="n")
    loss = ((x @ w - y) ** 2).mean() + pt.log1p(pt.exp(w)).sum()
    updates = {w: w - 0.01 * pt.grad(loss, w), n: n + 1}
    fn = pytensor.function([x, y, i], [loss, y[i]], updates=updates, mode="JAXPR", name="step")
    path = tmp_path_factory.mktemp("step") / "step.vmfb"
    return fn, pjl.export(fn, path=path, dims={"x": "4, 3", "y": "4"})
