"""Modules as MLIR: StableHLO functions around globals, with files of parameters."""
