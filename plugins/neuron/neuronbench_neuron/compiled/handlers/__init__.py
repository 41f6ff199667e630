"""Handlers of Neuron's workers: loaded by file path in a stack with torch_neuronx, never imported by the harness.

How models are built, their reference and their calls are in `neuronbench/worker/handlers` (in a worker `nb_worker`).
"""
