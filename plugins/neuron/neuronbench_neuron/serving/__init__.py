"""Serving on Neuron: vLLM of every generation, its buckets, its compile caches, and what may be said of a window."""
