"""Runs chains of a kernel, and keeps their draws."""
