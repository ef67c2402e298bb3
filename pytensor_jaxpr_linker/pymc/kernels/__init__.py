"""Markov chains as pairs of JAX functions: one that starts a chain, and one that makes a transition."""
