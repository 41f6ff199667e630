"""Telemetry: samplers in a process of their own, and what is read from their samples."""
