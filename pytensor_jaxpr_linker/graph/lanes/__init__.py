"""Lanes: arrays of a static length stand for arrays whose length depends on values. Imports no JAX."""
