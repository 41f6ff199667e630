"""Telemetry of Neuron devices: `neuron-monitor`, and the driver's own counters in sysfs."""
