"""Sparse matrices as arrays: a pass that rewrites the Ops of `pytensor.sparse` before the graph is analyzed."""
