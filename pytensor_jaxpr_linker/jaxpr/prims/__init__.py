"""The assembler: one function a primitive, and the only place that spells a primitive's params.

Each function takes a `JaxprBuilder`, the operand atoms and values for the params, states the shape and dtype of the
result, and returns the result's atom. Which params a primitive takes is a contract that JAX does not check and that
moves between releases: ``tests/jaxpr/test_prims.py`` compares every equation with the one that ``jax.make_jaxpr`` gives
for the same `jax.lax` call.

Operands of one elementwise primitive have equal shapes; JAX also takes 0-d operands. dtypes are not
promoted.

A function that has nothing to do, like a conversion to the same dtype, returns its operand. The peepholes of `simplify`
find equations that the definitions of their operands make simpler.
"""

from pytensor_jaxpr_linker.jaxpr.prims.arithmetic import *  # noqa: F403  # noqa: F403
from pytensor_jaxpr_linker.jaxpr.prims.control import *  # noqa: F403
from pytensor_jaxpr_linker.jaxpr.prims.indexing import *  # noqa: F403
from pytensor_jaxpr_linker.jaxpr.prims.layout import *  # noqa: F403
from pytensor_jaxpr_linker.jaxpr.prims.linalg import *  # noqa: F403
