"""Chains and data on several devices and processes."""
