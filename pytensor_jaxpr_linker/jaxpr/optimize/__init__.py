"""Rewrites a Jaxpr before it is compiled."""
