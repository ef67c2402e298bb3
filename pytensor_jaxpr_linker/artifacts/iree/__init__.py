"""Compiles programs with IREE, and runs them by its runtime: files that need neither Python nor JAX."""
