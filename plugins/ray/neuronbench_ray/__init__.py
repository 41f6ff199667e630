"""neuronbench on a Ray cluster: load from many nodes, and points placed on nodes by their cores."""
