"""The command line, without PyTensor."""

import sys

from jaxpr_artifact.command_line import main

if __name__ == "__main__":
    sys.exit(main())
