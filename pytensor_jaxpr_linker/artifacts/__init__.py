"""Writes functions into files that `jaxpr_artifact` reads."""
