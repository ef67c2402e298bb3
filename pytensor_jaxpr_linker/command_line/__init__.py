"""``python -m pytensor_jaxpr_linker``: reports on model files, exported functions and the environment."""
