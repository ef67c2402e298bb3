"""Lanes: arrays of a static length stand for those whose length depends on values. Imports no JAX."""
