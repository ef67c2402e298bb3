"""Where pickles of an older version look for functions of mode "JAXPR": importing it says so."""

from pytensor_jaxpr_linker.base.errors import OLD_PICKLE

raise ImportError(OLD_PICKLE)
