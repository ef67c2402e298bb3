"""Modules as MLIR: StableHLO functions around globals, with parameters in files beside them."""
