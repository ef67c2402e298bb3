"""Decides which nodes run in which XLA program and which run on the host. Imports no JAX."""
