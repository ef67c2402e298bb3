"""The module that older pickles of functions of a mode with a `JaxprLinker` name: its import says so."""

from pytensor_jaxpr_linker.base.errors import OLD_PICKLE

raise ImportError(OLD_PICKLE)
