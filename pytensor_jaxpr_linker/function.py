"""The module that older pickles of functions of mode "JAXPR" name: its import says so."""

from pytensor_jaxpr_linker.base.errors import OLD_PICKLE

raise ImportError(OLD_PICKLE)
