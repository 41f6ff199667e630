"""Training runs: the job that describes one, the log that tells of it, and the numbers made from that log."""

from __future__ import annotations

from neuronbench.training.job import TrainJob

__all__ = ["TrainJob"]
