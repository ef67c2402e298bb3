"""The version of this package, which setup.cfg reads."""

__version__ = "0.1.0"
