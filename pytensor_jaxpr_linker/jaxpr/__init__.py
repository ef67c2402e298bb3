"""Builds one Jaxpr from one region, equation by equation."""
