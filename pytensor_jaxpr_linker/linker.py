"""Where pickles of an older version look for functions of a mode with a `JaxprLinker`: importing it says so."""

from pytensor_jaxpr_linker.base.errors import OLD_PICKLE

raise ImportError(OLD_PICKLE)
