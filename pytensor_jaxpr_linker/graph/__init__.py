"""Rewrites and analyses of PyTensor graphs, so that they can be cut into regions."""
