"""The ways in: the linker and mode for `pytensor.function`, and JAX functions of a graph."""
