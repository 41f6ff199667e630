"""Measuring an endpoint without pytest: what `neuronbench load` does."""

from neuronbench.standalone.foreign import measure_with
from neuronbench.standalone.native import MeasureError, measure
from neuronbench.standalone.result import Result

__all__ = ["MeasureError", "Result", "measure", "measure_with"]
