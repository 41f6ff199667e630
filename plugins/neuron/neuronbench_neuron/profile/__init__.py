"""Profiles by `neuron-explorer` (or its predecessor `neuron-profile`): captured on request, read, and never timed."""
