"""The command line; ``python -m jaxpr_artifact`` has the commands for exported functions without importing PyTensor."""

import sys

from pytensor_jaxpr_linker.command_line.main import run_command

if __name__ == "__main__":
    sys.exit(run_command())
