"""A `neuronxcc` that is not one: what kernels are written and timed with, on numpy, for made-up hosts."""
