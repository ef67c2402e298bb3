"""Runs a plan: programs, compiled when they are called with new shapes or static values, and steps on the host."""
