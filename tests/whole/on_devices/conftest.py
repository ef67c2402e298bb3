"""These tests need eight devices: `tests/whole/test_on_devices.py` runs them in a process that has them."""

import jax

if len(jax.devices()) < 8:
    collect_ignore_glob = ["test_*.py"]
