"""Registers the linker, the mode, the rewrites and the constructors of shared variables with PyTensor. The package calls `register` when it is imported."""

from __future__ import annotations

import os

from pytensor.compile.mode import Mode, optdb, predefined_linkers, predefined_modes, register_linker, register_mode
from pytensor.compile.rewriting import rewrite_ofg_inner_graph
from pytensor.graph.rewriting.basic import dfs_rewriter
from pytensor.link.jax.linker import JAXLinker
from pytensor.scan.rewriting.inner_graph import rewrite_scan_inner_graph
from pytensor.tensor.rewriting.optimize import rewrite_optimize_inner_graph

from pytensor_jaxpr_linker.base.logs import LOGS_VARIABLE, show_logs
from pytensor_jaxpr_linker.base.pytensor_compat import accept_as_config_mode, set_function_class, set_rewriter
from pytensor_jaxpr_linker.frontend.early_folding import EARLY_FOLDING, EarlyFolding
from pytensor_jaxpr_linker.frontend.function import JaxprFunction
from pytensor_jaxpr_linker.frontend.linker import JaxprLinker
from pytensor_jaxpr_linker.frontend.logsumexp_gradient import FIXED_MAXIMA, PLAIN_RATIOS, fix_maxima, undo_softmax
from pytensor_jaxpr_linker.frontend.original_graph import KEEP, KeepOriginal
from pytensor_jaxpr_linker.frontend.rewrite_cache import FIND, KEEP_OR_EXPAND, REWRITE_CACHE, Finders, KeepOrExpand
from pytensor_jaxpr_linker.frontend.rewriters import without_measurements
from pytensor_jaxpr_linker.frontend.shared_arrays import register_constructors
from pytensor_jaxpr_linker.frontend.stable_logarithms import REWRITES as STABLE
from pytensor_jaxpr_linker.frontend.stable_logarithms import STABLE_LOGARITHMS
from pytensor_jaxpr_linker.graph.scan_trace import REDUCED_TRACES, reduce_trace

#: The rewrites of graphs, by their position among PyTensor's; the linker asks for them by name.
OPTDB_REWRITES = (
    (-3, FIND, Finders()),
    (-2, KEEP, KeepOriginal()),
    (-1.5, EARLY_FOLDING, EarlyFolding()),
    (-0.02, FIXED_MAXIMA, dfs_rewriter(fix_maxima)),  # before `inline_ofg_expansion`
    (1.501, PLAIN_RATIOS, dfs_rewriter(undo_softmax)),  # after `stabilize`
    (1.612, REDUCED_TRACES, dfs_rewriter(reduce_trace, ignore_newtrees=True)),  # where PyTensor has its own
    (1000, KEEP_OR_EXPAND, KeepOrExpand()),
)


def register(mode: Mode) -> None:
    """Register the linker ``"jaxpr"`` and the class of its functions, `mode` as ``"JAXPR"``, the rewrites and the constructors.

    A package that is reloaded registers none of them again.
    """
    show_logs(os.environ.get(LOGS_VARIABLE, ""))
    if "jaxpr" not in predefined_linkers:
        register_linker("jaxpr", JaxprLinker())
    if "JAXPR" not in predefined_modes:
        register_mode("JAXPR", mode)
        accept_as_config_mode("JAXPR")
    set_function_class(JaxprLinker, JaxprFunction)
    set_rewriter(JaxprLinker, without_measurements)
    for position, name, rewrite in OPTDB_REWRITES:
        if name not in optdb:
            optdb.register(name, rewrite, *(REWRITE_CACHE,) * (name in (FIND, KEEP_OR_EXPAND)), position=position)
    stabilize = optdb["stabilize"]
    for name, rewriter in STABLE.items():
        if name not in stabilize:
            stabilize.register(name, rewriter, STABLE_LOGARITHMS, use_db_name_as_tag=False)
    register_constructors()
    # PyTensor chooses the rewrites of inner graphs by the linker's class: ours wants what its functional backends get.
    for of_inner_graph in (rewrite_ofg_inner_graph, rewrite_scan_inner_graph, rewrite_optimize_inner_graph):
        of_inner_graph.register(JaxprLinker)(of_inner_graph.dispatch(JAXLinker))
