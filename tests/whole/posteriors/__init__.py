"""PyMC models of posteriors of posteriordb, by the names of Stan's models."""

from importlib import import_module
from pathlib import Path

from posteriors.models import MODELS

for module in sorted(Path(__file__).parent.glob("*.py")):
    if module.stem != "__init__":
        import_module(f"posteriors.{module.stem}")

__all__ = ["MODELS"]
