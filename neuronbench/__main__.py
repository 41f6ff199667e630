"""`python -m neuronbench`: the `neuronbench` command."""

import sys

from neuronbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
