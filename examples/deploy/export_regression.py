"""Export a step of a regression, and what it has learned, as a program that runs with neither Python nor JAX.

``python examples/deploy/export_regression.py --out deployed`` writes step.vmfb and the files x.npy and y.npy. `step_without_python.sh` does
steps with them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt

import pytensor_jaxpr_linker as pjl

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("deployed"), help="the folder to write to")
parser.add_argument("--target", default="host", help="host, x86-64, aarch64 or cuda")
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)

x, y = pt.dmatrix("x"), pt.dvector("y")
weights = pytensor.shared(np.zeros(3), name="weights")
count = pytensor.shared(np.array(0), name="count")
loss = ((x @ weights - y) ** 2).mean()
updates = {weights: weights - 0.1 * pt.grad(loss, weights), count: count + 1}
step = pytensor.function([x, y], loss, updates=updates, mode="JAXPR", name="step")

rng = np.random.default_rng(1)
rows = rng.normal(size=(50, 3))
targets = rows @ [1.0, -2.0, 0.5] + 0.01 * rng.normal(size=50)
pjl.export(step, path=options.out / "step.vmfb", examples=[rows, targets], target=options.target)
np.save(options.out / "x.npy", rows)
np.save(options.out / "y.npy", targets)
print(f"step.vmfb has {(options.out / 'step.vmfb').stat().st_size / 1000:.0f} kB")
