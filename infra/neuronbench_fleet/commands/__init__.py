"""The commands of `neuronbench fleet`, one module each."""
