"""Compiled models on NeuronCores: `torch_neuronx.trace`, NEFFs kept by what they were made from, copies on cores."""
