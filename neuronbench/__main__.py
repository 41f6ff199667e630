"""`python -m neuronbench`: the `neuronbench` command."""

from neuronbench.cli import main

if __name__ == "__main__":
    main()
