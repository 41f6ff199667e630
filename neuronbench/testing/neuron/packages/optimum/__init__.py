"""See `optimum.neuron`."""
