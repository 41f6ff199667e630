"""Training on NeuronCores: `trainer/optimum-neuron` (fine-tuning and more) and `trainer/nxd` (neuronx-distributed)."""
