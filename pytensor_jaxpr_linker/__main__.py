"""The command line for exported functions; ``python -m jaxpr_artifact`` is the same without importing PyTensor."""

import sys

from jaxpr_artifact.command_line import main

if __name__ == "__main__":
    sys.exit(main(program="python -m pytensor_jaxpr_linker"))
