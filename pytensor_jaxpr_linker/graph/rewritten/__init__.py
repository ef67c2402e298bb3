"""Rewritten graphs that are kept, so that PyTensor rewrites an equal graph once. No JAX."""
