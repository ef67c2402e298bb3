"""Runs a plan: programs that are compiled for the arguments they meet, and steps on the host."""
